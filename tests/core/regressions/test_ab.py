import itertools
import math
import random

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.interval import Ratio
from pyperf_suite.regressions.pairs import ab
from pyperf_suite.regressions.pairs.ab import compare_arms
from pyperf_suite.regressions.pairs.arms import Arm, PairedCase, this_code
from pyperf_suite.regressions.pairs.live_pair import ArmFailed, Pair
from pyperf_suite.regressions.verdict import SequentialRule, Verdict
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


@pytest.mark.parametrize(
    ("verdict", "pairs", "further", "sentence"),
    [
        ("slower", 10, 0, "10.0 % slower (+5.0 % to +15.0 %; 10 pairs in 20 s)."),
        ("equivalent", 1, 0, "No difference beyond 2 %: +10.0 % (+5.0 % to +15.0 %; 1 pair in 20 s)."),
        ("undecided", 10, 0, "Probably slower: +10.0 % (+5.0 % to +15.0 %) after 10 pairs in 20 s."),
        # 4 s a pair: 6 are needed for 24 s, and a fifth more.
        ("undecided", 5, 1, "where at least 6 are needed: --budget 29."),
        ("undecided", 10, None, "it lies too near the margin of 2 % for any number of pairs."),
        ("undecided", 10, 1, "about 1 further pair (2 s) would decide."),
        ("undecided", 10, 30, "about 30 further pairs (60 s) would decide."),
    ],
)
def test_a_verdict_is_told_with_what_it_cost_and_what_more_would(verdict, pairs, further, sentence):
    word = "undecided" if verdict == "undecided" and further != 0 else "slower"
    decision = Verdict(word, Ratio(1.1, 1.05, 1.15), 0.01, 0.99, pairs, further)
    rule = SequentialRule(margin=0.02, alpha=0.05)
    assert ab._sentence(verdict, decision, rule, 20.0).endswith(sentence)


def test_a_line_of_a_pair_says_what_was_measured_of_which_cases(measured):
    written = []
    measured(lambda case: made_up_pair(1.1))
    compare_case(OLD, NEW, case_of(64), CPU, SequentialRule(looks=(1,)), journal=written.append, spin_share=0.5)
    case = case_of(64).old
    assert written == [
        {
            "probe": "made up", "case_id": case.case_id, "pair": 0, "log_ratio": pytest.approx(math.log(1.1)),
            "spin_share": 0.5, "old": case.to_json(), "new": case.to_json(),
            **{name: value for name, value in vars(made_up_pair(1.1)).items() if value is not None},
        }
    ]  # fmt: skip
    finding = compare_case(OLD, NEW, case_of(64), CPU, SequentialRule(looks=(1,)))
    details = {name: finding.details[name] for name in ("old_s", "new_s", "pairs", "machine", "further_pairs")}
    assert details == {"old_s": 1e-3, "new_s": 1.1e-3, "pairs": 1, "machine": {"steal_share": 0.0}, "further_pairs": 6}
    assert finding.details["kernels"] == {side: {"name": "k", "path": "p"} for side in ("old", "new")}


@pytest.mark.parametrize(("share", "is_said"), [(0.02, False), (0.03, True)])
def test_time_that_other_guests_took_is_said_beyond_two_percent(measured, share, is_said):
    measured(lambda case: made_up_pair(1.1, machine={"steal_share": share}))
    sentence = compare_case(OLD, NEW, case_of(64), CPU, SequentialRule(looks=(1,))).sentence
    assert ("Other guests of this machine took 3 % of its time." in sentence) is is_said


def test_a_clock_that_differs_by_a_hundredth_is_not_said_and_a_budget_is_spent_to_its_end(measured, monkeypatch):
    measured(lambda case: made_up_pair(1.1, machine={"clock_hz": {"old": 2.00e9, "new": 2.019e9}}))
    assert "clock" not in compare_case(OLD, NEW, case_of(64), CPU, SequentialRule(looks=(1,))).sentence
    now_s = itertools.count(0.0, 0.5)  # looked at before and after each pair
    monkeypatch.setattr(ab.time, "monotonic", lambda: next(now_s))
    calls = measured(lambda case: made_up_pair(1.0))
    # Pairs take half a second, of the first 0.2 s to prepare: after the fourth, at 1.8 s, a fifth would be too many.
    details = compare_case(OLD, NEW, case_of(64), CPU, budget_s=2.0).details
    assert (details["seconds"], details["prepared_s"], len(calls)) == (1.8, 0.2, 4)
