"""What one visit to a case may take, and what it says of how it was taken."""

from __future__ import annotations

import pytest

from pyperf_suite.hardware import cpu, memory
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.workloads.operator import CACHE_TURNOVER, MEMORY_SHARE, MOST_SETS, sets_to_rotate

CPU = resolve("cpu")


@pytest.mark.parametrize(
    ("share_of_cache", "sets", "cache"),
    [
        (1 / 64, 64 * CACHE_TURNOVER, "cold_l2"),
        (1.0, CACHE_TURNOVER, "cold_l2"),
        (2.0 * CACHE_TURNOVER, 1, "larger_than_l2"),
    ],
)
def test_operands_rotate_through_more_than_the_cache(share_of_cache: float, sets: int, cache: str) -> None:
    footprint = round(cpu.detect().l2_total_bytes * share_of_cache)
    assert sets_to_rotate(footprint, CPU) == (sets, cache)


def test_so_small_operands_that_the_cache_would_hold_too_many_are_said_to_be_partly_warm() -> None:
    assert sets_to_rotate(8, CPU) == (MOST_SETS, "partly_warm")


def test_operand_sets_leave_memory_for_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    footprint = cpu.detect().l2_total_bytes // 10
    monkeypatch.setattr(memory, "available_bytes", lambda: round(5 * footprint / MEMORY_SHARE))
    assert sets_to_rotate(footprint, CPU) == (5, "partly_warm")
