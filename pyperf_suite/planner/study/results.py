"""Measurements of each configuration of a study: its experiments, rates and memory by rank."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyperf_suite.laws.transformer import model_flop
from pyperf_suite.planner.laws.roofline import utilization
from pyperf_suite.planner.probes.calibration import DTYPE_OF_LAW, gpu_of
from pyperf_suite.planner.study.grid import OPERATOR
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import median_interval
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.reading import Reading, readings
from pyperf_suite.record.record import Record

# Counts of the engine, by their use. A peak is of all together, and known on GPUs alone.
PARTS = {
    "weights": "parameter_bytes",
    "gradients": "gradient_bytes",
    "optimizer": "optimizer_bytes",
    # Records of earlier versions alone have it.
    "activations": "saved_activation_bytes",
    "peak": "peak_bytes",
}
CONFIDENCE = 0.95


@dataclass(frozen=True)
class StudyResult:
    """One configuration: the record of each of its experiments.

    The experiment, a set of processes started anew, is the unit: steps within one resemble each other. Rates are those
    of experiments that are `timed`; without one there are none.
    """

    trials: tuple[Record, ...]

    @cached_property
    def case(self) -> Case:
        """The same in all its records."""
        return self.trials[0].parsed_case()

    @property
    def parameters(self) -> Any:
        return self.case.parameters

    @property
    def name(self) -> str:
        """Name of the configuration, as in `dp2 zero1 flash`."""
        return str(self.parameters.name)

    @cached_property
    def timed(self) -> list[Record]:
        return [each for each in self.trials if each.outcome == "ok" and min(each.kept_seconds, default=0) > 0]

    @property
    def lost(self) -> list[Record]:
        return [trial for trial in self.trials if trial not in self.timed]

    @cached_property
    def rates(self) -> list[float]:
        """Samples per second of each experiment, over the time of all its steps."""
        steps = [trial.kept_seconds for trial in self.timed]
        return [self.parameters.global_batch * len(each) / math.fsum(each) for each in steps]

    @cached_property
    def rate(self) -> float:
        """The mean over experiments."""
        return statistics.fmean(self.rates)

    @property
    def error(self) -> float | None:
        """The standard deviation of the mean over experiments, None of a single one."""
        return statistics.stdev(self.rates) / math.sqrt(len(self.rates)) if len(self.rates) > 1 else None

    @property
    def median(self) -> tuple[Quantity, float]:
        """Median over experiments of the median step, and its confidence: 75 % for three, no bounds for one."""
        usual = [self.parameters.global_batch / statistics.median(each.kept_seconds) for each in self.timed]
        found = median_interval(usual, CONFIDENCE, effective=len(usual))
        low, high = (found.low, found.high) if len(usual) > 1 else (math.nan, math.nan)
        return Quantity(statistics.median(usual), "samples/s", low, high, len(usual)), found.confidence

    @cached_property
    def reading(self) -> Reading:
        """Seconds a step, of each experiment by the mean of its steps, as its samples per second are counted."""
        usual = readings(self.timed)[0]
        times = {trial.process: statistics.fmean(trial.kept_seconds) for trial in self.timed}
        half = (usual.high - usual.low) / 2 if len(times) == 1 else 0.0
        low, high = min(times.values()) - half, max(times.values()) + half
        seconds = statistics.median(times.values())
        within = (high - low) / 2 / seconds
        return replace(usual, seconds=seconds, low=low, high=high, by_process=times, within=within)

    @cached_property
    def rank_bytes(self) -> Mapping[str, list[float]]:
        """Bytes of each rank as the engine counted them; the same in each experiment, so the last one's."""
        reported = self.timed[-1].kernel.get("details", {}).get("rank_bytes") if self.timed else None
        return reported if isinstance(reported, dict) else {}

    @cached_property
    def memory(self) -> Mapping[str, float]:
        """Bytes of the fullest rank by part; nothing where nobody counted."""
        known = {part: self.rank_bytes[name] for part, name in PARTS.items() if name in self.rank_bytes}
        ranks = [dict(zip(known, map(float, counted), strict=True)) for counted in zip(*known.values(), strict=True)]
        return max(ranks, key=lambda rank: rank.get("peak", sum(rank.values())), default={})

    @cached_property
    def room(self) -> tuple[float, float] | None:
        """Bytes that the system sees a rank take, and those it has, of the fullest rank; None if unknown."""
        used = self.rank_bytes.get("reserved_bytes", self.rank_bytes.get("resident_bytes", []))
        limit = self.timed[-1].sampling.get("memory_limit_bytes", math.inf) if self.timed else math.inf
        capacities = [min(limit, capacity) for capacity in self.rank_bytes.get("capacity_bytes", [])]
        return max(zip(used, capacities, strict=False), key=lambda rank: rank[0] / rank[1], default=None)

    @property
    def flop_per_s(self) -> float:
        """The model's own FLOPs, what checkpointing computes again left out, over all ranks."""
        return self.rate * float(model_flop(self.parameters.dimensions, 1, self.parameters.seq))

    @property
    def mfu(self) -> float | None:
        """Share of all GPUs' peak by their data sheet; None on a CPU and for a GPU without one."""
        gpu = gpu_of(self.trials[0].identity)
        peak = gpu and gpu.peak_flop_per_s.get(DTYPE_OF_LAW[self.parameters.dtype])
        return float(utilization(self.flop_per_s, 1.0, self.parameters.ranks, peak)) if peak else None


def results_of(records: Iterable[Record]) -> list[StudyResult]:
    """One result a configuration: the fastest first, then those that gave no time, in the order they were tried."""
    latest: dict[str, dict[int, Record]] = {}
    for record in records:
        if record.case.get("operator") == OPERATOR and record.kind == "timing":
            # A later trial of the same experiment is one that was resumed: it stands.
            latest.setdefault(record.case_id, {})[record.process] = record
    found = [StudyResult(tuple(trials.values())) for trials in latest.values()]
    return sorted(found, key=lambda each: -each.rate if each.timed else 0.0)
