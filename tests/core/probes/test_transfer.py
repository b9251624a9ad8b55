"""Findings on transfers: latency and bandwidth of known laws are found again, and ways compare in one process."""

from __future__ import annotations

from functools import partial

import pytest

from pyperf_suite.findings.data import Cell, Findings
from pyperf_suite.probes.transfer import PINNED_IS_FASTER, PROBE, TRADES_BANDWIDTH
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.training.transfer import TransferParameters
from tests.records import cells, records

SIZES = [1 << power for power in range(10, 27, 2)]


def way(name: str, start_s: float, gb_per_s: float, sizes=SIZES, **settings) -> list[Record]:
    """Records of a way that keeps to latency and bandwidth exactly, but that processes differ by a percent."""
    cases = [Case("transfer", TransferParameters(size, **settings), name) for size in sizes]
    seconds = partial(law_s, start_s, gb_per_s)
    return records(cases, seconds, wobble=0.01)


def law_s(start_s: float, gb_per_s: float, case: Case) -> float:
    return start_s + case.parameters.size_bytes / gb_per_s / 1e9


def ways(findings: Findings) -> dict[str, dict[str, Cell]]:
    """The cells of the first table, by way and column."""
    return {str(line["way"]): line for line in cells(findings.tables[0])}


def test_latency_and_bandwidth_are_found_again():
    way_found = ways(PROBE.findings(way("memcpy", 2e-6, 10.0)))["memcpy"]
    assert way_found["largest"].value == 64 << 20
    assert way_found["rate"].value == pytest.approx(10e9, rel=0.02)
    assert way_found["latency by the law"].value == pytest.approx(2e-6, rel=0.05)
    assert way_found["half of it from"].value == 64 << 10
    assert way_found["law off where left out"].value < 0.02


@pytest.mark.parametrize(("disk", "outcome"), [(2.0, "holds"), (10.0, "does not hold here")])
def test_a_disk_is_set_beside_memory_by_bytes_whatever_the_sizes(disk, outcome):
    (verdict,) = PROBE.findings(way("memcpy", 0.0, 10.0) + way("disk_direct", 0.0, disk, sizes=[1 << 20])).verdicts
    assert (verdict.claim, verdict.outcome) == (TRADES_BANDWIDTH, outcome)
    assert verdict.measured.value == pytest.approx(10.0 / disk)


def test_pinned_memory_is_judged_by_the_guides_claim_in_each_direction_at_the_largest_size_of_both():
    records = [
        *way("host_to_device", 5e-6, 50.0, pinned=True),
        *way("host_to_device", 5e-6, 10.0, sizes=SIZES[:-1]),
        *way("device_to_host", 5e-6, 50.0, pinned=True),
        *way("device_to_host", 5e-6, 49.0),
    ]
    there, back = PROBE.findings(records).verdicts
    assert {each.claim for each in (there, back)} == {PINNED_IS_FASTER}
    assert (there.outcome, back.outcome) == ("holds", "does not hold here")
    assert [each.message.values["size"].value for each in (there, back)] == [SIZES[-2], SIZES[-1]]
    assert there.measured.value == pytest.approx(4.9, rel=0.02)
