"""Loads that settle at a power cap, and bursts that are kept from it, on a fake GPU whose clock follows its power."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from pyperf_suite.measure.power import GpuSlices, Meter, SettleRule, settle
from tests.core.measure.fake_gpu import CAP_W, IDLE_W, REFERENCE_HZ, FakeGpu, FakeGpuStopwatch, Kernel

NUMBERS = itertools.count()


@pytest.fixture
def uuid() -> str:
    """A GPU that no other test has paused."""
    return f"GPU-of-test-{next(NUMBERS)}"


class Rising:
    """A stopwatch whose clock rises from 1319 to 1441 MHz, as in the committed record, by so much a second."""

    name, resolution_s = "rising", 0.0

    def __init__(self, hz_per_s: float) -> None:
        self.now_s, self.hz_per_s = 0.0, hz_per_s

    @property
    def hz(self) -> float:
        return min(1441e6, 1319e6 + self.hz_per_s * self.now_s)

    def clock(self) -> float:
        return self.now_s

    def time(self, launch, first, samples, launches_per_sample):
        self.now_s += samples * launches_per_sample * 1e-3
        return [launches_per_sample * 1e-3] * samples

    def clocks_hz(self, samples):
        return [self.hz] * samples


@pytest.mark.parametrize(("hz_per_s", "settled_after_s"), [(122e6 / 15, 15), (122e6 / 8, 10), (122e6 / 25, None)])
def test_a_load_whose_clock_rises_is_not_sampled_before_it_settles(hz_per_s, settled_after_s):
    watch = Rising(hz_per_s)
    settled = settle(int, watch, 0, 1, 1e-3, rule=SettleRule(time_cap_s=20.0), clock=watch.clock)
    if settled_after_s is None:
        assert (settled.is_settled, round(settled.seconds)) == (False, 20)
        assert settled.change > 0.005
    else:
        assert settled.is_settled
        assert settled_after_s <= settled.seconds <= settled_after_s + 2.1
        assert watch.hz == 1441e6
    assert settled.launches == round(1e3 * watch.now_s)


@pytest.mark.parametrize("has_counter", [True, False])
def test_joules_are_the_counters_or_power_over_time(has_counter, uuid):
    gpu = FakeGpu(0)
    gpu.has_counter = has_counter
    meter = Meter(gpu, uuid, gpu.clock)
    for _ in range(10):
        gpu.pass_s(0.1, 500)
        joules = meter()
    assert joules == pytest.approx(500)
    assert meter.source == ("counter" if has_counter else "samples")
    silent = SimpleNamespace(energy_j=lambda uuid: None, readings=lambda uuid: {})
    assert Meter(silent, uuid)() is None


def burst(kernel: Kernel, uuid: str, pauses: bool, slices: int = 150, **changed: object):
    """The GPU after `slices` slices of 15 ms, its mean power over the last half of them, and the watch around them."""
    gpu = FakeGpu(5)
    for name, value in changed.items():
        setattr(gpu, name, value)
    watch, around = FakeGpuStopwatch(gpu, kernel), GpuSlices(gpu, uuid, gpu.clock, gpu.rest)
    middle, clocks = (0.0, 0.0), []
    for number in range(slices):
        if number == slices // 2:
            middle = gpu.now_s, gpu.used_j
        with around:
            watch.time(int, 0, int(0.015 / kernel.seconds), 1)
        clocks += watch.clocks_hz(10)
        if pauses:
            around.pause(clocks[-1])
    return np.median(clocks[len(clocks) // 2 :]), (gpu.used_j - middle[1]) / (gpu.now_s - middle[0]), around


def test_pauses_keep_a_burst_near_the_reference_clock_where_its_power_would_take_it_below(uuid):
    (hot_hz, hot_w, _), (hz, _, around) = (burst(Kernel(5e-4, 800), uuid + str(n), bool(n)) for n in (0, 1))
    assert hot_w > 0.98 * CAP_W
    assert hot_hz < 0.96 * REFERENCE_HZ
    assert hz > REFERENCE_HZ
    assert around.paused_s > 0
    # A kernel that draws less has a higher clock than that, by which its elasticity is found, and needs no pause.
    assert burst(Kernel(5e-4, 450), uuid, True)[2].paused_s == 0


def test_a_pause_ends_when_the_mean_power_is_below_the_cap(uuid):
    gpu = FakeGpu(0)
    around = GpuSlices(gpu, uuid, gpu.clock, gpu.rest)
    for _ in range(20):
        with around:
            gpu.pass_s(0.015, 750)
        around.pause(1.4e9)
    assert around.paused_s == pytest.approx(20 * 0.015 * (750 - 665) / (665 - IDLE_W), rel=0.35)


def test_pauses_are_no_longer_than_the_slices_and_none_where_power_cannot_be_read(uuid):
    _, _, around = burst(Kernel(5e-4, 20_000), uuid, True)
    report = around.report()
    assert 0 < report["paused_s"] <= around._worked_s + 0.01
    assert len(report["start_s"]) == len(report["power_w"]) == len(report["celsius"]) == 150
    assert report["start_s"] == sorted(report["start_s"])
    silent = {"energy_j": lambda uuid: None, "readings": lambda uuid: {}}
    report = burst(Kernel(5e-4, 900), uuid, True, **silent)[2].report()
    assert report.keys() == {"start_s", "paused_s"}
    assert report["paused_s"] == 0
    assert burst(Kernel(5e-4, 900), uuid + "-", True, settings=lambda uuid: {})[2].paused_s == 0
