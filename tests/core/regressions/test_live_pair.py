import contextlib
import dataclasses
import itertools
import math
import os
import random
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.regressions.pairs import arm_worker, live_pair
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase, this_code
from pyperf_suite.regressions.pairs.live_pair import ArmFailed, Pace, Pair, measure_pair
from tests.records import SMALL, a_product

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


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux tells which cores there are")
def test_one_core_for_both_sides_where_each_has_one_worker():
    single, two = SMALL, a_product(64, schedule="persistent@2")
    usable = os.sched_getaffinity(0)
    [core] = live_pair._cores(CASE, CPU, random.Random(0))
    assert core in usable
    assert live_pair._cores(CASE, Device("cuda", 0), random.Random(0)) is None
    assert [live_pair.workers_of(case.parameters) for case in (single, two)] == [1, 2]
    for sides in ((single, two), (two, single)):
        assert live_pair._cores(PairedCase("baseline", *sides), CPU, random.Random(0)) is None


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


@pytest.mark.parametrize(
    ("device", "judged", "slices", "samples"),
    # A millisecond is 16 launches of 61 us and 0.2 s are 51 rounds of them; 5 ms are 82, and 0.15 s are 7 rounds: a
    # case that takes seconds to start has them twice.
    [(CPU, False, 408, 16), (CPU, True, 56, 82), (Device("cuda", 0), False, 56, 82)],
)
def test_a_pair_starts_both_asks_each_for_its_case_and_tells_what_they_took(doubled, device, judged, slices, samples):
    doubled()
    judges = {} if judged else None
    new = a_product(64)
    pair = measure_pair(THIS_CODE, THIS_CODE, PairedCase("baseline", SMALL, new), device, seed=1, judges=judges)
    startup_s = 5 if judged else 6  # one judge for both sides
    assert (len(pair.order), pair.launches_per_slice, pair.startup_s) == (slices, samples, startup_s)
    assert pair.seconds == pytest.approx(
        startup_s + sum(how["samples"] for what, how in all_asked() if what == "slice") * 2.0**-14
    )
    assert (pair.old_s, pair.new_s, pair.log_ratio, pair.static) == (2.0**-14, 2.0**-14, 0, None)
    assert pair.kernels == (SMALL.to_json(), new.to_json())
    assert pair.machine["clock_hz"] == {"old": 1e9, "new": 1e9}
    assert [each.started_with for each in Double.started] == [(THIS_CODE.command, THIS_CODE.variables)] * (
        1 if judged else 2
    )
    assert all(each.asked[-1] == ("finish", {}) and each.is_closed != judged for each in Double.started)
    prepared = [how for what, how in all_asked() if what == "prepare"]
    assert {each["device"] for each in prepared} == {str(device)}
    assert sorted(str(each.get("spin_share")) for each in prepared) == ["0.0", "None"]
    assert [each.get("inputs") for each in prepared] == [63 if judged else None] * 2
    assert not any(each["verify"] for each in prepared)
    # A user's kernel has other inputs in each trial after the first, on both sides the same.
    assert [how for what, how in all_asked() if what == "reseed"] == [{"inputs": 63}] * (2 * judged)
    if judged:
        assert list(judges.values()) == Double.started
        assert Double.started[0].sides == {"old", "new"}
        measure_pair(THIS_CODE, THIS_CODE, CASE, device, seed=1, judges=judges, verify=True, spin_share=0.5)
        assert len(Double.started) == 1
        assert [how["verify"] for what, how in all_asked() if what == "prepare"].count(True) == 2


def all_asked():
    return [asked for each in Double.started for asked in each.asked]


def test_processes_of_one_interpreter_are_copies_of_a_template_of_what_both_sides_imported(doubled):
    other = dataclasses.replace(THIS_CODE, python=Path("/another/python"))
    installed = dataclasses.replace(THIS_CODE, build=None)
    for new, libraries, copied in (
        (THIS_CODE, ["numpy", "torch"], []),  # nothing is known of the first pair
        (THIS_CODE, ["numpy", "scipy"], ["numpy", "torch"]),
        (other, ["numpy", "scipy"], []),  # a template a side would be a difference in every pair
        (installed, ["numpy"], []),  # it may find other libraries
        (THIS_CODE, [], ["numpy"]),  # what is only looked at imports nothing to be told
        (THIS_CODE, ["numpy"], ["numpy"]),
    ):
        doubled(**{"libraries": libraries} if libraries else {})
        Double.started.clear()
        measure_pair(THIS_CODE, new, CASE, CPU, seed=1, pace=SHORT)
        assert [each.preload for each in Double.started] == [copied] * 2, new


def test_who_starts_first_and_who_is_timed_first_is_chance(doubled):
    doubled()
    firsts = set()
    for seed in range(20):
        Double.started.clear()
        order = measure_pair(
            THIS_CODE, THIS_CODE, PairedCase("baseline", SMALL, a_product(64)), CPU, seed, pace=SHORT
        ).order
        firsts.add((Double.started[0].asked[0][1]["case"] == SMALL.to_json(), order[0]))
    assert len(firsts) == 4


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


class SpinningGpu:
    """A GPU that tells its clock, where a launch takes `launch_cycles`, and a kernel behind it 1,000 and its spin."""

    stream, hz = 7, 1.5e9

    def __init__(self, monkeypatch, launch_cycles: float) -> None:
        self.launch_cycles, self.cycles, self.on, self.launched = launch_cycles, 0.0, None, []
        cuda = SimpleNamespace(ExternalStream=lambda it: it, stream=self._use, _sleep=self._sleep)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    @contextlib.contextmanager
    def _use(self, stream):
        self.on = stream
        yield
        self.on = None

    def _sleep(self, cycles):
        assert isinstance(cycles, int)
        assert self.on == self.stream
        self.cycles += 1000 + cycles

    def launch(self, index):
        self.launched.append(index)
        self.cycles += self.launch_cycles

    def time(self, launch, first, samples, batch):
        seconds = []
        for sample in range(samples):
            self.cycles = 0.0
            for index in range(batch):
                launch(first + sample * batch + index)
            seconds.append(self.cycles / self.hz)
        return seconds

    def clocks_hz(self, samples):
        return [self.hz] * samples


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_a_slowdown_on_a_gpu_is_a_kernel_behind_each_launch_that_spins_for_the_rest(monkeypatch, share):
    gpu = SpinningGpu(monkeypatch, launch_cycles=100_000)
    slowed = arm_worker._slowed_on_gpu(gpu.launch, gpu, share)
    gpu.launched.clear()
    assert gpu.time(slowed, 3, 1, 2)[0] == pytest.approx(2 * (1 + share) * gpu.launch_cycles / gpu.hz)
    assert gpu.launched == [3, 4]


@pytest.mark.parametrize(("launch_cycles", "hz"), [(40_000, 1.5e9), (100_000, math.nan)], ids=["short", "no clock"])
def test_a_slowdown_on_a_gpu_that_is_shorter_than_a_kernel_is_refused(monkeypatch, launch_cycles, hz):
    gpu = SpinningGpu(monkeypatch, launch_cycles)
    gpu.hz = hz
    with pytest.raises(Unsupported, match=r"by 2 % of .* cycles cannot be injected"):
        arm_worker._slowed_on_gpu(gpu.launch, gpu, 0.02)


def test_a_slowdown_on_a_cpu_is_that_much_of_each_launch_with_what_wrapping_takes(monkeypatch):
    now_ns = itertools.count(0, 100)  # by so much time goes on with each look at the clock
    passed_ns = [0]

    def clock():
        return next(now_ns) + passed_ns[0]

    monkeypatch.setattr(arm_worker, "time", SimpleNamespace(perf_counter_ns=clock))

    def launch(index):
        passed_ns[0] += 10_000 * index

    slowed = arm_worker._slowed(launch, 0.5)
    for index in (1, 5):  # each launch by its own time
        begin_ns = clock()
        slowed(index)
        assert clock() - begin_ns == pytest.approx(15_000 * index, abs=300)


@pytest.mark.parametrize(("clocks", "told"), [([1.5e9, 1.6e9, 1.7e9], 1.6e9), ([], None)])
def test_slices_of_a_users_kernel_on_a_gpu_have_its_clock(clocks, told):
    bench = arm_worker.Bench()
    bench._users = SimpleNamespace(clocks_hz=lambda samples: clocks[-samples:])
    bench._stopwatch = SimpleNamespace(time=lambda launch, first, samples, batch: [1e-3] * samples)
    bench._launch = None
    assert bench.answer({"slice": {"samples": 3, "launches_per_sample": 2}}) == {
        "outcome": "ok",
        "seconds": [5e-4] * 3,
        "clock_hz": told,
    }
