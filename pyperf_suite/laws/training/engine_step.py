"""The time of an iteration on torch's engines where ranks of one thread share a machine's cores and talk over gloo.

What a layer computes is priced as the planner prices it (`laws/training/micro_batch.py`). Nothing of the exchange is
hidden, for whoever sends takes the cores from whoever computes. What no kernel knows — how long the host takes for a
layer in Python, and for what DDP, FSDP2, DTensor and a pipeline do besides — are constants with names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pyperf_suite.laws.calibration import Block
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.explained import Explained
from pyperf_suite.laws.training.cpu_prices import CpuPrices
from pyperf_suite.laws.training.engine_memory import dealt_out
from pyperf_suite.laws.training.exchange import BACKWARD_SHARE
from pyperf_suite.laws.training.gpt_weights import FIRST, LAST, Weight, rank_weights
from pyperf_suite.laws.training.micro_batch import StepConstants, work_of_ends, work_of_layer
from pyperf_suite.laws.training.plan import Plan
from pyperf_suite.laws.training.shared_cores import Action, interleaved, one_forward_one_backward, played_s

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
        crowd: (ranks, how many times as long each takes beside the others), ascending from (1, 1).
        ddp_s: of DistributedDataParallel an iteration, beside the exchange itself.
        broadcast_s: of ZeroRedundancyOptimizer for each tensor that it hands out, beside the bytes.
        gather_s: of FSDP2 for each unit that it gathers, beside the bytes.
        scatter_s: of FSDP2 for each unit whose gradients it scatters, beside the bytes.
        dtensor_s_per_layer: of DTensor for each layer of a micro-batch, beside the bytes.
        action_s: of a pipeline for each forward or backward of a micro-batch through a chunk, beside the bytes.
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


def pack_engine(constants: EngineConstants, held_out: dict[str, float | int | str], origin: str) -> Block:
    """The constants as a block of a calibration."""
    arrays = {field.name: np.array(getattr(constants, field.name), dtype=np.float64) for field in fields(constants)}
    return Block(arrays, held_out, {}, origin)


def unpack_engine(block: Block) -> EngineConstants:
    """The inverse of `pack_engine`."""
    numbers = {name: float(array) for name, array in block.arrays.items() if name != "crowd"}
    crowd = tuple((int(ranks), float(times)) for ranks, times in block.arrays["crowd"])
    return EngineConstants(**numbers, crowd=crowd)


def engine_step(
    model: ModelDimensions, plan: Plan, prices: CpuPrices, constants: EngineConstants, cores: int
) -> Explained:
    """One iteration of `plan`, every rank of which has one thread of a machine with so many cores.

    Raises UserError for dimensions that do not divide and for collectives that were not measured.
    """
    return _EngineStep(model, plan, prices, constants, cores).time()


@dataclass(frozen=True)
class _EngineStep:
    """One plan on one machine; seconds of computation are of a rank that is alone, until `time` adds them up."""

    model: ModelDimensions
    plan: Plan
    prices: CpuPrices
    constants: EngineConstants
    cores: int

    @property
    def tensor(self) -> int:
        return int(self.plan.tensor)

    @property
    def data(self) -> int:
        return int(self.plan.data)

    @property
    def stages(self) -> int:
        return int(self.plan.pipeline)

    @property
    def chunks(self) -> int:
        return int(self.plan.chunks)

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
        layer = work_of_layer(self.model, plan.piece, self.prices, step)
        ends = work_of_ends(self.model, plan.piece, self.prices, step)
        stage = rank_weights(self.model, self.tensor, self.stages, self.chunks, self.stages - 1)
        host_s = self.constants.host_s_per_layer * plan.piece.passes / 3
        parts: dict[str, Any] = {
            "products": crowd * m * (layers * layer.products + ends.products),
            "attention": crowd * m * layers * layer.attention,
            "memory bound": crowd * m * (layers * layer.memory_bound + ends.memory_bound),
            "host": crowd * m * (layers * host_s + self.constants.host_s_at_ends),
            "tensor": m * self._tensor_s(layers, crowd),
        }
        if self.stages > 1:
            played = self._played_s(sum(parts.values()) / crowd, ends.seconds - ends.tensor, m)
            parts["bubble"] = played - sum(parts.values())
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
        ranks, piece = self.tensor, self.plan.piece
        if ranks == 1:
            return 0.0
        size = float(piece.element_bytes * piece.tokens * self.model.hidden)
        both = self._collective_s("all_gather", size, ranks) + self._collective_s("reduce_scatter", size, ranks)
        passes = 3 if piece.recompute == "layers" else 2
        at_ends = 2 * both
        return layers * (2 * passes * both + crowd * self.constants.dtensor_s_per_layer * passes / 2) + at_ends

    def _played_s(self, stage_s: float, ends_s: float, m: int) -> float:
        """The schedule played through, `stage_s` being all micro-batches' computation of the last stage, alone."""
        plan = self.plan
        chunks, others = self.chunks, self.tensor * self.data
        ends_s += self.constants.host_s_at_ends
        chunk_s = (stage_s / m - ends_s) / chunks
        size = float(plan.element_bytes * plan.piece.tokens * self.model.hidden / plan.piece.sequence_ranks)
        send_s = float(self.prices.collective("send_receive", size, 2, 2, None).seconds)
        last = self.stages * chunks - 1

        def work_s(action: Action) -> float:
            share = BACKWARD_SHARE if action.backward else 1 - BACKWARD_SHARE
            computed = share * (chunk_s + (ends_s if action.chunk == last else 0.0))
            is_sent = action.chunk < last if not action.backward else action.chunk > 0
            return computed + self.constants.action_s + (send_s if is_sent else 0.0)

        orders = [
            one_forward_one_backward(stage, self.stages, m)
            if chunks == 1
            else interleaved(stage, self.stages, chunks, m)
            for stage in range(self.stages)
        ]
        return played_s(orders, work_s, lambda active: self.constants.crowded(active * others, self.cores))

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
        """FSDP2: every layer a unit, and all else another; stage 3 gathers twice a micro-batch, stage 2 once in all."""
        plan, ranks = self.plan, self.data
        units: dict[int, int] = {}
        for weight in stage:
            unit = LAST if weight.place in (FIRST, LAST) else weight.place
            units[unit] = units.get(unit, 0) + weight.elements
        gathers = 2 * m if plan.zero_stage == 3 and self.stages == 1 else 1
        scatters = m if self.stages == 1 else 1
        gradients = parameters = 0.0
        for elements in units.values():
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
        """Of the rank that has most to update."""
        ranks, elements = self.data, sum(weight.elements for weight in stage)
        if self.is_sharded:
            return self.prices.update(len(stage), elements / ranks).seconds
        if self.plan.zero_stage == 1:
            shares = dealt_out(stage, ranks)
            return max(self.prices.update(len(share), sum(each.elements for each in share)).seconds for share in shares)
        return self.prices.update(len(stage), elements).seconds
