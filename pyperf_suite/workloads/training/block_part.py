"""One part of a transformer block in forward, as a workload: what its arithmetic and its bytes allow, part by part."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, Unsupported
from pyperf_suite.workloads.dtypes import element_type
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training import layers
from pyperf_suite.workloads.training.shape import TransformerShape, require_for_reference
from pyperf_suite.workloads.training.torch_steps import RESULT, ByTorch, Due, Passes
from pyperf_suite.workloads.workload import Kernel, Work, Workload, by_name

# In the order of a block; "activation" is GELU, or SiLU times up where gated.
BLOCK_PARTS = ("norm", "qkv", "scores", "projection", "up", "activation", "down", "residual")
PART_DTYPES = ("float32", "bfloat16", "float16")

Operands = tuple[list[Any], list[Any]]  # inputs and weights


@dataclass(frozen=True)
class BlockPartParameters(TransformerShape):
    """A transformer, the part of one of its blocks that is timed, in that type and on so many CPU cores."""

    part: Annotated[str, OneOf(BLOCK_PARTS)] = "norm"
    dtype: Annotated[str, OneOf(PART_DTYPES)] = "float32"
    workers: int = 1

    @property
    def layer(self) -> str:
        """Which of layers.apply the part is."""
        others = {
            "norm": "rms_norm" if self.gated else "layer_norm",
            "scores": "attention",
            "activation": "swiglu" if self.gated else "gelu",
            "residual": "add",
        }
        return others.get(self.part, "linear")

    @property
    def product(self) -> bool:
        """Whether the part is a linear layer."""
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
        """Shapes of a matrix, or of a norm's scale, and of a bias where there is one."""
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

    def _run(self, operands: Operands) -> tuple[Any, ...]:
        with self._where.torch.no_grad():
            return (self._forward(*operands),)

    @functools.cached_property
    def _due(self) -> Due:
        return Due(*self._where_there_is_room(self._computed_on))

    def due(self) -> Due:
        """In float64, where attention is written out."""
        return self._due

    def _computed_on(self, device: Any) -> tuple[Any, Any]:
        from pyperf_suite.workloads.training.rounding import RoundedOperations, Rounding, exact_and_limits

        p = self._p
        inputs, weights = ([each.to(device).double() for each in group] for group in self._sets[0])
        run = self._attention_written_out if p.part == "scores" else self._forward
        rounding = Rounding.of(p.dtype, max(*p.inputs, p.output) if p.product else max(p.hidden, p.seq))
        with self._where.torch.no_grad():
            operations = RoundedOperations(rounding, self._seed + 1, device)
            return exact_and_limits(lambda: {RESULT: run(inputs, weights)}, rounding, operations)

    def _forward(self, inputs: list[Any], weights: list[Any]) -> Any:
        operands = self._heads(inputs) if self._p.part == "scores" else inputs
        return layers.apply(self._where.torch, self._layer, operands, weights)

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
        """FLOPs of products, causal pairs alone; bytes of operands and results once each."""
        p, flop = parameters, 0
        if p.product:
            flop = 2 * p.tokens * p.inputs[0] * p.output
        elif p.part == "scores":
            flop = 4 * p.batch * p.hidden * (p.seq * (p.seq + 1) // 2)
        weights = sum(math.prod(shape) for shape in p.weights)
        moved = p.tokens * (sum(p.inputs) + p.output) + weights
        return Work(flop, element_type(p.dtype).size_bytes * moved)
