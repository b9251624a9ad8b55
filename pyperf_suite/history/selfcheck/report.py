"""A selfcheck as findings: rates by injected slowdown, what each benchmark's pairs are like, and one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import numpy as np

from pyperf_suite.history.finding import Verdict
from pyperf_suite.history.selfcheck.selfcheck import Comparison, Seconds, Selfcheck
from pyperf_suite.spec.findings import Cell, Findings, Quantity, Remark, findings, quantity, remark
from pyperf_suite.spec.rows import Column, grouped, table

# What turns the median of absolute deviations into a standard deviation where noise is normal.
_NORMAL_MAD = 1.4826
_VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "equivalent", "undecided")


def heading(selfcheck: Selfcheck) -> Remark:
    """What was compared, under which rule, and where."""
    settings, rule = selfcheck.settings, selfcheck.settings["rule"]
    return remark(
        "Selfcheck of {machine}: {cases} benchmarks, margin {margin}, at most {budget} and {pairs} pairs a comparison",
        machine=settings["machine"],
        cases=len(settings["cases"]),
        margin=quantity(selfcheck.margin, "%"),
        budget=quantity(settings["budget_s"], "s"),
        pairs=rule["max_pairs"],
    )


def findings_of_selfcheck(selfcheck: Selfcheck) -> Findings:
    """What keeps the rates from being the whole answer, the sentence, and tables by slowdown and by benchmark."""
    by_benchmark = sorted(grouped(selfcheck.comparisons, lambda each: each.label).items())
    verdicts = (Column(each, partial(_rate, selfcheck, each), "%") for each in _VERDICTS)
    by_shift = (
        Column("injected", lambda shift: shift, "%", 2),
        Column("tries", lambda shift: len(selfcheck.measured(shift))),
        *verdicts,
        Column("found", selfcheck.change, "+%"),
        Column("median", lambda shift: _time(selfcheck.seconds(shift)), "s", 0),
        Column("p90", lambda shift: seconds.p90 if (seconds := selfcheck.seconds(shift)) else None, "s", 0),
    )
    pairs = (
        Column("benchmark", lambda item: item[0], priority=2),
        Column("pairs", lambda item: len(_deviations(item[1]))),
        Column("time a pair", lambda item: _time_a_pair(item[1]), "s", 0),
        Column("sd", lambda item: _spread(item[1], np.std), "%"),
        Column("MAD-sd", lambda item: _spread(item[1], _scaled_mad), "%", 0),
        Column("false alarms", lambda item: _alarms(item[1], identical=True)),
        Column("slower found", lambda item: _alarms(item[1], identical=False)),
    )
    return findings(
        _cautions(selfcheck),
        remark("{said}", said=selfcheck.sentence()),
        table("Verdicts by injected slowdown, with 95 % intervals", by_shift, selfcheck.shifts),
        table("Pairs by benchmark", pairs, by_benchmark),
    )


def _rate(selfcheck: Selfcheck, verdict: Verdict, shift: float) -> Cell:
    rate = selfcheck.rate(shift, verdict)
    return Quantity(rate.value, "%", rate.low, rate.high, rate.tries) if rate.tries else None


def _time(seconds: Seconds | None) -> Cell:
    return None if seconds is None else Quantity(seconds.median, "s", seconds.low, seconds.high, 1)


def _deviations(made: Sequence[Comparison]) -> list[float]:
    """Of the pairs' log-ratios from each comparison's own median, so that slowdowns do not count as spread."""
    return [log_ratio - statistics.median(each.log_ratios) for each in made for log_ratio in each.log_ratios]


def _time_a_pair(made: Sequence[Comparison]) -> float | None:
    pairs = len(_deviations(made))
    return sum(each.seconds for each in made if each.log_ratios) / pairs if pairs > 1 else None


def _spread(made: Sequence[Comparison], of: object) -> float | None:
    deviations = _deviations(made)
    return float(of(deviations)) if callable(of) and len(deviations) > 1 else None


def _scaled_mad(deviations: Sequence[float]) -> float:
    return _NORMAL_MAD * float(np.median(np.abs(deviations)))


def _alarms(made: Sequence[Comparison], identical: bool) -> str:
    """How many of those that compared identical code, or code slowed down, ended in a change."""
    ends = ("slower", "faster") if identical else ("slower",)
    asked = [each.verdict in ends for each in made if (each.shift == 0) == identical and each.verdict != "failed"]
    return f"{sum(asked)} of {len(asked)}"


def _cautions(selfcheck: Selfcheck) -> list[Remark]:
    found = []
    failed = [each for each in selfcheck.comparisons if each.verdict == "failed"]
    if failed:
        found.append(
            remark(
                "{count} comparisons could not be made, the first of {first}: {reason}",
                kind="caution",
                count=len(failed),
                first=failed[0].label,
                reason=failed[0].reason,
            )
        )
    commits = sorted({each.commit[:12] for each in selfcheck.comparisons if each.commit})
    if len(commits) > 1:
        told = ", ".join(commits)
        found.append(
            remark("Comparisons were made by the code of several commits: {commits}.", kind="caution", commits=told)
        )
    return found
