"""Products of experts: who gets how many rows, that each way is right, and that a wrong element is seen."""

from __future__ import annotations

import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.matmul import GroupedMatmulParameters
from pyperf_suite.workloads.workload import ExecutionContext

CPU = resolve("cpu")
OPERATOR = find_workload("grouped_matmul")


def requested(**changed: object) -> GroupedMatmulParameters:
    return GroupedMatmulParameters(**({"experts": 4, "rows": 70, "n": 24, "k": 16, "dtype": "float32"} | changed))


@pytest.mark.parametrize("skew", [0.0, 0.3, 1.0, 8.0])
@pytest.mark.parametrize(("experts", "rows"), [(1, 7), (4, 70), (8, 5), (64, 4096)])
def test_every_row_has_one_expert_and_none_has_fewer_than_a_later_one(experts, rows, skew):
    found = requested(experts=experts, rows=rows, skew=skew).rows_of_experts
    assert (len(found), sum(found)) == (experts, rows)
    assert list(found) == sorted(found, reverse=True)
    if skew == 0:
        assert max(found) - min(found) <= 1


@pytest.mark.parametrize("way", ["loop", "padded", "grouped_mm"])
def test_one_wrong_element_and_a_launch_that_did_nothing_are_seen(way):
    launches = OPERATOR.prepare(requested(skew=1.0), way, ExecutionContext(CPU, sets=2))
    assert launches.check().passed
    kept = launches.snapshot(0)
    assert launches.matches(0, kept)
    (written,) = launches._bound[0].written()
    written.view(-1)[0] = 1e3
    assert not launches.matches(0, kept)
    verdict = launches.verify_last(0)
    assert not verdict.passed
    assert verdict.worst_at == (0, 0)
    assert "expert 0" in verdict.message
    launches.poison(0)
    assert not launches.verify_last(0).passed


def test_an_error_names_the_expert_and_the_row_of_all():
    launches = OPERATOR.prepare(requested(), "loop", ExecutionContext(CPU, sets=1))
    launches.launch(0)
    first_of_third = sum(requested().rows_of_experts[:2])
    launches.results(0)["c"][first_of_third + 1, 5] += 1
    verdict = launches.verify_last(0)
    assert verdict.worst_at == (first_of_third + 1, 5)
    assert verdict.message.startswith("expert 2: ")


def test_work_counts_useful_flop_and_experts_that_are_read():
    assert OPERATOR.work(requested()).flop == 2 * 70 * 24 * 16
    few = requested(experts=8, rows=5)
    assert OPERATOR.work(few).bytes == 4 * (5 * 16 + 5 * 16 * 24 + 5 * 24)
