import dataclasses
import math
import os
import random
import textwrap
from types import SimpleNamespace

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.regressions.pairs import live_pair
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase, this_code
from pyperf_suite.regressions.pairs.live_pair import ArmFailed, Pace, Pair, measure_pair
from pyperf_suite.runner.workers import WorkerLost
from tests.records import SMALL, a_product

CPU = Device("cpu")
SHORT = Pace(slice_s=0.002, total_s=0.02)
CASE = PairedCase.same("baseline", SMALL)
THIS = this_code("this")


def arm_that_first_runs(program: str, folder) -> Arm:
    """This code, after a program that every process of the arm runs as it starts."""
    (folder / "sitecustomize.py").write_text(textwrap.dedent(program))
    return dataclasses.replace(THIS, environment={"PYTHONPATH": f"{folder}{os.pathsep}{THIS.build}"})


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
    pair = measure_pair(THIS, THIS, CASE, CPU, seed=1, pace=SHORT)
    rounds = [pair.order[begin : begin + 4] for begin in range(0, len(pair.order), 4)]
    assert set(rounds) in ({"onno"}, {"noon"})
    assert len(pair.old_slices) == len(pair.new_slices) == len(pair.order) / 2
    assert min(pair.old_s, pair.new_s) > 0
    assert pair.seconds > pair.startup_s > 0
    # Of a case of one worker, on one core.
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
    ratios = [measure_pair(THIS, THIS, CASE, CPU, seed=s, spin_share=1.0, pace=SHORT).log_ratio for s in range(3)]
    assert sorted(ratios)[1] == pytest.approx(math.log(2), abs=0.3)


def test_a_wrong_result_fails_the_arm_that_has_it_where_asked_to_verify(tmp_path):
    wrong = with_launch("pass", tmp_path)
    with pytest.raises(ArmFailed) as failure:
        measure_pair(THIS, wrong, CASE, CPU, seed=1, verify=True, pace=SHORT)
    assert list(failure.value.reasons) == ["new"]
    assert "Wrong result" in failure.value.reasons["new"]
    assert not failure.value.unsupported


@pytest.mark.slow
def test_a_process_that_dies_while_it_is_timed_is_a_reason(tmp_path):
    dying = with_launch("os._exit(7)", tmp_path)
    with pytest.raises(ArmFailed, match=r"old: The worker process died \(exit code 7\)"):
        measure_pair(dying, THIS, CASE, CPU, seed=1, pace=SHORT)


@pytest.mark.slow
def test_what_the_old_arm_never_could_is_unsupported_and_no_fault_of_the_new_one():
    from pyperf_suite.workloads.collective import CollectiveParameters

    group = Case("collective", CollectiveParameters("all_reduce", 1024, 2), "gloo")
    with pytest.raises(ArmFailed, match="group of processes") as failure:
        measure_pair(THIS, THIS, PairedCase.same("collectives", group), CPU, seed=1, pace=SHORT)
    assert failure.value.unsupported


@pytest.mark.slow
def test_an_arm_that_finds_another_build_than_its_own_is_refused(tmp_path):
    astray = dataclasses.replace(THIS, build=tmp_path, environment={"PYTHONPATH": str(THIS.build)})
    with pytest.raises(ArmFailed, match="not its own"):
        measure_pair(THIS, astray, CASE, CPU, seed=1, pace=SHORT)


@pytest.mark.slow
def test_the_folder_of_the_worker_is_not_searched_for_modules(tmp_path):
    package = tmp_path / "pyperf_suite"
    package.mkdir()
    (package / "__init__.py").write_text("import sys\nraise RuntimeError(sys.path)\n")
    with pytest.raises(ArmFailed) as failure:
        measure_pair(THIS, Arm("tells its path", build=tmp_path), CASE, CPU, seed=1, pace=SHORT)
    assert str(tmp_path) in failure.value.reasons["new"]
    assert f"pyperf_suite{os.sep}history'" not in failure.value.reasons["new"]


class FakeWorker:
    """A worker whose launches take so long by the clock of `now_s`; the first of a slice is reported as twice that."""

    now_s = 0.0

    def __init__(self, launch_s: float, clock_hz: float = 0.0) -> None:
        self.launch_s, self.clock_hz = launch_s, clock_hz
        self.asked: list[tuple[int, int]] = []

    def send(self, request) -> None:
        self.asked.append((request["slice"]["samples"], request["slice"]["launches_per_sample"]))

    def receive(self, deadline_s):
        samples, batch = self.asked[-1]
        FakeWorker.now_s += samples * batch * self.launch_s
        seconds = [2 * self.launch_s] + [self.launch_s] * (samples - 1)
        return {"outcome": "ok", "seconds": seconds, "clock_hz": self.clock_hz}


def test_slices_are_as_long_as_asked_for_and_a_sample_is_a_hundred_times_the_clocks_resolution(monkeypatch):
    monkeypatch.setattr(live_pair, "time", SimpleNamespace(monotonic=lambda: FakeWorker.now_s))
    workers = {"old": FakeWorker(2.0**-14, 1.5e9), "new": FakeWorker(2.0**-13, 1.8e9)}
    turns = live_pair._Turns(workers, 9.0)
    turns.take_all(random.Random(0), 0.01 * 2.0**-7, Pace(slice_s=2.0**-5, total_s=0.5))
    # A sample of 2^-7 s is 64 launches of the slower side; a slice is 4 of them, and 16 slices are the half second.
    # Warm is what has lasted 2^-5 s, that is 256 launches of the new side and 512 of the old one.
    assert workers["new"].asked == [(3, 1), (3, 10), (3, 64), (3, 64)] + [(4, 64)] * 8
    assert workers["old"].asked == [(3, 1), (3, 10), (3, 100), (3, 128)] + [(4, 64)] * 8
    assert (turns.launches_per_slice, turns.order) in ((256, "onno" * 4), (256, "noon" * 4))
    assert turns.slices == {"old": [2.0**-14] * 8, "new": [2.0**-13] * 8}
    assert (turns.median("new"), turns.clocks()) == (2.0**-13, {"old": 1.5e9, "new": 1.8e9})
    untold = live_pair._Turns({"old": FakeWorker(1.0), "new": FakeWorker(1.0)}, 9.0)
    assert (untold.median("old"), untold.clocks()) == (1.0, {})
    # What lasts longer than a slice and a pair is launched once in each.
    untold.take_all(random.Random(0), 0.0, Pace(slice_s=0.1, total_s=0.1))
    assert (untold.launches_per_slice, len(untold.order)) == (1, 4)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux tells which cores there are")
def test_one_core_for_both_sides_where_each_has_one_worker():
    one, two = SMALL, a_product(64, schedule="persistent@2")
    usable = os.sched_getaffinity(0)
    [core] = live_pair._cores(CASE, CPU, random.Random(0))
    assert core in usable
    assert live_pair._cores(CASE, Device("cuda", 0), random.Random(0)) is None
    assert [live_pair.workers_of(case.parameters) for case in (one, two)] == [1, 2]
    for sides in ((one, two), (two, one)):
        assert live_pair._cores(PairedCase("baseline", *sides), CPU, random.Random(0)) is None


@pytest.mark.parametrize("lost_in", ["send", "receive"])
def test_an_arm_that_is_lost_or_runs_other_code_has_its_reason_and_the_other_is_heard(tmp_path, lost_in):
    def lose(*_):
        raise WorkerLost("it died")

    good = {"outcome": "ok", "package": str(tmp_path / "pyperf_suite")}
    lost = SimpleNamespace(send=print, receive=lambda _: good)
    setattr(lost, lost_in, lose)
    workers = {"old": SimpleNamespace(send=print, receive=lambda _: good), "new": lost}
    here, elsewhere = (Arm("made up", build=build) for build in (tmp_path, tmp_path / "other"))
    for old, reasons in ((here, {"new": "it died"}), (elsewhere, {"old": "not its own", "new": "it died"})):
        with pytest.raises(ArmFailed) as failure:
            live_pair._prepared(workers, {"old": old, "new": here}, {"old": {}, "new": {}}, 1.0)
        assert failure.value.reasons.keys() == reasons.keys()
        assert all(reason in failure.value.reasons[side] for side, reason in reasons.items())
        assert not failure.value.unsupported


def test_on_a_gpu_slices_are_compared_at_one_clock(monkeypatch):
    monkeypatch.setattr(live_pair, "time", SimpleNamespace(monotonic=lambda: FakeWorker.now_s))
    # The same cycles: the second side's clock was a tenth higher, and its time a tenth lower.
    workers = {"old": FakeWorker(1.1e-4, 1.5e9), "new": FakeWorker(1e-4, 1.65e9)}
    turns = live_pair._Turns(workers, 9.0)
    turns.take_all(random.Random(0), 1e-9, Pace(slice_s=0.005, total_s=0.1))
    old, new = (turns.slices_at_one_clock(side) for side in ("old", "new"))
    assert new == pytest.approx([old[0]] * len(old))
    assert turns.slices["new"][0] / turns.slices["old"][0] == pytest.approx(1 / 1.1)
    unseen = live_pair._Turns({"old": FakeWorker(1.1e-4), "new": FakeWorker(1e-4, 1.65e9)}, 9.0)
    unseen.take_all(random.Random(0), 1e-9, Pace(slice_s=0.005, total_s=0.1))
    assert unseen.slices_at_one_clock("new") == unseen.slices["new"]


class Double:
    """A worker that takes a second to start and two to prepare, and as long as it says for a launch, by `now_s`."""

    now_s, made, answers = 0.0, [], {}
    LAUNCH_S = 2.0**-14

    def __init__(self, device, command, variables) -> None:
        self.started_with, self.asked, self.is_closed = (device, command, variables), [], False
        Double.made.append(self)
        Double.now_s += 1

    def send(self, request) -> None:
        [(what, how)] = request.items()
        self.asked.append((what, how))

    def receive(self, deadline_s):
        what, how = self.asked[-1]
        if what == "slice":
            Double.now_s += how["samples"] * how["launches_per_sample"] * self.LAUNCH_S
            return {"outcome": "ok", "seconds": [self.LAUNCH_S] * how["samples"], "clock_hz": 1e9}
        Double.now_s += 2 * (what == "prepare")
        prepared = {"outcome": "ok", "package": str(THIS.build / "pyperf_suite"), "resolution_s": 1e-9}
        return prepared | {"kernel": how.get("case", {})} | Double.answers

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def doubled(monkeypatch):
    monkeypatch.setattr(Double, "made", [])
    monkeypatch.setattr(live_pair, "WorkerProcess", Double)
    monkeypatch.setattr(live_pair, "time", SimpleNamespace(monotonic=lambda: Double.now_s))
    monkeypatch.setattr(live_pair.secrets, "randbits", lambda bits: bits)
    return lambda **answers: monkeypatch.setattr(Double, "answers", answers)


@pytest.mark.parametrize(
    ("device", "judged", "slices", "samples"),
    # A millisecond is 16 launches of 61 us and 0.2 s are 51 rounds of them; 5 ms are 82, and 0.15 s are 7 rounds.
    [(CPU, False, 204, 16), (CPU, True, 28, 82), (Device("cuda", 0), False, 28, 82)],
)
def test_a_pair_starts_both_asks_each_for_its_case_and_tells_what_they_took(doubled, device, judged, slices, samples):
    doubled()
    judges = {} if judged else None
    new = a_product(64)
    pair = measure_pair(THIS, THIS, PairedCase("baseline", SMALL, new), device, seed=1, judges=judges)
    assert (len(pair.order), pair.launches_per_slice, pair.startup_s) == (slices, samples, 6)
    assert pair.seconds == pytest.approx(
        6 + sum(how["samples"] for what, how in all_asked() if what == "slice") * 2.0**-14
    )
    assert (pair.old_s, pair.new_s, pair.log_ratio, pair.static) == (2.0**-14, 2.0**-14, 0, None)
    assert pair.kernels == (SMALL.to_json(), new.to_json())
    assert pair.machine["clock_hz"] == {"old": 1e9, "new": 1e9}
    assert [each.started_with for each in Double.made] == [(device, THIS.command, THIS.variables)] * 2
    assert all(each.asked[-1] == ("finish", {}) and each.is_closed != judged for each in Double.made)
    prepared = [how for what, how in all_asked() if what == "prepare"]
    assert {each["device"] for each in prepared} == {str(device)}
    assert sorted(str(each.get("spin_share")) for each in prepared) == ["0.0", "None"]
    assert [each.get("inputs") for each in prepared] == [63 if judged else None] * 2
    assert not any(each["verify"] for each in prepared)
    if judged:
        assert set(judges.values()) == set(Double.made)
        measure_pair(THIS, THIS, CASE, device, seed=1, judges=judges, verify=True, spin_share=0.5)
        assert len(Double.made) == 2
        assert [how["verify"] for what, how in all_asked() if what == "prepare"].count(True) == 2


def all_asked():
    return [asked for each in Double.made for asked in each.asked]


def test_who_starts_first_and_who_is_timed_first_is_chance(doubled):
    doubled()
    firsts = set()
    for seed in range(20):
        Double.made.clear()
        order = measure_pair(THIS, THIS, PairedCase("baseline", SMALL, a_product(64)), CPU, seed, pace=SHORT).order
        firsts.add((Double.made[0].asked[0][1]["case"] == SMALL.to_json(), order[0]))
    assert len(firsts) == 4


@pytest.mark.parametrize(("threads", "pinned"), [(0.09, True), (0.1, False), (None, False)])
def test_a_users_kernel_of_one_thread_is_pinned_once_it_has_shown_that_it_is(doubled, threads, pinned):
    doubled(**{} if threads is None else {"other_threads": threads})
    theirs = Case.from_json({"operator": "bench.py:kernel", "parameters": {"n": 3}, "implementation": "loop"})
    pair = measure_pair(THIS, THIS, PairedCase.same("bench.py:kernel", theirs), CPU, seed=1, judges={})
    cores = [how["cores"] for what, how in all_asked() if what == "pin"]
    assert len(cores) == 2 * pinned
    assert all(each == pair.machine["cores"] and set(each) <= os.sched_getaffinity(0) for each in cores)


def test_exact_figures_are_not_timed(doubled):
    doubled(static={"registers": 96})
    pair = measure_pair(THIS, THIS, CASE, CPU, seed=1)
    assert (pair.static, pair.order, pair.log_ratio) == (({"registers": 96},) * 2, "", 0)
    assert {what for what, _ in all_asked()} == {"prepare"}
    assert (pair.old_s, pair.new_s, pair.launches_per_slice) == (1, 1, 0)
