"""What is said of transfers: latency and bandwidth of known laws are found again, and ways compare in one process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.transfer_parameters import TransferParameters
from pyperf_suite.probes.training.transfer import OVER_BUS, TransferProbe
from pyperf_suite.probes.training.transfer_findings import curves_of, explain, faster_a_byte
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.rows import readings

PROBE = TransferProbe()
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


def said(findings: Findings, words: str) -> str:
    (sentence,) = [each for each in findings.sentences if words in each]
    return sentence


def test_latency_and_bandwidth_are_found_again():
    sentence = said(explain(way("memcpy", 2e-6, 10.0)), "Memcpy on 1 core moves")
    assert sentence.startswith("Memcpy on 1 core moves 64 MiB at 9.9")
    latency_us = float(re.search(r"of which ([\d.]+) us are latency", sentence)[1])
    assert latency_us == pytest.approx(2.0, rel=0.05)
    assert "half its best rate is reached by 64 KiB" in sentence
    assert re.search(r"has not seen by [01]% in the median", sentence)


def test_a_law_that_is_far_off_somewhere_says_where_and_the_best_rate_is_told():
    slow = way("memcpy", 0.0, 1.5, sizes=SIZES[-1:])
    sentence = explain(way("memcpy", 2e-6, 10.0, sizes=SIZES[:-1]) + slow).sentences[0]
    assert "moves 64 MiB at 1.49" in sentence
    assert "and 16 MiB at 9.89 GB/s" in sentence
    assert re.search(r"at worst 64 MiB, by [5-9]\d%", sentence)


def test_a_single_size_has_a_rate_and_no_law():
    findings = explain(way("memcpy", 0.0, 10.0, sizes=[1 << 20]))
    assert "latency" not in findings.sentences[0]
    assert findings.tables[0].rows[0][-2:] == ("-", "-")
    assert findings.figures == ()


def test_every_size_has_its_row_and_the_figure_its_law():
    findings = explain(way("memcpy", 2e-6, 10.0) + way("disk_direct", 60e-6, 2.0))
    assert len(findings.tables[0].rows) == 2 * len(SIZES)
    (figure,) = findings.figures
    labels = {series.label: series.style for series in figure.rows[0][0].series}
    assert labels["memcpy on 1 core"] == "points"
    assert labels["law of a read from disk by O_DIRECT"] == "line"


def test_a_disk_is_set_beside_memory_by_bytes_whatever_the_sizes():
    records = way("memcpy", 0.0, 10.0) + way("disk_direct", 0.0, 2.0, sizes=[1 << 20])
    sentence = said(explain(records), "A copy in memory moves")
    assert "moves 5.00 [5.00, 5.00] x the bytes a second of a read from disk; claim holds" in sentence
    copied, direct = curves_of(readings(records))
    assert faster_a_byte(direct.largest, copied.largest).value == pytest.approx(5.0)


def test_a_disk_as_fast_as_memory_trades_nothing():
    records = way("memcpy", 0.0, 2.0) + way("disk_direct", 0.0, 2.0)
    assert "claim does not hold here" in said(explain(records), "A copy in memory moves")


@pytest.mark.parametrize("virtualised", [False, True])
def test_a_virtual_disk_is_said_to_be_one(virtualised):
    records = way("disk_direct", 60e-6, 2.0, details={"virtualised": virtualised})
    assert ("virtual machine" in explain(records).sentences[0]) == virtualised


@pytest.mark.parametrize(
    ("rate", "verdict"), [(18.0, "more cores help"), (5.0, "more cores are in the way"), (10.0, "leaves open")]
)
def test_cores_are_compared_at_the_smallest_and_the_largest_size(rate, verdict):
    findings = explain(way("torch", 1e-6, 10.0) + way("torch", 1e-6, rate, workers=4))
    sentences = [each for each in findings.sentences if "4 cores copy" in each]
    assert len(sentences) == 2
    assert verdict in sentences[1]
    assert "copy 64 MiB" in sentences[1]


def test_pinned_memory_is_judged_by_the_guides_claim_in_each_direction():
    records = [
        *way("host_to_device", 5e-6, 50.0, pinned=True),
        *way("host_to_device", 5e-6, 10.0),
        *way("device_to_host", 5e-6, 50.0, pinned=True),
        *way("device_to_host", 5e-6, 49.0),
    ]
    findings = explain(records)
    held = said(findings, "host to GPU from pinned memory: 64 MiB are there")
    assert "claim holds" in held
    assert "4.9" in held
    assert "claim does not hold here" in said(findings, "GPU to host into pinned memory: 64 MiB are there")


def test_the_far_numa_node_is_named():
    near, far = (way("memcpy", 0.0, rate, numa_node=node) for node, rate in ((1, 10.0), (0, 6.0)))
    sentence = said(explain(near + far), "keep the process near")
    assert sentence.startswith("memcpy on 1 core (NUMA node 1) moves 64 MiB 1.67")
    assert "x as fast as from node 0:" in sentence


def test_what_offloading_would_take_is_marked_as_a_prediction():
    sentence = said(explain(way("memcpy", 0.0, 12.0) + way("disk_direct", 0.0, 2.0)), "AdamW's 12 bytes")
    assert sentence.startswith("Predicted:")
    assert "1 s by memcpy on 1 core, 6.1 s by a read from disk" in sentence


def test_no_records_say_nothing():
    assert explain([]) == Findings()


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
        ({"disk_size": "5000"}, "multiple of 4096"),
        ({"size": "0"}, "is not a size"),
        ({"numa_node": "4096"}, "NUMA node 4096"),
        ({"way": "torch"}, "transfer has no case with way=torch"),
    ],
)
def test_bad_axes_say_what_is_allowed(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        PROBE.cases("quick", CPU, overrides)
