"""One part of a transformer block in forward, as a workload: what its arithmetic and its bytes allow, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import Unsupported, UserError, out_of_memory
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training.shape import TransformerShape
from pyperf_suite.workloads.training.trained_shape import require_for_reference
from pyperf_suite.workloads.workload import Checked, Implementation, Kernel, Place, Prepared, Work, Workload

# In the order of a block; "activation" is GELU, or SiLU times up where gated.
BLOCK_PARTS = ("norm", "qkv", "scores", "projection", "up", "activation", "down", "residual")
RESULT = "the result"
PART_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class BlockPartParameters(TransformerShape):
    """A transformer, the part of one of its blocks that is timed, in that type and on so many CPU cores."""

    part: str = "norm"
    dtype: str = "float32"
    workers: int = 1

    @property
    def projected(self) -> int:
        """Width of queries, keys and values together."""
        return self.hidden + 2 * self.key_value_heads * (self.hidden // self.heads)

    @property
    def product(self) -> tuple[int, int] | None:
        """Inputs and outputs of the linear layer that the part is, None where it is something else."""
        into = 2 if self.gated else 1
        return {
            "qkv": (self.hidden, self.projected),
            "projection": (self.hidden, self.hidden),
            "up": (self.hidden, into * self.width),
            "down": (self.width, self.hidden),
        }.get(self.part)

    @property
    def widths(self) -> tuple[int, int]:
        """Elements a token that the part must at least read and write."""
        others = {
            "norm": (self.hidden, self.hidden),
            "scores": (self.projected, self.hidden),
            "activation": ((2 if self.gated else 1) * self.width, self.width),
            "residual": (2 * self.hidden, self.hidden),
        }
        return self.product or others[self.part]


class BlockPart(Workload[BlockPartParameters]):
    """Norm, a projection, attention between its projections, activation function or residual sum."""

    name = "block_part"
    parameters_type = BlockPartParameters

    def __init__(self) -> None:
        self.implementations: Mapping[str, Implementation[BlockPartParameters]] = {"torch": TorchPart()}

    def validate(self, parameters: BlockPartParameters) -> None:
        """Raise UserError for a transformer, part or type that cannot be."""
        parameters.validate()
        for name, allowed in (("part", BLOCK_PARTS), ("dtype", PART_DTYPES)):
            if getattr(parameters, name) not in allowed:
                raise UserError(f"Unknown {name} {getattr(parameters, name)!r}: choose from {', '.join(allowed)}.")

    def footprint_bytes(self, parameters: BlockPartParameters) -> int:
        """Operands and results."""
        return self.work(parameters).bytes

    def work(self, parameters: BlockPartParameters) -> Work:
        """FLOPs of products, causal pairs alone; bytes of operands and results once each."""
        p, flop, weights = parameters, 0, 0
        if p.product:
            weights = p.product[0] * p.product[1] + (0 if p.gated else p.product[1])
            flop = 2 * p.tokens * p.product[0] * p.product[1]
        elif p.part == "scores":
            flop = 4 * p.batch * p.hidden * (p.seq * (p.seq + 1) // 2)
        elif p.part == "norm":
            weights = p.hidden * (1 if p.gated else 2)
        return Work(flop, PART_DTYPES[p.dtype] * (p.tokens * sum(p.widths) + weights))


class TorchPart(Implementation[BlockPartParameters]):
    """torch's own operations."""

    name = "torch"
    device_kind = "any"

    def validate(self, parameters: BlockPartParameters) -> None:
        """Raise UserError for more workers than there are cores."""
        require_cores(parameters.workers)

    def prepare(self, parameters: BlockPartParameters, place: Place) -> Prepared:
        """Draw operands there. Raises Unsupported where torch is absent or cannot use the GPU."""
        if parameters.attention != "sdpa" and parameters.part == "scores":
            raise Unsupported("A part is timed with torch's fused attention alone.")
        return PartSteps(parameters, place.seed, TorchDevice(place.device, parameters.workers, queueing="open"))


class PartSteps(Prepared):
    """Forward of one part on seeded standard normal data, without autograd."""

    def __init__(self, parameters: BlockPartParameters, seed: int, where: TorchDevice) -> None:
        self._p, self._where = parameters, where
        torch = where.torch
        generator = torch.Generator().manual_seed(seed)
        p = parameters
        kind = {"device": where.device, "dtype": getattr(torch, p.dtype)}
        count = 2 if p.part == "residual" or (p.part == "activation" and p.gated) else 1
        width = p.widths[0] // count
        drawn = [torch.randn(p.batch, p.seq, width, generator=generator) for _ in range(count)]
        self._inputs = [each.to(**kind) for each in drawn]
        self._weights: list[Any] = []
        if p.product:
            weight = torch.randn(p.product[1], p.product[0], generator=generator) / p.product[0] ** 0.5
            self._weights = [weight.to(**kind)]
            if not p.gated:
                self._weights.append(torch.randn(p.product[1], generator=generator).to(**kind))
        elif p.part == "norm":
            self._weights = [torch.randn(p.hidden, generator=generator).to(**kind) for _ in range(1 if p.gated else 2)]
        self._seed = seed
        self._result: Any = None
        self._due: tuple[Any, Any] | None = None
        self.kernel = Kernel(p.part, "torch", where.details())

    @property
    def stopwatch(self) -> Stopwatch:
        return self._where.stopwatch

    def launch(self, index: int) -> None:
        self._result = None
        with self._where.torch.no_grad():
            self._result = self._run(self._inputs, self._weights)

    def poison(self, index: int | None = None) -> None:
        """No result: one that no step makes is missed."""
        self._result = None

    def left(self, index: int) -> Checked:
        """Every element of the result against float64, where attention is written out; on a GPU by the GPU."""
        from pyperf_suite.workloads.training.rounding import compared

        exact, limit = self._expected()
        return compared({RESULT: self._result}, {RESULT: exact}, {RESULT: limit})

    def kept(self, index: int) -> Any:
        return self._result.clone()

    def equals(self, index: int, kept: Any) -> bool:
        return self._result is not None and bool(self._where.torch.equal(self._result, kept))

    def _expected(self) -> tuple[Any, Any]:
        """The result in float64, and by how much each element may be off."""
        if self._due is None:
            try:
                self._due = self._computed_on(self._where.device)
            except RuntimeError as error:
                if not self._where.is_gpu or not out_of_memory(error):
                    raise
                self._due = self._computed_on("cpu")
        return self._due

    def _computed_on(self, place: Any) -> tuple[Any, Any]:
        from pyperf_suite.workloads.training.rounding import RoundedOperations, Rounding, limits

        p = self._p
        inputs, weights = ([each.to(place).double() for each in group] for group in (self._inputs, self._weights))
        run = self._attention_written_out if p.part == "scores" else self._run
        rounding = Rounding.of(p.dtype, max(p.product or (p.hidden, p.seq)))
        with self._where.torch.no_grad():
            exact = run(inputs, weights)
            with RoundedOperations(rounding, self._seed + 1, place):
                moved = run(inputs, weights)
        return exact, limits({RESULT: exact}, {RESULT: moved}, rounding, summed=0)[RESULT]

    def _run(self, inputs: list[Any], weights: list[Any]) -> Any:
        functional, p = self._where.torch.nn.functional, self._p
        if p.product:
            return functional.linear(inputs[0], *weights)
        if p.part == "norm":
            norm = functional.rms_norm if p.gated else functional.layer_norm
            return norm(inputs[0], (p.hidden,), *weights, eps=1e-5)
        if p.part == "residual":
            return inputs[0] + inputs[1]
        if p.part == "activation":
            return functional.silu(inputs[0]) * inputs[1] if p.gated else functional.gelu(inputs[0])
        q, k, v = self._heads(inputs[0])
        shared = p.key_value_heads != p.heads
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)

    def _heads(self, projected: Any) -> list[Any]:
        p, head_dim = self._p, self._p.hidden // self._p.heads
        keys = p.key_value_heads * head_dim
        parts = projected.split((p.hidden, keys, keys), dim=-1)
        return [part.view(p.batch, p.seq, -1, head_dim).transpose(1, 2) for part in parts]

    def _attention_written_out(self, inputs: list[Any], _weights: list[Any]) -> Any:
        torch, p, projected = self._where.torch, self._p, inputs[0]
        if projected.device.type == "cpu":
            # Scores before the mask, behind it, and as weights.
            require_for_reference(3 * projected.element_size() * p.batch * p.heads * p.seq**2)
        q, k, v = self._heads(projected)
        group = p.heads // p.key_value_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        hidden_keys = torch.ones(p.seq, p.seq, dtype=torch.bool, device=projected.device).triu(1)
        scores = (q @ k.transpose(-2, -1)) / (p.hidden // p.heads) ** 0.5
        return scores.masked_fill(hidden_keys, float("-inf")).softmax(dim=-1) @ v
