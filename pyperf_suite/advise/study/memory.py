"""What each rank of a study's configuration holds by the laws, rank by rank, for the engines that run it."""

from __future__ import annotations

from collections.abc import Sequence

from pyperf_suite.laws.training.activations import Keeping
from pyperf_suite.laws.training.engine_activations import saved_bytes
from pyperf_suite.laws.training.engine_memory import BFLOAT16, FLOAT32, Engine, Held, Storage, held_by_rank
from pyperf_suite.laws.training.gpt_weights import FIRST, LAST, Weight, rank_weights
from pyperf_suite.laws.training.memory import MemoryNeed
from pyperf_suite.laws.training.shared_cores import Action, interleaved, one_forward_one_backward
from pyperf_suite.workloads.on_ranks import DTYPES
from pyperf_suite.workloads.training.parallel_layout import ParallelStepParameters

# From this stage of ZeRO on torch's engine is FSDP2, which keeps its shards in float32.
FSDP_FROM_STAGE = 2


def memory_by_rank(p: ParallelStepParameters, device_kind: str = "cpu") -> tuple[MemoryNeed, ...]:
    """Of every rank in order, tensor innermost, then data, then pipeline.

    Weights, gradients and optimizer states are what torch allocates, to the byte; `activations` are what autograd keeps
    at the most; `gathered` what FSDP2 has whole at once: with stage 3 the two largest units, else all.
    """
    needs = []
    for stage in range(p.pipeline):
        weights = rank_weights(p.dimensions, p.tensor, p.pipeline, p.chunks, stage)
        activations = _activations(p, stage, device_kind)
        gathered = _gathered(p, weights)
        for held in held_by_rank(weights, engine_of(p), p.data, storage_of(p)):
            needs += [_need(held, activations, gathered)] * p.tensor
    return tuple(needs)


def engine_of(p: ParallelStepParameters) -> Engine:
    """Which of torch's engines keeps what data-parallel ranks share; of one rank DDP's, without DDP."""
    if p.zero_stage >= FSDP_FROM_STAGE:
        return "fsdp"
    return "zero_optimizer" if p.zero_stage == 1 and p.data > 1 else "ddp"


def storage_of(p: ParallelStepParameters) -> Storage:
    """Bytes a parameter: all in the dtype of the model, but FSDP2's shards in float32 whatever is computed in."""
    return FLOAT32 if p.dtype == "float32" or p.zero_stage >= FSDP_FROM_STAGE else BFLOAT16


def orders_of(p: ParallelStepParameters) -> list[list[Action]]:
    """What each stage of the pipeline does in turn; without one, a single forward and backward."""
    if p.pipeline == 1:
        return [[Action(False, 0, 0), Action(True, 0, 0)]]
    if p.chunks == 1:
        return [one_forward_one_backward(stage, p.pipeline, p.micro_batches) for stage in range(p.pipeline)]
    return [interleaved(stage, p.pipeline, p.chunks, p.micro_batches) for stage in range(p.pipeline)]


def _need(held: Held, activations: float, gathered: float) -> MemoryNeed:
    return MemoryNeed(held.weights, held.gradients, held.optimizer, activations, gathered)


def keeping_of(p: ParallelStepParameters, device_kind: str) -> Keeping:
    """How one rank's part is run, as far as that decides what is kept for backward."""
    element = DTYPES[p.dtype]
    return Keeping(
        element_bytes=element,
        stream_bytes=element,
        attention="explicit" if p.attention == "explicit" else "math" if p.attention == "math" else "sdpa",
        checkpointing=p.checkpointing.kind,
        every=p.checkpointing.every,
        device="cuda" if device_kind == "cuda" else "cpu",
    )


def _activations(p: ParallelStepParameters, stage: int, device_kind: str) -> float:
    chunks = p.pipeline * p.chunks
    return saved_bytes(
        p.dimensions,
        p.batch,
        p.seq,
        keeping_of(p, device_kind),
        tensor=p.tensor,
        chunk_layers=p.layers // chunks,
        last_chunk=chunks - 1,
        order=orders_of(p)[stage],
        micro_batches=p.micro_batches if p.pipeline > 1 else 1,
    )


def _gathered(p: ParallelStepParameters, weights: Sequence[Weight]) -> float:
    if engine_of(p) != "fsdp" or p.data == 1:
        return 0.0
    units: dict[int, int] = {}
    for weight in weights:
        unit = LAST if weight.place in (FIRST, LAST) else weight.place
        units[unit] = units.get(unit, 0) + weight.elements
    largest = sorted(units.values())[-2:] if p.zero_stage > FSDP_FROM_STAGE and p.pipeline == 1 else units.values()
    return float(DTYPES[p.dtype] * sum(largest))
