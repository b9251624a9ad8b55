"""What is said of transfers: latency and bandwidth of known laws are found again, and ways compare in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes.transfer import OVER_BUS, PINNED_IS_FASTER, PROBE, TRADES_BANDWIDTH
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.spec.findings import Cell, Findings, Remark
from pyperf_suite.workloads.training.transfer import TransferParameters

CPU, GPU = Device("cpu"), Device("cuda")
SIZES = [1 << power for power in range(10, 27, 2)]

Seconds = Callable[[Case, int], float]


def record(case: Case, seconds: float, process: int = 0, **details) -> Record:
    time = Metric("s", seconds, seconds, seconds, seconds, seconds, [seconds])
    return Record(
        "made-up",
        "timing",
        case.to_json(),
        case.case_id,
        process,
        0,
        "2026-01-01",
        "ok",
        metrics={"time": time},
        work={"flop": 0, "bytes": case.parameters.size_bytes},
        kernel={"name": "copy", "path": "", "details": details},
        quality={"converged": True},
    )


def way(name: str, start_s: float, gb_per_s: float, sizes=SIZES, processes=3, details=None, **settings) -> list[Record]:
    """Records of a way that keeps to latency and bandwidth exactly, but that processes differ by a percent."""
    cases = [Case("transfer", TransferParameters(size, **settings), name) for size in sizes]
    return [
        record(
            case,
            (start_s + case.parameters.size_bytes / gb_per_s / 1e9) * (1 + 0.01 * process),
            process,
            **(details or {}),
        )
        for case in cases
        for process in range(processes)
    ]


def ways(found: Findings) -> dict[str, dict[str, Cell]]:
    """The cells of the first table, by way and column."""
    table = found.tables[0]
    return {row[0]: {column.name: cell for column, cell in zip(table.columns, row, strict=True)} for row in table.rows}


def remarks(found: Findings, kind: str = "") -> list[Remark]:
    return [each for each in found.remarks if isinstance(each, Remark) and each.kind == kind]


def test_latency_and_bandwidth_are_found_again():
    way_found = ways(PROBE.findings(way("memcpy", 2e-6, 10.0)))["memcpy"]
    assert way_found["largest"].value == 64 << 20
    assert way_found["rate"].value == pytest.approx(10e9, rel=0.02)
    assert way_found["latency by the law"].value == pytest.approx(2e-6, rel=0.05)
    assert way_found["half of it from"].value == 64 << 10
    assert way_found["law off where left out"].value < 0.02


def test_a_law_that_is_far_off_somewhere_says_by_how_much_and_the_best_rate_is_told():
    slow = way("memcpy", 0.0, 1.5, sizes=SIZES[-1:])
    found = ways(PROBE.findings(way("memcpy", 2e-6, 10.0, sizes=SIZES[:-1]) + slow))["memcpy"]
    assert found["rate"].value == pytest.approx(1.5e9, rel=0.02)
    assert found["best rate"].value == pytest.approx(9.89e9, rel=0.01)
    assert found["law off at worst"].value > 0.5


def test_a_single_size_has_a_rate_and_no_law():
    found = PROBE.findings(way("memcpy", 0.0, 10.0, sizes=[1 << 20]))
    assert ways(found)["memcpy"]["rate"].value == pytest.approx(10e9, rel=0.02)
    assert ways(found)["memcpy"]["latency by the law"] is None
    assert found.tables[1].rows[0][-2:] == (None, None)
    assert found.figures == ()


def test_every_size_has_its_row_and_the_figure_its_law():
    found = PROBE.findings(way("memcpy", 2e-6, 10.0) + way("disk_direct", 60e-6, 2.0))
    rows = found.tables[1].rows
    assert len(rows) == 2 * len(SIZES)
    assert rows[0][4].predicted
    assert rows[0][5].value == pytest.approx(1, rel=0.05)
    (figure,) = found.figures
    (panel,) = figure.rows[0]
    memcpy, law, *_ = panel.series
    assert [(series.label, series.predicted) for series in (memcpy, law)] == [
        ("memcpy", False),
        ("law of memcpy", True),
    ]
    assert list(memcpy.x) == SIZES
    assert memcpy.y[-1] == pytest.approx(10e9, rel=0.02)
    assert law.y[-1] == pytest.approx(10e9, rel=0.02)
    assert len(panel.x_ticks) <= 8


@pytest.mark.parametrize(("disk", "outcome"), [(2.0, "holds"), (10.0, "does not hold here")])
def test_a_disk_is_set_beside_memory_by_bytes_whatever_the_sizes(disk, outcome):
    (verdict,) = PROBE.findings(way("memcpy", 0.0, 10.0) + way("disk_direct", 0.0, disk, sizes=[1 << 20])).verdicts
    assert (verdict.claim, verdict.outcome) == (TRADES_BANDWIDTH, outcome)
    assert verdict.measured.value == pytest.approx(10.0 / disk)


def test_the_page_cache_is_set_beside_the_disk():
    (told,) = remarks(PROBE.findings(way("disk_cached", 0.0, 8.0) + way("disk_direct", 0.0, 2.0, sizes=[1 << 20])))
    assert told.values["faster"].value == pytest.approx(4.0)


@pytest.mark.parametrize("virtualised", [False, True])
def test_a_virtual_disk_is_said_to_be_one(virtualised):
    found = PROBE.findings(way("disk_direct", 60e-6, 2.0, details={"virtualised": virtualised}))
    assert len(remarks(found, "caution")) == virtualised


@pytest.mark.parametrize(("rate", "faster"), [(18.0, 1.8), (5.0, 0.5), (10.0, 1.0)])
def test_cores_are_compared_at_the_smallest_and_the_largest_size(rate, faster):
    smallest, largest = remarks(PROBE.findings(way("torch", 1e-6, 10.0) + way("torch", 1e-6, rate, workers=4)))
    assert [each.values["size"].value for each in (smallest, largest)] == [SIZES[0], SIZES[-1]]
    assert (largest.values["workers"], largest.values["fewest"]) == (4, 1)
    assert largest.values["faster"].value == pytest.approx(faster, rel=0.01)
    assert largest.is_noise == (faster == 1.0)


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
    assert [each.told.values["size"].value for each in (there, back)] == [SIZES[-2], SIZES[-1]]
    assert there.measured.value == pytest.approx(4.9, rel=0.02)


def test_the_far_numa_node_is_named():
    near, far = (way("memcpy", 0.0, rate, numa_node=node) for node, rate in ((1, 10.0), (0, 6.0)))
    (told,) = remarks(PROBE.findings(near + far))
    assert told.values["way"] == "memcpy, node 1"
    assert told.values["far"] == 0
    assert told.values["size"].value == SIZES[-1]
    assert told.values["faster"].value == pytest.approx(10 / 6)


def test_what_offloading_would_take_is_marked_as_a_prediction():
    found = PROBE.findings(way("memcpy", 0.0, 12.0) + way("disk_direct", 0.0, 2.0))
    times = {each.values["way"]: each.values["time"] for each in remarks(found, "predicted")}
    assert all(time.predicted for time in times.values())
    assert times["memcpy"].value == pytest.approx(1.0, rel=0.02)
    assert times["O_DIRECT"].value == pytest.approx(6.06, rel=0.01)


def test_no_records_say_nothing():
    assert PROBE.findings([]) == Findings()


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_every_profile_has_cases_that_can_be(profile):
    cases = PROBE.cases(profile, CPU)
    assert len(cases) == len({case.case_id for case in cases})
    assert {"memcpy", "disk_cached", "disk_direct"} <= {case.implementation for case in cases}
    assert all(PROBE.group(case).startswith("transfer ") for case in cases)


def test_short_profiles_have_few_cases():
    assert len(PROBE.cases("quick", CPU)) <= 4
    one_node = {"numa_node": "-1", "workers": "1"}
    assert len(PROBE.cases("standard", CPU, one_node)) <= 14


def test_on_a_gpu_both_directions_are_measured_pinned_and_pageable():
    cases = PROBE.cases("quick", GPU)
    settings = {(case.implementation, case.parameters.pinned) for case in cases}
    assert settings == {(name, pinned) for name in OVER_BUS for pinned in (True, False)}
    assert {*OVER_BUS, "memcpy", "disk_direct"} <= {case.implementation for case in PROBE.cases("standard", GPU)}


def test_axes_are_replaced_by_name():
    overrides = {"way": "memcpy,disk_direct", "size": "1KiB..64KiB:8", "disk_size": "8KiB", "folder": "/tmp,results"}
    cases = PROBE.cases("quick", CPU, overrides)
    asked = [(case.implementation, case.parameters) for case in cases]
    copies = [("memcpy", TransferParameters(size)) for size in (1024, 8192, 65536)]
    reads = [("disk_direct", replace(TransferParameters(8192), folder=folder)) for folder in ("/tmp", "")]
    assert asked == copies + reads


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"way": "pigeon"}, "choose from memcpy"),
        ({"memory": "wet"}, "choose from pinned, pageable"),
        ({"disk_size": "5000"}, "blocks of 4096 bytes, but 5000 were asked for"),
        ({"size": "0"}, "is not a size"),
        ({"numa_node": "4096"}, "NUMA node 4096"),
        ({"way": "torch"}, "transfer has no case with way=torch"),
    ],
)
def test_bad_axes_say_what_is_allowed(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        PROBE.cases("quick", CPU, overrides)
