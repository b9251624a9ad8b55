import gc
import time

import pytest

from pyperf_suite.measure.stopwatch import CpuStopwatch


def test_samples_hold_the_time_of_their_launches_and_nothing_between():
    begin = time.perf_counter()
    seconds = CpuStopwatch().time(lambda index: time.sleep(0.002), first=0, samples=3, launches_per_sample=2)
    around = time.perf_counter() - begin
    assert all(sample >= 0.004 for sample in seconds)
    assert sum(seconds) <= around


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_while_timing_and_is_left_as_it_was(enabled):
    states: list[bool] = []
    (gc.enable if enabled else gc.disable)()
    try:
        CpuStopwatch().time(lambda index: states.append(gc.isenabled()), 0, 2, 1)
        assert states == [False, False]
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_the_garbage_collector_comes_back_when_a_launch_fails():
    def fail(index):
        raise RuntimeError("launch failed")

    with pytest.raises(RuntimeError, match="launch failed"):
        CpuStopwatch().time(fail, 0, 1, 1)
    assert gc.isenabled()
