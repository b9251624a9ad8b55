import pytest

from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.measure.sampling import SteadyRule
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_by_turns
from pyperf_suite.runner.profiles import QUICK, Effort
from pyperf_suite.workloads.operator import CACHE_TURNOVER, sets_to_rotate
from tests.records import a_product

CPU = resolve("cpu")


@pytest.mark.parametrize(
    ("share_of_cache", "sets", "cache"),
    [
        (1 / 64, 64 * CACHE_TURNOVER, "cold_l2"),
        (1.0, CACHE_TURNOVER, "cold_l2"),
        (2.0 * CACHE_TURNOVER, 1, "larger_than_l2"),
    ],
)
def test_operands_rotate_through_more_than_the_cache(share_of_cache, sets, cache):
    footprint = round(cpu.detect().l2_total_bytes * share_of_cache)
    assert sets_to_rotate(footprint, CPU) == (sets, cache)


def test_cases_take_turns_and_the_rounds_of_their_slices_have_one_name():
    turns: list[int] = []
    effort = Effort(SteadyRule(min_time_s=0.0, time_cap_s=0.01), QUICK.effort.stop)
    answers = dict(measure_by_turns([a_product(64), a_product(65)], effort, CPU, begin_turn=turns.append))
    assert {answer["outcome"] for answer in answers.values()} == {"ok"}
    # Each round has both, in an order that chance has: none is done before the other has begun.
    assert sorted(turns[:2]) == [0, 1]
    both = [turns[at : at + 2] for at in range(0, 2 * min(turns.count(0), turns.count(1)), 2)]
    assert all(sorted(each) == [0, 1] for each in both[:4])
    assert len({answer["sampling"]["group"] for answer in answers.values()}) == 1
    for answer in answers.values():
        assert sum(answer["sampling"]["slices"]) == len(answer["metrics"]["time"]["samples"])
        assert answer["state"]["reported_time"] == "10% quantile of samples"
        assert 0 <= answer["quality"]["disturbances"]["clean_share"] <= 1


def test_a_case_that_cannot_be_prepared_leaves_the_others_their_turns():
    wrong = Case("matmul", a_product(64).parameters, "no_such_implementation")
    answers = dict(measure_by_turns([wrong, a_product(64)], QUICK.effort, CPU))
    assert answers[0]["outcome"] in ("failed", "unsupported")
    assert answers[1]["outcome"] == "ok"
