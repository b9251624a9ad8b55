"""Whether a configuration has room on a machine, by the laws of memory: how much it lacks, and the nearest that fits.

Known before anything is started, so that hours of a grid are not spent on what the first step would end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.activations import Keeping, kept_bytes, working_bytes
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.memory import LAST_STAGE, USABLE_SHARE, Schedule, rank_parameters
from pyperf_suite.laws.transformer import Sharding
from pyperf_suite.operators.training.parallel.parameters import DTYPES, ParallelStepParameters
from pyperf_suite.operators.training.shape import Checkpointing

# AdamW keeps two moments of each parameter in the parameter's own type.
MOMENTS = 2
FUSED = ("flash", "sdpa", "efficient")


@dataclass(frozen=True)
class Room:
    """Bytes for each rank of a machine on which so many ranks run at once; `where` says of what, in words."""

    bytes_a_rank: float
    where: str


def room_of(device: Device, ranks_here: int) -> Room:
    """A GPU's own memory, or an equal share of what this machine has free; a tenth is left alone."""
    if device.kind == "cuda":
        whole = gpus()[device.index].memory_bytes
        return Room(USABLE_SHARE * whole, f"the {whole / 2**30:.0f} GiB of a GPU, a tenth of them kept free")
    free = memory.available_bytes()
    share = f", shared by {ranks_here} ranks" if ranks_here > 1 else ""
    return Room(USABLE_SHARE * free / ranks_here, f"the {free / 2**30:.1f} GiB free here{share}, a tenth kept free")


def need_bytes(p: ParallelStepParameters, device_kind: str) -> float:
    """Of the fullest rank while a step is computed: weights, gradients, moments, and what is kept for backward.

    Stage 2 keeps whole weights beside its shards from forward to backward, as stage 3 does of one layer at a time.
    """
    element, model = DTYPES[p.dtype], p.dimensions
    parameters = float(rank_parameters(model, Sharding(p.tensor), p.pipeline))
    largest = max(parameters / model.layers * p.pipeline, float(model.vocab * model.hidden) / p.tensor)
    shared = {stage: p.data if p.zero_stage >= stage else 1 for stage in range(1, LAST_STAGE + 1)}
    weights = parameters / (p.data if p.zero_stage >= 2 else 1)
    gathered = {2: parameters, LAST_STAGE: min(parameters, 2 * largest)}.get(p.zero_stage, 0.0) if p.data > 1 else 0.0
    held = weights + gathered + parameters / shared[2] + MOMENTS * parameters / shared[1]
    return element * held + _activation_bytes(p, model, element, device_kind)


def _activation_bytes(p: ParallelStepParameters, model: ModelDimensions, element: int, device_kind: str) -> float:
    """What the fullest stage keeps of the micro-batches that it holds at once, and what it computes again of one."""
    keeping = Keeping(
        element_bytes=element,
        stream_bytes=element,
        attention="sdpa" if p.attention in FUSED else "explicit",
        checkpointing=p.checkpointing.kind,
        every=p.checkpointing.every,
        device="cuda" if device_kind == "cuda" else "cpu",
    )
    whole = kept_bytes(model, p.batch, p.seq, keeping)
    layers = (whole.total - whole.ends) / p.pipeline
    schedule = Schedule(p.pipeline, p.chunks, p.micro_batches)
    first = float(schedule.held_by_first) * layers
    last = float(schedule.held_by_last) * layers + whole.ends
    fullest = layers + whole.ends if p.pipeline == 1 else float(np.maximum(first, last))
    return (fullest + working_bytes(model, p.batch, p.seq, keeping)) / p.tensor


def why_not(p: ParallelStepParameters, device_kind: str, room: Room) -> str:
    """One sentence where there is no room for it: by how many bytes, and the nearest that fits; "" where there is."""
    lacking = need_bytes(p, device_kind) - room.bytes_a_rank
    if lacking <= 0:
        return ""
    near = nearest_that_fits(p, device_kind, room.bytes_a_rank)
    offered = f"the nearest that fits: {described_change(p, near)}" if near else "nothing near it fits"
    needed = need_bytes(p, device_kind)
    return f"A rank needs {needed / 2**30:.3g} GiB, {lacking:,.0f} bytes more than it has of {room.where}; {offered}."


def nearest_that_fits(p: ParallelStepParameters, device_kind: str, room_bytes: float) -> ParallelStepParameters | None:
    """The same ranks and global batch with the fewest changes: more ZeRO, smaller micro-batches, less kept.

    Of as many changes the one that needs the most memory, for that is likely the fastest; None where none fits.
    """
    fitting = [
        (_changes(p, each), -need_bytes(each, device_kind), position, each)
        for position, each in enumerate(_neighbours(p))
        if need_bytes(each, device_kind) <= room_bytes
    ]
    return min(fitting, key=lambda each: each[:3])[-1] if fitting else None


def described_change(p: ParallelStepParameters, near: ParallelStepParameters) -> str:
    """As in `zero_stage 0 -> 2, batch 4 -> 1`."""
    names = ("zero_stage", "batch", "checkpointing")
    return ", ".join(
        f"{name} {getattr(p, name)} -> {getattr(near, name)}"
        for name in names
        if getattr(near, name) != getattr(p, name)
    )


def _changes(p: ParallelStepParameters, other: ParallelStepParameters) -> int:
    return sum(getattr(p, name) != getattr(other, name) for name in ("zero_stage", "batch", "checkpointing"))


def _neighbours(p: ParallelStepParameters) -> Iterator[ParallelStepParameters]:
    stages = range(p.zero_stage, LAST_STAGE + 1) if p.data > 1 else (p.zero_stage,)
    sequences = p.batch * p.micro_batches
    batches = [batch for batch in range(p.batch, 0, -1) if sequences % batch == 0]
    kept = dict.fromkeys((p.checkpointing, *((Checkpointing("every"),) if p.checkpointing.kind != "every" else ())))
    for stage, batch, checkpointing in product(stages, batches, kept):
        near = replace(p, zero_stage=stage, batch=batch, micro_batches=sequences // batch, checkpointing=checkpointing)
        try:
            near.validate()
        except UserError:
            continue
        if near != p:
            yield near
