"""Whether a configuration has room on a machine, by the laws of memory: how much it lacks, and the nearest that fits.

Known before anything is started, so that hours of a grid are not spent on what the first step would end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product

from pyperf_suite.advise.study.memory import keeping_of, memory_by_rank
from pyperf_suite.errors import UserError
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.training.activations import working_bytes
from pyperf_suite.laws.training.memory import LAST_STAGE, USABLE_SHARE
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.training.parallel.parameters import ParallelStepParameters
from pyperf_suite.workloads.training.shape import Checkpointing

CHANGED = ("zero_stage", "batch", "checkpointing")


@dataclass(frozen=True)
class Room:
    """Bytes for each rank of a machine on which so many ranks run at once; `where` says of what, in words."""

    bytes_a_rank: float
    where: str


def refusals(cases: Iterable[Case], device: Device) -> dict[str, str]:
    """Why configurations cannot run on this machine, by case id; those that can are left out."""
    reasons = {case.case_id: (case.parameters.name, _why_refused(case, device)) for case in cases}
    return {case_id: f"{name}: {reason}" for case_id, (name, reason) in reasons.items() if reason}


def _why_refused(case: Case, device: Device) -> str:
    launched, ranks = rank_environment(), case.parameters.ranks
    try:
        case.validate()
    except UserError as reason:
        return str(reason)
    if not launched.launched and device.kind == "cuda" and ranks > len(gpus()):
        return f"It takes {ranks} GPUs, but this machine has {len(gpus())}: start it by torchrun on more nodes."
    here = -(-ranks // launched.nodes) if launched.launched else ranks
    return why_not(case.parameters, device.kind, room_of(device, here))


def room_of(device: Device, ranks_here: int) -> Room:
    """A GPU's own memory, or an equal share of what this machine has free; a tenth is left alone."""
    if device.kind == "cuda":
        whole = gpus()[device.index].memory_bytes
        return Room(USABLE_SHARE * whole, f"the {whole / 2**30:.0f} GiB of a GPU, a tenth of them kept free")
    free = memory.available_bytes()
    share = f", shared by {ranks_here} ranks" if ranks_here > 1 else ""
    return Room(USABLE_SHARE * free / ranks_here, f"the {free / 2**30:.1f} GiB free here{share}, a tenth kept free")


def need_bytes(p: ParallelStepParameters, device_kind: str) -> float:
    """Of the fullest rank at its fullest: all that it holds, and what it computes again of one micro-batch."""
    keeping = keeping_of(p, device_kind)
    again = working_bytes(p.dimensions, p.batch, p.seq, keeping) / p.tensor
    return max(float(need.total) for need in memory_by_rank(p, device_kind)) + again


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
    near = sorted(_neighbours(p), key=lambda each: _changes(p, each))
    for _, alike in groupby(near, key=lambda each: _changes(p, each)):
        needs = [(need_bytes(each, device_kind), each) for each in alike]
        fitting = [found for found in needs if found[0] <= room_bytes]
        if fitting:
            return max(fitting, key=lambda found: found[0])[1]
    return None


def described_change(p: ParallelStepParameters, near: ParallelStepParameters) -> str:
    """As in `zero_stage 0 -> 2, batch 4 -> 1`."""
    return ", ".join(
        f"{name} {getattr(p, name)} -> {getattr(near, name)}"
        for name in CHANGED
        if getattr(near, name) != getattr(p, name)
    )


def _changes(p: ParallelStepParameters, other: ParallelStepParameters) -> int:
    return sum(getattr(p, name) != getattr(other, name) for name in CHANGED)


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
