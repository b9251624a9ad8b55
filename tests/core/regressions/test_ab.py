"""As many pairs as it takes, none lost, and every way an arm can fail is a finding."""

from __future__ import annotations

import itertools
import random

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.regressions.pairs import ab
from pyperf_suite.regressions.pairs.ab import compare_arms, compare_case
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase, this_code
from pyperf_suite.regressions.pairs.live_pair import ArmFailed, Pair
from pyperf_suite.regressions.verdict import SequentialRule
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.matmul import MatmulParameters

CPU = Device("cpu")
OLD, NEW = this_code("old code"), this_code("new code")


def case_of(size: int) -> PairedCase:
    return PairedCase.same(
        "made up", Case("matmul", MatmulParameters(size, size, size, Schedule("data_parallel", 1)), "native")
    )


def made_up_pair(ratio=1.0, **fields) -> Pair:
    figures = {
        "old_s": 1e-3,
        "new_s": 1e-3 * ratio,
        "old_slices": (1e-3, 1e-3),
        "new_slices": (1e-3 * ratio, 1e-3 * ratio),
        "order": "onno",
        "seconds": 0.5,
        "startup_s": 0.2,
        "launches_per_slice": 1,
        "kernels": ({"name": "k", "path": "p"}, {"name": "k", "path": "p"}),
    }
    return Pair(**(figures | fields))


@pytest.fixture
def measured(monkeypatch):
    """Replaces the measuring of pairs; the function given gets the case and returns or raises."""

    def replace(answer):
        calls = []

        def measure_pair(old, new, case, device, seed, **options):
            calls.append({"case": case, "seed": seed} | options)
            return answer(case)

        monkeypatch.setattr(ab, "measure_pair", measure_pair)
        return calls

    return replace


def noisy(ratios, noise=0.01):
    chance = random.Random(7)
    return lambda case: made_up_pair(ratios(case) * (1 + chance.gauss(0, noise)))


def test_pairs_end_as_soon_as_it_is_decided(measured):
    calls = measured(noisy(lambda case: 1.1))
    finding = compare_case(OLD, NEW, case_of(64), CPU)
    assert finding.verdict == "slower"
    assert finding.ratio.value == pytest.approx(1.1, rel=0.01)
    assert len(calls) == finding.details["pairs"] == SequentialRule().looks[0]


def test_the_first_pair_alone_is_verified_and_each_has_chances_of_its_own(measured):
    calls = measured(noisy(lambda case: 1.1))
    compare_case(OLD, NEW, case_of(64), CPU)
    assert [call["verify"] for call in calls] == [True] + [False] * (len(calls) - 1)
    assert len({call["seed"] for call in calls}) == len(calls)


def test_a_budget_that_is_used_up_leaves_it_undecided_and_says_what_more_would_cost(measured):
    measured(noisy(lambda case: 1.03, noise=0.05))
    finding = compare_case(OLD, NEW, case_of(64), CPU, budget_s=0.1)
    assert (finding.verdict, finding.details["pairs"]) == ("undecided", 1)
    assert f"at least {SequentialRule().looks[0]} are needed: --budget" in finding.sentence


def test_every_pair_is_written_before_the_next_is_measured(measured):
    written = []
    calls = measured(noisy(lambda case: 1.1))
    seen = []
    compare_case(
        OLD, NEW, case_of(64), CPU,
        journal=written.append,
        progress=lambda case, pairs: seen.append((len(calls), len(written), len(pairs))),
    )  # fmt: skip
    assert seen == [(number, number, number) for number in range(1, len(calls) + 1)]
    assert written[3]["pair"] == 3
    assert written[3]["old"] == case_of(64).old.to_json()


@pytest.mark.parametrize(
    ("lost", "verdict", "pairs"), [((4,), "slower", None), (range(4, 99), "failed", 6)], ids=["once", "again"]
)
def test_a_process_that_is_lost_once_costs_one_pair_and_again_fails_its_arm(measured, lost, verdict, pairs):
    numbers = itertools.count()

    def answer(case):
        if next(numbers) in lost:
            raise ArmFailed({"new": "The worker process died (signal SIGSEGV)"}, unsupported=False)
        return made_up_pair(1.1)

    calls = measured(answer)
    finding = compare_case(OLD, NEW, case_of(64), CPU)
    assert finding.verdict == verdict
    if verdict == "failed":
        assert finding.sentence == "new code: The worker process died (signal SIGSEGV)"
        assert len(calls) == pairs


def test_an_arm_that_was_not_built_is_reported_and_nothing_is_measured(measured):
    calls = measured(lambda case: made_up_pair())
    unbuilt = Arm("v9", failure="v9 does not build: no semicolon; the log is build.log")
    findings = compare_arms(OLD, unbuilt, [case_of(64), case_of(65)], CPU)
    assert [finding.verdict for finding in findings] == ["failed", "failed"]
    assert findings[0].sentence == "v9 does not build: no semicolon; the log is build.log"
    assert not calls


def test_what_the_old_arm_cannot_measure_is_marked_as_nothing_to_compare_with(measured):
    def answer(case):
        raise ArmFailed({"old": "There is no such layout."}, unsupported=True)

    measured(answer)
    finding = compare_case(OLD, NEW, case_of(64), CPU)
    assert finding.details["unsupported"]
    assert finding.sentence == "Nothing to compare with: old code: There is no such layout."


def test_a_suite_is_judged_by_the_rule_for_one_of_so_many_and_told_in_its_order(measured):
    slow = case_of(72)
    calls = measured(noisy(lambda case: 1.1 if case == slow else 1.0, noise=0.002))
    cases = [case_of(size) for size in range(64, 84)]
    findings = compare_arms(OLD, NEW, cases, CPU, SequentialRule())
    assert [finding.benchmark for finding in findings] == [case.label for case in cases]
    assert [finding.verdict for finding in findings].count("slower") == 1
    assert findings[8].verdict == "slower"
    assert findings[8].details["pairs"] == SequentialRule().for_suite(20).looks[0] > SequentialRule().looks[0]
    assert calls[0]["case"] != cases[0] or calls[-1]["case"] != cases[-1]


def test_each_benchmark_can_have_a_margin_of_its_own(measured):
    measured(noisy(lambda case: 1.05, noise=0.002))
    margins = {case_of(64): 0.01, case_of(65): 0.2}
    findings = compare_arms(OLD, NEW, list(margins), CPU, lambda case: SequentialRule(margin=margins[case]))
    assert [(finding.verdict, finding.margin) for finding in findings] == [("slower", 0.01), ("equivalent", 0.2)]


def test_another_clock_or_another_path_taken_is_said(measured):
    clocks = {"clock_hz": {"old": 1.98e9, "new": 1.755e9}}
    measured(lambda case: made_up_pair(1.128, machine=clocks))
    finding = compare_case(OLD, NEW, case_of(64), CPU)
    assert "clock was -11.4 % under the new one" in finding.sentence
    assert finding.details["machine"]["new_clock_hz"] == 1.755e9
    kernels = ({"name": "a", "path": "packed"}, {"name": "b", "path": "generic"})
    measured(lambda case: made_up_pair(1.2, kernels=kernels))
    assert "The path taken changed from packed to generic." in compare_case(OLD, NEW, case_of(64), CPU).sentence


def test_exact_figures_are_compared_once_and_exactly(measured):
    spilling = ({"local_memory": {"value": 0}}, {"local_memory": {"value": 64}})
    calls = measured(lambda case: made_up_pair(static=spilling))
    finding = compare_case(OLD, NEW, case_of(64), CPU)
    assert (finding.verdict, finding.ratio, len(calls)) == ("slower", None, 1)
    assert finding.details["figures"] == {"local_memory": [0, 64]}
