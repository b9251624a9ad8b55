"""One pass of one layer, by itself or as a part of a transformer block in forward, as workloads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pyperf_suite.errors import OneOf, Unsupported, UserError, Within
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiled_attention import attention_flop, visible_pairs
from pyperf_suite.measure.stopwatch import CudaStopwatch
from pyperf_suite.workloads.backends import (
    RESULT,
    ByTorch,
    ComparedLaunches,
    ExpectedOutputs,
    TorchDevice,
    use_products_of,
)
from pyperf_suite.workloads.operands import element_type, torch_name
from pyperf_suite.workloads.operator import sets_to_rotate
from pyperf_suite.workloads.training import TransformerShape
from pyperf_suite.workloads.workload import Kernel, Observed, Work, Workload, by_name

PASSES = ("forward", "backward", "dgrad", "wgrad")
WITH_PRODUCT = ("linear", "conv")
NORMS = ("layer_norm", "rms_norm")
ACTIVATIONS = ("gelu", "silu", "relu")
# "copy" is no layer: it reads and writes each byte once and computes nothing, which is what bandwidth can give.
LAYERS = (*WITH_PRODUCT, *NORMS, *ACTIVATIONS, "attention", "copy")
# In the order of a block; "activation" is GELU, or SiLU times up where gated.
BLOCK_PARTS = ("norm", "qkv", "scores", "projection", "up", "activation", "down", "residual")

DTYPES = ("float32", "tfloat32", "bfloat16", "float16")
PART_DTYPES = ("float32", "bfloat16", "float16")

# Side of a convolution's kernel; with a border of zeros of half of it, images keep their size.
KERNEL = 3
EPSILON = 1e-5

# An element may be off by so much of its own size and the tensor's root mean square together, the whole in norm by the
# second: rounding of operands and results, and what sums over tokens make of it. An element nobody wrote is off by 1.
ELEMENT_LIMIT = {"float32": 1e-3, "tfloat32": 3e-2, "bfloat16": 0.1, "float16": 2e-2}
NORM_LIMIT = {"float32": 1e-4, "tfloat32": 3e-3, "bfloat16": 2e-2, "float16": 3e-3}

# Sets at most: where operands are so small that more would leave caches cold, the caches are part of the answer.
MOST_SETS = 8

Shape = tuple[int, ...]
T = TypeVar("T")


class LayerShapes:
    """Sizes of a pass's tensors, and its work; `most_sets` rotate, and forward keeps backward's where `keeps_graph`."""

    most_sets: ClassVar[int] = MOST_SETS
    keeps_graph: ClassVar[bool] = True

    @property
    def sizes(self: Any) -> tuple[int, int, int]:
        """Elements of the inputs, of the weights and of the result."""
        inputs, weights = (sum(map(math.prod, shapes)) for shapes in (self.inputs, self.weights))
        return inputs, weights, math.prod(self.output)

    @property
    def element_bytes(self: Any) -> int:
        return element_type(self.dtype).size_bytes

    @property
    def work(self: Any) -> Work:
        """FLOPs of the products, and compulsory bytes: each operand read once, each result written once.

        Backward reads the result's gradient and what forward kept: the input of an activation or a norm (whose
        statistics are few), for attention the result as well. Operations on single elements are not counted in FLOPs.
        """
        x, w, y = self.sizes
        kept = x + y if self.layer == "attention" else x
        moved = {
            "forward": x + w + y,
            "backward": y + kept + w + x + w,
            "dgrad": y + w + x if self.layer in WITH_PRODUCT else y + x + w + x,
            "wgrad": y + x + w,
        }
        flop, is_backward = 0, self.phase == "backward"
        if self.layer == "attention":
            pairs = visible_pairs(self.seq, self.seq, causal=True)
            flop = int(attention_flop(self.batch, self.heads, self.hidden // self.heads, pairs, is_backward))
        elif self.layer in WITH_PRODUCT:
            flop = (2 if is_backward else 1) * 2 * self.tokens * math.prod(self.weights[0])
        return Work(flop, moved[self.phase] * self.element_bytes)

    def entering(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the layer's inputs, of the inputs as they are drawn."""
        return inputs

    def of_phase(self: Any, inputs: Sequence[T], weights: Sequence[T]) -> tuple[T, ...]:
        """Select, of items of the inputs and of the weights, those whose gradients the pass computes."""
        return (*(inputs if self.phase != "wgrad" else ()), *(weights if self.phase != "dgrad" else ()))


@dataclass(frozen=True)
class LayerPassParameters(LayerShapes):
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
        return self.out or self.hidden

    @property
    def side(self) -> int:
        return math.isqrt(self.seq)

    @property
    def inputs(self) -> Sequence[Shape]:
        if self.layer == "conv":
            return ((self.batch, self.hidden, self.side, self.side),)
        if self.layer == "attention":
            return ((self.batch, self.heads, self.seq, self.hidden // self.heads),) * 3
        return ((self.tokens, self.hidden),)

    @property
    def weights(self) -> Sequence[Shape]:
        kernel = (KERNEL, KERNEL) if self.layer == "conv" else ()
        if self.layer in WITH_PRODUCT:
            return ((self.features, self.hidden, *kernel),)
        return ((self.hidden,),) * {"layer_norm": 2, "rms_norm": 1}.get(self.layer, 0)

    @property
    def output(self) -> Shape:
        if self.layer == "conv":
            return (self.batch, self.features, self.side, self.side)
        return (self.tokens, self.features) if self.layer == "linear" else self.inputs[0]

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


@dataclass(frozen=True)
class BlockPartParameters(LayerShapes, TransformerShape):
    """A transformer, and the part of one of its blocks that is timed: forward alone, on warm operands."""

    most_sets = 1
    keeps_graph = False
    phase: ClassVar[str] = "forward"

    part: Annotated[str, OneOf(BLOCK_PARTS)] = "norm"
    dtype: Annotated[str, OneOf(PART_DTYPES)] = "float32"
    workers: int = 1

    @property
    def layer(self) -> str:
        others = {
            "norm": "rms_norm" if self.gated else "layer_norm",
            "scores": "attention",
            "activation": "swiglu" if self.gated else "gelu",
            "residual": "add",
        }
        return others.get(self.part, "linear")

    @property
    def inputs(self) -> Sequence[Shape]:
        widths = {
            "scores": (sum(self.projected),),
            "activation": (self.width,) * (2 if self.gated else 1),
            "down": (self.width,),
            "residual": (self.hidden, self.hidden),
        }
        return tuple((self.batch, self.seq, width) for width in widths.get(self.part, (self.hidden,)))

    @property
    def output(self) -> Shape:
        widths = {"qkv": sum(self.projected), "up": (2 if self.gated else 1) * self.width, "activation": self.width}
        return (self.batch, self.seq, widths.get(self.part, self.hidden))

    @property
    def weights(self) -> Sequence[Shape]:
        if self.part != "norm" and self.layer != "linear":
            return ()
        first = (self.hidden,) if self.part == "norm" else (self.output[-1], self.inputs[0][-1])
        return (first,) if self.gated else (first, first[:1])

    def entering(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return heads_of(inputs[0], self.projected, self.head_dim) if self.part == "scores" else inputs


def passes_of(layer: str) -> tuple[str, ...]:
    """The passes that a layer has: without weights, backward is the input's gradient alone."""
    if layer == "copy":
        return ("forward",)
    return PASSES if layer in (*WITH_PRODUCT, *NORMS) else ("forward", "backward")


def heads_of(projected: Any, split: Sequence[int], head_dim: int) -> list[Any]:
    """Queries, keys and values [batch, heads, seq, head_dim] of what a layer's first product gives."""
    batch, seq, _ = projected.shape
    parts = projected.split(tuple(split), dim=-1)
    return [part.view(batch, seq, -1, head_dim).transpose(1, 2) for part in parts]


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
        return x @ weights[0].T + sum(weights[1:])
    if layer == "conv":
        return apply(torch, layer, inputs, weights)
    if layer == "layer_norm":
        centred = x - x.mean(-1, keepdim=True)
        normed = centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
        return normed * weights[0] + weights[1]
    if layer == "rms_norm":
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weights[0]
    if layer == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    if layer in ("silu", "swiglu"):
        return x / (1 + torch.exp(-x)) * (inputs[1] if layer == "swiglu" else 1)
    if layer == "relu":
        return torch.where(x > 0, x, 0)
    if layer == "add":
        return x + inputs[1]
    return _attention(torch, *inputs) if layer == "attention" else x * 1


def _attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """One head after the other, in backward too, so that the scores of one are in memory at a time."""
    hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)

    def one(q: Any, k: Any, v: Any) -> Any:
        return (q @ k.T / math.sqrt(q.shape[-1])).masked_fill(hidden, float("-inf")).softmax(-1) @ v

    class Head(torch.autograd.Function):
        """Computed again in backward. torch.utils.checkpoint would import torch's compiler, which takes seconds."""

        @staticmethod
        def forward(context: Any, *operands: Any) -> Any:
            context.save_for_backward(*operands)
            return one(*operands)

        @staticmethod
        def backward(context: Any, upstream: Any) -> Any:
            operands = [each.detach().requires_grad_() for each in context.saved_tensors]
            with torch.enable_grad():
                return torch.autograd.grad(one(*operands), operands, upstream)

    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
    heads = zip(*(each.flatten(0, 1) for each in (q, k, v)), strict=True)
    return torch.stack([Head.apply(*head) for head in heads]).view(q.shape)


@dataclass(frozen=True)
class LayerOperands:
    """Operands of one pass: the result has its graph where a gradient of it is requested."""

    inputs: tuple[Any, ...]
    weights: tuple[Any, ...]
    upstream: Any
    result: Any


class LayerSteps(ComparedLaunches):
    """torch's own functions, convolutions in channels-last as NVIDIA and oneDNN advise; operands rotate."""

    def __init__(self, parameters: Any, seed: int, where: TorchDevice) -> None:
        super().__init__(where)
        if parameters.layer == "attention" and getattr(parameters, "attention", "sdpa") != "sdpa":
            raise Unsupported("A part is timed with torch's fused attention alone.")
        use_products_of(where, parameters.dtype)
        self._p, p = parameters, parameters
        # The result's gradient has the same size.
        set_bytes = (sum(p.sizes) + math.prod(p.output)) * p.element_bytes
        device = Device("cuda" if where.is_gpu else "cpu", where.device.index or 0)
        self.sets, cache = sets_to_rotate(set_bytes, device, p.most_sets)
        if isinstance(where.stopwatch, CudaStopwatch):
            where.stopwatch.sets = self.sets
        details = {"operand_sets": self.sets, "cache": cache, **where.details()}
        path = "channels_last" if p.layer == "conv" else "autograd" if p.keeps_graph else "torch"
        self.kernel = Kernel(f"{p.layer}_{p.phase}", path, details)
        self._names = (RESULT,)
        if p.phase != "forward":
            kinds = (("input", len(p.inputs)), ("weight", len(p.weights)))
            self._names = p.of_phase(
                *([f"the gradient of {kind} {number}" for number in range(count)] for kind, count in kinds)
            )
        self._operands = [self._drawn(seed) for _ in range(self.sets)]
        # Results of each set are allocated at each launch.
        self._left: list[tuple[Any, ...]] = [()] * self.sets
        self._due: ExpectedOutputs | None = None

    def launch(self, index: int) -> None:
        place = index % self.sets
        self._left[place] = ()  # the last result is gone before the next is made
        self._left[place] = self._run(self._operands[place])

    def poison(self, index: int | None = None) -> None:
        """No results: those that no launch makes are missed."""
        for place in range(self.sets) if index is None else (index % self.sets,):
            self._left[place] = ()

    def results(self, index: int) -> Mapping[str, Any]:
        return dict(zip(self._names, self._left[index % self.sets], strict=False))

    def due(self) -> ExpectedOutputs:
        if self._due is None:
            p, operands = self._p, self._operands[0]
            inputs, weights = (
                tuple(each.detach().double().requires_grad_(p.keeps_graph) for each in group)
                for group in (operands.inputs, operands.weights)
            )
            result = written_out(self._where.torch, p.layer, p.entering(inputs), weights)
            wide = LayerOperands(inputs, weights, operands.upstream.double(), result)
            found = (result.detach(),) if p.phase == "forward" else self._run(wide)
            exact = dict(zip(self._names, found, strict=True))
            share = ELEMENT_LIMIT[p.dtype]
            allowed = {name: share * (each.abs() + each.square().mean().sqrt()) for name, each in exact.items()}
            self._due = ExpectedOutputs(exact, allowed, NORM_LIMIT[p.dtype])
        return self._due

    def observed(self) -> Mapping[str, Observed]:
        if self._p.phase != "forward" or not self._p.keeps_graph:
            return {}
        from pyperf_suite.workloads.training.held_bytes import kept

        own = self._operands[0]
        weights = self._where.torch.nn.ParameterList(own.weights)
        return {"saved": Observed("B", (kept(weights, lambda: self._run(own)).total,))}

    def _drawn(self, seed: int) -> LayerOperands:
        p, torch = self._p, self._where.torch
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, torch_name(p.dtype))

        def drawn(shape: Shape, scale: float = 1.0) -> Any:
            made = (torch.randn(shape, generator=generator) * scale).to(self._where.device, dtype)
            return made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 and p.layer == "conv" else made

        inputs = tuple(drawn(shape).requires_grad_(p.keeps_graph) for shape in p.inputs)
        weights = tuple(drawn(shape, math.prod(shape[1:]) ** -0.5).requires_grad_(p.keeps_graph) for shape in p.weights)
        upstream = drawn(p.output)
        result = None if p.phase == "forward" else apply(torch, p.layer, p.entering(inputs), weights)
        return LayerOperands(inputs, weights, upstream, result)

    def _run(self, of: LayerOperands) -> tuple[Any, ...]:
        p, torch = self._p, self._where.torch
        if of.result is None:
            return (apply(torch, p.layer, p.entering(of.inputs), of.weights),)
        wanted = p.of_phase(of.inputs, of.weights)
        gradients: tuple[Any, ...] = torch.autograd.grad(of.result, wanted, of.upstream, retain_graph=True)
        return gradients


class LayerPass(Workload[Any]):
    """A layer's forward pass, or its gradients by autograd."""

    name = "layer_pass"
    parameters_type: type = LayerPassParameters
    implementations: Mapping[str, Any] = by_name(ByTorch(LayerSteps, queueing="held"))

    def footprint_bytes(self, parameters: Any) -> int:
        return sum(parameters.sizes) * parameters.element_bytes * (1 if parameters.phase == "forward" else 2)

    def work(self, parameters: Any) -> Work:
        found: Work = parameters.work
        return found


class BlockPart(LayerPass):
    """Norm, a projection, attention between its projections, activation function or residual sum."""

    name = "block_part"
    parameters_type = BlockPartParameters
    implementations = by_name(ByTorch(LayerSteps))
