import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyperf_suite.measure import sampling
from pyperf_suite.measure.sampling import SteadyRule, StopRule, is_steady, warm_up
from pyperf_suite.record.interval import MedianInterval, median_interval
from tests.core.series import correlated
from tests.records import measure

NOISE = np.random.default_rng(4).standard_normal(1 << 16)
WANDERING = correlated(NOISE, 0.99)


def ignore(index: int) -> None:
    return None


def noisy(seconds: float, spread: float, noise: np.ndarray = NOISE):
    return lambda index: seconds * (1 + spread * float(noise[index % noise.size]))


def test_quiet_launches_converge_soon_and_on_the_right_value(replay):
    stopwatch = replay(noisy(1e-3, 0.01))
    measurement = measure(ignore, stopwatch, clock=stopwatch.clock)
    assert measurement.converged
    assert measurement.steady
    assert measurement.stopped_by == "interval"
    assert measurement.value == pytest.approx(1e-3, rel=0.01)
    assert measurement.relative_half_width <= 0.01
    assert measurement.q20 < measurement.value < measurement.q80
    assert len(measurement.seconds) < 200


def test_launches_that_wander_end_at_the_limit_and_admit_it(replay):
    stopwatch = replay(noisy(1e-3, 0.2, WANDERING))
    found = measure(ignore, stopwatch, clock=stopwatch.clock)
    assert not found.converged
    assert found.stopped_by == "max_samples"
    assert len(found.seconds) == StopRule().max_samples
    assert found.effective_samples < 100


def test_launches_of_ten_seconds_leave_a_few_samples_and_no_claim(replay):
    stopwatch = replay(lambda index: 10.0)
    found = measure(ignore, stopwatch, StopRule(time_cap_s=5.0, least_samples=3), clock=stopwatch.clock)
    assert found.seconds == (10.0, 10.0, 10.0)
    assert (found.converged, found.steady, found.stopped_by) == (False, False, "time_cap")
    assert found.interval[2] < 0.95


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seconds=st.floats(1e-5, 20), cap_s=st.floats(0.1, 60), spread=st.floats(0, 0.15))
def test_the_time_cap_holds_to_within_one_launch_or_block(replay, seconds, cap_s, spread):
    stopwatch = replay(noisy(seconds, spread))
    rule = StopRule(time_cap_s=cap_s, least_samples=1, relative_half_width=1e-6)
    found = measure(ignore, stopwatch, rule, clock=stopwatch.clock)
    longest = max(found.seconds) * found.launches_per_sample
    assert sum(found.seconds) * found.launches_per_sample <= cap_s + max(longest, rule.block_s)


def test_a_launch_that_turns_slow_midway_costs_one_block_at_most(replay):
    stopwatch = replay(lambda index: 1e-3 if index < 300 else 1.0)
    rule = StopRule(time_cap_s=2.0, min_samples=2000, block_s=0.0)
    found = measure(ignore, stopwatch, rule, clock=stopwatch.clock)
    assert sum(found.seconds) <= 3.0
    assert found.stopped_by == "time_cap"


def test_samples_are_long_enough_for_the_shortest_time_to_be_reached(replay):
    stopwatch = replay(lambda index: 1e-6)
    rule = StopRule(min_time_s=0.1, max_samples=100)
    found = measure(ignore, stopwatch, rule, clock=stopwatch.clock)
    assert found.launches_per_sample == 1000
    assert found.converged


def test_a_watch_discards_blocks_for_its_reason_and_nothing_else(replay):
    stopwatch = replay(noisy(1e-3, 0.01))

    def watch():
        return "throttled" if len(stopwatch.calls) % 3 == 0 else None

    measurement = measure(ignore, stopwatch, watch=watch, clock=stopwatch.clock)
    assert measurement.discarded
    assert {reason for _, reason in measurement.discarded} == {"throttled"}
    assert len(measurement.kept) + len(measurement.discarded) == len(measurement.seconds)
    out = {index for index, _ in measurement.discarded}
    assert measurement.kept == tuple(s for index, s in enumerate(measurement.seconds) if index not in out)
    assert measurement.value == np.median(measurement.kept)


def test_samples_are_kept_with_their_reasons_and_never_converge_where_a_watch_rules_out_all(replay):
    reasons = iter(["power brake", *["thermal slowdown"] * 10_000])
    stopwatch = replay(noisy(1e-3, 0.001))
    rule = StopRule(time_cap_s=1.0)
    measurement = measure(ignore, stopwatch, rule, watch=lambda: next(reasons), clock=stopwatch.clock)
    assert measurement.kept == measurement.seconds
    assert not measurement.discarded
    assert measurement.kept_despite == ("power brake", "thermal slowdown")
    assert measurement.relative_half_width < rule.relative_half_width  # precise, but of a machine that throttles
    assert not measurement.converged
    assert measurement.value == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "tolerance", "steady"),
    [
        ([1.1**-index for index in range(200)], 0.02, False),
        ([5.0, 3.0, 2.0, 1.5] + [1.0] * 12, 0.02, True),
        (np.random.default_rng(0).lognormal(0, 0.3, 100).tolist(), 0.001, True),
        ([9.0] * 8 + [1.0] * 8, 0.02, True),  # the later half alone
        ([1.0, 1.0, 1.0, 1.25], 0.2, True),
        ([1.0, 1.0, 1.0, 1.3], 0.2, False),
        ([1.0, 1.0, 1.0], 0.5, False),  # too few to tell
        ([], 0.5, False),
        # Six samples have an interval of 95 %, which is all their range: these touch, those do not, and five have none.
        ([0.0] * 12 + [1.0, 1.2, 1.4, 1.6, 1.8, 2.0] + [2.0, 2.2, 2.4, 2.6, 2.8, 3.0], 0.02, True),
        ([0.0] * 12 + [2.0, 2.2, 2.4, 2.6, 2.8, 3.0] + [1.0, 1.2, 1.4, 1.6, 1.8, 2.0], 0.02, True),
        ([0.0] * 12 + [1.0, 1.2, 1.4, 1.6, 1.8, 1.9] + [2.0, 2.2, 2.4, 2.6, 2.8, 3.0], 0.02, False),
        ([0.0] * 10 + [1.0, 1.2, 1.4, 1.8, 2.0] + [1.0, 1.2, 1.8, 1.9, 2.0], 0.02, False),
    ],
    ids=str,
)
def test_times_are_steady_where_they_have_no_trend_after_the_start(seconds, tolerance, steady):
    assert is_steady(seconds, tolerance) is steady


def test_warm_up_ends_after_the_clock_has_risen(replay):
    # Ten milliseconds a launch, falling to one within 100 launches: a processor that wakes up.
    stopwatch = replay(lambda index: 0.001 + 0.009 * 0.95**index)
    warm = warm_up(ignore, stopwatch, SteadyRule(0.02, 0.05, 10.0), clock=stopwatch.clock)
    assert warm.steady
    assert warm.launch_s == pytest.approx(0.001, rel=0.05)
    assert warm.launches_per_sample == 1
    assert warm.seconds == pytest.approx(stopwatch.now)


def test_blocks_of_a_warm_up_take_an_eighth_of_the_time_and_batches_grow_tenfold_at_most(replay):
    # An eighth of 50 ms is six launches of 1 ms, and after 1 + 9 x 6 of them the 50 ms are over.
    stopwatch = replay(lambda index: 1e-3)
    assert warm_up(ignore, stopwatch, SteadyRule(), clock=stopwatch.clock).launches == 55
    assert stopwatch.calls[:3] == [(0, 1, 1), (1, 6, 1), (7, 6, 1)]
    # A sample lasts 98 us: one launch seemed to take 1.98 us, each of ten 1.098 us, each of 90 1.011 us.
    stopwatch = replay(lambda index: 1e-6, resolution_s=0.98e-6)
    assert warm_up(ignore, stopwatch, SteadyRule(), clock=stopwatch.clock).launches_per_sample == 98
    assert stopwatch.calls[:2] == [(0, 1, 1), (1, 315, 10)]
    assert list(dict.fromkeys(batch for _, _, batch in stopwatch.calls)) == [1, 10, 90, 97, 98]
    # A tenth of the cap is left: a block of half of it.
    stopwatch = replay(lambda index: 0.9 if index == 0 else 0.01 * 1.5**index)
    warm_up(ignore, stopwatch, SteadyRule(), clock=stopwatch.clock)
    assert stopwatch.calls[:2] == [(0, 1, 1), (1, 1, 1)]


def test_a_warm_up_ends_at_its_least_time_or_with_the_longest_history(replay, monkeypatch):
    # An eighth of 2.5 s is one launch of 0.25 s, and ten of them are all of it.
    stopwatch = replay(lambda index: 0.25)
    assert warm_up(ignore, stopwatch, SteadyRule(min_time_s=2.5, time_cap_s=60.0), clock=stopwatch.clock).launches == 10
    monkeypatch.setattr(sampling, "_LONGEST_HISTORY", 1)
    assert warm_up(ignore, stopwatch, SteadyRule(min_time_s=2.5, time_cap_s=60.0), clock=stopwatch.clock).launches == 1


@pytest.mark.parametrize("told", [1.0, 1e-3], ids=["itself", "more than it tells"])
def test_warm_up_that_never_ends_is_cut_at_the_cap_and_says_so_whatever_the_stopwatch_costs(replay, told):
    class Costly(replay):
        def time(self, *call):
            return [told * sample for sample in super().time(*call)]

    stopwatch = Costly(lambda index: 0.001 * 1.01**index)
    warm = warm_up(ignore, stopwatch, SteadyRule(0.001, 0.05, 1.0), clock=stopwatch.clock)
    assert not warm.steady
    assert 0.9 <= warm.seconds <= 1.1


def test_batching_is_not_deceived_by_a_slow_first_launch(replay):
    stopwatch = replay(lambda index: 1.0 if index == 0 else 1e-6, resolution_s=1e-7)
    warm = warm_up(ignore, stopwatch, SteadyRule(time_cap_s=3.0), clock=stopwatch.clock)
    assert warm.launches_per_sample >= 9


def test_a_counted_warm_up_is_exactly_so_many_launches_of_one_sample_each(replay):
    stopwatch = replay(lambda index: 10.0**-index, resolution_s=0.0)
    warm = warm_up(ignore, stopwatch, SteadyRule(launches=3), shortest_sample_s=5.0, clock=stopwatch.clock)
    assert stopwatch.calls == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    assert (warm.launches, warm.launches_per_sample, warm.steady) == (3, 1, False)
    assert warm.launch_s == pytest.approx(0.1)


QUIET = np.random.default_rng(0).normal(1.0, 0.01, 2000).tolist()
NOISY = np.random.default_rng(0).normal(1.0, 0.2, 2000).tolist()


WANDERED = np.repeat([1.0, 1.004, 0.997, 1.002], 25).tolist()
UNSURE = StopRule(min_samples=4, min_effective_samples=0)


@pytest.mark.parametrize(
    ("rule", "samples", "elapsed_s", "decision"),
    [
        (StopRule(), QUIET[:60], 1.0, "interval"),
        (StopRule(min_time_s=0.5), QUIET[:60], 0.4, None),
        (StopRule(), NOISY[:60], 1.0, None),
        (StopRule(), [1.0] * 10, 1.0, None),
        (UNSURE, [1.0] * 5, 1.0, None),  # whose interval has less than the rule's confidence
        (StopRule(), WANDERED, 1.0, None),
        (StopRule(), NOISY[:2000], 1.0, "max_samples"),
        (StopRule(), NOISY[:3], 5.0, "time_cap"),
        (StopRule(), NOISY[:2], 60.0, None),
        (StopRule(), NOISY[:100], 4.9, None),
    ],
)
def test_samples_stop_by_their_interval_or_by_a_limit_and_else_go_on(rule, samples, elapsed_s, decision):
    assert rule.decide(samples, len(samples), elapsed_s) == decision
    assert rule is not UNSURE or median_interval(samples, rule.confidence).confidence < rule.confidence


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "at_least"), [(0.0, 0.93), (0.5, 0.92), (0.9, 0.85)])
def test_stopping_when_the_interval_is_narrow_does_not_rob_it_of_its_coverage(rho, at_least):
    rule, hits = StopRule(), 0
    noise = np.random.default_rng(5).standard_normal((400, 2200))
    for row in correlated(noise.T, rho).T[:, 200:]:
        samples = 1 + 0.02 * row
        count = rule.next_checkpoint(0)
        while rule.decide(samples[:count].tolist(), count, 1.0) is None:
            count = rule.next_checkpoint(count)
        interval = median_interval(samples[:count], rule.confidence)
        hits += interval.low <= 1 <= interval.high
    assert hits / 400 >= at_least


@pytest.mark.parametrize(
    ("rule", "samples", "following"),
    [
        *((StopRule(), *each) for each in ((0, 20), (20, 30), (21, 31), (1333, 1999), (1334, 2000), (2000, 2001))),
        *(
            (StopRule(min_samples=1, least_samples=1, checkpoint_growth=1.25), *each)
            for each in ((0, 1), (1, 2), (8, 10))
        ),
    ],
)
def test_the_interval_is_looked_at_again_half_as_many_samples_later_and_at_the_most(rule, samples, following):
    assert rule.next_checkpoint(samples) == following


@pytest.mark.parametrize(
    ("samples", "interval", "precise"),
    [
        (20, MedianInterval(0.875, 1.125, 0.9, 20.0), True),
        (19, MedianInterval(0.875, 1.125, 0.9, 20.0), False),
        (20, MedianInterval(0.875, 1.125, 0.9, 19.5), False),
        (20, MedianInterval(0.875, 1.125, 0.89, 20.0), False),
        (20, MedianInterval(0.874, 1.125, 0.9, 20.0), False),
    ],
)
def test_precise_is_what_has_each_of_the_things_asked_for_and_no_more(samples, interval, precise):
    assert StopRule(0.125, 0.9, min_samples=20).is_precise([1.0] * samples, interval) is precise


def test_a_block_fills_its_time_or_half_of_what_is_left():
    rule = StopRule(block_s=1.0, time_cap_s=8.0, max_samples=400, min_time_s=0.5)
    # 1 s, then half of the last 0.5 s, of samples of 1/16 s; the checkpoint at 20 is beyond either.
    assert [rule.next_block(0, elapsed_s, 1 / 16) for elapsed_s in (0.0, 7.5, 7.99)] == [16, 4, 1]
    assert rule.next_block(15, 0.0, 1 / 16) == 7  # to the checkpoint at 22
    undisturbed = StopRule(block_s=1.0, time_cap_s=8.0, max_samples=400, quantile=0.1)
    assert undisturbed.next_block(15, 0.0, 1 / 16) == 16
    assert (rule.shortest_sample_s, undisturbed.shortest_sample_s) == (0.5 / 400, 8.0 / 400)


@pytest.mark.parametrize("samples", [QUIET, NOISY])
def test_exactly_so_many_samples_are_taken_however_they_come_out_and_count_as_what_was_asked(samples):
    rule = StopRule.exactly(7, block_s=1.0)
    assert rule.decide(samples[:6], 6, 1e6) is None
    assert rule.decide(samples[:7], 7, 0.0) == "max_samples"
    assert rule.is_precise(samples[:7], median_interval(samples[:7], rule.confidence)) is True
    assert rule.is_precise(samples[:6], median_interval(samples[:6], rule.confidence)) is False
    # In one block where they fit into it.
    assert [StopRule.exactly(20, 1.0).next_block(0, 1e8, each) for each in (0.01, 0.25, 30.0)] == [20, 4, 1]
