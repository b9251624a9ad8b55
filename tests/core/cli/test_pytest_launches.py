"""Launches that the `suite` fixture makes of a function and its arguments: sets, roles, verdicts; names of tests."""

import cProfile
import gc
import time
import warnings
from typing import Any

import numpy as np
import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.measure.verify_result import compare
from pyperf_suite.pytest_plugin import Call
from pyperf_suite.pytest_plugin.launches import answer, device_of, time_call
from pyperf_suite.record.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.user_kernels import api, workload
from pyperf_suite.workloads import find_workload

CPU = Device("cpu")
FORTY_SAMPLES = Effort(SteadyRule(launches=1), StopRule.exactly(40, 0.001))


def measured(launch: api.Launch, effort: Effort | None = FORTY_SAMPLES) -> dict[str, Any]:
    name = next(iter(launch.functions))
    parameters = find_workload("test_it.py::test_it").type_for({})()
    return answer(launch, name, Case("test_it.py::test_it", parameters, name), effort, CPU)


def double(x: Any) -> Any:
    return 2 * x


def no_next(x: Any) -> Any:
    return next(iter(()))


def test_what_is_drawn_once_after_some_launches_is_seen_after_timing():
    drawn: list[Any] = []

    def keeps(x: Any) -> Any:
        drawn.append(x * np.random.default_rng().random(x.shape))
        return drawn[-1] if len(drawn) < 20 else drawn[19]

    found = measured(api.launch(keeps, np.ones(50), random=True, check=lambda *_: True))
    assert "8 launches on the same inputs gave the same" in found["reason"]


@pytest.mark.parametrize("effort", [FORTY_SAMPLES, None], ids=["timed", "verified"])
def test_a_function_that_stops_iterating_has_failed(effort):
    assert measured(api.launch(no_next, np.ones(50)), effort)["reason"].endswith(": no_next raised StopIteration.")


def test_a_profiler_rests_while_something_is_timed_and_goes_on():
    profiler = cProfile.Profile()
    profiler.enable()
    found = measured(api.launch(double, np.ones(50), reference=double))
    double(1)
    profiler.disable()
    assert found["outcome"] == "ok", found["reason"]
    calls = {entry.code.co_name: entry.callcount for entry in profiler.getstats() if not isinstance(entry.code, str)}
    assert calls["double"] == 1


def test_what_a_test_sets_holds_for_its_function_and_not_for_who_measures_it(monkeypatch):
    set_for = {"function": [], "judge": []}

    def note(whose: str) -> None:
        set_for[whose].append((time.perf_counter(), time.monotonic(), np.geterr()["under"], warnings.filters[:1]))

    def function(x: Any) -> Any:
        note("function")
        return 2 * x

    def compared(*args: Any) -> Any:
        note("judge")
        return compare(*args)

    monkeypatch.setattr(workload, "compare", compared)
    with monkeypatch.context() as patch, np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("perf_counter", "monotonic"):
            patch.setattr(time, name, lambda: -1.0)
        theirs = -1.0, -1.0, "raise", warnings.filters[:1]
        gc.disable()
        try:
            verified = measured(api.launch(function, np.ones(50), reference=double))
            assert not gc.isenabled()
        finally:
            gc.enable()
        note("function")
        timed = time_call(Call(len, ("a",), {}), Case("test_it.py::test_it", None, "benchmark"), FORTY_SAMPLES)[0]
    assert verified["outcome"] == timed["outcome"] == "ok", verified["reason"]
    assert all(each == theirs for each in set_for["function"])
    assert set_for["judge"]
    for seconds, clock, errors, filters in set_for["judge"]:
        assert min(seconds, clock) > 0
        assert errors != "raise"
        assert filters != theirs[-1]
    assert min(timed["metrics"]["time"]["samples"]) > 0


def test_arguments_stay_as_the_test_made_them_and_copies_keep_layout_and_identity():
    x = np.arange(24.0).reshape(4, 6)[:, ::2]
    layouts = []

    def function(a: Any, b: Any) -> Any:
        layouts.append((a is b, a.strides))
        a += 1
        return a

    found = measured(api.launch(function, x, x, modifies=(0, 1), reference=lambda a, b: a + 1))
    assert found["outcome"] == "ok", found["reason"]
    assert set(layouts) == {(True, x.strides)}
    assert x.tolist() == np.arange(24.0).reshape(4, 6)[:, ::2].tolist()


@pytest.mark.gpu
def test_a_function_of_gpu_tensors_is_timed_by_the_gpus_clock():
    torch = pytest.importorskip("torch")
    x = torch.randn(1024, 1024, device="cuda")
    launch = api.launch(torch.softmax, x, -1, reference=lambda x, dim: x.double().softmax(dim), bytes=2 * x.nbytes)
    parameters = find_workload("test_it.py::test_it").type_for({})()
    found = answer(
        launch, "softmax", Case("test_it.py::test_it", parameters, "softmax"), FORTY_SAMPLES, device_of(launch)
    )
    assert found["outcome"] == "ok", found["reason"]
    assert "cuda" in found["sampling"]["stopwatch"]
    assert found["metrics"]["time"]["value"] > x.nbytes / 20e12  # no memory is as fast
