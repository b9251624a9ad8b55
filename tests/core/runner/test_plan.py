import itertools
import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.record.case import Case
from pyperf_suite.runner import plan as module
from pyperf_suite.runner.plan import (
    Outlook,
    Plan,
    PlannedCase,
    in_random_order,
    most_informative_first,
    ranks_of,
)
from pyperf_suite.runner.profiles import FULL, QUICK, STANDARD, Effort, Profile
from pyperf_suite.user_kernels import declared
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.exact import TopologyParameters
from pyperf_suite.workloads.training.training_step import TrainingStepParameters
from pyperf_suite.workloads.training.transfer import TransferParameters
from tests.records import a_product

CPU, GPU = Device("cpu"), Device("cuda", 0)
SLOWED = module.slowed
FIVE_STEPS = Profile("steps", 2, Effort(SteadyRule(launches=2), StopRule.exactly(5, 0.1)), "")
LONG = Profile("long", 1, Effort(SteadyRule(time_cap_s=50.0), StopRule(0.02, time_cap_s=100.0)), "")


@pytest.fixture(autouse=True)
def slow_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle host of 1 GFLOP/s in float64, 2 in float32, that has torch."""
    monkeypatch.setattr(module, "host_flop_per_s", lambda: 1e9)
    monkeypatch.setattr(module, "gpus", lambda: [SimpleNamespace(compute_capability=(9, 0), multiprocessors=132)])
    monkeypatch.setattr(module, "slowed", lambda: 1.0)
    monkeypatch.setattr(module, "find_spec", lambda _: "torch")


def product(m: int, mode: str = "burst", n: int = 1000) -> PlannedCase:
    """2·m·n FLOP in thousands."""
    return PlannedCase("baseline", a_product(m, n, 1000, "torch", "library@1", mode=mode))


EXACT = PlannedCase("topology", Case("topology", TopologyParameters("host"), "system"))
EXCHANGE = PlannedCase("collectives", Case("collective", CollectiveParameters("all_reduce", 1024, 2), "gloo"))
COPY = PlannedCase("transfer", Case("transfer", TransferParameters(1 << 20), "numpy"))

STEP = PlannedCase("block", Case("training_step", TrainingStepParameters(), "torch"))


def trial_s(planned: PlannedCase, profile: Profile = QUICK, device: Device = CPU, process: int = 0) -> float:
    return Outlook(Plan((planned,), profile, device)).trial_s(planned, process)


def test_a_trial_takes_its_share_of_the_profiles_caps_and_longer_where_it_computes_longer():
    assert trial_s(product(1)) < trial_s(product(1), STANDARD) < trial_s(product(1), FULL)
    assert 0.3 < trial_s(product(1)) < 0.5
    # 2 GFLOP take 1 s in float32, and six launches are the least, or as many as are requested.
    assert trial_s(product(1000)) == pytest.approx(6, rel=0.05)
    assert trial_s(product(2000), FIVE_STEPS) == pytest.approx(7 * 2, rel=0.05)
    # No more is counted on than a minute; on a GPU a load takes 10 s to settle, and a burst its pauses.
    assert trial_s(product(1), LONG) == pytest.approx(0.9 * 60, rel=0.05)
    assert (
        trial_s(product(1, "sustained"), STANDARD, GPU)
        > 10
        > trial_s(product(1), FULL, GPU)
        > trial_s(product(1), FULL)
    )
    # The first process computes what it compares with, in float64.
    assert trial_s(STEP, device=GPU) > trial_s(STEP, device=GPU, process=1) + 0.4
    assert trial_s(EXACT) < 0.2


def test_a_run_takes_its_trials_the_starts_of_workers_and_of_groups_and_what_follows(monkeypatch):
    run_time_s, trials_s = run_s(product(1)), 3 * trial_s(product(1), STANDARD)
    assert trials_s + 3 < run_time_s < trials_s + 12
    assert run_s(product(1), device=GPU) > run_time_s + 10, "CUDA starts slowly"
    assert run_s(EXCHANGE) > trials_s + 3 * 4, "a group of ranks is started in each process"
    assert [ranks_of(planned) for planned in (EXACT, product(1), EXCHANGE)] == [0, 0, 2]
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    assert run_s(product(1)) < run_time_s - 5, "without torch a worker starts sooner"
    monkeypatch.setattr(type(find_workload("collective")), "fresh_ranks", True)
    assert trial_s(EXCHANGE) > 6
    assert ranks_of(EXCHANGE) == 0


def run_s(*cases: PlannedCase, profile: Profile = STANDARD, device: Device = CPU) -> float:
    return Outlook(Plan(cases, profile, device)).run_s()


def test_kernels_of_a_file_share_its_processes_and_processes_share_the_checks_of_a_case(monkeypatch):
    cases = [PlannedCase("a.py:f", Case("a.py:f", declared.parameters_of(("n",))(n), "f")) for n in range(20)]
    taken_s = []
    for library in ("numpy", "torch"):
        monkeypatch.setitem(declared._libraries, "a.py", library)
        find_workload.cache_clear()
        taken_s.append(run_s(*cases, profile=QUICK))
        assert run_s(*cases) < 3 * run_s(*cases, profile=replace(STANDARD, processes=1))
    assert taken_s[0] == pytest.approx(8.5, rel=0.25), "as long as 20 cases of numpy took on two idle cores"
    assert taken_s[1] > taken_s[0] + 3
    find_workload.cache_clear()


@pytest.mark.parametrize(
    ("load", "seconds"),
    [(0.0, 4.0), (1.0, 4.0), (7.0, 4.0), (1.5, 5**0.5), (17.0, 6.0)],  # a queue shorter than the cores says nothing
)
def test_how_busy_the_cores_are_is_what_a_thread_waits_for_them_and_what_the_queue_says(monkeypatch, load, seconds):
    SLOWED.cache_clear()
    now = itertools.count()
    passed = {"perf_counter": 4.0, "thread_time": 1.0}
    clocks = {name: lambda step=step: step * 0.0001 * next(now) for name, step in passed.items()}
    monkeypatch.setattr(module, "time", SimpleNamespace(**clocks))
    monkeypatch.setattr(module, "os", SimpleNamespace(getloadavg=lambda: (load, 0.0, 0.0), cpu_count=lambda: 2))
    assert SLOWED() == pytest.approx(seconds, rel=0.1)
    SLOWED.cache_clear()


def test_the_median_of_what_trials_took_corrects_the_others_of_their_operator():
    cases = [product(m) for m in (1, 2, 3, 4)]
    outlook = Outlook(Plan((*cases, COPY), QUICK, CPU))
    usual, copy_s = outlook.trial_s(cases[3], 0), outlook.trial_s(COPY, 0)
    for planned, times in zip(cases[:3], (5.0, 2.0, 3.0), strict=True):
        outlook.learn(planned, 0, times * outlook._estimated_s(planned, 0))
    assert outlook.trial_s(cases[3], 1) == pytest.approx(3 * usual)
    assert outlook.trial_s(cases[0], 1) == pytest.approx(5 * usual, rel=1e-3)
    assert outlook.trial_s(COPY, 0) == copy_s


def test_a_random_order_puts_cases_of_several_ranks_last_and_the_same_seed_draws_it_again():
    together = [
        PlannedCase("collectives", Case("collective", CollectiveParameters("all_reduce", 8 << n, 2), "gloo"))
        for n in range(8)
    ]
    cases = [planned for pair in zip(together, map(product, range(1, 9)), strict=True) for planned in pair]
    ordered = in_random_order(cases, 5)
    assert [planned.probe == "collectives" for planned in ordered] == [False] * 8 + [True] * 8
    assert [planned for planned in ordered if planned in together] != together
    assert ordered == in_random_order(cases, 5) != in_random_order(cases, 6)


def test_sizes_come_from_coarse_to_fine_and_those_within_two_percent_together():
    def order(*sizes):
        return [planned.case.parameters.n for planned in most_informative_first([product(1, n=n) for n in sizes], 0)]

    assert order(1, 2, 3, 4, 5, 6, 7) == [4, 2, 6, 1, 3, 5, 7]
    assert order(1, 2) == [2, 1]
    # 98 and 100 are 2 % apart, 97 and 99.1 more.
    assert set(order(98, 100, 10, 1000)[:1]) < {98, 100, 1000}
    bundles = module._bundles({(float(size),): [product(1, n=size)] for size in (1000, 1020, 1041, 2000)})
    assert [[each.case.parameters.n for each in bundle] for bundle in bundles] == [[1000, 1020], [1041], [2000]]
    mixed = [product(1, n=n) for n in (1, 2, 3)] + [product(1, "sustained", n=n) for n in (1, 2, 3)]
    modes = [planned.case.mode for planned in most_informative_first(mixed, 0)]
    assert [sorted(modes[at : at + 2]) for at in (0, 2, 4)] == [["burst", "sustained"]] * 3


@pytest.mark.parametrize(
    ("size", "device", "sentence"),
    [
        # 3 x 32768^2 values of 2 bytes are 6.4 GB, 3 x 131072^2 are 103.1: of a GPU its memory counts, not the host's.
        (32768, GPU, ""),
        (131072, GPU, "needs 103.1 GB for its operands, but cuda:0 has 85.9 GB of memory in all: ask for smaller"),
        (4096, CPU, "runs on cuda, but the requested device is cpu: ask for cuda."),
    ],
)
def test_what_cannot_be_measured_here_is_refused_before_anything_is(size, device, sentence, monkeypatch):
    monkeypatch.setattr(module.memory, "available_bytes", lambda: 2 << 30)
    monkeypatch.setattr(module, "gpus", lambda: [SimpleNamespace(memory_bytes=80 << 30)])
    case = a_product(size, implementation="cublas", schedule="library@132", dtype="bfloat16")
    plan = Plan((PlannedCase("baseline", case),), QUICK, device)
    with pytest.raises(UserError, match=re.escape(sentence)) if sentence else nullcontext():
        plan.validate()
    needed = PlannedCase("baseline", a_product(16384, 16384, 1, "torch", "library@1"))
    monkeypatch.setattr(module.memory, "available_bytes", lambda: 4 * (16384**2 + 2 * 16384))
    Plan((needed,), QUICK, CPU).validate()
    monkeypatch.setattr(module.memory, "available_bytes", lambda: 4 * (16384**2 + 2 * 16384) - 1)
    with pytest.raises(UserError, match=r"needs 1\.1 GB for its operands, but this machine has 1\.1 GB of memory free"):
        Plan((needed,), QUICK, CPU).validate()


def test_a_plan_is_the_same_by_what_it_measures_and_how():
    plan = Plan((product(1), product(2)), QUICK, CPU)
    assert plan.plan_id == Plan((product(2), product(1)), QUICK, CPU, requested=("m=1",)).plan_id == "1ff6af299a2796f3"
    others = (
        replace(plan, seed=1),
        replace(plan, device=GPU),
        replace(plan, profile=FULL),
        Plan((product(1),), QUICK, CPU),
    )
    assert plan.plan_id not in {other.plan_id for other in others}
