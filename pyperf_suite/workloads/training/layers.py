"""Layers whose passes are timed alone: shapes, bytes and FLOPs as data, torch's own call, and the float64 formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.laws.attention.counted import attention_flop, visible_pairs
from pyperf_suite.workloads.dtypes import element_type
from pyperf_suite.workloads.workload import Work

PASSES = ("forward", "backward", "dgrad", "wgrad")
WITH_PRODUCT = ("linear", "conv")
NORMS = ("layer_norm", "rms_norm")
ACTIVATIONS = ("gelu", "silu", "relu")
# "copy" is no layer: it reads and writes each byte once and computes nothing, which is what bandwidth can give.
LAYERS = (*WITH_PRODUCT, *NORMS, *ACTIVATIONS, "attention", "copy")

DTYPES = ("float32", "tfloat32", "bfloat16", "float16")

# Side of a convolution's kernel; with a border of zeros of half of it, images keep their size.
KERNEL = 3
EPSILON = 1e-5

Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class LayerPassParameters:
    """One pass of one layer over batch x seq tokens of `hidden` features.

    A convolution takes `batch` images of `seq` pixels, a square number, with `hidden` channels; attention `batch`
    sequences in `heads` causal heads. `out`, of linear and conv alone, is the number of features of the result, 0 for
    as many as hidden. Passes: "forward" keeps what backward needs; "backward" computes all gradients, "dgrad" those of
    the input, "wgrad" those of the weights. Nothing has a bias but layer_norm.
    """

    layer: Annotated[str, OneOf(LAYERS)] = "linear"
    phase: Annotated[str, OneOf(PASSES)] = "forward"
    batch: Annotated[int, Within(1)] = 1
    seq: Annotated[int, Within(1)] = 1024
    hidden: Annotated[int, Within(1)] = 512
    out: Annotated[int, Within(0)] = 0
    heads: Annotated[int, Within(1)] = 1
    dtype: Annotated[str, OneOf(DTYPES)] = "float32"
    workers: Annotated[int, Within(1)] = 1

    @property
    def tokens(self) -> int:
        return self.batch * self.seq

    @property
    def features(self) -> int:
        """Of the result."""
        return self.out or self.hidden

    @property
    def side(self) -> int:
        return math.isqrt(self.seq)

    @property
    def inputs(self) -> tuple[Shape, ...]:
        """Shapes of what comes in: x, or Q, K and V."""
        if self.layer == "conv":
            return ((self.batch, self.hidden, self.side, self.side),)
        if self.layer == "attention":
            return ((self.batch, self.heads, self.seq, self.hidden // self.heads),) * 3
        return ((self.tokens, self.hidden),)

    @property
    def weights(self) -> tuple[Shape, ...]:
        kernel = (KERNEL, KERNEL) if self.layer == "conv" else ()
        if self.layer in WITH_PRODUCT:
            return ((self.features, self.hidden, *kernel),)
        return ((self.hidden,),) * {"layer_norm": 2, "rms_norm": 1}.get(self.layer, 0)

    @property
    def output(self) -> Shape:
        if self.layer == "conv":
            return (self.batch, self.features, self.side, self.side)
        return (self.tokens, self.features) if self.layer == "linear" else self.inputs[0]

    @property
    def elements(self) -> int:
        """Of what comes in, weights and result."""
        return sum(math.prod(shape) for shape in (*self.inputs, *self.weights, self.output))

    @property
    def element_bytes(self) -> int:
        return element_type(self.dtype).size_bytes

    def of_phase(self, inputs: Sequence[T], weights: Sequence[T]) -> tuple[T, ...]:
        """Of what belongs to inputs and to weights, that whose gradients the pass computes."""
        return (*(inputs if self.phase != "wgrad" else ()), *(weights if self.phase != "dgrad" else ()))

    def validate(self) -> None:
        if self.out and self.layer not in WITH_PRODUCT:
            raise UserError(f"{self.layer} has as many features as it is given: leave out={self.out} out.")
        if self.layer == "conv" and self.side**2 != self.seq:
            raise UserError(
                f"conv takes square images, but seq = {self.seq} is no square: take {self.side**2} or "
                f"{(self.side + 1) ** 2}."
            )
        if self.layer == "attention" and self.hidden % self.heads:
            raise UserError(f"hidden = {self.hidden} cannot be divided into {self.heads} heads: choose a divisor.")
        if self.phase not in passes_of(self.layer):
            raise UserError(
                f"{self.layer} has no {self.phase} of its own: choose from {', '.join(passes_of(self.layer))}."
            )


def passes_of(layer: str) -> tuple[str, ...]:
    """The passes that a layer has: without weights, backward is the input's gradient and not told apart."""
    if layer == "copy":
        return ("forward",)
    return PASSES if layer in (*WITH_PRODUCT, *NORMS) else ("forward", "backward")


def work(p: LayerPassParameters) -> Work:
    """FLOPs of the products, and compulsory bytes: each operand read once, each result written once.

    Backward reads the result's gradient and what forward kept: the input of an activation or a norm (whose statistics
    are few), for attention the result as well. What is computed element by element is not counted in FLOPs.
    """
    x, w, y = (sum(math.prod(shape) for shape in shapes) for shapes in (p.inputs, p.weights, (p.output,)))
    product = p.layer in WITH_PRODUCT
    kept = x + y if p.layer == "attention" else x
    read_and_written = {
        "forward": (x + w, y),
        "backward": (y + kept + w, x + w),
        "dgrad": (y + w if product else y + x + w, x),
        "wgrad": (y + x, w),
    }
    return Work(_flop(p), sum(read_and_written[p.phase]) * p.element_bytes)


def apply(torch: Any, layer: str, inputs: Sequence[Any], weights: Sequence[Any]) -> Any:
    """The layer as people call it; with two inputs "add" is a residual sum and "swiglu" the gate and what it gates."""
    functional, x = torch.nn.functional, inputs[0]
    if layer == "linear":
        return functional.linear(x, *weights)
    if layer == "conv":
        return functional.conv2d(x, *weights, padding=KERNEL // 2)
    if layer in NORMS:
        return getattr(functional, layer)(x, x.shape[-1:], *weights, eps=EPSILON)
    if layer == "attention":
        shared = inputs[1].shape[1] != x.shape[1]
        return functional.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=shared)
    if layer == "add":
        return x + inputs[1]
    if layer == "swiglu":
        return functional.silu(x) * inputs[1]
    return x.clone() if layer == "copy" else getattr(functional, layer)(x)


def written_out(torch: Any, layer: str, inputs: Sequence[Any], weights: Sequence[Any]) -> Any:
    """The layer by its formula, for operands in float64; convolution alone is torch's own (im2col and a product)."""
    x = inputs[0]
    if layer == "linear":
        return x @ weights[0].T
    if layer == "conv":
        return apply(torch, layer, inputs, weights)
    if layer == "layer_norm":
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weights[0] + weights[1]
    if layer == "rms_norm":
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weights[0]
    if layer == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    if layer == "silu":
        return x / (1 + torch.exp(-x))
    if layer == "relu":
        return torch.where(x > 0, x, 0)
    return _attention(torch, *inputs) if layer == "attention" else x * 1


def _attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """One head after the other, in backward too, so that the scores of one are in memory at a time."""
    from torch.utils.checkpoint import checkpoint

    hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)

    def one(q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.T / math.sqrt(q.shape[-1])).masked_fill(hidden, float("-inf"))
        return scores.softmax(-1) @ v

    heads = zip(*(each.flatten(0, 1) for each in (q, k, v)), strict=True)
    return torch.stack([checkpoint(one, *head, use_reentrant=False) for head in heads]).view(q.shape)


def _flop(p: LayerPassParameters) -> int:
    if p.layer == "attention":
        pairs = visible_pairs(p.seq, p.seq, causal=True)
        return int(attention_flop(p.batch, p.heads, p.hidden // p.heads, pairs, p.phase == "backward"))
    if p.layer not in WITH_PRODUCT:
        return 0
    taps = KERNEL**2 if p.layer == "conv" else 1
    return (2 if p.phase == "backward" else 1) * 2 * taps * p.tokens * p.hidden * p.features
