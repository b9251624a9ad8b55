"""The transformer of the training workloads in torch's own modules, and how far honest rounding carries its results.

What honest rounding does comes from Monte Carlo arithmetic (Parker 1997): every operation's result, and in backward
every gradient, is off by a random share of the unit roundoff, as in the type that is judged. `judged` compares a step's
errors with how far its results then move. Imported where a case is prepared and nowhere else, for its classes are
torch's.
"""

from __future__ import annotations

import functools
import math
import random
import re
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from pyperf_suite.errors import Unsupported
from pyperf_suite.measure.tolerance import TABLE
from pyperf_suite.process.system import begin_deadline_anew
from pyperf_suite.workloads.training import TransformerShape
from pyperf_suite.workloads.workload import Checked, together

# What selective checkpointing keeps: results that cost most to compute again for the bytes they take
# (Korthikanti et al. 2022, section 5, turned round: there attention is what is dropped, for it kept its scores).
KEPT_BY_SELECTIVE = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    }
)

# By the names that shapes have for them.
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}

# Neighbours of a vector whose movement is averaged: enough to estimate a scale from, and few enough to follow it.
_WINDOW = 33

# Random roundings of a step, from which follows how far honest rounding moves each element.
DRAWS = 5

# How many factors an operation takes in a row at most.
_POOL = 1 << 20

# A sum of K terms of random sign errs by less than this times √K·u of its size with near certainty (tolerance.py).
_SUMMED = 4.0
# With TF32 tensor cores read float32 operands with 11 bits.
_TF32_OPERAND = 2.0**-11

# What honest errors stay below: see `judged`.
_LEAST, _RMS, _WORST, _FAR, _SHARE, _FEW = 0.5, 3.0, 20.0, 10.0, 2e-5, 4
_ALONG, _STRAY, _ENOUGH = 0.5, 5.0, 256
_CHANCE = 1e-8


class AttentionLayer(nn.Module):
    """Self-attention, causal but in an encoder, with shared key-value heads: x[batch, seq, hidden] to the same."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.head_dim, self.split, self.dropout = shape.head_dim, shape.projected, shape.dropout
        self.causal = not shape.classes
        self.shares_heads = shape.key_value_heads != shape.heads
        self.explicit, self.backend = shape.attention == "explicit", BACKENDS.get(shape.attention)
        self.qkv = nn.Linear(shape.hidden, sum(shape.projected), bias=not shape.gated)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=not shape.gated)
        if self.explicit:
            hidden = later_keys(shape.seq)
            self.register_buffer("hidden_keys", hidden if self.causal else hidden & False, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.qkv(x), self.split, self.head_dim)
        dropout = self.dropout if self.training else 0.0
        if self.explicit:
            result = attention_written_out(q, k, v, self.get_buffer("hidden_keys"), dropout)
        else:
            with sdpa_kernel(self.backend) if self.backend is not None else nullcontext():
                result = functional.scaled_dot_product_attention(
                    q, k, v, dropout_p=dropout, is_causal=self.causal, enable_gqa=self.shares_heads
                )
        return self.out(result.transpose(1, 2).flatten(2))


def heads_of(projected: Tensor, split: Sequence[int], head_dim: int) -> list[Tensor]:
    """Queries, keys and values [batch, heads, seq, head_dim] of what a layer's first product gives."""
    batch, seq, _ = projected.shape
    parts = projected.split(tuple(split), dim=-1)
    return [part.view(batch, seq, -1, head_dim).transpose(1, 2) for part in parts]


def later_keys(seq: int, device: Any = None) -> Tensor:
    """Which keys a causal mask hides from which query: those that come later."""
    return torch.ones(seq, seq, dtype=torch.bool, device=device).triu(1)


def attention_written_out(q: Tensor, k: Tensor, v: Tensor, hidden_keys: Tensor, dropout: float = 0.0) -> Tensor:
    """By its formula, with all scores in memory."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(hidden_keys, float("-inf")).softmax(dim=-1)
    return functional.dropout(weights, dropout) @ v


class Mlp(nn.Module):
    """GPT-2's two matrices with GELU, or Llama's three with SwiGLU."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.width, bias=False) if shape.gated else None
        self.up = nn.Linear(shape.hidden, shape.width, bias=not shape.gated)
        self.down = nn.Linear(shape.width, shape.hidden, bias=not shape.gated)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            return self.down(functional.silu(self.gate(x)) * self.up(x))
        return self.down(functional.gelu(self.up(x)))


class TransformerBlock(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = norm(shape), norm(shape)
        self.attention, self.mlp = AttentionLayer(shape), Mlp(shape)
        self.dropout = shape.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.attention(self.attention_norm(x)), self.dropout, self.training)
        return x + functional.dropout(self.mlp(self.mlp_norm(x)), self.dropout, self.training)


class TransformerBlocks(nn.Module):
    """A stack of blocks, checkpointed as the shape asks."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(shape) for _ in range(shape.layers))
        self.checkpointing = shape.checkpointing

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointing.kind == "none" or not self.training:
            return _through(self.blocks, x)
        group, context = 1, _selective
        if self.checkpointing.kind == "every":
            group, context = self.checkpointing.every, noop_context_fn
        for first in range(0, len(self.blocks), group):
            run = functools.partial(_through, self.blocks[first : first + group])
            x = checkpoint(run, x, use_reentrant=False, context_fn=context)
        return x


class Gpt(nn.Module):
    """Embeddings, blocks, norm, logits: tokens[batch, seq] and targets of the same shape to the mean loss in nats."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.seq, shape.hidden)
        self.dropout = shape.dropout
        self.blocks = TransformerBlocks(shape)
        self.norm = norm(shape)
        self._add_head(shape)
        self.register_buffer("places", torch.arange(shape.seq), persistent=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def _add_head(self, shape: TransformerShape) -> None:
        self.logits = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.logits.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(self.get_buffer("places")[: tokens.shape[1]])
        x = self.blocks(functional.dropout(x, self.dropout, self.training))
        logits = self._head(self.norm(x))
        # In float32 where it was less, but a float64 reference stays one.
        wide = torch.promote_types(logits.dtype, torch.float32)
        return functional.cross_entropy(logits.to(wide), targets.flatten())

    def _head(self, x: Tensor) -> Tensor:
        return self.logits(x).flatten(0, 1)


class Encoder(Gpt):
    """BERT as it is fine-tuned: tokens[batch, seq] and classes[batch] to the mean loss, by a pooled first token."""

    def _add_head(self, shape: TransformerShape) -> None:
        self.pooler = nn.Linear(shape.hidden, shape.hidden)
        self.classifier = nn.Linear(shape.hidden, shape.classes)

    def _head(self, x: Tensor) -> Tensor:
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return self.classifier(functional.dropout(pooled, self.dropout, self.training))


def norm(shape: TransformerShape) -> nn.Module:
    """RMSNorm where gated, as Llama has it, else LayerNorm."""
    return nn.RMSNorm(shape.hidden, eps=1e-5) if shape.gated else nn.LayerNorm(shape.hidden)


def build(shape: TransformerShape, seed: int = 0) -> nn.Module:
    """The seeded model in training mode on the CPU: a Gpt, an Encoder, or Blocks where there is no vocabulary."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not shape.vocab:
            return TransformerBlocks(shape)
        return Encoder(shape) if shape.classes else Gpt(shape)


def require_attention(shape: TransformerShape, device: torch.device | str, dtype: torch.dtype) -> None:
    """Raise Unsupported where the backend that attention is pinned to cannot take the shape there, in torch's words."""
    if shape.attention not in BACKENDS:
        return
    attention = AttentionLayer(replace(shape, batch=1)).to(device, dtype)
    x = torch.zeros(1, shape.seq, shape.hidden, device=device, dtype=dtype)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            attention(x).sum().backward()
        except RuntimeError as error:
            reasons = [str(each.message).split("(Triggered")[0].strip() for each in warned]
            said = next((each for each in reasons if each and not each.endswith("because:")), str(error))
            raise Unsupported(
                f"torch's {shape.attention} attention cannot take heads of {attention.head_dim} in {dtype} on this "
                f"{torch.device(device).type} ({said}): ask for sdpa, which chooses among those that can."
            ) from None


def inputs(shape: TransformerShape, seed: int = 0) -> tuple[Tensor, ...]:
    """Seeded tokens and targets [batch, seq] for a Gpt, classes [batch] for an Encoder; for Blocks a standard normal x.

    That is [batch, seq, hidden].
    """
    generator = torch.Generator().manual_seed(seed)
    if not shape.vocab:
        return (torch.randn(shape.batch, shape.seq, shape.hidden, generator=generator),)
    drawn = torch.randint(shape.vocab, (shape.batch, shape.seq + 1), generator=generator)
    if shape.classes:
        return drawn[:, :-1].clone(), drawn[:, -1] % shape.classes
    # Each in its own memory, which slices of a single sequence would share.
    own = torch.contiguous_format
    return drawn[:, :-1].clone(memory_format=own), drawn[:, 1:].clone(memory_format=own)


def compared_weights(model: nn.Module, shape: TransformerShape) -> dict[str, nn.Parameter]:
    """Those whose gradients are compared with float64, by name: see `TransformerShape.compares_all`."""
    within = {name: re.search(r"blocks\.(\d+)\.", name) for name, _ in model.named_parameters()}
    ends = ("0", str(shape.layers - 1))
    left_out = {name for name, layer in within.items() if layer and layer[1] not in ends and not shape.compares_all}
    return {name: each for name, each in model.named_parameters() if name not in left_out}


def summed(
    model: nn.Module,
    batches: Iterable[tuple[tuple[Tensor, ...], Any, float]],
    wide: torch.dtype,
    backward: bool = True,
    weights: Sequence[nn.Parameter] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """The result of each batch, and each weight's gradient of all of them in the type `wide`, both times their shares.

    A batch is the model's inputs, the gradient that comes from above (None of a loss) and its share; `weights` are by
    default all. By autograd.grad, which fills no gradient and so wakes no hook of DDP's.
    """
    weights = list(model.parameters()) if weights is None else weights
    results, total = [], [torch.zeros_like(each, dtype=wide, requires_grad=False) for each in weights]
    for given, upstream, share in batches:
        result = model(*given)
        results.append(result.detach().to(wide) * share)
        for due, found in zip(total, torch.autograd.grad(result, weights, upstream), strict=True) if backward else ():
            due += found.detach().to(wide) * share
        begin_deadline_anew()
    return results, total


def _through(blocks: Any, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


def _selective() -> Any:
    def policy(_context: Any, operation: Callable[..., Any], *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in KEPT_BY_SELECTIVE else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


@dataclass(frozen=True)
class Rounding:
    """What one operation of `dtype` over up to `inner` terms may do to its result."""

    unit: float
    stored: float
    smallest: float

    @classmethod
    def of(cls, dtype: str, inner: int = 1) -> Rounding:
        """Up to `unit` of the result, `stored` of it by storing it alone; the rest is by sums and operands."""
        stored, summed = TABLE[dtype].rounding, _SUMMED * inner**0.5 * TABLE["float32"].rounding
        operands = _TF32_OPERAND if dtype == "tfloat32" else 0.0
        return cls(stored + summed + operands, stored, TABLE[dtype].smallest)

    def applied(self, values: Tensor, factors: Factors) -> Tensor:
        result = torch.empty(values.shape, dtype=values.dtype, device=values.device)
        given, rounded = values.reshape(-1), result.view(-1)
        for begin in range(0, given.numel(), _POOL):
            part, out = given[begin : begin + _POOL], rounded[begin : begin + _POOL]
            factor = factors.some(part)
            torch.mul(part, factor, out=out)
            if self.smallest > 2.0**-100:  # else too small to matter
                out.add_(factor - 1, alpha=self.smallest / self.unit)
        return result

    def of_sums(self, right: Tensor, terms: float) -> Tensor:
        """The mean square of what so many additions do to each element, whose sums are as large as its neighbours."""
        wide = right.double().square()
        return (wide + smoothed(wide)) * (self.stored**2 * terms / 3) + self.smallest**2


class Factors:
    """Random factors of 1 ± `unit`, for an operation so many in a row of those that were drawn once.

    Drawing new ones takes several times as long as the operations of a transformer do.
    """

    def __init__(self, unit: float, seed: int, device: torch.device | str) -> None:
        drawn = torch.empty(2 * _POOL, device=device)
        self._pool = drawn.uniform_(1 - unit, 1 + unit, generator=torch.Generator(device).manual_seed(seed))
        self._start = random.Random(seed)

    def some(self, values: Tensor) -> Tensor:
        """As many as those values, at most `_POOL`, in their type."""
        begin = self._start.randrange(_POOL)
        return self._pool[begin : begin + values.numel()].to(values.dtype)


class _Rounded(torch.autograd.Function):
    """Rounds a result in forward, and the gradient that comes back to it in backward."""

    @staticmethod
    def forward(context: Any, values: Tensor, rounding: Rounding, factors: Factors) -> Tensor:
        context.rounding, context.factors = rounding, factors
        return rounding.applied(values, factors)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return context.rounding.applied(gradient, context.factors), None, None


class RoundedOperations(TorchFunctionMode):
    """While entered, what torch computes is rounded at random; views and what is given back unchanged are not.

    With `weights` so are parameters where they are used, as by a cast to the type that products are computed in.
    """

    def __init__(self, rounding: Rounding, seed: int, device: torch.device | str, weights: bool = False) -> None:
        super().__init__()
        self._rounding, self._weights = rounding, weights
        self._factors = Factors(rounding.unit, seed, device)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "__get__":
            return function(*args, **(kwargs or {}))
        if self._weights:
            args = tuple(self._round(each) if isinstance(each, torch.nn.Parameter) else each for each in args)
        if function is Tensor.softmax:
            # Fused attention subtracts in backward, from all keys of a query, one sum that was rounded.
            weights = self._round((args[0] - args[0].detach().amax(-1, True)).exp())
            return self._round(weights / self._round(weights.sum(-1, True)))
        result = function(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        storage = result.untyped_storage().data_ptr()
        if any(isinstance(each, Tensor) and each.untyped_storage().data_ptr() == storage for each in args):
            return result
        return self._round(result)

    def _round(self, values: Tensor) -> Tensor:
        rounded: Tensor = _Rounded.apply(values, self._rounding, self._factors)
        return rounded


def smoothed(squares: Tensor) -> Tensor:
    """The mean square of each element, from a few draws of it, by those of its neighbours.

    A few draws say little of their element. Those of a matrix go with its row and its column, of which a gradient's
    element is a sum of products; so mean squares of rows and columns together estimate it, in each square block by
    itself where a matrix consists of such, as that of queries, keys and values does. A quarter of the block's mean is
    added: where few tokens make up a gradient, elements of a row move together, all too little in some draws. In a
    vector it is the mean of neighbours and whole: the gradient of keys' biases is zero but for errors.
    """
    if squares.ndim == 0:
        return squares
    if squares.ndim == 1:
        row = squares.reshape(1, 1, -1)
        mean = functional.avg_pool1d(row, _WINDOW, 1, _WINDOW // 2, count_include_pad=False)
        return (mean.reshape(squares.shape) + squares.mean()) / 2
    width, count = squares.shape[-1], squares.numel() // squares.shape[-1]
    blocks = squares.reshape(-1, count if count % width else width, width)
    # All zero where nothing moved at all.
    whole = blocks.mean((1, 2), True).clamp(min=torch.finfo(torch.float64).tiny)
    return (blocks.mean(2, True) * (blocks.mean(1, True) / whole) + whole / 4).reshape(squares.shape)


def exact_and_scales(
    run: Callable[[torch.dtype, AbstractContextManager[Any]], Mapping[str, Tensor]],
    rounding: Rounding,
    operations: RoundedOperations,
    sums: int = 0,
    additions: int = 1,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a step gives, by name in float64, and how far honest rounding moves each element, in root mean square.

    `run(dtype, context)` computes it in that type and context: once in float64, then by random `operations` in float32,
    which is exact enough for a movement. `sums` is over how many terms vectors were summed by a kernel that keeps sums
    in the type itself, as torch's on a CPU do for the gradients of norms and biases; 0 where sums are kept in float32.
    `additions` is how many results of that kind the judged step adds up.
    """
    exact = {name: value.double() for name, value in run(torch.float64, nullcontext()).items()}
    squares = {name: torch.zeros_like(value) for name, value in exact.items()}
    for _ in range(DRAWS):
        for name, moved in run(torch.float32, operations).items():
            squares[name] += (moved - exact[name]).square_() / DRAWS
    for name, right in exact.items():
        terms = additions + (sums if right.ndim == 1 else 0)
        squares[name] = (smoothed(squares[name]) + rounding.of_sums(right, terms)).sqrt_()
    return exact, squares


def judged(found: Mapping[str, Tensor | None], exact: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> Checked:
    """A step's results and gradients against how far honest rounding moves them; the first that is wrong in words.

    An error to first order is a sum of thousands of independent roundings, nearly normal of the element's scale; its
    tail is heavier, as scales are estimated. With s an element's scale and r the root mean square of |error|/s over its
    tensor, a tensor is wrong with r over _RMS, with an element over _WORST·r·s, or with more than a few elements,
    _SHARE of them, over _FAR·r·s; r counts as _LEAST at least. Of few elements r may be larger: a scale from D draws of
    n elements is x times too small with a chance of about x^-Dn, of which half are taken as independent. And an error
    may lie along the gradient by _ALONG of its norm, apart from a share that all tensors have in common: a scaled
    gradient shows there first. docs/measured_code.md has how often honest steps came near these limits.
    """
    checks, along = [], {}
    for name, right in exact.items():
        values = found.get(name)
        if values is None:
            checks.append(Checked(right.numel(), right.numel(), f"{name} is missing"))
            continue
        off = values.detach().to(right.device, torch.float64) - right
        bad, limit = _beyond_rounding(off, scales[name])
        wrong, size = int(bad.sum()), float(right.norm())
        words = f"{name} is {float(off.norm()) / size if size else math.inf:.2g} off in norm"
        if 0 < wrong < bad.numel() or bad.ndim == 0:
            at = tuple(int(each) for each in bad.nonzero()[0]) if wrong else ()
            due = f"{float(right[at]):.6g} ± {limit * float(scales[name][at]):.1g}"
            words = f"{name} at {at} is {float(values[at]):.6g} where {due} is right"
        checks.append(Checked(wrong, bad.numel(), words))
        if not wrong and bad.numel() >= _ENOUGH and size:
            along[name] = _along(off, right / size, size)
    usual = statistics.median(gain for gain, _ in along.values()) if along else 0.0
    for name, (gain, most) in along.items():
        if min(abs(gain), abs(gain - usual)) > most:
            words = f"{name} is {1 + gain:.5g} times the right one, the others {1 + usual:.5g}"
            checks.append(Checked(exact[name].numel(), 0, words))
    return together(checks)


def _beyond_rounding(off: Tensor, scale: Tensor) -> tuple[Tensor, float]:
    """Which elements are wrong, all where the tensor is as a whole, and how many scales an element may be off."""
    share, count = off.abs() / scale, off.numel()
    most = min(_WORST, _RMS * _CHANCE ** (-2 / (DRAWS * count)))
    error = float(share.norm()) / max(1, int(share.count_nonzero())) ** 0.5
    usual = max(_LEAST, error) if error <= most else most  # NaN is not
    for limit, few in ((_WORST * usual, 0), (_FAR * usual, _FEW + _SHARE * count)):
        bad = ~(share <= limit)
        if int(bad.sum()) > few:
            return bad, limit
    return torch.full_like(bad, not error <= most), most


def _along(off: Tensor, direction: Tensor, size: float) -> tuple[float, float]:
    """The share of the gradient that the error has of it, and how large that may be.

    By chance it is larger where few elements make up the gradient.
    """
    many = 1 / float(direction.square().square().sum())
    return float((off * direction).sum()) / size, float(off.norm()) / size * (_ALONG + _STRAY / many**0.5)


def compared(
    found: Mapping[str, Tensor | None],
    exact: Mapping[str, Tensor],
    allowed: Mapping[str, Tensor],
    in_norm: float,
    first_number: int = 0,
) -> Checked:
    """Every element against its limit, and each tensor in norm; the first that is wrong in words.

    `in_norm` is a share of the exact tensor's norm. The first row has number `first_number`.
    """
    wrong, count, first = 0, 0, ""
    for name, right in exact.items():
        values, limit = found.get(name), allowed[name]
        count += right.numel()
        if values is None:
            wrong, first = wrong + right.numel(), first or f"{name} is missing"
            continue
        values = values.detach()
        off = (values.to(right.device, torch.float64) - right).abs()
        bad = ~(off <= limit)  # NaN is bad
        here = int(bad.sum())
        if here:
            at = tuple(int(each) for each in bad.nonzero()[0])
            due = f"{float(right[at]):.6g} ± {float(limit[at]):.1g}"
            reported = (first_number + at[0], *at[1:]) if first_number else at
            said = f"{name} at {reported} is {float(values[at]):.6g} where {due} is right"
        elif off.norm() > in_norm * right.norm():
            here = right.numel()
            said = f"{name} is {float(off.norm() / right.norm()):.2g} off in norm"
        if here:
            wrong, first = wrong + here, first or said
    return Checked(wrong, count, first)
