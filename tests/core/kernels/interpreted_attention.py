"""A process in which Triton interprets: reads attentions as lines of JSON and answers how right each was.

Triton decides when it is imported whether it compiles or interprets, so the tests do this in a process of its own.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

from pyperf_suite.kernels.attention import Attention, Configuration, Shape
from pyperf_suite.kernels.attention_backward import Gradients

# Half a last place where results are rounded; the interpreter cuts bf16 off, which loses up to a whole one.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool) -> dict:
    """O, log-sum-exp and gradients in float64, the mask written out, each with the size of what it is summed from."""
    group = q.shape[1] // k.shape[1]
    q, do = q.double(), do.double()
    k, v = (tensor.double().repeat_interleave(group, 1) for tensor in (k, v))
    seq_q, seq_k, scale = q.shape[2], k.shape[2], q.shape[3] ** -0.5
    scores = q @ k.mT * scale
    if causal:
        latest = torch.arange(seq_q)[:, None] + seq_k - seq_q
        scores = scores.masked_fill(torch.arange(seq_k)[None, :] > latest, -torch.inf)
    weights = scores.softmax(3)
    o = weights @ v
    of_weights, lost = do @ v.mT, (do * o).sum(3, keepdim=True)
    of_scores = weights * (of_weights - lost) * scale
    sizes = weights * (of_weights.abs() + (do * o).abs().sum(3, keepdim=True)) * scale
    lse = scores.logsumexp(3)

    def over_group(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.unflatten(1, (-1, group)).sum(2)

    return {
        "o": (o, weights @ v.abs()),
        "lse": (lse, lse.abs() + 1),
        "dq": (of_scores @ k, sizes @ k.abs()),
        "dk": (over_group(of_scores.mT @ q), over_group(sizes.mT @ q.abs())),
        "dv": (over_group(weights.mT @ do), over_group(weights.mT @ do.abs())),
    }


def worst(result: torch.Tensor, expected: torch.Tensor, size: torch.Tensor, unit: float) -> float:
    """The largest error of an element in units of rounding of its size; NaN is infinitely wrong."""
    # Keys that no query sees have gradients of nothing at all.
    errors = (result.double() - expected).abs() / (size * unit).clamp_min(torch.finfo(torch.float64).tiny)
    return float(errors.nan_to_num(torch.inf).max())


def answer(shape: dict, configuration: dict, together: int | None = None) -> dict:
    """Two launches of one attention, forward or backward, into outputs of NaN, compared with float64."""
    requested, sizes = Configuration(**configuration), Shape(**shape)
    generator = torch.Generator().manual_seed(sum(shape.values()) + requested.head_dim)
    dtype = getattr(torch, requested.dtype)
    q_shape, k_shape = sizes.q(requested.head_dim), sizes.k(requested.head_dim)
    q, do = (torch.randn(q_shape, generator=generator).to(dtype) for _ in range(2))
    k, v = (torch.randn(k_shape, generator=generator).to(dtype) for _ in range(2))
    expected = reference(q, k, v, do, requested.causal)
    runs = []
    for _ in range(2):
        outputs = {
            name: torch.full(each.shape, torch.nan, dtype=torch.float32 if name == "lse" else dtype)
            for name, (each, _) in expected.items()
        }
        if requested.backward:
            del outputs["o"], outputs["lse"]
            o, lse = expected["o"][0].to(dtype), expected["lse"][0].float()
            Gradients(requested, sizes, "cpu", together).bind(q, k, v, o, lse, do, **outputs)()
        else:
            outputs = {"o": outputs["o"], "lse": outputs["lse"]}
            Attention(requested, sizes, "cpu", together).bind(q, k, v, **outputs)()
        runs.append(outputs)
    first, second = runs
    units = dict.fromkeys(first, ROUNDING[requested.dtype]) | {"lse": ROUNDING["float32"]}
    return {
        "errors": {name: worst(found, *expected[name], units[name]) for name, found in first.items()},
        "same_again": all(torch.equal(first[name], second[name]) for name in first),
    }


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            outcome = answer(**json.loads(line))
        except Exception as error:
            outcome = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(outcome), flush=True)
