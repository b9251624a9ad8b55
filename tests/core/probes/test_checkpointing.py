"""The search for the largest batch ends on evidence, and the findings tell the machine that made the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.probes.checkpointing import PROBE, REPAYS, CheckpointingAxes
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import Record
from tests import records as made_up

CPU = resolve("cpu")
AXES: CheckpointingAxes = replace(PROBE.axes("standard", CPU), workers=(1,), budget_mb=(100,))
FIXED_MB = 10.0
# Bytes that a sequence adds to the peak, and the rate relative to keeping all.
MB_EACH = {"none": 9.0, "selective": 6.0, "every:1": 2.5, "every:2": 3.0}
RATE = {"none": 1.0, "selective": 0.95, "every:1": 0.78, "every:2": 0.78}

StateBytes = Callable[[str, int], float]


def straight(policy: str, batch: int) -> float:
    """Bytes on a line, as on a CPU."""
    return 1e6 * (FIXED_MB + MB_EACH[policy] * batch)


def in_blocks(policy: str, batch: int) -> float:
    """An allocator that wastes more the more there is: the line promises too much."""
    return straight(policy, batch) * (1.0 if batch <= 4 else 1.25)


def a_record(case: Case, process: int, held_bytes: StateBytes, rate_of_batch: Callable[[int], float]) -> Record:
    p = case.parameters
    policy, peak = str(p.checkpointing), held_bytes(str(p.checkpointing), p.batch)
    seconds = p.tokens / (1e5 * RATE[policy] * rate_of_batch(p.batch)) * (1 + 0.001 * (process - 1))
    if p.budget_bytes and peak > p.budget_bytes:
        reason = f"Batch {p.batch} does not fit: it is made up."
        return made_up.a_record(case, process=process, outcome="unsupported", reason=reason)
    fixed = 1e6 * FIXED_MB
    bytes_ = {"kept": peak - fixed, "fixed": fixed, "peak": peak, "peak_of_one": held_bytes(policy, 1)}
    return made_up.a_record(case, seconds, process=process, metrics=bytes_ | {"budget": float(p.budget_bytes)})


def searched(
    axes: CheckpointingAxes = AXES,
    held_bytes: StateBytes = straight,
    rate_of_batch: Callable[[int], float] = lambda batch: 1.0,
) -> tuple[list[Record], int]:
    """Records of a whole run, and how many rounds its search took."""
    records, cases, rounds = [], list(PROBE.sweep(axes)), -1
    requested_ids = set()
    while cases:
        rounds += 1
        assert rounds < 12, "the search wanders"
        for case in cases:
            assert case.case_id not in requested_ids
            requested_ids.add(case.case_id)
            records += [a_record(case, process, held_bytes, rate_of_batch) for process in range(3)]
        cases = PROBE.follow_up(records)
    return records, rounds


def batches(records: list[Record], outcome: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for record in records:
        p = record.parsed_case().parameters
        if record.outcome == outcome:
            found.setdefault(str(p.checkpointing), set()).add(p.batch)
    return found


@pytest.mark.parametrize("held_bytes", [straight, in_blocks])
@pytest.mark.parametrize("start", [1, 4, 64])
def test_the_search_ends_at_the_last_batch_that_fits_and_has_seen_the_next_fail(held_bytes, start):
    records, _ = searched(replace(AXES, batch=(start,)), held_bytes)
    for policy, fitting in batches(records, "ok").items():
        last = max(fitting)
        assert held_bytes(policy, last) <= 100e6 < held_bytes(policy, last + 1)
        assert last + 1 in batches(records, "unsupported")[policy]


@pytest.mark.parametrize(
    ("rate_of_batch", "policy", "gain", "outcome", "fastest"),
    [
        (lambda batch: 1.0, "selective", 0.95, "does not hold here", ("none", 10)),
        (lambda batch: batch**0.5, "every:1", 0.78 * 3.6**0.5, "holds", ("every:1", 36)),
    ],
    ids=["larger batches are no faster", "larger batches are faster"],
)
def test_the_fastest_policy_within_the_budget_is_the_advice(rate_of_batch, policy, gain, outcome, fastest):
    found = PROBE.findings(searched(rate_of_batch=rate_of_batch)[0])
    (repaid,) = (each for each in found.verdicts if each.claim == REPAYS)
    assert (repaid.measured.value, repaid.outcome) == (pytest.approx(gain), outcome)
    assert (repaid.message.values["checkpointing"], repaid.message.values["plain"]) == (policy, 10)
    advice = found.remarks[-1].values
    assert (advice["checkpointing"], advice["batch"]) == fastest
    assert advice["budget"] == Quantity(100e6, "MB")
