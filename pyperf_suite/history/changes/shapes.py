"""Alarms about the shape of what a probe measured: a cliff that moved, a step that is gone, a law that fits worse.

A kernel can keep the time of every single case within noise and yet have lost what made its sizes predictable. The
newest run is held against those before it, which must agree among themselves; the first run that differs is told, and
once others follow it the new shape is the usual one.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyperf_suite.history.exit_code import NOMINATED
from pyperf_suite.history.finding import Finding
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.probes import tile_wave
from pyperf_suite.probes.alignment import sweeps
from pyperf_suite.probes.alignment.sizes import class_of
from pyperf_suite.probes.attention_heads.law import laws_of
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.rows import Rows, rows_of

# Runs before the newest that must agree, and how many of them are asked.
FEWEST_BEFORE, MOST_BEFORE = 2, 3

# A law's error has grown where it is so many times the largest before, and by so many percentage points.
GROWN, GROWN_BY = 1.5, 0.03

# Times that moved by less do not say which side of a step moved.
MOVED = 1.05

Runs = Sequence[Rows]


def shape_alarms(probe: str, runs: Sequence[Sequence[Record]]) -> list[Finding]:
    """Compare the newest, last run's shapes with those of the runs before; `runs` are of one probe on one machine.

    None where the probe has no shapes that are watched, or too few runs came before. An alarm is undecided: shapes are
    evidence, and which kernel changed is for a paired rerun of the cases it names.
    """
    watches: Mapping[str, tuple[Callable[[Runs], list[tuple[str, str, dict[str, Any]]]], ...]] = {
        "tile_wave": (_moved_cliffs, _grown_residuals_of_waves),
        "alignment": (_lost_steps,),
        "attention_heads": (_grown_residuals_of_attention,),
    }
    if probe not in watches or len(runs) <= FEWEST_BEFORE:
        return []
    found = [rows_of(records) for records in runs[-MOST_BEFORE - 1 :]]
    return [
        Finding(f"{probe}: {subject}", probe, "", "undecided", None, 0.0, f"{probe}, {subject}: {sentence}", details)
        for watch in watches[probe]
        for subject, sentence, details in watch(found)
    ]


def _moved_cliffs(runs: Runs) -> list[tuple[str, str, dict[str, Any]]]:
    """Sweeps whose largest cliff lies at another size than it did in all runs before."""
    *before, now = [_cliffs(run) for run in runs]
    alarms = []
    for subject, steps in now.items():
        earlier = [run[subject] for run in before if run.get(subject)]
        if len(earlier) < FEWEST_BEFORE or not steps:
            continue
        places = {_largest(cliffs) for cliffs in earlier}
        old, new = places.pop(), _largest(steps)
        if places or new == old or old not in steps or not _stands_out(steps, new, old):
            continue
        if all(new not in cliffs or _stands_out(cliffs, old, new) for cliffs in earlier):
            cost_before = statistics.median(cliffs[old].value for cliffs in earlier) - 1
            alarms.append(
                (
                    subject,
                    f"its largest cliff moved from {old[0]} -> {old[1]} ({cost_before:+.0%} time in {len(earlier)} "
                    f"runs before, {steps[old].value - 1:+.0%} now) to {new[0]} -> {new[1]} "
                    f"({steps[new].value - 1:+.0%}).",
                    {"shape": "cliff", "before": list(old), "after": list(new)},
                )
            )
    return alarms


def _cliffs(run: Rows) -> dict[str, dict[tuple[int, int], Ratio]]:
    """For each sweep the time after each tile edge over the time before it, by the sizes on both sides."""
    found = {}
    for setting in tile_wave.settings_of(run):
        for sweep in tile_wave.sweeps_of(setting):
            steps = {(cliff.size, cliff.other): cliff.gain.inverse for cliff in tile_wave.cliffs_of(sweep)}
            found[f"{sweep.setting}, {sweep.shape}"] = steps
    return found


def _largest(cliffs: Mapping[tuple[int, int], Ratio]) -> tuple[int, int]:
    return max(cliffs, key=lambda sizes: cliffs[sizes].value)


def _stands_out(cliffs: Mapping[tuple[int, int], Ratio], large: tuple[int, int], small: tuple[int, int]) -> bool:
    """Whether a cliff is larger than another beyond both intervals."""
    return cliffs[large].low > cliffs[small].high


def _grown_residuals_of_waves(runs: Runs) -> list[tuple[str, str, dict[str, Any]]]:
    return _grown([_wave_errors(run) for run in runs], "the wave law")


def _grown_residuals_of_attention(runs: Runs) -> list[tuple[str, str, dict[str, Any]]]:
    errors = [{name: statistics.median(law.held_out) for name, law in laws_of(run).items()} for run in runs]
    return _grown(errors, "the law of attention")


def _wave_errors(run: Rows) -> dict[str, float]:
    """By kernel and tile the median error of the wave law on cases that it was not fitted to."""
    errors = {}
    for setting in tile_wave.settings_of(run):
        law = tile_wave.fit(setting)
        row = setting[0]
        workers = row.schedule.workers
        name = f"{row.mode} {row.implementation} tile {row.tile}, {row.dtype}, K = {row.k}, {workers} workers"
        if law is not None:
            errors[name] = statistics.median(law.held_out)
    return errors


def _grown(errors: Sequence[Mapping[str, float]], law: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Where a law's error is beyond all it was before."""
    *before, now = errors
    alarms = []
    for subject, error in now.items():
        earlier = [run[subject] for run in before if subject in run]
        if len(earlier) >= FEWEST_BEFORE and error > max(GROWN * max(earlier), max(earlier) + GROWN_BY):
            alarms.append(
                (
                    subject,
                    f"{law} misses held-out cases by {error:.1%} (median), and missed them by at most "
                    f"{max(earlier):.1%} in {len(earlier)} runs before.",
                    {"shape": "law", "before": earlier, "after": error},
                )
            )
    return alarms


def _lost_steps(runs: Runs) -> list[tuple[str, str, dict[str, Any]]]:
    """Divisors that used to make a product faster and no longer do."""
    *before, now = [_steps(run) for run in runs]
    alarms = []
    for (setting, along, divisor), (worse, better) in now.items():
        earlier = [run[setting, along, divisor] for run in before if (setting, along, divisor) in run]
        if len(earlier) < FEWEST_BEFORE or not all(_is_step(*pair) for pair in earlier):
            continue
        least = min(low.value / high.value for low, high in earlier)
        if worse.low > better.high or worse.value / better.value > math.sqrt(least):
            continue
        fast = _moved([_by_class(run, setting, along, divisor) for run in runs])
        details: dict[str, Any] = {"shape": "step", "divisor": divisor, "before": least, "aligned": fast}
        blame = ""
        if fast is not None and fast > MOVED:
            details[NOMINATED] = "slower"
            blame = f"; sizes that divide by {divisor} take {fast - 1:+.0%} time"
        elif fast is not None:
            blame = f"; sizes that divide by {divisor} take {fast - 1:+.0%} time, so the others got faster"
        alarms.append(
            (
                f"{setting} along {along.upper()}",
                f"its ÷{divisor} step is gone: dividing by less cost a factor of at least {least:.2f} in "
                f"{len(earlier)} runs before, and costs {worse.value / better.value:.2f} now{blame}.",
                details,
            )
        )
    return alarms


def _steps(run: Rows) -> dict[tuple[str, str, int], tuple[Ratio, Ratio]]:
    """For each divisor what padding gains just below it, and at it; sizes that end on a line gain nothing."""
    ladders: dict[tuple[str, str], dict[int, Ratio]] = {}
    for each in sweeps.classes_of(sweeps.sweeps_of(run)):
        ladders.setdefault((each.sweep.setting, each.sweep.along), {})[each.divisor] = each.gain
    found = {}
    for (setting, along), gains in ladders.items():
        for low, high in itertools.pairwise(sorted(gains)):
            found[setting, along, high] = (gains[low], gains[high])
        last = max(gains)
        found[setting, along, 2 * last] = (gains[last], Ratio(1.0, 1.0, 1.0))
    return found


def _is_step(worse: Ratio, better: Ratio) -> bool:
    """Whether sizes of the lower divisor are slower beyond both intervals, and by what makes a cliff."""
    return worse.low > better.high and worse.value / better.value >= sweeps.CLIFF


def _by_class(run: Rows, setting: str, along: str, divisor: int) -> dict[str, float]:
    """Seconds of the sizes that divide by so much, by case."""
    return {
        row.case.case_id: row.seconds
        for sweep in sweeps.sweeps_of(run)
        if sweep.setting == setting and sweep.along == along
        for size, row in sweep.rows.items()
        if class_of(size) >= divisor
    }


def _moved(seconds: Sequence[Mapping[str, float]]) -> float | None:
    """The newest times over the median of those before, at the median over cases; None where none is common."""
    *before, now = seconds
    ratios = [
        time / statistics.median(run[case] for run in before if case in run)
        for case, time in now.items()
        if any(case in run for run in before)
    ]
    return statistics.median(ratios) if ratios else None
