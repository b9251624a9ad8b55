"""What memory the fastest configuration leaves, what that is worth, and who is too near its limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyperf_suite.findings.data import Remark
from pyperf_suite.planner.study import PROBE
from pyperf_suite.runner.record import Case, Record

MIB = 2**20


def holding(used: int, capacity: int, activations: int) -> dict[str, Any]:
    bytes_ = {"parameter_bytes": [MIB], "saved_activation_bytes": [activations * MIB]}
    return {"rank_bytes": {**bytes_, "resident_bytes": [used * MIB], "capacity_bytes": [capacity * MIB]}}


def headroom(records: list[Record]) -> list[Remark]:
    found = PROBE.findings(records).remarks
    return [each for each in found if isinstance(each, Remark) and "limit" in each.values]


@pytest.fixture
def two(layout: Callable[..., Case], visits: Callable[..., list[Record]]) -> Callable[..., list[Record]]:
    """two(0.5): micro-batches of 2 in a second, and of 8 in so many; 400 MiB, of which 100 are activations."""

    def made(seconds: float, capacity: int = 1000, **otherwise: Any) -> list[Record]:
        small = visits(layout(batch=2), [1.0, 1.0, 1.0], holding(400, capacity, 100), **otherwise)
        return small + visits(layout(batch=8), [seconds] * 3, holding(700, capacity, 400), **otherwise)

    return made


def test_the_micro_batch_that_would_fit_is_named_with_what_it_was_measured_to_gain(two: Any) -> None:
    (said,) = headroom(two(1.25))
    assert (said.values["own"], said.values["batch"]) == (2, 8)
    assert said.values["unused"].value == 600 * MIB
    assert said.values["gain"].value == pytest.approx(0.8)


def test_what_was_not_measured_has_no_gain(two: Any) -> None:
    (said,) = headroom([each for each in two(2.0) if each.parsed_case().parameters.batch == 2])
    assert (said.values["batch"], said.values["gain"]) == (8, None)


def test_no_larger_one_is_offered_than_stays_clear_of_the_limit(two: Any) -> None:
    # 4 sequences hold 500 MiB, 8 hold 700: more than 95 % of 720.
    said = [each for each in headroom(two(2.0, capacity=720)) if each.kind != "caution"]
    assert [each.values["batch"] for each in said] == [4]


def test_within_five_percent_of_the_limit_is_a_caution(two: Any) -> None:
    near = [each for each in headroom(two(0.5, capacity=720)) if each.kind == "caution"]
    assert [(each.values["used"].value, each.values["count"]) for each in near] == [(700 * MIB, 1)]
    assert not [each for each in headroom(two(0.5, capacity=800)) if each.kind == "caution"]


def test_a_limit_that_was_asked_for_stands_for_the_machine(two: Any) -> None:
    said = headroom(two(2.0, sampling={"memory_limit_bytes": 410 * MIB}))
    assert {each.values["limit"].value for each in said} == {410 * MIB}
    assert any(each.kind == "caution" for each in said)
