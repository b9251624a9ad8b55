import dataclasses
import math
import os
import textwrap

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase, this_code
from pyperf_suite.regressions.pairs.live_pair import ArmFailed, Pace, Pair, measure_pair
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads import find_workload
from tests.records import SMALL

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


@pytest.mark.slow
def test_chance_decides_who_begins():
    firsts = {measure_pair(THIS, THIS, CASE, CPU, seed=seed, pace=SHORT).order[0] for seed in (1, 2)}
    assert firsts == {"o", "n"}


@pytest.mark.slow
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


def test_what_imports_torch_says_so_that_sides_import_it_side_by_side():
    for name, torch in (("native", False), ("torch", True), ("torch_padded", True), ("cublas", True)):
        assert find_workload("matmul").implementation(name).needs_torch is torch
    assert all(way.needs_torch for way in find_workload("grouped_matmul").implementations.values())
    assert find_workload("training_step").implementation("torch").needs_torch
