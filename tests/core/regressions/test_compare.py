import math

import numpy as np
import pytest

from pyperf_suite.errors import ExitCode
from pyperf_suite.regressions.compare import (
    RunNoise,
    compare_sides,
    difference,
    run_noise,
)
from pyperf_suite.regressions.stored.series import BenchmarkSeries, Measured
from pyperf_suite.regressions.stored.store import Side
from pyperf_suite.regressions.verdict import exit_code
from pyperf_suite.render.comparisons import change
from pyperf_suite.render.text import cell
from tests.core.series import a_series

QUIET = RunNoise(0.002, math.inf, "9 runs of its own")
LOUD = RunNoise(0.05, 8.0, "12 runs of its own")


def timed(medians, label="product", kind="timing", commit="", probe="baseline", state=None, **fields) -> Measured:
    state = (state or {}) | ({"source": {"commit": commit}} if commit else {})
    return Measured("cpu-2c", "run", probe, label, label, kind, medians=tuple(medians), state=state, **fields)


def side(*measured: Measured, name="run", machine="cpu-2c") -> Side:
    return Side(name, machine, {(one.probe, one.case_id): one for one in measured})


def compared(old, new, noise=QUIET, margin=0.01):
    return compare_sides(old, new, lambda probe, label: margin, lambda measured: noise)


def judged(old: Measured, new: Measured, noise=QUIET, sentinels=(1.0, 1.0)):
    sides = [side(one, timed([s], "sentinel", "sentinel")) for one, s in zip((old, new), sentinels, strict=True)]
    (finding,) = compared(*sides, noise)
    return finding


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.1, "slower"), (0.9, "faster"), (1.0, "equivalent"), (1.012, "undecided")]
)
def test_beyond_the_noise_of_runs_a_difference_is_told(factor, verdict):
    finding = judged(timed([1.0, 1.001, 0.999]), timed([factor, factor * 1.001, factor * 0.999]))
    assert finding.verdict == verdict
    assert finding.ratio.value == pytest.approx(factor, rel=1e-6)
    assert finding.ratio.low < factor < finding.ratio.high


def test_within_the_noise_of_runs_nothing_is_told_and_a_paired_run_is_named():
    old, new = timed([1.0] * 3, commit="a" * 40), timed([1.08] * 3, commit="b" * 40)
    finding = judged(old, new, LOUD)
    assert finding.verdict == "undecided"
    assert "differ by 5.0 %, as 12 runs of its own tell" in finding.sentence
    assert "pyperf-suite ab --old aaaaaaaaaaaa --new bbbbbbbbbbbb baseline -k product" in finding.sentence


@pytest.mark.parametrize(("factor", "looks"), [(3.0, "slower"), (0.3, "faster"), (1.0, "no different")])
def test_where_the_noise_of_runs_is_unknown_nothing_is_called_slower(factor, looks):
    finding = judged(timed([1.0, 1.0, 1.0]), timed([factor, factor, factor]), noise=None)
    assert finding.verdict == "undecided"
    assert f"Looks {looks}" in finding.sentence
    assert "unknown" in finding.sentence
    assert finding.details["p_value"] is None


@pytest.mark.parametrize("sides", [([1.0], [1.46]), ([1.0, 1.01], [1.46])])
def test_one_process_has_no_interval_where_the_noise_of_runs_is_unknown(sides):
    finding = judged(*map(timed, sides), noise=None)
    assert finding.ratio.value == pytest.approx(1.46, rel=0.01)
    assert math.isnan(finding.ratio.low)
    assert math.isnan(finding.ratio.high)
    assert cell(change(finding.ratio)) in ("+46 %", "+45 %")
    assert judged(timed([1.0, 1.01]), timed([1.46, 1.47]), noise=None).ratio.low < 1.46


def test_a_slower_clock_is_told_from_slower_code():
    old = timed([1.0] * 3, clock_hz=2e9)
    throttled = judged(old, timed([1.25] * 3, clock_hz=1.6e9))
    assert throttled.verdict == "undecided"
    assert "The clock was -20.0 % in the new run." in throttled.sentence
    assert "accounts for the difference as well as the code" in throttled.sentence
    beyond = judged(old, timed([1.6] * 3, clock_hz=1.6e9))
    assert beyond.verdict == "slower"
    assert "The clock was" in beyond.sentence
    assert judged(old, timed([1.25] * 3, clock_hz=2.5e9)).verdict == "slower"


def test_a_machine_that_moved_is_told_from_slower_code_by_its_sentinel():
    old, new = timed([1.0] * 3), timed([1.1] * 3)
    moved = judged(old, new, sentinels=(1.0, 1.1))
    assert moved.verdict == "equivalent"
    assert moved.ratio.value == pytest.approx(1.0)
    assert "took +10.0 % in the new run: the machine itself moved. The change is relative to" in moved.sentence
    assert exit_code([moved]) == ExitCode.FINE
    # The code may have become faster on a machine that slowed by more.
    assert judged(old, new, sentinels=(1.0, 1.15)).verdict == "undecided"
    assert judged(old, new, sentinels=(1.0, 1.004)).verdict == "slower"
    assert judged(old, new, sentinels=(1.1, 1.0)).verdict == "slower"
    assert judged(new, old, sentinels=(1.1, 1.0)).verdict == "equivalent"
    assert judged(old, new, LOUD, sentinels=(1.0, 1.1)).verdict == "undecided"


def test_a_ratio_between_two_profiles_says_so():
    finding = judged(timed([1.0] * 3, profile="quick"), timed([1.1] * 3, profile="full"))
    assert finding.details["changes"] == ["profile quick -> full"]
    assert "Between the runs changed: profile quick -> full." in finding.sentence
    exact = (timed([], kind="static", exact={"registers": ("x", 8.0)}, profile=name) for name in ("quick", "full"))
    assert "profile" not in judged(*exact).sentence


def test_one_alarm_among_many_benchmarks_must_be_rarer():
    old = [timed([1.0] * 3, f"b{number}") for number in range(60)]
    noise = RunNoise(0.02, 12.0, "19 runs of its own")
    slower = timed([1.12] * 3, "b0")
    alone = compared(side(old[0]), side(slower), noise)
    among = compared(side(*old), side(slower, *old[1:]), noise)
    assert alone[0].verdict == "slower"
    assert among[0].verdict == "undecided"
    assert "Alone it would be slower; as one of 60 benchmarks not sure enough." in among[0].sentence
    assert among[0].details["adjusted_p_value"] > 0.05 > among[0].details["p_value"]


def test_welchs_comparison_adds_processes_and_runs():
    change = difference([1.0, 1.1], [1.2, 1.3, 1.25], RunNoise(0.03, 6.0, ""))
    old, new = np.log([1.0, 1.1]), np.log([1.2, 1.3, 1.25])
    parts = [(2 * 0.03**2, 6), (np.var(old, ddof=1) / 2, 1), (np.var(new, ddof=1) / 3, 2)]
    variance = sum(part for part, _ in parts)
    assert change.centre == pytest.approx(new.mean() - old.mean())
    assert change.error == pytest.approx(math.sqrt(variance))
    assert change.freedom == pytest.approx(variance**2 / sum(part**2 / freedom for part, freedom in parts))


@pytest.mark.parametrize("processes", [1, 3])
def test_identical_code_in_two_runs_is_called_slower_or_faster_in_no_more_than_one_of_a_hundred(processes):
    random = np.random.default_rng(7)
    alarms = 0
    for _ in range(1000):
        # A history of ten runs, from which the noise is known only roughly, and then the two that are compared.
        runs = random.normal(0, 0.03, 12)
        steps = np.diff(runs[:10])
        noise = RunNoise(math.sqrt(np.mean(steps**2) / 2), len(steps) * 2 / 3, "")
        old, new = (np.exp(run + random.normal(0, 0.01, processes)) for run in runs[10:])
        (finding,) = compared(side(timed(old)), side(timed(new)), noise)
        alarms += finding.verdict in ("slower", "faster")
    assert alarms <= 10


def series(logs, breaks=(), unit=lambda index: "a") -> BenchmarkSeries:
    drivers = [str(sum(each <= index for each in breaks)) for index in range(len(logs))]
    return a_series(np.exp(logs), drivers=drivers, units="".join(map(unit, range(len(logs)))))


def noise(count: int, deviation: float = 0.03) -> np.ndarray:
    return np.random.default_rng(0).normal(0, deviation, count)


def test_the_noise_is_the_standard_deviation_of_runs_without_a_slow_drift():
    assert run_noise(series(noise(400))).deviation == pytest.approx(0.03, rel=0.1)
    drifting = run_noise(series(noise(400) + np.linspace(0, 1, 400)))
    assert drifting.deviation == pytest.approx(run_noise(series(noise(400))).deviation, rel=0.05)
    newest_elsewhere = series(noise(31), unit=lambda index: "a" if index < 30 else "b")
    assert run_noise(newest_elsewhere, without=["run30"]).runs == 30
    # The runs that are compared do not tell their own noise.
    logs = [*noise(6), 0.4]
    assert run_noise(series(logs), without=["run6"]).deviation < 0.04 < run_noise(series(logs)).deviation


def test_a_step_widens_the_noise_but_a_break_and_another_gpu_do_not():
    step = np.where(np.arange(40) < 20, 0.0, 0.5)
    quiet = run_noise(series(noise(40))).deviation
    assert run_noise(series(noise(40) + step)).deviation > 1.5 * quiet
    assert run_noise(series(noise(40) + step, breaks=[20])).deviation == pytest.approx(quiet, rel=0.1)
    other_gpu = series(noise(40) + step, unit=lambda index: "a" if index < 20 else "b")
    assert run_noise(other_gpu).deviation == pytest.approx(quiet, rel=0.1)


@pytest.mark.parametrize("step", [0.0, 0.5])
def test_the_noise_is_known_across_changes_of_the_machines_state(step):
    quiet = run_noise(series(noise(40)))
    every_third = run_noise(series(noise(40) + step * (np.arange(40) // 3 % 2), breaks=range(3, 40, 3)))
    assert every_third.deviation == pytest.approx(quiet.deviation, rel=0.2)
    assert every_third.runs == 40


@pytest.mark.parametrize(
    ("before", "old", "new", "after", "verdict"),
    [
        (1.0, 1.3, 1.0, None, "undecided"),  # the old one was spoilt
        (1.0, 1.3, 1.0, 1.0, "undecided"),
        (1.0, 1.0, 1.3, 1.0, "undecided"),  # the new one was
        (1.0, 1.0, 1.3, None, "slower"),
        (1.0, 1.0, 1.3, 1.3, "slower"),
        (1.3, 1.3, 1.0, None, "faster"),
        (1.3, 1.3, 1.0, 1.0, "faster"),
    ],
)
def test_a_compared_run_that_stands_out_of_the_runs_around_it_may_be_spoilt(before, old, new, after, verdict):
    levels = [*[before] * 30, old, new, *[after or 1.0] * (5 if after else 0)]
    history = series(np.log(levels) + noise(len(levels), 0.01))
    ids = ["run30", "run31"]
    sides = [timed([value] * 3)._replace(run_id=run_id) for value, run_id in zip((old, new), ids, strict=True)]
    assert judged(*sides, noise=run_noise(history, ids)).verdict == verdict


SPOILT = {
    "heavy tails": lambda random, count: 0.02 * random.standard_t(3, count),
    "x 3 in one of 40": lambda random, count: math.log(3) * (random.random(count) < 0.025),
    "longer by any": lambda random, count: random.exponential(0.3, count) * (random.random(count) < 0.05),
    "two levels": lambda random, count: 0.1 * (random.random(count) < 0.1),
    "a rare level": lambda random, count: 0.1 * (random.random(count) < 0.03),
    "levels that stay": lambda random, count: 0.1 * np.cumsum(random.choice([-1, 0, 1], count, p=[0.01, 0.98, 0.01])),
}


# Ten runs of which one in ten is slow often show none that is: that case is left out, 17 of its 300 are wrong.
@pytest.mark.parametrize(
    ("kind", "runs"), [(kind, runs) for kind in SPOILT for runs in (10, 40) if (kind, runs) != ("two levels", 10)]
)
def test_runs_that_are_spoilt_are_called_slower_or_faster_in_no_more_than_one_of_a_hundred(kind, runs):
    random, alarms = np.random.default_rng(11), 0
    for _ in range(300):
        logs = 0.01 * random.standard_normal(runs + 2) + SPOILT[kind](random, runs + 2)
        known = run_noise(a_series(np.exp(logs[:-2])))
        sides = [timed(np.exp(log + 0.003 * random.standard_normal(3))) for log in logs[-2:]]
        alarms += judged(*sides, noise=known).verdict in ("slower", "faster")
    assert alarms <= 7  # one of a hundred has more in one of a hundred series


def test_one_spoilt_night_does_not_hide_a_slowdown_that_is_smaller_than_it():
    logs = noise(40, 0.02)
    quiet = run_noise(series(logs))
    logs[17] += math.log(3)
    spoilt = run_noise(series(logs))
    sides = timed([1.0, 1.01, 0.99]), timed([1.4, 1.41, 1.39])
    finding = judged(*sides, noise=spoilt)
    assert finding.verdict == judged(*sides, noise=quiet).verdict == "slower"
    assert finding.ratio.low > 1.25
    assert "39 runs of its own, 1 spoilt left out, tell" in finding.sentence
    # A spoilt night may be all there is.
    assert judged(timed([1.0] * 3), timed([1.9] * 3), noise=spoilt).verdict == "undecided"


def test_one_step_does_not_hide_a_slowdown_that_is_smaller_than_it():
    logs = noise(40, 0.005)
    quiet = run_noise(series(logs))
    stepped = run_noise(series(logs + math.log(1.5) * (np.arange(40) >= 16)))
    assert stepped.deviation > 10 * quiet.deviation
    assert stepped.calm.deviation == pytest.approx(quiet.deviation, rel=0.2)
    sides = timed([1.0, 1.001, 0.999]), timed([1.1, 1.101, 1.099])
    finding = judged(*sides, noise=stepped)
    assert finding.verdict == judged(*sides, noise=quiet).verdict == "slower"
    assert "as 40 runs of its own, 1 step left out, tell" in finding.sentence
    # A difference as large as the step may be another one.
    assert judged(timed([1.0] * 3), timed([1.2] * 3), noise=stepped).verdict == "undecided"
    assert judged(timed([1.0] * 3), timed([4.0] * 3), noise=stepped).verdict == "slower"


def test_runs_that_are_often_far_off_are_noise():
    logs = noise(40, 0.01) + np.where(np.arange(40) % 9 == 4, 0.4, 0.0)
    assert run_noise(series(logs)).calm is None
    assert judged(timed([1.0] * 3), timed([1.3] * 3), noise=run_noise(series(logs))).verdict == "undecided"


@pytest.mark.parametrize(("ticks", "verdict"), [((12, 13), "undecided"), ((13, 12), "undecided"), ((12, 15), "slower")])
def test_one_tick_of_the_clock_is_no_difference(ticks, verdict):
    known = run_noise(a_series([1e-6 * ticks[0]] * 36))
    assert known.deviation == 0
    finding = judged(*(timed([1e-6 * tick] * 3) for tick in ticks), noise=known)
    assert finding.verdict == verdict
    assert finding.ratio.low < ticks[1] / ticks[0] < finding.ratio.high


def test_fewer_than_five_runs_tell_nothing_and_few_tell_little():
    assert run_noise(series(noise(4))) is None
    assert run_noise(series(noise(6)), without=["run1", "run3"]) is None
    assert run_noise(series(noise(8), unit="abcdefgh".__getitem__)) is None
    finding = judged(timed([1.0] * 3), timed([3.0] * 3), noise=run_noise(series(noise(9))))
    assert finding.verdict == "undecided"
    assert "One run may be spoilt, which only 10 and more stored runs can exclude." in finding.sentence
    assert judged(timed([1.0] * 3), timed([3.0] * 3), noise=run_noise(series(noise(10)))).verdict == "slower"
    assert run_noise(series(noise(5))).freedom < 3 < run_noise(series(noise(9))).freedom
