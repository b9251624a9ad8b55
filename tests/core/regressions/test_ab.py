import itertools
import random

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.regressions.pairs import ab
from pyperf_suite.regressions.pairs.ab import compare_arms
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase, this_code
from pyperf_suite.regressions.pairs.live_pair import ArmFailed, Pair
from pyperf_suite.regressions.verdict import SequentialRule
from tests.records import a_product

CPU = Device("cpu")
OLD, NEW = this_code("old code"), this_code("new code")


def compare_case(old, new, case, device, rule=None, **how):
    return compare_arms(old, new, [case], device, rule, **how)[0]


def case_of(size: int) -> PairedCase:
    return PairedCase.same("made up", a_product(size))


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
    # The first alone is verified, and each has chances of its own: from the seed, the case and its number.
    assert [call["verify"] for call in calls] == [True] + [False] * (len(calls) - 1)
    drawn = [f"0 {case_of(64).case_id} {number} 0" for number in range(len(calls))]
    assert [call["seed"] for call in calls] == [random.Random(each).getrandbits(32) for each in drawn]
    assert (calls[0]["spin_share"], calls[0]["pace"]) == (0.0, None)


def test_a_budget_that_is_used_up_leaves_it_undecided_and_says_what_more_would_cost(measured, monkeypatch):
    measured(noisy(lambda case: 1.03, noise=0.05))
    monkeypatch.setattr(ab.time, "monotonic", itertools.count(0.0, 0.5).__next__)
    finding = compare_case(OLD, NEW, case_of(64), CPU, budget_s=0.5)
    assert (finding.verdict, finding.details["pairs"]) == ("undecided", 1)
    assert f"at least {SequentialRule().looks[0]} are needed: --budget" in finding.sentence


def test_every_pair_is_written_before_the_next_is_measured(measured):
    written = []
    calls = measured(noisy(lambda case: 1.1))
    counts = []
    compare_case(
        OLD, NEW, case_of(64), CPU,
        journal=written.append,
        progress=lambda case, pairs: counts.append((len(calls), len(written), len(pairs))),
    )  # fmt: skip
    assert counts == [(number, number, number) for number in range(1, len(calls) + 1)]
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


def test_another_clock_or_another_path_taken_is_said(measured):
    clocks = {"clock_hz": {"old": 1.98e9, "new": 1.755e9}}
    measured(lambda case: made_up_pair(1.128, machine=clocks))
    finding = compare_case(OLD, NEW, case_of(64), CPU)
    assert "clock was -11.4 % under the new one" in finding.sentence
    assert finding.details["machine"]["new_clock_hz"] == 1.755e9
    kernels = ({"name": "a", "path": "packed"}, {"name": "b", "path": "generic"})
    measured(lambda case: made_up_pair(1.2, kernels=kernels))
    assert "The path taken changed from packed to generic." in compare_case(OLD, NEW, case_of(64), CPU).sentence
