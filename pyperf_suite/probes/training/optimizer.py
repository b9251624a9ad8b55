"""How an optimizer should walk over its tensors: a loop, multi-tensor operations, one fused kernel; and its memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.optimizer_update import (
    OPTIMIZERS,
    OptimizerUpdate,
    OptimizerUpdateParameters,
    TensorSet,
)
from pyperf_suite.probes.findings import Findings, Table
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.readings import Reading, readings
from pyperf_suite.probes.speedups import speedup, wins
from pyperf_suite.probes.training.claims import BEKMAN, TRANSFORMERS, Claim
from pyperf_suite.probes.training.observed import all_observed
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record

WAYS = ("loop", "foreach", "fused")
LOW_MEMORY = ("bitsandbytes_8bit", "torchao_8bit")

# "Significantly" is the guide's word; a quarter is what this probe takes it for.
MANY_SMALL = Claim(
    "multi-tensor significantly speeds up many small tensors, taken as 1.25 x or more", TRANSFORMERS, 1.25
)
# Two moments of 4 bytes; the guide's 8 of 18 bytes a parameter.
ADAMW_STATE = Claim("AdamW's moments take 8 bytes a parameter", BEKMAN, 7.99, 8.01)
# Below so many elements a tensor is small: a matrix of 256 x 256.
SMALL_ELEMENTS = 1 << 16

COLUMNS = ("optimizer", "way", "tensors", "dtype", "ms", "GB/s", "x the loop", "state B/param", "passing B/param")

# The same total in few large tensors and in many small ones.
CPU_SETS = (TensorSet(4, 1024, 512), TensorSet(512, 64, 64))
GPU_SETS = (TensorSet(4, 4096, 4096), TensorSet(1024, 256, 256))


@dataclass(frozen=True)
class OptimizerAxes:
    """What the probe varies; AdamW alone is tried in 8 bits, and Adafactor has no fused way."""

    optimizer: tuple[str, ...]
    implementation: tuple[str, ...]
    tensors: tuple[TensorSet, ...]
    dtype: tuple[str, ...]
    workers: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise UserError for a word there is not, or workers that cannot be."""
        for name, words in (("optimizer", OPTIMIZERS), ("implementation", (*WAYS, *LOW_MEMORY))):
            for value in getattr(self, name):
                if value not in words:
                    raise UserError(f"{name}={value} was asked for: choose from {', '.join(words)}.")
        if min(self.workers) < 1:
            raise UserError(f"workers={min(self.workers)} was asked for, but workers is at least 1.")


class OptimizerProbe(Probe):
    """One update by each optimizer in each way, of the same total in many tensors and in few."""

    name = "optimizer"
    question = "Which way of updating is fastest for many small and few large tensors, and what memory does it take?"

    def axes(self, profile: str, device: Device) -> OptimizerAxes:
        """Two million elements on a CPU, 64 million on a GPU."""
        gpu = device.kind == "cuda"
        sets = GPU_SETS if gpu else CPU_SETS
        quick = OptimizerAxes(
            optimizer=("AdamW",),
            implementation=WAYS,
            tensors=sets[1:],
            dtype=("float32",),
            workers=(1 if gpu else cpu.detect().usable_cores,),
        )
        if profile == "quick":
            return quick
        standard = replace(quick, optimizer=OPTIMIZERS, implementation=(*WAYS, *LOW_MEMORY), tensors=sets)
        if profile == "standard":
            return standard
        smallest = TensorSet(16384, 64, 64) if gpu else TensorSet(8192, 16, 16)
        between = TensorSet(64, 1024, 1024) if gpu else TensorSet(32, 256, 256)
        return replace(standard, tensors=(sets[0], between, sets[1], smallest), dtype=("float32", "bfloat16"))

    def sweep(self, axes: OptimizerAxes) -> list[Case]:
        """Every optimizer in every way that it has."""
        return [
            Case("optimizer_update", OptimizerUpdateParameters(tensors, optimizer, dtype, workers), way)
            for dtype, workers, optimizer, tensors, way in itertools.product(
                axes.dtype, axes.workers, axes.optimizer, axes.tensors, axes.implementation
            )
            if _exists(optimizer, way)
        ]

    def findings(self, records: Sequence[Record]) -> Findings:
        """Each way beside the loop, then states and what passes, and a table of it all."""
        found, held = sorted(readings(records), key=_order), all_observed(records)
        sentences = [*_beside_the_loop(found), *_memory(found, held)]
        rows = tuple(_row(reading, _loop_of(reading, found), held[reading.case.case_id]) for reading in found)
        return Findings(tuple(sentences), (Table("Updates by optimizer and way", COLUMNS, rows),) if rows else ())

    def group(self, case: Case) -> str:
        """One table an optimizer and type."""
        return f"optimizer {case.parameters.optimizer} {case.parameters.dtype}"


def _exists(optimizer: str, way: str) -> bool:
    if way in LOW_MEMORY:
        return optimizer == "AdamW"
    return not (optimizer == "Adafactor" and way == "fused")


def _order(reading: Reading) -> tuple[str, int, int, int]:
    """By type and optimizer, the smallest tensors first, each way in its place."""
    p, ways = reading.case.parameters, (*WAYS, *LOW_MEMORY)
    place = ways.index(reading.case.implementation)
    return p.dtype, OPTIMIZERS.index(p.optimizer), p.tensors.elements_each, place


def _loop_of(reading: Reading, found: Sequence[Reading]) -> Reading | None:
    """The loop over the same tensors."""
    parameters = reading.case.parameters
    return next((r for r in found if r.case.implementation == "loop" and r.case.parameters == parameters), None)


def _beside_the_loop(found: Sequence[Reading]) -> Iterator[str]:
    """The claim about many small tensors, and what is left of it on few large ones."""
    for reading in found:
        way, p = reading.case.implementation, reading.case.parameters
        loop = _loop_of(reading, found)
        ratio = speedup(loop, reading) if loop is not None and loop is not reading else None
        if ratio is None:
            continue
        subject = f"{_named(way)} {p.optimizer} is {{}} x as fast as the loop on {_in_words(p.tensors)} in {p.dtype}"
        if way in WAYS and p.tensors.elements_each <= SMALL_ELEMENTS and p.tensors.tensors > 1:
            yield MANY_SMALL.sentence(subject, ratio)
        else:
            told = "faster" if wins(ratio) else "slower" if ratio.high < 1 else "not told apart"
            yield f"{subject.format(ratio)}: {told}."


def _memory(found: Sequence[Reading], held: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Bytes a parameter of each optimizer's state, and the most that each way takes beside it while it works."""
    per_state: dict[tuple[str, str], list[float]] = {}
    passing: dict[tuple[str, str], list[float]] = {}
    for reading in found:
        p, seen = reading.case.parameters, held[reading.case.case_id]
        way = reading.case.implementation
        name = f"{p.optimizer} by {way}" if way in LOW_MEMORY else p.optimizer
        per_state.setdefault((p.dtype, name), []).append(seen["state"] / p.tensors.elements)
        if "passing" in seen:
            passing.setdefault((p.dtype, _named(way)), []).append(seen["passing"] / p.tensors.elements)
    for dtype in dict.fromkeys(dtype for dtype, _ in per_state):
        states = ", ".join(f"{name} {_span(each)}" for (kind, name), each in per_state.items() if kind == dtype)
        told = f"State that stays, in bytes a parameter of {dtype}: {states}"
        adamw = per_state.get((dtype, "AdamW"))
        yield ADAMW_STATE.counted(told, max(adamw)) if adamw and dtype == "float32" else f"{told}."
    for dtype in dict.fromkeys(dtype for dtype, _ in passing):
        ways = ", ".join(f"{name} {_span(each)}" for (kind, name), each in passing.items() if kind == dtype)
        yield f"Beside it an update of {dtype} takes for as long as it works, in bytes a parameter: {ways}."


def _row(reading: Reading, loop: Reading | None, held: Mapping[str, float]) -> tuple[str, ...]:
    p, way = reading.case.parameters, reading.case.implementation
    ratio = speedup(loop, reading) if loop is not None and loop is not reading else None
    moved = p.tensors.elements
    return (
        p.optimizer,
        way,
        str(p.tensors),
        p.dtype,
        f"{reading.seconds * 1e3:.3f}",
        _rate(reading),
        "-" if ratio is None else str(ratio),
        f"{held['state'] / moved:.3g}",
        f"{held['passing'] / moved:.3g}" if "passing" in held else "-",
    )


def _rate(reading: Reading) -> str:
    """Bytes that have to be moved once, in GB/s; of 8-bit states less is moved, so nothing is said."""
    if reading.case.implementation in LOW_MEMORY:
        return "-"
    bytes_moved = OptimizerUpdate().work(reading.case.parameters).bytes
    return f"{bytes_moved / reading.seconds / 1e9:.2f}"


def _named(way: str) -> str:
    return "the loop" if way == "loop" else way


def _in_words(tensors: TensorSet) -> str:
    return f"{tensors.tensors} tensors of {tensors.rows} x {tensors.columns}"


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
