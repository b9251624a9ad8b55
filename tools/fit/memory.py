"""Finds what frameworks reserve beyond the formulas of memory, on published runs that state it, and judges verdicts.

The constants stand in `planner/laws/training/memory.py`; errors are of runs whose source the fit had not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.laws.training.memory import NEAR_LIMIT
from pyperf_suite.planner.laws.training.memory import RESERVE, verdict_of
from pyperf_suite.planner.training_runs import TrainingRun, read_runs
from tools.fit.step import source_of, tables_in

Floats = NDArray[np.float64]
GIB = 2**30
# Each constant before any run is seen, its deviation, and the range that physics allows.
PRIORS = {
    "process_bytes": (2.0 * GIB, 1.0 * GIB, 0.5 * GIB, 8.0 * GIB),
    "group_bytes": (0.5 * GIB, 0.5 * GIB, 0.0, 2.0 * GIB),
    "at_work": (2.0, 2.0, 0.0, 8.0),
    "selected": (0.3, 0.3, 0.0, 1.0),
}
# Scatter that runs of one layout have; as many runs as one source counts for, at most.
USUAL_ERROR, WORTH = 0.1, 12


@dataclass(frozen=True)
class Asked:
    """A run and its memory by the formulas: bytes of the constants' parts, predicted and at the least."""

    run: TrainingRun
    predicted: Floats
    least_predicted: Floats

    @property
    def source(self) -> str:
        return source_of(self.run)

    @property
    def states_memory(self) -> bool:
        return bool(self.run.memory_gib) and self.run.ran

    def bytes_of(self, values: Floats) -> tuple[float, float]:
        """Return the bytes predicted by these constants, and the least where the row leaves something open."""
        ways = float(self.predicted @ [1.0, *values]), float(self.least_predicted @ [1.0, *values])
        return ways[0], min(ways)

    def error(self, values: Floats) -> float:
        """log(measured / predicted); where only the GPU's memory is known, what is predicted beyond that."""
        predicted, least = self.bytes_of(values)
        if self.states_memory:
            return float(np.log((self.run.memory_gib or 0.0) * GIB / predicted))
        return min(0.0, float(np.log(NEAR_LIMIT * self.run.gpu.memory_bytes / least)))


def asked(run: TrainingRun) -> Asked:
    """Take a run's memory apart: it is a sum of the constants times what each is of."""
    zero = replace(RESERVE, low=1.0, **dict.fromkeys(PRIORS, 0.0))
    without = np.array(run.reserved(zero)[:2])
    units = [prior[0] for prior in PRIORS.values()]
    parts = [
        (np.array(run.reserved(replace(zero, **{name: unit}))[:2]) - without) / unit
        for name, unit in zip(PRIORS, units, strict=True)
    ]
    predicted, least = np.array([without, *parts]).T
    return Asked(run, predicted, least)


def fit_reserve(runs: Sequence[Asked]) -> Floats:
    """The constants that come nearest to what these runs reserved, by relative error."""
    from scipy.optimize import least_squares

    means, deviations, low, high = np.array(list(PRIORS.values())).T
    count = Counter((each.source, each.states_memory) for each in runs)
    weights = np.array([min(1.0, WORTH / count[each.source, each.states_memory]) for each in runs])

    def misses(values: Floats) -> Floats:
        off = np.sqrt(weights) * [each.error(means * values) for each in runs] / USUAL_ERROR
        return np.concatenate([np.sign(off) * np.sqrt(np.log1p(off**2)), (means * values - means) / deviations])

    found = least_squares(misses, np.ones(len(means)), bounds=(low / means, high / means), xtol=1e-3, ftol=1e-3)
    return np.asarray(means * found.x)


def ends_of(runs: Sequence[Asked], unseen: Mapping[str, Floats]) -> tuple[float, float]:
    """The factors between which nine of ten runs of each source lie, by constants that had not seen it."""
    ends = []
    for source in dict.fromkeys(each.source for each in runs):
        own = [each for each in runs if each.source == source]
        held = np.array([(each.run.memory_gib or 0.0) * GIB for each in own])
        predicted, least = np.array([each.bytes_of(unseen[source]) for each in own]).T
        ends.append((np.quantile(held / least, 0.05), np.quantile(held / predicted, 0.95)))
    low, high = np.array(ends).T
    return float(low.min()), float(high.max())


def judged_memory(tables_folder: Path) -> Iterator[str]:
    """Errors, coverage and verdicts by source as a table in Markdown, each by constants that had not seen the source.

    Raises UserError where the folder has not the tables.
    """
    runs = [asked(run) for path in tables_in(tables_folder) for run in read_runs(path)[0]]
    ran = list(
        {
            (each.source, str(each.run.model), str(each.run.plan), each.run.memory_gib): each
            for each in runs
            if each.run.ran
        }.values()
    )
    stated = [each for each in runs if each.states_memory]
    sources = list(dict.fromkeys(each.source for each in runs))
    unseen = {source: fit_reserve([each for each in ran if each.source != source]) for source in sources}
    yield "| source | rows | MAPE, % | bias, % | in the stated range, % | rows in all | wrong verdicts | may not fit |"
    yield "|---" * 8 + "|"
    for source in sources:
        members, values = [each for each in stated if each.source == source], unseen[source]
        low, high = ends_of([each for each in stated if each.source != source], unseen)
        figures = "- | - | -"
        if members:
            off = np.expm1([-each.error(values) for each in members]) * 100
            held = [(each.run.memory_gib or 0.0) * GIB for each in members]
            ranges = [each.bytes_of(values) for each in members]
            inside = [low * least <= one <= high * most for one, (most, least) in zip(held, ranges, strict=True)]
            figures = f"{np.mean(np.abs(off)):.1f} | {np.mean(off):+.1f} | {100 * np.mean(inside):.0f}"
        every = [each for each in runs if each.source == source]
        verdicts = []
        for each in every:
            predicted, least = each.bytes_of(values)
            verdicts.append(verdict_of(low * least, high * predicted, each.run.gpu.memory_bytes))
        wrong = sum(
            word == ("does not fit" if each.run.ran else "fits") for each, word in zip(every, verdicts, strict=True)
        )
        yield f"| {source} | {len(members)} | {figures} | {len(every)} | {wrong} | {verdicts.count('may not fit')} |"
    values, (low, high) = fit_reserve(ran), ends_of(stated, unseen)
    constants = ", ".join(f"{name} {value:.4g}" for name, value in zip(PRIORS, values.tolist(), strict=True))
    yield f"of all: {constants}; nine of ten runs of each source between {low:.2f} and {high:.2f} times the prediction"
