from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.power import GpuSlices
from pyperf_suite.measure.sampling import Measurement, SteadyRule, StopRule, to_the_end
from pyperf_suite.measure.stopwatch import CudaStopwatch, Stopwatch
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import MedianInterval, another_runs
from pyperf_suite.record.record import Metric
from pyperf_suite.runner import timing
from pyperf_suite.runner.profiles import QUICK, Effort
from pyperf_suite.runner.timing import as_plain, time_metric, timed
from pyperf_suite.workloads.workload import Checked, Kernel, Observed, Prepared, Work
from tests.core.measure.fake_gpu import FakeDevice, FakeGpu
from tests.core.measure.fake_gpu import Kernel as FakeKernel
from tests.records import SMALL

CPU = Device("cpu")
SIX = Measurement(
    seconds=(4.0, 1.0, 3.0, 2.0, 6.0, 5.0000001234),
    launches_per_sample=1,
    warmup_launches=2,
    warmup_s=0.5,
    steady=True,
    effective_samples=6.0,
    interval=(3.0, 4.0, 0.95),
    converged=True,
    stopped_by="interval",
)
COUNTED = Effort(SteadyRule(launches=3), StopRule.exactly(8, 1.0))


def test_times_are_a_metric_in_seconds_with_the_bounds_of_the_median_or_of_another_run():
    assert time_metric(SIX, 0.0) == Metric("s", 3.5, 3.0, 4.0, 2.0, pytest.approx(5.0), [4.0, 1.0, 3.0, 2.0, 6.0, 5.0])
    low = replace(SIX, quantile=0.1, interval=(1.4, 1.6, 0.9))
    found = time_metric(low, 0.1)
    assert found.value == pytest.approx(1.5)
    assert (found.low, found.high) == another_runs(found.value, MedianInterval(1.4, 1.6, 0.9, 0.0), 0.1)


class Launches(Prepared):
    """Two sets, each of which is right where `is_right` says so of the number of launches."""

    kernel, sets = Kernel("made up", "test"), 2
    sampling, state = {"cache": "none"}, {"commit": "abc"}

    def __init__(self, is_right=lambda launched: True, **fields: Any) -> None:
        self.launched, self.is_right = [], is_right
        vars(self).update(fields)

    def launch(self, index: int) -> None:
        self.launched.append(index)

    @property
    def stopwatch(self) -> Stopwatch:
        return vars(self).get("made") or super().stopwatch

    def poison(self, index: int | None = None) -> None:
        pass

    def verify_last(self, index: int) -> Checked:
        return Checked(int(not self.is_right(len(self.launched))), 4, "it is off")

    def snapshot(self, index: int) -> int:
        return 0

    def observed(self) -> dict[str, Observed]:
        return {"moved": Observed("B", [8.0])}

    def cpu_elsewhere_s(self) -> float:
        return 100.0

    def references(self) -> dict[str, Any]:
        return {"references": ["nobody"]}


def answer(launches: Launches, effort: Effort | None = COUNTED, case: Case = SMALL, **how: Any) -> dict[str, Any]:
    return to_the_end(timed(launches, Work(flop=7, bytes=5), case, effort, CPU, **how))


def test_a_low_quantile_is_named_and_sustained_work_has_its_median_after_seconds(monkeypatch):
    low = replace(COUNTED, stop=replace(COUNTED.stop, quantile=0.1))
    assert answer(Launches(), low)["state"] == {"commit": "abc", "reported_time": "10% quantile of samples"}
    assert answer(Launches(state={}), low)["state"] == {"reported_time": "10% quantile of samples"}
    assert "state" not in answer(Launches(state={}))
    asked = []
    monkeypatch.setattr(timing, "sampling", lambda *how: asked.append(how) or iter(()))
    for case in (SMALL, replace(SMALL, mode="sustained")):
        with pytest.raises(AttributeError):
            answer(Launches(), low, case)
    assert [how[2].quantile for how in asked] == [0.1, 0.5]
    assert [how[3].min_time_s for how in asked] == [low.warm_up.min_time_s, 2.0]


def on_a_gpu(monkeypatch, kernel: FakeKernel, mode: str, **fields: Any) -> tuple[dict[str, Any], Launches, FakeDevice]:
    """The answer of a case on a fake GPU under the quick profile, its launches, and the device."""
    gpu = FakeGpu(7)
    fake = FakeDevice(gpu, kernel)
    slices = GpuSlices(gpu, f"GPU of {mode} {kernel}", gpu.clock, gpu.rest)
    around = SimpleNamespace(why_discard=lambda: None, report={}, slices=lambda: slices)
    monkeypatch.setattr(timing, "around_gpu", lambda device: nullcontext(around))
    launches = Launches(made=CudaStopwatch(fake), **fields)

    def clock() -> float:
        gpu.rest(1e-5)  # what the host does between two looks
        return gpu.now_s

    case = replace(SMALL, mode=mode)
    steps = timed(launches, Work(7, 5), case, QUICK.effort, Device("cuda", 0), clock=clock)
    return as_plain(to_the_end(steps)), launches, fake


@pytest.mark.parametrize("watts", [800, 880])
def test_a_load_on_a_gpu_is_sampled_once_it_has_settled_and_has_watts_and_a_clock(monkeypatch, watts):
    reply, _, fake = on_a_gpu(monkeypatch, FakeKernel(5e-4, watts), "sustained")
    load, metrics = reply["sampling"]["load"], reply["metrics"]
    assert load["settled"] is True
    assert 10 <= load["seconds"] < 11
    assert (load["power_by"], metrics["power"]["unit"]) == ("counter", "W")
    assert metrics["power"]["value"] == pytest.approx(700, rel=0.02)
    assert max(metrics["sm_clock"]["samples"]) / min(metrics["sm_clock"]["samples"]) < 1.01
    # The clock at which these watts are the cap, and launches that no block held back.
    assert metrics["sm_clock"]["value"] == pytest.approx(1.5e9 * (700 / watts) ** (1 / 2.5), rel=0.01)
    assert fake.queueing == {"held", "open"}
    assert reply["sampling"]["empty_s"] == pytest.approx([1e-6] * 3)


def test_nothing_is_checked_while_a_load_lasts_and_what_it_left_is_checked_at_its_end(monkeypatch):
    checked = []

    class Counted(Launches):
        def verify_last(self, index: int) -> Checked:
            checked.append(len(self.launched))
            return super().verify_last(index)

        def matches(self, index: int, snapshot: Any) -> bool:
            return self.verify_last(index).wrong == 0

    monkeypatch.setitem(globals(), "Launches", Counted)
    reply, launches, _ = on_a_gpu(monkeypatch, FakeKernel(5e-4, 800), "sustained")
    assert reply["outcome"] == "ok"
    # The launches of eleven seconds, all but the warm-up's.
    assert max(np.diff(checked)) > 20_000
    assert checked[-1] == len(launches.launched)
    # A load that goes wrong is seen, too.
    reply, _, _ = on_a_gpu(monkeypatch, FakeKernel(5e-4, 810), "sustained", is_right=lambda launched: launched < 10_000)
    assert reply["outcome"] == "failed"


def test_figures_that_are_read_are_an_answer_without_launches():
    launches = Launches(exact={"registers": {"value": 3}})
    found = answer(launches)
    assert (found["kind"], found["outcome"], found["metrics"]) == ("static", "ok", {"registers": {"value": 3}})
    assert (found["quality"], launches.launched) == ({"converged": True}, [])


@pytest.mark.parametrize(
    ("launches", "when"),
    [
        (Launches(lambda launched: False), "before timing"),
        (Launches(lambda launched: False, unchecked="each builds on the last"), "before timing"),
        (Launches(lambda launched: False, sees_more=True), "before timing"),
        (Launches(lambda launched: launched <= 8, unchecked="each builds on the last"), "while it was timed"),
        (Launches(lambda launched: launched <= 17, sees_more=True), "while it was timed"),
        (Launches(lambda launched: launched <= 8), "while it was timed"),
    ],
)
def test_what_is_wrong_fails_with_the_moment_and_what_was_seen(launches, when):
    reply = answer(launches)
    assert reply["outcome"] == "failed"
    assert reply["reason"].startswith(f"Wrong result {when}: ")
    assert "it is off" in reply["reason"]
    assert reply["verification"]["message"] in reply["reason"]
    assert (reply["verification"]["passed"], reply["verification"]["references"]) == (False, ["nobody"])
    assert (reply["kernel"]["name"], reply["work"]) == ("made up", {"flop": 7, "bytes": 5})
