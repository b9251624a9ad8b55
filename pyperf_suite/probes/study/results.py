"""What became of each configuration of a study: its throughput and memory, or why it gave none."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.model_flops import model_flop, utilization
from pyperf_suite.operators.training.parallel.parameters import ParallelStepParameters
from pyperf_suite.probes.study.grid import OPERATOR
from pyperf_suite.probes.study.statistics import Throughput, throughput
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.rows import Reading, readings

# What the engine counts, by what it is for. A peak is of all together, and told on GPUs alone.
PARTS = {
    "weights": ("parameter_bytes",),
    "gradients": ("gradient_bytes",),
    "optimizer": ("optimizer_bytes", "counter_bytes"),
    "activations": ("saved_activation_bytes",),
    "peak": ("peak_bytes",),
}
# The catalogue's words for the types that a step computes in.
PEAK_OF = {"bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class Prediction:
    """What laws say of a configuration: seconds a step, and each rank's bytes by those of `PARTS` that they tell."""

    seconds: float
    rank_memory: tuple[Mapping[str, float], ...] = ()

    @property
    def memory_total_bytes(self) -> float | None:
        """Of the fullest rank, all that is foretold; None where nothing is."""
        return max((_held(parts) for parts in self.rank_memory), default=None)


class Predictor(Protocol):
    """Whoever prices configurations; by case id, those alone that it can."""

    def __call__(self, cases: Sequence[Case], records: Sequence[Record]) -> Mapping[str, Prediction]: ...


@dataclass(frozen=True)
class Result:
    """One configuration. `rate` and `reading` are None where no experiment gave a time; `reason` says why some did not.

    `rank_memory` has for each rank the bytes of each of `PARTS` that was counted. `failed` is the number of experiments
    without a time, of `visits` in all.
    """

    case: Case
    rate: Throughput | None
    reading: Reading | None
    rank_memory: tuple[Mapping[str, float], ...]
    outcome: str
    reason: str
    failed: int
    visits: int
    gpu: str
    prediction: Prediction | None = None

    @property
    def parameters(self) -> ParallelStepParameters:
        """How the step is cut."""
        found: ParallelStepParameters = self.case.parameters
        return found

    @property
    def tokens_per_s(self) -> float | None:
        """By the mean over experiments."""
        return self.rate.mean * self.parameters.seq if self.rate else None

    @property
    def flop_per_s(self) -> float | None:
        """The model's own FLOPs, what checkpointing computes again left out, over all ranks."""
        p = self.parameters
        return self.rate.mean * float(model_flop(p.dimensions, 1, p.seq)) if self.rate else None

    @property
    def mfu(self) -> float | None:
        """Share of all GPUs' peak by their data sheet; None on a CPU and for a GPU without one."""
        try:
            peak = find_gpu(self.gpu).peak(PEAK_OF[self.parameters.dtype]) if self.gpu else None
        except UserError:
            return None
        if peak is None or self.flop_per_s is None:
            return None
        return float(utilization(self.flop_per_s, 1.0, self.parameters.ranks, peak))

    @property
    def memory_bytes(self) -> Mapping[str, float]:
        """Of the fullest rank, by part; nothing where nobody counted."""
        return max(self.rank_memory, key=_held, default={})

    @property
    def memory_total_bytes(self) -> float | None:
        """Of the fullest rank: its peak, or all parts together where that is not known."""
        return _held(self.memory_bytes) if self.memory_bytes else None

    @property
    def foretold_share(self) -> float | None:
        """Predicted over counted bytes of the fullest rank, of the parts that are both; None without any."""
        law = max(self.prediction.rank_memory, key=_held, default={}) if self.prediction else {}
        both = [name for name in law if name in self.memory_bytes]
        counted_bytes = sum(self.memory_bytes[name] for name in both)
        return sum(law[name] for name in both) / counted_bytes if counted_bytes else None


def _held(parts: Mapping[str, float]) -> float:
    return parts["peak"] if "peak" in parts else sum(parts.values())


def results_of(records: Iterable[Record], predictor: Predictor | None = None) -> list[Result]:
    """One result a configuration: the fastest first, then those that gave no time, in the order they were visited."""
    latest: dict[str, dict[int, Record]] = {}
    for record in records:
        if record.case.get("operator") == OPERATOR and record.kind == "timing":
            # A later visit of the same experiment is one that was resumed: it stands.
            latest.setdefault(record.case_id, {})[record.process] = record
    found = [_result(list(visits.values())) for visits in latest.values()]
    if predictor is not None and found:
        told = predictor([each.case for each in found], [visit for each in latest.values() for visit in each.values()])
        found = [replace(each, prediction=told.get(each.case.case_id)) for each in found]
    timed = sorted((each for each in found if each.rate), key=lambda each: -each.rate.mean if each.rate else 0.0)
    return timed + [each for each in found if not each.rate]


def _result(visits: Sequence[Record]) -> Result:
    case = visits[0].parsed_case()
    timed = [visit for visit in visits if visit.outcome == "ok" and "time" in visit.metrics]
    lost = [visit for visit in visits if visit.outcome != "ok"]
    identity = visits[0].identity
    return Result(
        case=case,
        rate=throughput(case.parameters.global_batch, [visit.kept_seconds for visit in timed]) if timed else None,
        reading=_reading(timed) if timed else None,
        rank_memory=_memory(timed),
        outcome="ok" if timed else lost[0].outcome if lost else "ok",
        reason=lost[0].reason if lost else "",
        failed=len(lost),
        visits=len(visits),
        gpu=str(identity.get("model", "")) if identity.get("kind") == "cuda" else "",
    )


def _reading(timed: Sequence[Record]) -> Reading:
    """Each experiment by the mean of its steps, as its samples per second are counted."""
    usual = readings(timed)[0]
    by_process = {visit.process: statistics.fmean(visit.kept_seconds) for visit in timed}
    seconds = statistics.median(by_process.values())
    if len(by_process) == 1:
        half = (usual.high - usual.low) / 2
        return replace(usual, seconds=seconds, low=seconds - half, high=seconds + half, by_process=by_process)
    low, high = min(by_process.values()), max(by_process.values())
    return replace(usual, seconds=seconds, low=low, high=high, by_process=by_process)


def _memory(visits: Sequence[Record]) -> tuple[Mapping[str, float], ...]:
    """Each rank's bytes by part as the engine counted them; the same in each experiment, so the last one's."""
    details: Mapping[str, Any] = visits[-1].kernel.get("details", {}) if visits else {}
    columns = details.get("rank_bytes")
    if not isinstance(columns, dict) or not columns:
        return ()
    ranks = len(next(iter(columns.values())))
    return tuple(
        {
            part: float(sum(columns[name][rank] for name in names if name in columns))
            for part, names in PARTS.items()
            if any(name in columns for name in names)
        }
        for rank in range(ranks)
    )
