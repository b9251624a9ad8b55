"""One pass of one layer, and one part of a transformer block in forward, as workloads.

Shapes, bytes and FLOPs are data; each layer has torch's own call and the formula in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pyperf_suite.errors import OneOf, Unsupported, UserError, Within
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiled_attention import attention_flop, visible_pairs
from pyperf_suite.measure.stopwatch import CudaStopwatch
from pyperf_suite.workloads.backends import RESULT, ByTorch, ExpectedOutputs, Passes, TorchDevice, use_products_of
from pyperf_suite.workloads.operands import element_type, torch_name
from pyperf_suite.workloads.operator import sets_to_rotate
from pyperf_suite.workloads.training import TransformerShape, require_for_reference
from pyperf_suite.workloads.workload import Kernel, Observed, Work, Workload, by_name

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

# An element may be off by so much of its own size and the tensor's root mean square together, the whole in norm by the
# second: rounding of operands and results, and what sums over tokens make of it. An element nobody wrote is off by 1.
ELEMENT_LIMIT = {"float32": 1e-3, "tfloat32": 3e-2, "bfloat16": 0.1, "float16": 2e-2}
NORM_LIMIT = {"float32": 1e-4, "tfloat32": 3e-3, "bfloat16": 2e-2, "float16": 3e-3}

# Of operands that small that it took more sets to leave caches cold, the caches are part of the answer.
MOST_SETS = 8

# In the order of a block; "activation" is GELU, or SiLU times up where gated.
BLOCK_PARTS = ("norm", "qkv", "scores", "projection", "up", "activation", "down", "residual")
PART_DTYPES = ("float32", "bfloat16", "float16")

PartOperands = tuple[list[Any], list[Any]]  # inputs and weights


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
        return self.out or self.hidden

    @property
    def side(self) -> int:
        return math.isqrt(self.seq)

    @property
    def inputs(self) -> tuple[Shape, ...]:
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
    """The passes that a layer has: without weights, backward is the input's gradient alone."""
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


@dataclass(frozen=True)
class LayerOperands:
    """Of one pass: the result, with its graph, where a gradient of it is requested."""

    inputs: tuple[Any, ...]
    weights: tuple[Any, ...]
    upstream: Any
    result: Any


class LayerSteps(Passes):
    """torch's own functions, convolutions in channels-last as NVIDIA and oneDNN advise."""

    def __init__(self, parameters: LayerPassParameters, seed: int, where: TorchDevice) -> None:
        use_products_of(where, parameters.dtype)
        self._p, self._where, p = parameters, where, parameters
        # The result's gradient has the same size.
        set_bytes = (p.elements + math.prod(p.output)) * p.element_bytes
        sets, cache = sets_to_rotate(
            set_bytes, Device("cuda" if where.is_gpu else "cpu", where.device.index or 0), MOST_SETS
        )
        if isinstance(where.stopwatch, CudaStopwatch):
            where.stopwatch.sets = sets
        path = "channels_last" if p.layer == "conv" else "autograd"
        details = {"operand_sets": sets, "cache": cache, **where.details()}
        names = p.of_phase(
            [f"the gradient of input {number}" for number in range(len(p.inputs))],
            [f"the gradient of weight {number}" for number in range(len(p.weights))],
        )
        super().__init__(
            where,
            Kernel(f"{p.layer}_{p.phase}", path, details),
            [self._drawn(seed) for _ in range(sets)],
            (RESULT,) if p.phase == "forward" else names,
        )

    def _drawn(self, seed: int) -> LayerOperands:
        p, torch = self._p, self._where.torch
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, torch_name(p.dtype))

        def drawn(shape: tuple[int, ...], scale: float = 1.0) -> Any:
            made = (torch.randn(shape, generator=generator) * scale).to(self._where.device, dtype)
            return made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 and p.layer == "conv" else made

        inputs = tuple(drawn(shape).requires_grad_() for shape in p.inputs)
        weights = tuple(torch.nn.Parameter(drawn(shape, math.prod(shape[1:]) ** -0.5)) for shape in p.weights)
        upstream = drawn(p.output)
        result = apply(torch, p.layer, inputs, weights) if p.phase != "forward" else None
        return LayerOperands(inputs, weights, upstream, result)

    def _run(self, operands: LayerOperands) -> tuple[Any, ...]:
        if operands.result is None:
            return (apply(self._where.torch, self._p.layer, operands.inputs, operands.weights),)
        return self._gradients(operands, again=True)

    def _gradients(self, of: LayerOperands, again: bool) -> tuple[Any, ...]:
        wanted = self._p.of_phase(of.inputs, of.weights)
        found: tuple[Any, ...] = self._where.torch.autograd.grad(of.result, wanted, of.upstream, retain_graph=again)
        return found

    def due(self) -> ExpectedOutputs:
        return self._due

    @functools.cached_property
    def _due(self) -> ExpectedOutputs:
        torch, p, own = self._where.torch, self._p, self._sets[0]
        inputs, weights = (
            tuple(each.detach().double().requires_grad_() for each in group) for group in (own.inputs, own.weights)
        )
        result = written_out(torch, p.layer, inputs, weights)
        wide = LayerOperands(inputs, weights, own.upstream.double(), result)
        found = (result.detach(),) if p.phase == "forward" else self._gradients(wide, again=False)
        exact = dict(zip(self._names, found, strict=True))
        share = ELEMENT_LIMIT[p.dtype]
        allowed = {name: share * (each.abs() + each.square().mean().sqrt()) for name, each in exact.items()}
        return ExpectedOutputs(exact, allowed, NORM_LIMIT[p.dtype])

    def observed(self) -> Mapping[str, Observed]:
        if self._p.phase != "forward":
            return {}
        return {"saved": Observed("B", (self._kept_bytes(),))}

    def _kept_bytes(self) -> int:
        """Of the storages that autograd saves, each once and whole; of a single layer hooks see all of them.

        held_bytes.kept says the same of any model, but its dispatch mode has torch import its compiler for seconds.
        """
        torch, own = self._where.torch, self._sets[0]
        kept: dict[int, int] = {}

        def saw(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(saw, lambda tensor: tensor):
            result = apply(torch, self._p.layer, own.inputs, own.weights)
        for weight in own.weights:
            kept.pop(weight.untyped_storage()._cdata, None)
        del result  # which has held what was saved, so that no address was taken twice
        return sum(kept.values())


class LayerPass(Workload[LayerPassParameters]):
    """A layer's forward pass, or its gradients by autograd."""

    name = "layer_pass"
    parameters_type = LayerPassParameters
    implementations = by_name(ByTorch(LayerSteps, queueing="held"))

    def footprint_bytes(self, parameters: LayerPassParameters) -> int:
        return parameters.elements * parameters.element_bytes * (1 if parameters.phase == "forward" else 2)

    def work(self, parameters: LayerPassParameters) -> Work:
        return work(parameters)


@dataclass(frozen=True)
class BlockPartParameters(TransformerShape):
    """A transformer, the part of one of its blocks that is timed, in that type and on so many CPU cores."""

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
    def product(self) -> bool:
        return self.layer == "linear"

    @property
    def inputs(self) -> tuple[int, ...]:
        """Elements a token of each input."""
        return {
            "scores": (sum(self.projected),),
            "activation": (self.width,) * (2 if self.gated else 1),
            "down": (self.width,),
            "residual": (self.hidden, self.hidden),
        }.get(self.part, (self.hidden,))

    @property
    def output(self) -> int:
        """Elements a token of the result."""
        widths = {"qkv": sum(self.projected), "up": (2 if self.gated else 1) * self.width, "activation": self.width}
        return widths.get(self.part, self.hidden)

    @property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        if self.part != "norm" and not self.product:
            return ()
        first = (self.hidden,) if self.part == "norm" else (self.output, *self.inputs)
        return (first,) if self.gated else (first, first[:1])


class PartSteps(Passes):
    """Forward of one part on seeded standard normal data, without autograd."""

    def __init__(self, parameters: BlockPartParameters, seed: int, where: TorchDevice) -> None:
        from pyperf_suite.workloads.training import gpt

        if parameters.attention != "sdpa" and parameters.part == "scores":
            raise Unsupported("A part is timed with torch's fused attention alone.")
        self._p, self._seed, self._gpt, torch, p = parameters, seed, gpt, where.torch, parameters
        self._layer = p.layer
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> Any:
            scale = shape[1] ** -0.5 if len(shape) == 2 else 1.0
            return (torch.randn(shape, generator=generator) * scale).to(where.device, getattr(torch, p.dtype))

        inputs = [drawn(p.batch, p.seq, width) for width in p.inputs]
        weights = [drawn(*shape) for shape in p.weights]
        super().__init__(where, Kernel(p.part, "torch", where.details()), [(inputs, weights)], [RESULT])

    def _run(self, operands: PartOperands) -> tuple[Any, ...]:
        with self._where.torch.no_grad():
            return (self._forward(*operands),)

    @functools.cached_property
    def _due(self) -> ExpectedOutputs:
        return ExpectedOutputs(*self._where_there_is_room(self._computed_on))

    def due(self) -> ExpectedOutputs:
        return self._due

    def _computed_on(self, device: Any) -> tuple[Any, Any]:
        p, gpt = self._p, self._gpt
        inputs, weights = ([each.to(device).double() for each in group] for group in self._sets[0])
        compute = self._attention_written_out if p.part == "scores" else self._forward
        rounding = gpt.Rounding.of(p.dtype, max(*p.inputs, p.output) if p.product else max(p.hidden, p.seq))

        def run(_dtype: Any, context: AbstractContextManager[Any]) -> dict[str, Any]:
            with context:
                return {RESULT: compute(inputs, weights)}

        with self._where.torch.no_grad():
            return gpt.exact_and_scales(run, rounding, gpt.RoundedOperations(rounding, self._seed + 1, device))

    def _forward(self, inputs: list[Any], weights: list[Any]) -> Any:
        operands = self._heads(inputs) if self._p.part == "scores" else inputs
        return apply(self._where.torch, self._layer, operands, weights)

    def _attention_written_out(self, inputs: list[Any], _weights: list[Any]) -> Any:
        p, device = self._p, inputs[0].device
        if device.type == "cpu":
            # Scores before the mask, behind it, and as weights.
            require_for_reference(3 * inputs[0].element_size() * p.batch * p.heads * p.seq**2)
        q, k, v = self._heads(inputs)
        return self._gpt.attention_written_out(q, k, v, self._gpt.later_keys(p.seq, device))

    def _heads(self, inputs: list[Any]) -> list[Any]:
        found: list[Any] = self._gpt.heads_of(inputs[0], self._p.projected, self._p.head_dim)
        return found


class BlockPart(Workload[BlockPartParameters]):
    """Norm, a projection, attention between its projections, activation function or residual sum."""

    name = "block_part"
    parameters_type = BlockPartParameters
    implementations = by_name(ByTorch(PartSteps))

    def footprint_bytes(self, parameters: BlockPartParameters) -> int:
        return self.work(parameters).bytes

    def work(self, parameters: BlockPartParameters) -> Work:
        p, flop = parameters, 0
        if p.product:
            flop = 2 * p.tokens * p.inputs[0] * p.output
        elif p.part == "scores":
            flop = 4 * p.batch * p.hidden * (p.seq * (p.seq + 1) // 2)
        weights = sum(math.prod(shape) for shape in p.weights)
        moved = p.tokens * (sum(p.inputs) + p.output) + weights
        return Work(flop, element_type(p.dtype).size_bytes * moved)
