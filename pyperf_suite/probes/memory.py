"""The anatomy of a training step's memory, measured, beside the formulas that people plan with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.saved_memory import TrainingMemoryParameters
from pyperf_suite.operators.training.shape import Checkpointing
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.memory_findings import explain
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings

BLOCKS = ("gpt", "llama")


@dataclass(frozen=True)
class MemoryAxes:
    """What the probe varies: `block` to `checkpointing` are crossed, the others are varied one at a time."""

    block: tuple[str, ...]
    attention: tuple[str, ...]
    dropout: tuple[float, ...]
    checkpointing: tuple[Checkpointing, ...]
    precision: tuple[str, ...]
    batch: tuple[int, ...]
    seq: tuple[int, ...]
    kv_heads: tuple[int, ...]
    hidden: tuple[int, ...]
    heads: tuple[int, ...]
    layers: tuple[int, ...]
    vocab: tuple[int, ...]
    implementation: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise UserError for a block there is not."""
        for block in self.block:
            if block not in BLOCKS:
                raise UserError(f"block={block} was asked for: choose from {', '.join(BLOCKS)}.")


class Memory(Probe):
    """A GPT's or a Llama's step, in memory."""

    name = "memory"
    question = "What takes a training step's memory, and do the formulas that people plan with say so?"
    is_timed = False

    def axes(self, profile: str, device: Device) -> MemoryAxes:
        """Small models on a CPU, where every byte is counted; on a GPU the dimensions that are trained there."""
        crossed = profile != "quick"
        gpu = device.kind == "cuda"
        return MemoryAxes(
            block=BLOCKS if crossed else BLOCKS[:1],
            attention=("sdpa", "explicit") if crossed else ("sdpa",),
            dropout=(0.0, 0.1) if crossed else (0.0,),
            checkpointing=tuple(
                Checkpointing.parse(text)
                for text in (("none", "every:1", "every:2", "selective") if crossed else ("none", "every:1"))
            ),
            precision=("bfloat16", "autocast_bfloat16", "float32") if crossed else ("bfloat16", "autocast_bfloat16"),
            batch=(2, 1, 4) if crossed else (2,),
            seq=(2048, 4096) if gpu else (64, 128) if crossed else (64,),
            kv_heads=(0, 2) if crossed else (0,),
            hidden=(2048,) if gpu else (128,),
            heads=(16,) if gpu else (4,),
            layers=(4,) if gpu else (3,),
            vocab=(50304,) if gpu else (512,),
            implementation=("allocator" if gpu else "storages",),
        )

    def sweep(self, axes: MemoryAxes) -> list[Case]:
        """The crossed ones at the first of each other, then every other value of those, one at a time."""
        cases: dict[str, Case] = {}
        for implementation, parameters in itertools.product(axes.implementation, _swept(axes)):
            case = Case("training_memory", parameters, implementation)
            cases.setdefault(case.case_id, case)
        return list(cases.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """Each claim beside what was read, the law's error, and tables."""
        return explain(records)


def _swept(axes: MemoryAxes) -> Iterator[TrainingMemoryParameters]:
    crossed = itertools.product(axes.block, axes.attention, axes.dropout, axes.checkpointing)
    for block, attention, dropout, checkpointing in crossed:
        first = TrainingMemoryParameters(
            hidden=axes.hidden[0],
            heads=axes.heads[0],
            layers=axes.layers[0],
            seq=axes.seq[0],
            batch=axes.batch[0],
            kv_heads=axes.kv_heads[0],
            vocab=axes.vocab[0],
            gated=block == "llama",
            dropout=dropout,
            attention=attention,
            checkpointing=checkpointing,
            precision=axes.precision[0],
        )
        yield first
        if (attention, dropout, checkpointing) != (axes.attention[0], axes.dropout[0], axes.checkpointing[0]):
            continue
        for name in ("precision", "batch", "seq", "kv_heads", "hidden", "heads", "layers", "vocab"):
            for value in getattr(axes, name)[1:]:
                changed: dict[str, Any] = {name: value}
                yield replace(first, **changed)
