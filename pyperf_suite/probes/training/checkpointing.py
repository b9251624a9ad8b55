"""What dropping activations and computing them again costs, what it frees, and whether a larger batch pays for it.

After every policy at the same batch, the largest batch that fits a budget of bytes is searched for under each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.checkpointed_step import CheckpointedStepParameters
from pyperf_suite.operators.training.shape import Checkpointing
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.checkpointing_findings import explain
from pyperf_suite.probes.training.largest_batch import next_batch, searches
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings

# What the CUDA context and the libraries take of a GPU's memory before anything is placed there.
CONTEXT_BYTES = 1 << 30


@dataclass(frozen=True)
class CheckpointingAxes:
    """What the probe varies.

    `budget_mb` is what a step may hold in all, in units of 1e6 bytes; 0 is what the device has free, and then no larger
    batch is searched for. With `vocab` 0 there are blocks alone, without embedding, logits and loss.
    """

    checkpointing: tuple[Checkpointing, ...]
    batch: tuple[int, ...]
    hidden: tuple[int, ...]
    heads: tuple[int, ...]
    layers: tuple[int, ...]
    seq: tuple[int, ...]
    vocab: tuple[int, ...]
    attention: tuple[str, ...]
    precision: tuple[str, ...]
    part: tuple[str, ...]
    budget_mb: tuple[int, ...]
    workers: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise UserError for a number that cannot be."""
        for name, least in (("batch", 1), ("budget_mb", 0), ("workers", 1)):
            for value in getattr(self, name):
                if value < least:
                    raise UserError(f"{name}={value} was asked for, but {name} is at least {least}.")


class CheckpointingProbe(Probe):
    """Steps under every policy at the same batch, then at the largest batch that each lets fit."""

    name = "checkpointing"
    question = "What does computing activations again cost, what does it free, and does a larger batch repay it?"

    def axes(self, profile: str, device: Device) -> CheckpointingAxes:
        """A small stack of blocks on a CPU within a stated budget; on a GPU a large one within its memory."""
        return _cuda_axes(profile, device) if device.kind == "cuda" else _cpu_axes(profile)

    def sweep(self, axes: CheckpointingAxes) -> list[Case]:
        """Each policy at each batch of each transformer; the search adds its own (see `follow_up`)."""
        cases = {}
        for hidden, heads, layers, seq, vocab, attention in itertools.product(
            axes.hidden, axes.heads, axes.layers, axes.seq, axes.vocab, axes.attention
        ):
            for precision, part, budget, workers, batch, policy in itertools.product(
                axes.precision, axes.part, axes.budget_mb, axes.workers, axes.batch, axes.checkpointing
            ):
                parameters = CheckpointedStepParameters(
                    hidden=hidden,
                    heads=heads,
                    layers=layers,
                    seq=seq,
                    batch=batch,
                    vocab=vocab,
                    attention=attention,
                    checkpointing=policy,
                    precision=precision,
                    part=part,
                    workers=workers,
                    budget_bytes=budget * 1_000_000,
                )
                case = Case("checkpointed_step", parameters, "torch")
                cases[case.case_id] = case
        return list(cases.values())

    def follow_up(self, records: Sequence[Record]) -> list[Case]:
        """For each policy the batch to try next, until one is known to fit and the next one not to."""
        asked = []
        for search in searches(records):
            batch = next_batch(search)
            if batch is not None:
                asked.append(Case("checkpointed_step", replace(search.parameters, batch=batch), "torch"))
        return asked

    def findings(self, records: Sequence[Record]) -> Findings:
        """The cost at the same batch, the largest batches, whether they repay it, and what to do."""
        return explain(records)

    def group(self, case: Case) -> str:
        """One table a transformer."""
        p = case.parameters
        return f"checkpointing {p.layers} x {p.hidden} seq {p.seq} {p.precision}"


def _cpu_axes(profile: str) -> CheckpointingAxes:
    """Small enough that a step takes a tenth of a second at the largest batch that fits."""
    standard = CheckpointingAxes(
        checkpointing=tuple(map(Checkpointing.parse, ("none", "selective", "every:1", "every:2"))),
        batch=(4,),
        hidden=(128,),
        heads=(4,),
        layers=(4,),
        seq=(64,),
        vocab=(0,),
        attention=("sdpa",),
        precision=("float32",),
        part=("train",),
        budget_mb=(25,),
        workers=(cpu.detect().usable_cores,),
    )
    if profile == "quick":
        return replace(
            standard, checkpointing=tuple(map(Checkpointing.parse, ("none", "every:1"))), layers=(2,), budget_mb=(0,)
        )
    if profile == "standard":
        return standard
    return replace(
        standard,
        checkpointing=tuple(map(Checkpointing.parse, ("none", "selective", "every:1", "every:2", "every:4"))),
        batch=(1, 2, 4),
        hidden=(256,),
        layers=(8,),
        seq=(128,),
        budget_mb=(200,),
    )


def _cuda_axes(profile: str, device: Device) -> CheckpointingAxes:
    standard = replace(
        _cpu_axes("standard"),
        batch=(2,),
        hidden=(4096,),
        heads=(32,),
        seq=(2048,),
        precision=("bfloat16",),
        budget_mb=(math.floor((gpus()[device.index].memory_bytes - CONTEXT_BYTES) / 1e6),),
        workers=(1,),
    )
    if profile == "quick":
        return replace(
            standard, checkpointing=tuple(map(Checkpointing.parse, ("none", "every:1"))), layers=(2,), budget_mb=(0,)
        )
    if profile == "standard":
        return standard
    return replace(standard, batch=(1, 2, 4, 8), vocab=(0, 50304))
