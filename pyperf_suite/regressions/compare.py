"""Two finished runs, old against new: ratios with intervals. Pairs tell more, for between runs the machine moves.

Each process gives one logarithm of its median; a difference must be beyond what processes and runs of identical code
differ by. Where the latter is unknown nothing is called slower, and the paired comparison is named that would decide.
"""

from __future__ import annotations

import itertools
import math
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.findings.rows import grouped
from pyperf_suite.record.interval import Ratio
from pyperf_suite.regressions import verdict
from pyperf_suite.regressions.stored.series import TIME, BenchmarkSeries, Measured, changes
from pyperf_suite.regressions.stored.store import Side, Store
from pyperf_suite.runner.profiles import PROFILES, QUICK
from pyperf_suite.user_kernels.probe import is_test

# Clocks and sentinels that moved by less explain nothing: so much they differ in runs of an idle machine.
LEAST_MOVE = 0.01
MACHINE_MOVED = "The sentinel, the same code in every run, took {} in the new run: the machine itself moved."
FEWEST_RUNS, FEWEST_TO_DECIDE = 5, 10
# A run is spoilt if it lies this many standard deviations off its neighbours, unless more than this share of runs does.
SPOILT_SIGMA, SPOILT_SHARE = 5.0, 0.05
# A run off its neighbours by this share of a difference may be what explains it, unless it is as much larger.
EXPLAINS, EXPLAINED_BY = 0.6, 3.2
NEIGHBOURS = 5
# Clocks of operating systems and GPUs resolve this much at least.
COARSEST_TICK_S = 1e-6

MarginOf = Callable[[str, str], float]


@dataclass(frozen=True)
class RunNoise:
    """The standard deviation of the logarithm of a run's value over runs of the same code.

    `freedom` is in degrees. `source` names where it is from. `largest` is how far a run lay off its neighbours (a
    logarithm), `spoilt` the least by which one stood out of them, `step` the least after which they stayed, and `calm`
    the noise without those that did.
    `around` has the neighbours of compared runs by run_id, before and after it, and under "" the newest runs.
    """

    deviation: float
    freedom: float
    source: str
    runs: float = math.inf
    largest: float = 0.0
    calm: RunNoise | None = None
    spoilt: float = math.inf
    step: float = math.inf
    around: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    def beside(self, difference: float) -> RunNoise:
        """The noise that may hide that difference: runs spoilt by far more do not explain it, nor do such steps."""
        return self.calm if self.calm and min(self.spoilt, self.step) > EXPLAINED_BY * abs(difference) else self

    def doubt(self, old: Measured, new: Measured, difference: float) -> str:
        """Why that difference may be one spoilt run's, as a sentence; "" if it is not."""
        explains_from = EXPLAINS * abs(difference)
        if self.runs < FEWEST_TO_DECIDE:
            return f"One run may be spoilt, which only {FEWEST_TO_DECIDE} and more stored runs can exclude."
        if self.largest >= explains_from or self.spoilt < math.inf:
            return "Single runs of its own stood out of their neighbours as far."
        for which, run, other in (("old", old, new), ("new", new, old)):
            before, after = self.around.get(run.run_id) or self.around.get("") or (None, None)
            log = math.log(run.value)
            if before is None or abs(log - before) < explains_from:
                continue
            is_alone = which == "old" and abs(math.log(other.value) - before) <= explains_from
            if is_alone if after is None else abs(log - after) >= explains_from:
                return f"The {which} run stands out of the runs around it as far."
        return ""


NoiseOf = Callable[[Measured], RunNoise | None]


def run_noise(series: BenchmarkSeries, without: Iterable[str] = ()) -> RunNoise | None:
    """The noise of a series' runs, but for the runs named in `without`; None if fewer than five are left.

    From the differences of neighbouring runs (von Neumann 1941, doi:10.1214/aoms/1177731677), which a slow drift hardly
    moves and a step enters only once; none is taken from one GPU or state in turns to another, nor a step at a break.
    """
    left_out, logs = set(without), [math.log(point.value) for point in series.points]
    kept = [index for index, point in enumerate(series.points) if point.run_id not in left_out]
    groups = grouped(kept, series.groups.__getitem__).values()
    steps = _steps([[logs[index] for index in group] for group in groups])
    if len(steps) < FEWEST_RUNS - 1:
        return None
    # After Hampel (1974), doi:10.1080/01621459.1974.10482962.
    limit = max(SPOILT_SIGMA * 1.4826 / math.sqrt(2) * statistics.median(map(abs, steps)), LEAST_MOVE)
    segments = [part for group in groups for part in _without_breaks(series, group, logs, limit)]
    off = [
        [abs(log - statistics.median(part[max(0, at - 3) : at + 4])) for at, log in enumerate(part)]
        for part in segments
    ]
    spoilt = [far for part in off for far in part if far > limit]
    noise = _noise_of(_steps(segments), f"{len(kept)} runs of its own")
    noise = replace(noise, runs=len(kept), largest=max(map(max, off)), around=_around(series, logs, kept, left_out))
    if len(spoilt) > SPOILT_SHARE * len(kept):
        return replace(noise, spoilt=min(spoilt))
    good = [[log for log, far in zip(*pair, strict=True) if far <= limit] for pair in zip(segments, off, strict=True)]
    stayed = [abs(step) for step in _steps(good) if abs(step) > limit]
    if len(spoilt) + len(stayed) > SPOILT_SHARE * len(kept):
        stayed = []
    if not spoilt and not stayed:
        return noise
    named = [f"{len(spoilt)} spoilt"] if spoilt else []
    named += [f"{len(stayed)} step{'s' if len(stayed) > 1 else ''}"] if stayed else []
    source = f"{len(kept) - len(spoilt)} runs of its own, {' and '.join(named)} left out,"
    calm = _noise_of([step for step in _steps(good) if not stayed or abs(step) <= limit], source)
    largest = max(far for part in off for far in part if far <= limit)
    calm = replace(calm, runs=len(kept), largest=largest, around=noise.around)
    return replace(noise, calm=calm, spoilt=min(spoilt, default=math.inf), step=min(stayed, default=math.inf))


def _without_breaks(
    series: BenchmarkSeries, group: Sequence[int], logs: Sequence[float], limit: float
) -> list[list[float]]:
    """The logarithms of a group's runs, in a list anew after each break at which they step."""
    starts = [each.index for each in series.breaks]
    parts: list[list[float]] = [[]]
    for last, index in zip([group[0], *group], group, strict=False):
        if abs(logs[index] - logs[last]) > limit and any(last < start <= index for start in starts):
            parts.append([])
        parts[-1].append(logs[index])
    return parts


def _around(
    series: BenchmarkSeries, logs: Sequence[float], kept: Sequence[int], runs: set[str]
) -> dict[str, tuple[float | None, float | None]]:
    """The medians of the runs before and after each of these, None without any; under "" those of the newest."""
    places = {point.run_id: index for index, point in enumerate(series.points) if point.run_id in runs}
    around = {}
    for run_id, place in {**places, "": len(logs)}.items():
        same = [at for at in kept if not run_id or series.groups[at] == series.groups[place]]
        sides = ([at for at in same if at < place][-NEIGHBOURS:], [at for at in same if at > place][:NEIGHBOURS])
        before, after = (statistics.median(logs[at] for at in side) if side else None for side in sides)
        around[run_id] = (before, after)
    return around


def _steps(segments: Iterable[Sequence[float]]) -> list[float]:
    return [later - earlier for logs in segments for earlier, later in itertools.pairwise(logs)]


def _noise_of(steps: Sequence[float], source: str) -> RunNoise:
    deviation = math.sqrt(statistics.fmean(step**2 for step in steps) / 2)
    # Neighbouring differences share a run: n of them tell about as much as two thirds as many independent values.
    return RunNoise(deviation, len(steps) * 2 / 3, source)


def noise_from_store(store: Store, machine: str, without: Sequence[str] = ()) -> NoiseOf:
    """A function that gives a benchmark's noise by a machine's stored runs but `without` some; None for too few."""
    series = {(one.probe, one.case_id): one for one in store.series(machine=machine) if one.metric == TIME}

    def of(measured: Measured) -> RunNoise | None:
        known = series.get((measured.probe, measured.case_id))
        return run_noise(known, without) if known else None

    return of


def difference(old: Sequence[float], new: Sequence[float], noise: RunNoise | None) -> verdict.LogDifference:
    """Welch's comparison of two runs' medians, one a process in seconds, with the noise of both runs added.

    Without noise the processes alone tell the error, and a single one tells none.

    That counts what processes differ by twice if runs differ by nothing more, which is the safe side. Degrees of
    freedom after Satterthwaite (1946), doi:10.2307/3002019.
    """
    centre = statistics.fmean(map(math.log, new)) - statistics.fmean(map(math.log, old))
    parts = [(2 * noise.deviation**2, noise.freedom)] if noise else []  # variance and degrees of freedom of each
    for side in (old, new):
        if len(side) > 1:
            parts.append((statistics.variance(map(math.log, side)) / len(side), len(side) - 1.0))
    if noise is None and len(parts) < 2:
        return verdict.LogDifference(centre, math.nan, math.inf)
    # The clock's tick, of which all times are multiples to the picosecond: a time is off by up to half of one, evenly.
    tick = min(COARSEST_TICK_S, math.gcd(*(round(seconds * 1e12) for seconds in (*old, *new))) * 1e-12)
    parts += [(tick**2 / 12 / statistics.median(side) ** 2, math.inf) for side in (old, new)]
    variance = sum(part for part, _ in parts)
    shares = sum(part**2 / freedom for part, freedom in parts)
    return verdict.LogDifference(centre, math.sqrt(variance), variance**2 / shares if shares else math.inf)


def compare_sides(old: Side, new: Side, margin_of: MarginOf, noise_of: NoiseOf) -> list[verdict.Judgement]:
    """A judgement for each benchmark that both sides hold and measured, or failed to measure, in the old side's order.

    `margin_of` gives a benchmark's margin by probe and label, `noise_of` what is known of its noise from run to run. A
    sentinel is not a benchmark: it shows how the machine moved. Raises UserError if the sides are of different
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
        if any(side.benchmarks[key].metrics or side.benchmarks[key].failed for side in (old, new))
    ]
    # Slower and faster stay only where they stand among all the others.
    tested = [number for number, one in enumerate(judged) if one.details.get("p_value") is not None]
    p_values = [judged[number].details["p_value"] for number in tested]
    adjusted = dict(zip(tested, verdict.adjusted_p_values(p_values), strict=True))
    for number, judgement in enumerate(judged):
        word, sentence = judgement.verdict, judgement.sentence
        if number in adjusted and word in ("slower", "faster") and adjusted[number] > verdict.FALSE_DISCOVERY_RATE:
            sentence = f"Alone it would be {word}; as one of {len(tested)} benchmarks not sure enough. {sentence}"
            word = "undecided"
        details = {**judgement.details, "adjusted_p_value": adjusted.get(number)}
        judged[number] = replace(judgement, verdict=word, sentence=sentence, details=details)
    return judged


def one_sided(old: Side, new: Side) -> dict[str, list[str]]:
    """Labels of what cannot be compared: "only_old", "only_new", and "neither" for what neither supports."""
    both = [(one, new.benchmarks[key]) for key, one in old.benchmarks.items() if key in new.benchmarks]
    return {
        "only_old": [one.label for key, one in old.benchmarks.items() if key not in new.benchmarks],
        "only_new": [one.label for key, one in new.benchmarks.items() if key not in old.benchmarks],
        "neither": [was.label for was, now in both if not (was.metrics or now.metrics or was.failed or now.failed)],
    }


def sentinel_sentence(old: Side, new: Side) -> str:
    """How the machine moved between the runs, by the sentinel; empty if it hardly did, or neither run has one."""
    move = _sentinel_move(old, new)
    return MACHINE_MOVED.format(verdict.percent(math.expm1(move))) if move else ""


def _judge(old: Measured, new: Measured, margin_of: MarginOf, noise_of: NoiseOf, sentinel: float) -> verdict.Judgement:
    margin = margin_of(new.probe, new.label)
    moved = changes(old.settings, new.settings)
    details: dict[str, Any] = {"changes": moved, "old_commit": old.commit, "new_commit": new.commit}
    between = [f"Between the runs changed: {', '.join(moved)}."] if moved else []

    def judgement(word: verdict.Word, ratio: Ratio | None, *sentences: str, **more: Any) -> verdict.Judgement:
        sentence = " ".join(sentences)
        return verdict.Judgement(new.label, new.probe, new.case_id, word, ratio, margin, sentence, details | more)

    if not (old.metrics and new.metrics):
        lost = [(name, side) for name, side in (("old", old), ("new", new)) if not side.metrics]
        which = "either" if len(lost) > 1 else f"the {lost[0][0]}"
        return judgement(
            "failed",
            None,
            f"Not {'compiled' if old.kind == 'static' else 'measured'} in {which} run: {lost[-1][1].why_absent}",
        )
    if not (old.medians and new.medians):
        figures = [{name: value for name, (_, value) in side.exact.items()} for side in (old, new)]
        word, sentence, changed = verdict.judge_figures(*figures)
        return judgement(word, None, sentence, *between, figures=changed)
    known = noise_of(new)
    noise = known and known.beside(difference(old.medians, new.medians, known).centre)
    change = difference(old.medians, new.medians, noise)
    decided = verdict.judge(change, margin, may_decide=noise is not None)
    clock = _if_it_moved(math.log(old.clock_hz / new.clock_hz)) if old.clock_hz and new.clock_hz else 0.0
    is_machine = _explains(decided, max(cause * math.copysign(1, change.centre) for cause in (clock, sentinel)), margin)
    # The sentinel is taken to be as noisy as the benchmark.
    apart = replace(change, centre=change.centre - sentinel, error=math.sqrt(2) * change.error)
    beside = verdict.judge(apart, margin, may_decide=bool(is_machine and sentinel))
    if beside.word == "equivalent":
        decided = beside
    doubt = noise.doubt(old, new, change.centre) if noise and decided.word in ("slower", "faster") else ""
    word = "undecided" if doubt or (is_machine and decided is not beside) else decided.word
    return judgement(
        word,
        decided.ratio,
        _headline(word, decided.ratio, margin, noise),
        *([doubt] if doubt else []),
        *([f"The clock was {verdict.percent(math.expm1(-clock))} in the new run."] if clock else []),
        *([MACHINE_MOVED.format(verdict.percent(math.expm1(sentinel)))] if is_machine and sentinel else []),
        *(
            ["That accounts for the difference as well as the code would."]
            if word == "undecided" and is_machine
            else []
        ),
        *(["The change is relative to the sentinel."] if decided is beside else []),
        *between,
        *([] if word == "equivalent" else _pairs_would_decide(old, new)),
        old_s=old.value,
        new_s=new.value,
        processes=[len(old.medians), len(new.medians)],
        run_noise=noise.deviation if noise else None,
        run_noise_of=noise.source if noise else None,
        p_value=decided.p_value if noise else None,
        clock_change=math.expm1(-clock),
        sentinel_change=math.expm1(sentinel),
    )


def _explains(decided: verdict.Verdict, slowdown: float, margin: float) -> bool:
    """True if a move of the machine by that logarithm, in the verdict's direction, may explain it."""
    nearest = max(0.0, math.log(decided.ratio.low), -math.log(decided.ratio.high))
    return decided.word in ("slower", "faster") and slowdown > 0 and nearest - slowdown <= math.log1p(margin)


def _headline(word: verdict.Word, ratio: Ratio, margin: float, noise: RunNoise | None) -> str:
    moved = verdict.percent(ratio.value - 1)
    change = f"{moved} ({verdict.range_text(ratio)})"
    if noise is None:
        within = abs(math.log(ratio.value)) <= math.log1p(margin)
        looks = "no different" if within else "slower" if ratio.value > 1 else "faster"
        return f"Looks {looks}, {moved}, but how much runs differ here by themselves is unknown."
    if word == "equivalent":
        return f"No difference beyond {100 * margin:g} %: {change}."
    known = f"by themselves runs differ by {100 * noise.deviation:.1f} %, as {noise.source} tell"
    said = "Undecided" if word == "undecided" else f"{100 * abs(ratio.value - 1):.1f} % {word}"
    return f"{said}: {change}; {known}."


def _sentinel_move(old: Side, new: Side) -> float:
    """How much longer the sentinel took in the new run, as a logarithm; 0 if it hardly did, or is not in both."""
    moves = [
        math.log(new.benchmarks[key].value / one.value)
        for key, one in old.benchmarks.items()
        if one.kind == "sentinel" and one.medians and key in new.benchmarks and new.benchmarks[key].medians
    ]
    return _if_it_moved(statistics.median(moves)) if moves else 0.0


def _if_it_moved(move: float) -> float:
    return move if abs(move) > LEAST_MOVE else 0.0


def _pairs_would_decide(old: Measured, new: Measured) -> list[str]:
    """The command that would decide, unless the code is the same."""
    if old.commit == new.commit != "" and not (old.dirty or new.dirty):
        return []
    if is_test(new.probe):
        return [f"ab pairs no tests: further runs of pytest {shlex.quote(new.probe)} --suite-measure tell more."]
    revisions = [one.commit[:12] or stand_in for one, stand_in in ((old, "OLD"), (new, "NEW"))]
    if new.dirty:
        revisions[1] = "."  # the working tree has what no commit names
    command = ["pyperf-suite", "ab", "--old", revisions[0], "--new", revisions[1], new.probe, "-k", new.label]
    if new.profile in PROFILES and new.profile != QUICK.name:  # ab measures the cases of QUICK by default
        command += ["--profile", new.profile]
    return [f"A paired run would decide: {shlex.join(command)}"]
