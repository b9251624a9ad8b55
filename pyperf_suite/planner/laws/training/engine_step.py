"""The time of an iteration on torch's engines where ranks of one thread share a machine's cores and talk over gloo.

`CpuPrices` prices kernels by straight lines over calls, FLOP and bytes, and `work_of` adds them up as for GPUs.
Nothing of the exchange is hidden, for whoever sends takes the cores from whoever computes; a pipeline is simulated,
because a stage that waits leaves its core to the others. What no kernel knows are constants with names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiled_attention import attention_flop, visible_pairs
from pyperf_suite.laws.tiling import nonnegative_fit
from pyperf_suite.laws.training.data_parallel import BACKWARD_SHARE
from pyperf_suite.laws.training.memory import FIRST, LAST, Weight
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.calibration import CalibrationBlock
from pyperf_suite.planner.laws.explained import Bytes, Count, Explained
from pyperf_suite.planner.laws.internode import Network
from pyperf_suite.planner.laws.traffic import AlphaBetaOverRanks
from pyperf_suite.planner.laws.training.framework import StepConstants
from pyperf_suite.planner.laws.training.held_by_rank import Action, interleaved, rank_weights, round_robin
from pyperf_suite.planner.laws.training.layer_work import work_of
from pyperf_suite.planner.laws.training.plan import ParallelPlan

FLOAT = 4
LAYOUTS = ("TN", "NN", "NT")
# Of scaled_dot_product_attention's ways on a CPU: fused, and written out in products and a softmax.
ATTENTIONS = ("flash", "math")
KERNELS = (
    *(f"product_{layout}" for layout in LAYOUTS),
    *(f"attention_{kind}_{way}" for kind in ATTENTIONS for way in ("forward", "backward")),
    "pass",
    "copy",
    "update",
)


@dataclass(frozen=True)
class CpuPrices:
    """`KernelPrices` of one thread in float32. `lines` has for each of KERNELS the seconds of a unit of each feature.

    Features of products are a call, a FLOP and a byte of the operands; of attention a call, a FLOP and a score; of a
    pass through norms and activation functions, and of a copy, a call and a byte; of AdamW's update a tensor and an
    element. `attention_kind` is the one of ATTENTIONS that is requested.
    """

    lines: Mapping[str, tuple[float, ...]]
    collectives: Mapping[str, AlphaBetaOverRanks]
    attention_kind: str = "flash"

    def of_attention(self, kind: str) -> CpuPrices:
        """The same with another way to compute attention. Raises UserError for one that was not measured."""
        if f"attention_{kind}_forward" not in self.lines:
            raise UserError(f"Attention by {kind} was not measured on this CPU, only by {', '.join(ATTENTIONS)}.")
        return replace(self, attention_kind=kind)

    def gemm(self, layout: str, m: Count, n: Count, k: Count) -> Explained:
        return self._at(f"product_{layout}", product_features(m, n, k))

    def attention(
        self, causal: bool, backward: bool, batch: Count, seq: Count, heads: Count, kv_heads: Count, head_dim: Count,
        window: Count = 0,
    ) -> Explained:  # fmt: skip
        """One attention, forward or backward alone; shared key-value heads save no computation."""
        if np.any(window):
            raise UserError("Attention with a window was not measured on this CPU.")
        way = "backward" if backward else "forward"
        features = attention_features(causal, backward, batch, seq, heads, head_dim)
        return self._at(f"attention_{self.attention_kind}_{way}", features)

    def latent_attention(self, *sizes: Any) -> Explained:
        """Raises UserError."""
        raise UserError("Latent attention was not measured on this CPU.")

    def memory_bound(self, nbytes: Bytes) -> Explained:
        """A pass as norms and activation functions make them: on one core they are no faster than their arithmetic."""
        return self._at("pass", (1.0, nbytes))

    def copy(self, nbytes: Bytes) -> Explained:
        return self._at("copy", (1.0, nbytes))

    def update(self, tensors: int, elements: float) -> Explained:
        return self._at("update", (tensors, elements))

    def collective(
        self,
        op: str,
        nbytes: Bytes,
        ranks: Count,
        ranks_per_node: Count | None = None,
        network: Network | None = None,
    ) -> Explained:
        """A collective of S bytes over gloo among ranks of this machine. Raises UserError for one not measured."""
        del ranks_per_node, network
        if np.ndim(ranks) == 0 and int(ranks) == 1:
            return Explained(0.0)
        if op not in self.collectives:
            known = ", ".join(sorted(self.collectives)) or "none"
            raise UserError(f"{op} was not measured on this CPU, only {known}: calibrate it anew.")
        return Explained(float(self.collectives[op].seconds(nbytes, int(ranks))))

    def _at(self, kernel: str, features: Sequence[Any]) -> Explained:
        if kernel not in self.lines:
            raise UserError(f"{kernel} was not measured on this CPU: calibrate it anew.")
        return Explained(sum(price * feature for price, feature in zip(self.lines[kernel], features, strict=True)))


def product_features(m: Any, n: Any, k: Any) -> tuple[Any, Any, Any]:
    """Calls, FLOPs, and bytes of both operands and the result."""
    return 1.0, 2.0 * m * n * k, FLOAT * (1.0 * m * k + 1.0 * k * n + 1.0 * m * n)


def attention_features(
    causal: bool, backward: bool, batch: Any, seq: Any, heads: Any, head_dim: Any
) -> tuple[Any, Any, Any]:
    """Calls, FLOPs, and scores of one attention as wide as it is long."""
    pairs = visible_pairs(seq, seq, causal)
    return 1.0, attention_flop(batch, heads, head_dim, pairs, backward), 1.0 * batch * heads * seq * seq


def fit_line(features: ArrayLike, seconds: ArrayLike) -> tuple[float, ...]:
    """Non-negative seconds of a unit of each feature, by least squares of the relative error; one row a measurement."""
    return tuple(nonnegative_fit(np.asarray(features, dtype=np.float64), seconds))


def line_errors(features: ArrayLike, seconds: ArrayLike) -> NDArray[np.float64]:
    """|predicted − measured| / measured of every measurement by a line that did not see it; empty for fewer than 3."""
    rows, time = np.asarray(features, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if time.size < 3:
        return np.empty(0)
    others = [np.arange(time.size) != place for place in range(time.size)]
    return np.array([abs(rows[~seen][0] @ fit_line(rows[seen], time[seen]) / time[~seen][0] - 1) for seen in others])


def pack_lines(
    lines: Mapping[str, tuple[float, ...]], held_out: Mapping[str, float | int | str], origin: str
) -> CalibrationBlock:
    """The lines as a block of a calibration."""
    return CalibrationBlock({name: np.array(line) for name, line in lines.items()}, held_out, {}, origin)


def unpack_lines(block: CalibrationBlock) -> dict[str, tuple[float, ...]]:
    """The inverse of `pack_lines`."""
    return {name: tuple(np.atleast_1d(array).astype(float).tolist()) for name, array in block.arrays.items()}


def fsdp_units(weights: Sequence[Weight]) -> list[int]:
    """The elements of each unit that FSDP2 gathers: every layer is one, and all else another."""
    units: dict[int, int] = {}
    for weight in weights:
        unit = LAST if weight.place in (FIRST, LAST) else weight.place
        units[unit] = units.get(unit, 0) + weight.elements
    return list(units.values())


def simulated_schedule_s(
    orders: Sequence[Sequence[Action]], work_s: Callable[[Action], float], slowdown: Callable[[int], float]
) -> float:
    """Seconds until every stage has done its order, `work_s` of each action being its time with nobody else at work.

    While a stages are at work each takes `slowdown(a)` times as long. A forward waits for that of the chunk before, a
    backward for that of the chunk behind. Raises ValueError for orders that wait for each other for ever.
    """
    last_chunk = max(action.chunk for order in orders for action in order)
    done: set[Action] = set()
    positions = [0] * len(orders)
    left: dict[int, float] = {}
    now = 0.0

    def is_ready(action: Action) -> bool:
        if action.backward:
            before = action._replace(chunk=action.chunk + 1)
            return action.chunk == last_chunk or before in done
        return action.chunk == 0 or action._replace(chunk=action.chunk - 1) in done

    while any(position < len(order) for position, order in zip(positions, orders, strict=True)):
        for stage, order in enumerate(orders):
            if stage not in left and positions[stage] < len(order) and is_ready(order[positions[stage]]):
                left[stage] = work_s(order[positions[stage]])
        if not left:
            raise ValueError("These orders wait for each other for ever.")
        step = min(left.values())
        now += step * slowdown(len(left))
        for stage in list(left):
            left[stage] -= step
            if left[stage] <= 0.0:
                del left[stage]
                done.add(orders[stage][positions[stage]])
                positions[stage] += 1
    return now


BLOCK = "cpu_step"
# A gradient that is added to another is read, and the other read and written.
ADDED = 3


@dataclass(frozen=True)
class EngineConstants:
    """What no kernel's law knows, each found on small steps of its own.

    Attributes:
        slowdown: kernels within a step take so many times as long as alone.
        host_s_per_layer: what torch takes to run one layer forward and backward, whatever its size.
        host_s_at_ends: the same for embeddings, logits and loss together.
        crowd: (ranks, how many times as long each takes next to the others), ascending from (1, 1).
        ddp_s: of DistributedDataParallel an iteration, in addition to the exchange itself.
        broadcast_s: of ZeroRedundancyOptimizer for each tensor that it hands out, in addition to the bytes.
        gather_s: of FSDP2 for each unit that it gathers, in addition to the bytes.
        scatter_s: of FSDP2 for each unit whose gradients it scatters, in addition to the bytes.
        dtensor_s_per_layer: of DTensor for each layer of a micro-batch, in addition to the bytes.
        action_s: of a pipeline for each forward or backward of a micro-batch through a chunk, in addition to the bytes.
    """

    slowdown: float = 1.0
    host_s_per_layer: float = 0.0
    host_s_at_ends: float = 0.0
    crowd: tuple[tuple[int, float], ...] = ((1, 1.0),)
    ddp_s: float = 0.0
    broadcast_s: float = 0.0
    gather_s: float = 0.0
    scatter_s: float = 0.0
    dtensor_s_per_layer: float = 0.0
    action_s: float = 0.0

    def crowded(self, ranks: float, cores: int) -> float:
        """How many times as long each of so many ranks takes; of more than were measured, as they share the cores."""
        known, times = zip(*self.crowd, strict=True)
        if ranks <= known[-1]:
            return float(np.interp(ranks, known, times))
        return float(times[-1] * max(1.0, ranks / max(known[-1], cores)))


def pack_engine(constants: EngineConstants, held_out: dict[str, float | int | str], origin: str) -> CalibrationBlock:
    """The constants as a block of a calibration."""
    arrays = {field.name: np.array(getattr(constants, field.name), dtype=np.float64) for field in fields(constants)}
    return CalibrationBlock(arrays, held_out, {}, origin)


def unpack_engine(block: CalibrationBlock) -> EngineConstants:
    """The inverse of `pack_engine`."""
    numbers = {name: float(array) for name, array in block.arrays.items() if name != "crowd"}
    crowd = tuple((int(ranks), float(times)) for ranks, times in block.arrays["crowd"])
    return EngineConstants(**numbers, crowd=crowd)


def engine_step(
    model: ModelDimensions, plan: ParallelPlan, prices: CpuPrices, constants: EngineConstants, cores: int
) -> Explained:
    """One iteration of `plan`, every rank of which has one thread of a machine with so many cores.

    Raises UserError for dimensions that do not divide and for collectives that were not measured.
    """
    counts = (int(count) for count in (plan.tensor, plan.data, plan.pipeline, plan.chunks))
    return _EngineStep(model, plan, prices, constants, cores, *counts).time()


@dataclass(frozen=True)
class _EngineStep:
    """One plan on one machine; seconds of computation are of a rank that is alone, until `time` adds them up."""

    model: ModelDimensions
    plan: ParallelPlan
    prices: CpuPrices
    constants: EngineConstants
    cores: int
    tensor: int
    data: int
    stages: int
    chunks: int

    @property
    def ranks(self) -> int:
        return self.tensor * self.data * self.stages

    @property
    def is_sharded(self) -> bool:
        return int(self.plan.zero_stage) > 1

    def time(self) -> Explained:
        plan, crowd = self.plan, self.constants.crowded(self.ranks, self.cores)
        layers, m = self.model.layers // self.stages, int(plan.micro_batches)
        step = StepConstants(self.constants.slowdown, 0.0)
        layer, ends = work_of(self.model, plan, self.prices, step)
        stage = rank_weights(self.model, self.tensor, self.stages, self.chunks, self.stages - 1)
        host_s = self.constants.host_s_per_layer * plan.passes / 3
        parts: dict[str, Any] = {
            "products": crowd * m * (layers * layer.products + ends.products),
            "attention": crowd * m * layers * layer.attention,
            "memory bound": crowd * m * (layers * layer.memory_bound + ends.memory_bound),
            "host": crowd * m * (layers * host_s + self.constants.host_s_at_ends),
            "tensor": m * self._tensor_s(layers, crowd),
        }
        if self.stages > 1:
            scheduled_s = self._schedule_s(sum(parts.values()) / crowd, ends.seconds - ends.tensor, m)
            parts["bubble"] = scheduled_s - sum(parts.values())
        parts["gradients"], parts["parameters"] = self._exchanged_s(stage, m, crowd)
        parts["optimizer"] = crowd * self._update_s(stage)
        return Explained(sum(parts.values()), parts)

    def _collective_s(self, op: str, nbytes: float, ranks: int) -> float:
        """Among `ranks` of all ranks, while the others do the same."""
        shared = max(1.0, self.ranks / max(ranks, self.cores))
        return shared * float(self.prices.collective(op, nbytes, ranks, ranks, None).seconds)

    def _tensor_s(self, layers: int, crowd: float) -> float:
        """Of a micro-batch: gathered before attention and MLP, scattered behind, and back; likewise at the ends.

        DTensor keeps what it gathered for backward, which Megatron-LM gathers again.
        """
        ranks, piece = self.tensor, self.plan
        if ranks == 1:
            return 0.0
        size = float(piece.element_bytes * piece.tokens * self.model.hidden)
        both = self._collective_s("all_gather", size, ranks) + self._collective_s("reduce_scatter", size, ranks)
        passes = 3 if piece.recompute == "layers" else 2
        at_ends = 2 * both
        return layers * (2 * passes * both + crowd * self.constants.dtensor_s_per_layer * passes / 2) + at_ends

    def _schedule_s(self, stage_s: float, ends_s: float, m: int) -> float:
        """The schedule played through, `stage_s` being all micro-batches' computation of the last stage, alone."""
        plan = self.plan
        chunks, others = self.chunks, self.tensor * self.data
        ends_s += self.constants.host_s_at_ends
        chunk_s = (stage_s / m - ends_s) / chunks
        size = float(plan.element_bytes * plan.tokens * self.model.hidden / plan.sequence_ranks)
        send_s = float(self.prices.collective("send_receive", size, 2, 2, None).seconds)
        last = self.stages * chunks - 1

        def work_s(action: Action) -> float:
            share = BACKWARD_SHARE if action.backward else 1 - BACKWARD_SHARE
            computed = share * (chunk_s + (ends_s if action.chunk == last else 0.0))
            is_sent = action.chunk < last if not action.backward else action.chunk > 0
            return computed + self.constants.action_s + (send_s if is_sent else 0.0)

        orders = [interleaved(stage, self.stages, chunks, m) for stage in range(self.stages)]
        return simulated_schedule_s(orders, work_s, lambda active: self.constants.crowded(active * others, self.cores))

    def _exchanged_s(self, stage: Sequence[Weight], m: int, crowd: float) -> tuple[float, float]:
        """Of gradients and of parameters over data-parallel ranks, and what adds gradients of micro-batches up."""
        plan, ranks = self.plan, self.data
        gradient_bytes = float(plan.gradient_bytes * sum(weight.elements for weight in stage))
        if self.is_sharded:
            return self._sharded_s(stage, m, crowd)
        added = m - 1 if ranks == 1 else m
        gradients = crowd * float(self.prices.copy(ADDED * gradient_bytes).seconds) * added if added else 0.0
        if ranks == 1:
            return gradients, 0.0
        gradients += self._collective_s("all_reduce", gradient_bytes, ranks) + crowd * self.constants.ddp_s
        if not plan.zero_stage:
            return gradients, 0.0
        beyond = [
            self._collective_s("broadcast", float(plan.element_bytes * weight.elements), ranks)
            - self._collective_s("broadcast", 0.0, ranks)
            for weight in stage
        ]
        return gradients, sum(beyond) + crowd * self.constants.broadcast_s * len(stage)

    def _sharded_s(self, stage: Sequence[Weight], m: int, crowd: float) -> tuple[float, float]:
        """FSDP2: stage 3 gathers each unit twice a micro-batch, stage 2 once in all."""
        plan, ranks = self.plan, self.data
        gathers = 2 * m if plan.zero_stage == 3 and self.stages == 1 else 1
        scatters = m if self.stages == 1 else 1
        gradients = parameters = 0.0
        for elements in fsdp_units(stage):
            gathered, scattered = float(plan.element_bytes * elements), float(plan.gradient_bytes * elements)
            once = self._beyond_launch_s("all_gather", gathered, ranks) + crowd * (
                self.constants.gather_s + float(self.prices.copy(2 * gathered).seconds)
            )
            back = self._beyond_launch_s("reduce_scatter", scattered, ranks) + crowd * (
                self.constants.scatter_s + float(self.prices.copy(2 * scattered).seconds)
            )
            parameters += gathers * once
            gradients += scatters * back + crowd * float(self.prices.copy(ADDED * scattered / ranks).seconds) * (
                scatters - 1
            )
        return gradients, parameters

    def _beyond_launch_s(self, op: str, nbytes: float, ranks: int) -> float:
        return self._collective_s(op, nbytes, ranks) - self._collective_s(op, 0.0, ranks)

    def _update_s(self, stage: Sequence[Weight]) -> float:
        ranks, elements = self.data, sum(weight.elements for weight in stage)
        if self.is_sharded:
            return self.prices.update(len(stage), elements / ranks).seconds
        if self.plan.zero_stage == 1:
            shares = round_robin(stage, ranks)
            return max(self.prices.update(len(share), sum(each.elements for each in share)).seconds for share in shares)
        return self.prices.update(len(stage), elements).seconds
