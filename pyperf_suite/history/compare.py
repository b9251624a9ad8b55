"""What two finished runs can honestly tell of old against new: less than pairs can, for the machine moved in between.

Each process gives one logarithm of its median; a difference must be beyond what processes and runs of identical code
differ by. Where the latter is unknown nothing is called slower, and a paired comparison is named that would decide.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.history.finding import Finding, Verdict
from pyperf_suite.history.static_figures import judge_figures
from pyperf_suite.history.statistics.multiple import FALSE_DISCOVERY_RATE, adjusted_p_values
from pyperf_suite.history.statistics.run_noise import NoiseOf, RunNoise
from pyperf_suite.history.stored.conditions import changes, settings
from pyperf_suite.history.stored.foreign import PROBE as FOREIGN_PROBE
from pyperf_suite.history.stored.sides import Measured, Side
from pyperf_suite.measure.estimates import Ratio
from pyperf_suite.runner.profiles import PROFILES, QUICK

# As for pairs: slower or faster is wrong in 1 % at most, equivalent in 5 % on either side.
ALPHA = 0.01
ALPHA_EQUIVALENT = 0.05

# Clocks and sentinels that moved by less explain nothing: so much they differ in runs of an idle machine.
LEAST_MOVE = 0.01

MarginOf = Callable[[str, str], float]


@dataclass(frozen=True)
class Difference:
    """New against old as logarithms: the estimate, its standard error, and its degrees of freedom."""

    centre: float
    error: float
    freedom: float

    def interval(self, alpha: float) -> tuple[float, float]:
        """The two-sided interval at 1 − `alpha`."""
        half_width = self.error * float(_quantile(1 - alpha / 2, self.freedom))
        return self.centre - half_width, self.centre + half_width

    def p_value(self, bound: float) -> float:
        """Of "no further from 0 than `bound`", two-sided."""
        beyond = abs(self.centre) - bound
        if self.error == 0:
            return 0.0 if beyond > 0 else 1.0
        return min(1.0, 2 * (1 - float(_probability(beyond / self.error, self.freedom))))


def difference(old: Sequence[float], new: Sequence[float], noise: RunNoise) -> Difference:
    """Welch's comparison of two runs' medians, one a process in seconds, with the noise of both runs added.

    That counts what processes differ by twice where runs differ by nothing more, which is the safe side. Degrees of
    freedom after Satterthwaite (1946), doi:10.2307/3002019.
    """
    centre = statistics.fmean(map(math.log, new)) - statistics.fmean(map(math.log, old))
    parts = [(2 * noise.deviation**2, noise.freedom)]  # variance and degrees of freedom of each
    for side in (old, new):
        if len(side) > 1:
            parts.append((statistics.variance(map(math.log, side)) / len(side), len(side) - 1.0))
    variance = sum(part for part, _ in parts)
    shares = sum(part**2 / freedom for part, freedom in parts)
    return Difference(centre, math.sqrt(variance), variance**2 / shares if shares else math.inf)


def compare_sides(old: Side, new: Side, margin_of: MarginOf, noise_of: NoiseOf) -> list[Finding]:
    """A finding for each benchmark that both sides hold and at least one could measure, in the old side's order.

    `margin_of` gives a benchmark's margin by probe and label, `noise_of` what is known of its noise from run to run. A
    sentinel is not a benchmark: it tells how the machine moved. Raises UserError where the sides are of different
    machines, or have no benchmark in common.
    """
    if old.machine != new.machine:
        raise UserError(
            f"{old.name} was measured on {old.machine} and {new.name} on {new.machine}: times of different machines "
            "say nothing about the code, so compare runs of one."
        )
    common = [key for key, one in old.benchmarks.items() if key in new.benchmarks and one.kind != "sentinel"]
    if not common:
        raise UserError(f"{old.name} and {new.name} have no benchmark in common: name two runs of the same probes.")
    sentinel = _sentinel_move(old, new)
    judged = [
        _judge(old.benchmarks[key], new.benchmarks[key], margin_of, noise_of, sentinel)
        for key in common
        if _is_measured(old.benchmarks[key]) or _is_measured(new.benchmarks[key])
    ]
    return _as_a_suite(judged)


def one_sided(old: Side, new: Side) -> dict[str, list[str]]:
    """Labels of what cannot be compared: "only_old", "only_new", and "neither" for what neither could measure."""
    both = [key for key in old.benchmarks if key in new.benchmarks]
    return {
        "only_old": [one.label for key, one in old.benchmarks.items() if key not in new.benchmarks],
        "only_new": [one.label for key, one in new.benchmarks.items() if key not in old.benchmarks],
        "neither": [
            old.benchmarks[key].label
            for key in both
            if not any(_is_measured(side.benchmarks[key]) for side in (old, new))
        ],
    }


def sentinel_sentence(old: Side, new: Side) -> str:
    """How the machine moved between the runs, by the sentinel; empty where it hardly did, or neither tells."""
    move = _sentinel_move(old, new)
    if not move:
        return ""
    return (
        f"The sentinel, the same code in every run, took {_percent(math.expm1(move))} in the new run: "
        "the machine itself moved."
    )


def _is_measured(one: Measured) -> bool:
    return bool(one.medians or one.metrics)


def _judge(old: Measured, new: Measured, margin_of: MarginOf, noise_of: NoiseOf, sentinel: float) -> Finding:
    margin = margin_of(new.probe, new.label)
    moved = changes(settings(old.state, old.kind), settings(new.state, new.kind))
    details: dict[str, Any] = {"changes": moved} | _commits(old, new)
    if old.kind == "static":
        return _judge_static(old, new, margin, details)
    if not (old.medians and new.medians):
        lost, why = ("new", new.failures) if old.medians else ("old", old.failures)
        reason = why[0] if why else "it holds no time"
        return _finding(new, "failed", None, margin, f"Not measured in the {lost} run: {reason}", details)
    bound = math.log1p(margin)
    noise = noise_of(new)
    seen = difference(old.medians, new.medians, noise or RunNoise(0.0, math.inf, "unknown"))
    causes = {"clock": _clock_move(old, new), "sentinel": sentinel}
    details |= {
        "old_s": old.seconds,
        "new_s": new.seconds,
        "processes": [len(old.medians), len(new.medians)],
        "run_noise": noise.deviation if noise else None,
        "run_noise_of": noise.source if noise else None,
        "p_value": seen.p_value(bound) if noise else None,
        "clock_change": math.expm1(-causes["clock"]),
        "sentinel_change": math.expm1(sentinel),
    }
    verdict, (low, high) = _verdict(seen, bound) if noise else ("undecided", seen.interval(ALPHA))
    ratio = Ratio(math.exp(seen.centre), math.exp(low), math.exp(high))
    explained = max((cause * math.copysign(1, seen.centre) for cause in causes.values()), default=0.0)
    is_machine = verdict in ("slower", "faster") and explained > 0 and _nearest_to_zero(low, high) - explained <= bound
    sentences = [_headline("undecided" if is_machine else verdict, ratio, margin, noise)]
    sentences += _cause_sentences(causes, is_machine)
    if moved:
        sentences.append(f"Between the runs changed: {', '.join(moved)}.")
    if verdict != "equivalent":
        sentences += _pairs_would_decide(old, new)
    return _finding(new, "undecided" if is_machine else verdict, ratio, margin, " ".join(sentences), details)


def _judge_static(old: Measured, new: Measured, margin: float, details: Mapping[str, Any]) -> Finding:
    if not (old.metrics and new.metrics):
        lost, why = ("new", new.failures) if old.metrics else ("old", old.failures)
        reason = why[0] if why else "it holds no figures"
        return _finding(new, "failed", None, margin, f"Not compiled in the {lost} run: {reason}", details)
    figures = [{name: {"value": value} for name, value in side.metrics.items()} for side in (old, new)]
    verdict, sentence, changed = judge_figures(*figures)
    if details["changes"]:
        sentence += f" Between the runs changed: {', '.join(details['changes'])}."
    return _finding(new, verdict, None, margin, sentence, {**details, "figures": changed})


def _verdict(seen: Difference, bound: float) -> tuple[Verdict, tuple[float, float]]:
    """The verdict, and the interval that it rests on."""
    low, high = seen.interval(ALPHA)
    if low > bound:
        return "slower", (low, high)
    if high < -bound:
        return "faster", (low, high)
    narrow = seen.interval(2 * ALPHA_EQUIVALENT)
    if -bound < narrow[0] and narrow[1] < bound:
        return "equivalent", narrow
    return "undecided", (low, high)


def _as_a_suite(judged: list[Finding]) -> list[Finding]:
    """The findings with slower and faster only where they stand among all the others (Benjamini-Hochberg)."""
    tested = [number for number, one in enumerate(judged) if one.details.get("p_value") is not None]
    adjusted = dict(zip(tested, adjusted_p_values([judged[n].details["p_value"] for n in tested]), strict=True))
    findings = []
    for number, one in enumerate(judged):
        verdict, sentence = one.verdict, one.sentence
        if number in adjusted and verdict in ("slower", "faster") and adjusted[number] > FALSE_DISCOVERY_RATE:
            sentence = f"Alone it would be {verdict}; as one of {len(tested)} benchmarks not sure enough. {sentence}"
            verdict = "undecided"
        details = {**one.details, "adjusted_p_value": adjusted.get(number)}
        findings.append(
            Finding(one.benchmark, one.probe, one.case_id, verdict, one.ratio, one.margin, sentence, details)
        )
    return findings


def _headline(verdict: Verdict, ratio: Ratio, margin: float, noise: RunNoise | None) -> str:
    change = f"{_percent(ratio.value - 1)} ({_percent(ratio.low - 1)} to {_percent(ratio.high - 1)})"
    if noise is None:
        within = abs(math.log(ratio.value)) <= math.log1p(margin)
        looks = "no different" if within else "slower" if ratio.value > 1 else "faster"
        return f"Looks {looks}, {_percent(ratio.value - 1)}, but how much runs differ here by themselves is unknown."
    if verdict == "equivalent":
        return f"No difference beyond {100 * margin:g} %: {change}."
    known = f"by themselves runs differ by {100 * noise.deviation:.1f} %, as {noise.source} tell"
    if verdict == "undecided":
        return f"Undecided: {change}; {known}."
    return f"{100 * abs(ratio.value - 1):.1f} % {verdict}: {change}; {known}."


def _cause_sentences(causes: Mapping[str, float], is_machine: bool) -> list[str]:
    """What beside the code moved: slowdowns as logarithms that the clock and the sentinel account for."""
    told = []
    if causes["clock"]:
        told.append(f"The clock was {_percent(math.expm1(-causes['clock']))} in the new run.")
    if is_machine and causes["sentinel"]:
        told.append(f"The sentinel, the same code in every run, took {_percent(math.expm1(causes['sentinel']))}.")
    if is_machine:
        told.append("That accounts for the difference as well as the code would.")
    return told


def _clock_move(old: Measured, new: Measured) -> float:
    """The slowdown that the clocks account for, as a logarithm; 0 where they are not told or hardly moved."""
    if not (old.clock_hz and new.clock_hz):
        return 0.0
    return _if_it_moved(math.log(statistics.median(old.clock_hz) / statistics.median(new.clock_hz)))


def _sentinel_move(old: Side, new: Side) -> float:
    """How much longer the sentinel took in the new run, as a logarithm; 0 where not told or hardly."""
    moves = [
        math.log(statistics.median(new.benchmarks[key].medians) / statistics.median(one.medians))
        for key, one in old.benchmarks.items()
        if one.kind == "sentinel" and one.medians and key in new.benchmarks and new.benchmarks[key].medians
    ]
    return _if_it_moved(statistics.median(moves)) if moves else 0.0


def _if_it_moved(move: float) -> float:
    return move if abs(move) > LEAST_MOVE else 0.0


def _nearest_to_zero(low: float, high: float) -> float:
    """How far the interval's nearer end is from no difference."""
    return max(0.0, low, -high)


def _pairs_would_decide(old: Measured, new: Measured) -> list[str]:
    """The command that would tell, where this suite can measure the benchmark and the code is not the same."""
    is_same = old.commit == new.commit != "" and not (old.dirty or new.dirty)
    if is_same or new.probe == FOREIGN_PROBE:
        return []
    revisions = [one.commit[:12] or stand_in for one, stand_in in ((old, "OLD"), (new, "NEW"))]
    command = ["pyperf-suite", "ab", "--old", revisions[0], "--new", revisions[1], new.probe, "-k", new.label]
    if new.profile in PROFILES and new.profile != QUICK.name:  # whose cases ab has without being asked
        command += ["--profile", new.profile]
    return [f"A paired run would decide: {shlex.join(command)}"]


def _commits(old: Measured, new: Measured) -> dict[str, str]:
    return {"old_commit": old.commit, "new_commit": new.commit}


def _finding(
    measured: Measured, verdict: Verdict, ratio: Ratio | None, margin: float, sentence: str, details: Mapping[str, Any]
) -> Finding:
    return Finding(measured.label, measured.probe, measured.case_id, verdict, ratio, margin, sentence, details)


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _quantile(probability: float, freedom: float) -> float:
    from scipy import special

    return float(special.stdtrit(freedom, probability) if math.isfinite(freedom) else special.ndtri(probability))


def _probability(value: float, freedom: float) -> float:
    from scipy import special

    return float(special.stdtr(freedom, value) if math.isfinite(freedom) else special.ndtr(value))
