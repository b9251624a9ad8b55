import dataclasses
import math
import os
import textwrap
from types import SimpleNamespace

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.regressions.pairs import live_pair
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase, this_code
from pyperf_suite.regressions.pairs.live_pair import ArmFailed, Pace, Pair, measure_pair
from tests.records import SMALL

CPU = Device("cpu")
SHORT = Pace(slice_s=0.002, total_s=0.02)
CASE = PairedCase.same("baseline", SMALL)
THIS_CODE = this_code("this")


def arm_that_first_runs(program: str, folder) -> Arm:
    """This code, after a program that every process of the arm runs as it starts."""
    (folder / "sitecustomize.py").write_text(textwrap.dedent(program))
    return dataclasses.replace(THIS_CODE, environment={"PYTHONPATH": str(folder)})


def with_launch(body: str, folder) -> Arm:
    program = f"""
        import os
        from pyperf_suite.workloads import operator
        def launch(self, index):
            {body}
        operator.Launches.launch = launch
    """
    return arm_that_first_runs(program, folder)


def test_both_sides_take_turns_abba_and_as_often():
    pair = measure_pair(THIS_CODE, THIS_CODE, CASE, CPU, seed=1, pace=SHORT)
    rounds = [pair.order[begin : begin + 4] for begin in range(0, len(pair.order), 4)]
    assert {"onno", "noon"} >= set(rounds)
    assert len(pair.old_slices) == len(pair.new_slices) == len(pair.order) / 2
    assert min(pair.old_s, pair.new_s) > 0
    assert pair.seconds > pair.startup_s > 0
    # A case of one worker runs on one core.
    assert not hasattr(os, "sched_getaffinity") or pair.machine["cores"][0] in os.sched_getaffinity(0)


def test_what_lasts_longer_than_a_round_is_in_no_ratio():
    machine, order = (1.0, 1.0, 1.0, 3.0, 2.0), "onno" * 5
    old = tuple(1e-3 * speed for speed in machine for _ in range(2))
    # In the first round the new side alone was disturbed.
    new = (5e-3, *(1.1 * each for each in old[1:]))
    known = {"old_s": 1e-3, "new_s": 1e-3, "seconds": 1.0, "startup_s": 0.5, "launches_per_slice": 1}
    assert Pair(old_slices=old, new_slices=new, order=order, **known).log_ratio == pytest.approx(math.log(1.1))
    assert Pair(old_slices=(), new_slices=(), order="", **known).log_ratio == 0  # exact figures, which nobody timed


@pytest.mark.nightly
def test_an_injected_slowdown_is_that_much_of_each_launch():
    ratios = [
        measure_pair(THIS_CODE, THIS_CODE, CASE, CPU, seed=s, spin_share=1.0, pace=SHORT).log_ratio for s in range(3)
    ]
    assert sorted(ratios)[1] == pytest.approx(math.log(2), abs=0.3)


def test_a_wrong_result_fails_the_arm_that_has_it_where_asked_to_verify(tmp_path):
    wrong = with_launch("pass", tmp_path)
    with pytest.raises(ArmFailed) as failure:
        measure_pair(THIS_CODE, wrong, CASE, CPU, seed=1, verify=True, pace=SHORT)
    assert list(failure.value.reasons) == ["new"]
    assert "Wrong result" in failure.value.reasons["new"]
    assert not failure.value.unsupported


@pytest.mark.slow
def test_a_process_that_dies_while_it_is_timed_is_a_reason(tmp_path):
    dying = with_launch("os._exit(7)", tmp_path)
    with pytest.raises(ArmFailed, match=r"old: The worker process died \(exit code 7\)"):
        measure_pair(dying, THIS_CODE, CASE, CPU, seed=1, pace=SHORT)


@pytest.mark.slow
def test_what_the_old_arm_never_could_is_unsupported_and_no_fault_of_the_new_one():
    from pyperf_suite.workloads.collective import CollectiveParameters

    group = Case("collective", CollectiveParameters("all_reduce", 1024, 2), "gloo")
    with pytest.raises(ArmFailed, match="group of processes") as failure:
        measure_pair(THIS_CODE, THIS_CODE, PairedCase.same("collectives", group), CPU, seed=1, pace=SHORT)
    assert failure.value.unsupported


@pytest.mark.slow
def test_an_arm_that_finds_another_build_than_its_own_is_refused(tmp_path):
    astray = dataclasses.replace(THIS_CODE, build=tmp_path)
    with pytest.raises(ArmFailed, match="not its own"):
        measure_pair(THIS_CODE, astray, CASE, CPU, seed=1, pace=SHORT)


@pytest.mark.slow
def test_the_folder_of_the_worker_is_not_searched_for_modules(tmp_path):
    package = tmp_path / "pyperf_suite"
    package.mkdir()
    (package / "__init__.py").write_text("import sys\nraise RuntimeError(sys.path)\n")
    with pytest.raises(ArmFailed) as failure:
        measure_pair(THIS_CODE, Arm("tells its path", build=tmp_path), CASE, CPU, seed=1, pace=SHORT)
    assert str(tmp_path) in failure.value.reasons["new"]
    assert f"pyperf_suite{os.sep}history'" not in failure.value.reasons["new"]


class Double:
    """A worker that takes a second to start and two to prepare, and as long as it says for a launch, by `now_s`."""

    now_s, started, answers = 0.0, [], {}
    LAUNCH_S = 2.0**-14

    def __init__(self, command, variables, preload=()) -> None:
        self.started_with, self.asked, self.is_closed = (command, variables), [], False
        self.preload, self.sides = list(preload), set()
        Double.started.append(self)
        Double.now_s += 1

    def send(self, request) -> None:
        self.sides.add(request["side"])
        [(what, how)] = [item for item in request.items() if item[0] != "side"]
        self.asked.append((what, how))

    def receive(self, deadline_s):
        request, how = self.asked[-1]
        if request == "slice":
            launch_s, clock_hz = self.LAUNCH_S, 1e9
            if self is not Double.started[0] and "clock_hz" in Double.answers:  # the same cycles at another clock
                launch_s, clock_hz = launch_s / 1.1, Double.answers["clock_hz"]
            Double.now_s += how["samples"] * how["launches_per_sample"] * launch_s
            return {"outcome": "ok", "seconds": [launch_s] * how["samples"], "clock_hz": clock_hz}
        Double.now_s += 2 * (request == "prepare")
        prepared = {"outcome": "ok", "package": str(THIS_CODE.build / "pyperf_suite"), "resolution_s": 1e-9}
        return prepared | {"kernel": how.get("case", {})} | Double.answers

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def doubled(monkeypatch):
    monkeypatch.setattr(Double, "started", [])
    monkeypatch.setattr(live_pair, "WorkerProcess", Double)
    monkeypatch.setattr(live_pair, "_libraries", {})
    monkeypatch.setattr(live_pair, "time", SimpleNamespace(monotonic=lambda: Double.now_s))
    monkeypatch.setattr(live_pair.secrets, "randbits", lambda bits: bits)
    return lambda **answers: monkeypatch.setattr(Double, "answers", answers)


def all_asked():
    return [asked for each in Double.started for asked in each.asked]


def test_samples_last_a_hundred_times_the_clocks_resolution_and_slices_as_long_as_requested(doubled):
    doubled(resolution_s=0.01 * 2.0**-7)
    pair = measure_pair(THIS_CODE, THIS_CODE, CASE, CPU, seed=1, pace=Pace(slice_s=2.0**-5, total_s=0.5))
    # A sample of 2^-7 s is 128 launches, a slice is 4 of them, and 16 slices are the half second of each of 2 trials.
    assert (pair.launches_per_slice, len(pair.order)) == (512, 32)
    # Warm is what has lasted 2^-5 s.
    warming = [tuple(how.values()) for what, how in Double.started[0].asked if what == "slice"][:-16]
    assert warming == [(3, 1), (3, 10), (3, 100), (3, 128)]
    # A launch longer than a slice and a pair is made once in each.
    doubled(resolution_s=0.0)
    pair = measure_pair(THIS_CODE, THIS_CODE, CASE, CPU, seed=1, pace=Pace(slice_s=2.0**-20, total_s=2.0**-20))
    assert (pair.launches_per_slice, len(pair.order)) == (1, 4 * live_pair.MOST_TRIALS)


@pytest.mark.parametrize(("clock_hz", "ratio"), [(1.1e9, 0.0), (0.0, -math.log(1.1))], ids=["known", "unknown"])
def test_on_a_gpu_slices_are_compared_at_one_clock(doubled, clock_hz, ratio):
    doubled(clock_hz=clock_hz)
    pair = measure_pair(THIS_CODE, THIS_CODE, CASE, Device("cuda", 0), seed=1)
    assert abs(pair.log_ratio) == pytest.approx(abs(ratio))


@pytest.mark.parametrize(("threads", "pinned"), [(0.09, True), (0.1, False), (None, False)])
def test_a_users_kernel_of_one_thread_is_pinned_once_it_has_shown_that_it_is(doubled, threads, pinned):
    doubled(**{} if threads is None else {"other_threads": threads})
    theirs = Case.from_json({"operator": "bench.py:kernel", "parameters": {"n": 3}, "implementation": "loop"})
    pair = measure_pair(THIS_CODE, THIS_CODE, PairedCase.same("bench.py:kernel", theirs), CPU, seed=1, judges={})
    cores = [how["cores"] for what, how in all_asked() if what == "pin"]
    assert len(cores) == 2 * pinned
    assert all(each == pair.machine["cores"] and set(each) <= os.sched_getaffinity(0) for each in cores)


def test_exact_figures_are_not_timed(doubled):
    doubled(static={"registers": 96})
    pair = measure_pair(THIS_CODE, THIS_CODE, CASE, CPU, seed=1)
    assert (pair.static, pair.order, pair.log_ratio) == (({"registers": 96},) * 2, "", 0)
    assert {what for what, _ in all_asked()} == {"prepare"}
    assert (pair.old_s, pair.new_s, pair.launches_per_slice) == (1, 1, 0)
