import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from pyperf_suite.measure import telemetry
from pyperf_suite.measure.sampling import REPEATED_SHARE, SteadyRule, StopRule, sampling, to_the_end
from pyperf_suite.measure.telemetry import PYTHON_LOOP, SLOW, STOLEN, WAITED, Disturbances
from pyperf_suite.record.interval import RUN_SPREAD, UNDISTURBED, another_runs, undisturbed_interval
from tests.records import measure

SLICES = 13
OF_EACH = 15
RULE = StopRule(1e-9, 0.9, min_samples=6, min_effective_samples=6, time_cap_s=0.2, quantile=UNDISTURBED)
COLD = SteadyRule(min_time_s=0.0, time_cap_s=0.0)


def ignore(index: int) -> None:
    return None


def run(random: np.random.Generator, busy_share: float = 0.0) -> tuple[np.ndarray, list[int]]:
    """A run's samples of a launch of one second, slice by slice: some slices are disturbed, and take up to three."""
    level = np.exp(RUN_SPREAD * random.standard_normal())
    drift = np.exp(0.02 * random.standard_normal(SLICES))
    busy = random.random(SLICES) < busy_share
    slowed = 1 + busy[:, None] * 2 * random.random((SLICES, OF_EACH))
    samples = level * drift[:, None] * slowed * (1 + 0.01 * random.exponential(size=(SLICES, OF_EACH)))
    return samples.ravel(), [OF_EACH] * SLICES


# Disturbed slices spread more than the figure errs, so intervals are wider than they need be there, never narrower.
@pytest.mark.parametrize(("busy_share", "lowest", "highest"), [(0.0, 0.85, 0.95), (0.3, 0.9, 1.0)])
def test_the_interval_of_a_run_holds_the_figure_of_another_as_often_as_it_says(busy_share, lowest, highest):
    random = np.random.default_rng(5)
    figures, bounds = [], []
    for _ in range(60):
        samples, slices = run(random, busy_share)
        figures.append(float(np.quantile(samples, UNDISTURBED)))
        bounds.append(another_runs(figures[-1], undisturbed_interval(samples, slices, 0.9)))
    held = [bounds[one][0] <= figures[two] <= bounds[one][1] for one, two in itertools.permutations(range(60), 2)]
    assert lowest <= np.mean(held) <= highest


def test_slices_are_the_unit_and_one_of_them_says_little():
    samples = np.repeat([1.0, 1.1, 1.2, 1.0, 1.1, 1.2], 10)
    found = undisturbed_interval(samples, [10] * 6, 0.9)
    assert found.effective_samples == 6
    # Student's t of five degrees of freedom, 2.015, times the standard error of the logarithms.
    error = np.std(np.log([1.0, 1.1, 1.2] * 2), ddof=1) / np.sqrt(6)
    assert np.log(found.high / found.low) / 2 == pytest.approx(2.015 * error, rel=1e-3)
    assert undisturbed_interval(samples, [60], 0.9).effective_samples == 1


def test_another_run_differs_by_both_runs_errors_and_by_what_runs_differ_by():
    alone = undisturbed_interval(np.ones(60), [10] * 6, 0.9)
    low, high = another_runs(2.0, alone)
    assert np.log(high / 2.0) == pytest.approx(1.645 * np.sqrt(2) * RUN_SPREAD, rel=1e-3)
    assert low * high == pytest.approx(4.0)
    single = undisturbed_interval([2.0], [1], 0.9)
    assert another_runs(2.0, single) == (single.low, single.high)
    # A machine that drifts by less than others do between runs is not known to be steadier.
    assert another_runs(2.0, alone, drift=0.01) == (low, high)
    assert np.log(another_runs(2.0, alone, drift=0.1)[1] / 2.0) == pytest.approx(1.645 * np.sqrt(2) * 0.1, rel=1e-3)


def test_the_drift_is_what_medians_of_stretches_differ_by(monkeypatch):
    one = {4: [1e-3] * 9 + [5e-3] * 4, 5: [1.1e-3] * 8, 6: [0.9e-3] * 8, 7: [2e-3] * 7}  # the last one is short
    # On all cores the loop takes longer, and that is no drift.
    loops = {("one", at): each for at, each in one.items()} | {("all", at): [9e-3] * 8 for at in (4, 6)}
    monkeypatch.setattr(Disturbances, "_stretches", loops)
    # Deviation of the logarithms 0, 0.0953 and -0.1054.
    assert Disturbances.drift() == pytest.approx(0.100, abs=1e-3)
    del loops["one", 6]
    assert Disturbances.drift() == 0.0


class Planned(Disturbances):
    """Finds each slice disturbed that `reasons_of` says."""

    def __init__(self, reasons_of):
        super().__init__()
        self.reasons_of = reasons_of

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._others.append(self.reasons_of(len(self._others)))
        self.loops_s.append(1e-3)


@pytest.mark.parametrize(
    ("reasons_of", "seconds"),
    [
        (lambda index: "", 0.2),
        (lambda index: STOLEN, 0.2 * (1 + REPEATED_SHARE)),
        (lambda index: WAITED * (index < 2), 0.23),
    ],
    ids=["clean", "always disturbed", "two slices"],
)
def test_disturbed_slices_are_measured_again_up_to_a_share_of_the_time(replay, reasons_of, seconds):
    random = np.random.default_rng(8)
    stopwatch = replay(lambda index: 1e-3 * (1 + 0.1 * random.random()))
    to_the_end(sampling(ignore, stopwatch, RULE, COLD, None, stopwatch.clock, Planned(reasons_of)))
    assert stopwatch.now == pytest.approx(seconds, rel=0.1)


@pytest.mark.parametrize(
    ("slow", "left_out", "slow_by"),
    [
        ((), (), 1.0),
        ((1, 4), (1, 4), 1.0),
        (range(1, 100), (), 2.0),  # a single slice at the best is not enough
        (range(100), (), 2.0),
    ],
    ids=str,
)
def test_slices_of_slow_cores_are_left_out_if_enough_others_are_there(replay, monkeypatch, slow, left_out, slow_by):
    class OnTwoSpeeds(Disturbances):
        def __enter__(self):
            stopwatch.factor = 2.0 if len(self.loops_s) in slow else 1.0
            return self

        def __exit__(self, *_):
            self._others.append("")
            self.loops_s.append(1e-3 * stopwatch.factor)

    monkeypatch.setattr(Disturbances, "remembered_s", {PYTHON_LOOP: 1e-3})
    stopwatch = replay(lambda index: 1e-3 * stopwatch.factor)
    stopwatch.factor = 1.0
    rule = StopRule(1e-9, 0.9, min_samples=6, min_effective_samples=6, time_cap_s=0.16, quantile=UNDISTURBED)
    found = to_the_end(sampling(ignore, stopwatch, rule, COLD, None, stopwatch.clock, OnTwoSpeeds()))
    assert (found.left_out, found.slow_by) == (left_out, slow_by)
    assert max(found.seconds) == (2e-3 if slow else 1e-3)
    assert max(found.kept) == (2e-3 if slow_by > 1 else 1e-3)
    assert found.converged is (slow_by == 1.0)


def test_clocks_that_recover_from_wide_vectors_are_not_slow_cores(machine, monkeypatch):
    loops_s = iter([1e-3, 2e-3, 1.1e-3, 2e-3, 2e-3, 2e-3, 2e-3])
    found = Disturbances(lambda: next(loops_s))
    for _ in range(2):
        with found:
            pass
    assert found.loops_s == pytest.approx([1.05e-3, 2e-3])
    assert found.reasons == ["", SLOW]


def test_launches_that_take_the_same_stop_at_the_fewest_slices(replay):
    stopwatch = replay(lambda index: 1e-3)
    rule = StopRule(0.03, 0.9, min_samples=6, min_effective_samples=6, time_cap_s=5.0, quantile=UNDISTURBED)
    found = measure(ignore, stopwatch, rule, COLD, clock=stopwatch.clock)
    assert found.stopped_by == "interval"
    assert len(found.slices) == 6
    assert sum(found.slices) == len(found.seconds)
    assert found.value == pytest.approx(1e-3)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose clock, counters and loop a test sets."""
    monkeypatch.setattr(telemetry, "_PROC", tmp_path)
    monkeypatch.setattr(Disturbances, "_loops_s", {PYTHON_LOOP: [1e-3] * 20})
    monkeypatch.setattr(Disturbances, "_stretches", {})
    (tmp_path / "thread-self").mkdir()

    def set_to(stolen: int = 0, waited_ns: int = 0, loop_s: float = 1e-3, now_s: float = 64.0) -> None:
        (tmp_path / "stat").write_text(f"cpu 0 0 0 0 0 0 0 {stolen} 0 0\n")
        (tmp_path / "thread-self" / "schedstat").write_text(f"1 {waited_ns} 1\n")
        set_to.loop_s = loop_s
        monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=lambda s: None))

    set_to()
    return set_to


@pytest.mark.parametrize(
    ("happened", "reason"),
    [
        ({}, ""),
        ({"stolen": 1}, STOLEN),
        ({"waited_ns": 20_000_000}, ""),  # a fiftieth of the second that the slice lasted
        ({"waited_ns": 21_000_000}, WAITED),
        ({"loop_s": 2e-3}, SLOW),
        ({"loop_s": 1.2e-3}, ""),
        ({"stolen": 1, "waited_ns": 10**12}, STOLEN),
    ],
    ids=str,
)
def test_a_slice_is_disturbed_by_what_happened_meanwhile(machine, happened, reason):
    disturbances = Disturbances(lambda: machine.loop_s)
    with disturbances:
        machine(**happened, now_s=65.0)
    assert disturbances.reasons == [reason]
    loop_s = happened.get("loop_s", 1e-3)
    # Stretches are of five seconds, and the loop is the mean of that before and that after.
    assert Disturbances._stretches == {(PYTHON_LOOP, 13): [pytest.approx((1e-3 + loop_s) / 2)]}
    with disturbances:
        pass
    report = disturbances.report()
    assert report["slices"] == ({reason: [0, 1] if reason == SLOW else [0]} if reason else {})
    assert report["clean_share"] == (0.0 if reason == SLOW else 0.5 if reason else 1.0)
    assert report["loop_s"] == [pytest.approx((1e-3 + loop_s) / 2), loop_s]
