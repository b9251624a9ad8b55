from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import signal

from pyperf_suite.measure.sampling import StopRule, measure
from pyperf_suite.measure.stopwatch import CpuStopwatch

NOISE = np.random.default_rng(4).standard_normal(1 << 16)
WANDERING = signal.lfilter([np.sqrt(1 - 0.99**2)], [1, -0.99], NOISE)


def ignore(index: int) -> None:
    return None


def noisy(seconds: float, spread: float, noise: np.ndarray = NOISE):
    return lambda index: seconds * (1 + spread * float(noise[index % noise.size]))


def test_quiet_launches_converge_soon_and_on_the_right_value(replay):
    stopwatch = replay(noisy(1e-3, 0.01))
    found = measure(ignore, stopwatch, clock=stopwatch.clock)
    assert found.converged
    assert found.steady
    assert found.stopped_by == "interval"
    assert found.median == pytest.approx(1e-3, rel=0.01)
    assert found.relative_half_width <= 0.01
    assert found.q20 < found.median < found.q80
    assert len(found.seconds) < 200


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


def test_short_launches_share_a_sample_and_are_reported_one_by_one(replay):
    stopwatch = replay(lambda index: 1e-6, resolution_s=5e-8)
    found = measure(ignore, stopwatch, clock=stopwatch.clock)
    assert found.launches_per_sample >= 5
    assert found.median == pytest.approx(1e-6, rel=0.012)


def test_samples_are_long_enough_for_the_shortest_time_to_be_reached(replay):
    stopwatch = replay(lambda index: 1e-6)
    rule = StopRule(min_time_s=0.1, max_samples=100)
    found = measure(ignore, stopwatch, rule, clock=stopwatch.clock)
    assert found.launches_per_sample == 1000
    assert found.converged


def test_the_interval_is_computed_a_handful_of_times_not_per_sample(replay, monkeypatch):
    asked: list[int] = []
    decide = StopRule.decide
    monkeypatch.setattr(
        StopRule, "decide", lambda rule, kept, *rest: asked.append(len(kept)) or decide(rule, kept, *rest)
    )
    stopwatch = replay(noisy(1e-3, 0.2, WANDERING))
    assert len(measure(ignore, stopwatch, clock=stopwatch.clock).seconds) == 2000
    assert asked[0] == 20
    assert len(asked) <= 14


def test_operands_can_rotate_by_an_index_that_never_repeats(replay):
    indices: list[int] = []
    stopwatch = replay(noisy(1e-4, 0.05), resolution_s=1e-6)
    found = measure(indices.append, stopwatch, clock=stopwatch.clock)
    assert indices == list(range(found.warmup_launches + len(found.seconds) * found.launches_per_sample))


def test_a_watch_discards_blocks_for_its_reason_and_nothing_else(replay):
    stopwatch = replay(noisy(1e-3, 0.01))

    def watch() -> str | None:
        return "throttled" if len(stopwatch.calls) % 3 == 0 else None

    found = measure(ignore, stopwatch, watch=watch, clock=stopwatch.clock)
    assert found.discarded
    assert {reason for _, reason in found.discarded} == {"throttled"}
    assert len(found.kept) + len(found.discarded) == len(found.seconds)
    out = {index for index, _ in found.discarded}
    assert found.kept == tuple(s for index, s in enumerate(found.seconds) if index not in out)
    assert found.median == np.median(found.kept)


def test_outliers_are_kept(replay):
    stopwatch = replay(lambda index: 1.0 if index % 50 == 49 else 1e-3)
    found = measure(ignore, stopwatch, StopRule(min_samples=200, time_cap_s=30.0), clock=stopwatch.clock)
    assert 1.0 in found.kept
    assert not found.discarded


def test_samples_are_kept_with_their_reasons_and_never_converge_where_a_watch_rules_out_all(replay):
    reasons = iter(["power brake", *["thermal slowdown"] * 10_000])
    stopwatch = replay(noisy(1e-3, 0.001))
    rule = StopRule(time_cap_s=1.0)
    found = measure(ignore, stopwatch, rule, watch=lambda: next(reasons), clock=stopwatch.clock)
    assert found.kept == found.seconds
    assert not found.discarded
    assert found.kept_despite == ("power brake", "thermal slowdown")
    assert found.relative_half_width < rule.relative_half_width  # precise, but of a machine that throttles
    assert not found.converged
    assert found.median == pytest.approx(1e-3, rel=0.01)


def test_a_watch_that_lets_one_block_pass_keeps_that_block_alone(replay):
    reasons = iter(["throttled", None, *["throttled"] * 10_000])
    stopwatch = replay(noisy(1e-3, 0.001))
    found = measure(ignore, stopwatch, StopRule(time_cap_s=1.0), watch=lambda: next(reasons), clock=stopwatch.clock)
    assert 0 < len(found.kept) < len(found.seconds)
    assert found.kept_despite == ()


def test_what_a_launch_raises_is_passed_on(replay):
    def fail(index: int) -> None:
        if index > 30:
            raise OSError("device lost")

    with pytest.raises(OSError, match="device lost"):
        measure(fail, replay(lambda index: 1e-3))


def test_the_same_samples_give_the_same_measurement(replay):
    first, again = (replay(noisy(1e-3, 0.05)) for _ in range(2))
    assert measure(ignore, first, clock=first.clock) == measure(ignore, again, clock=again.clock)


def test_a_real_sleep_is_measured_by_the_cpu_stopwatch():
    rule = StopRule(time_cap_s=0.3, relative_half_width=0.05)
    found = measure(lambda index: time.sleep(0.002), CpuStopwatch(), rule)
    assert found.median >= 0.002
    assert found.launches_per_sample == 1
