"""What the overlap probe asks for, and what it tells of made-up products and messages."""

from __future__ import annotations

from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.overlap import RUNS
from pyperf_suite.probes.training.overlap import OverlapProbe
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.discovery import find_probe
from pyperf_suite.spec.findings import Findings

CPU = Device("cpu")
PROBE = OverlapProbe()
# The message is half as long as the product and four fifths of it hide.
PARTLY = {
    "product": 20e-3,
    "all_reduce": 10e-3,
    "in_turn": 30e-3,
    "together": 22e-3,
    "product_beside": 26e-3,
    "all_reduce_beside": 20e-3,
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


def records_of(seconds: dict[str, float], details: dict[str, Any] | None = None) -> list[Record]:
    found = []
    for process in range(3):
        for case in PROBE.sweep(PROBE.axes("standard", CPU)):
            if case.parameters.run not in seconds:
                continue
            # Processes are faster and slower as a whole.
            time = seconds[case.parameters.run] * (1 + 0.2 * process)
            found.append(
                Record(
                    run_id="made-up",
                    kind="timing",
                    case=case.to_json(),
                    case_id=case.case_id,
                    process=process,
                    position=len(found),
                    started_at="",
                    outcome="ok",
                    metrics={"time": Metric("s", time, time, time, time, time, [time])},
                    work={"flop": 0, "bytes": 0},
                    kernel={"details": details or {}},
                    quality={"converged": True},
                )
            )
    return found


def told(findings: Findings, words: str) -> str:
    (sentence,) = [sentence for sentence in findings.sentences if words in sentence]
    return sentence


def test_the_probe_can_be_found_and_every_profile_has_cases():
    assert find_probe("overlap").name == "overlap"
    counts = [len(PROBE.cases(profile, CPU)) for profile in PROFILES]
    assert counts[:2] == [2, len(RUNS)]
    assert counts == sorted(counts)


@pytest.mark.parametrize(
    ("axis", "sentence"),
    [
        ({"run": "apart"}, "choose from product"),
        ({"size": "0"}, "size=0"),
        ({"message": "much"}, "is not a size"),
        ({"dtype": "int8"}, "choose from float32"),
    ],
)
def test_an_axis_that_cannot_be_says_so(axis, sentence):
    with pytest.raises(UserError, match=sentence):
        PROBE.cases("standard", CPU, axis)


def test_what_hides_is_a_share_of_the_shorter():
    sentence = told(PROBE.findings(records_of(PARTLY)), "as fast as in turn")
    assert "together they are 1.36 [1.36, 1.36] x as fast" in sentence
    assert "80% [80%, 80%] of the shorter hides; claim holds" in sentence


def test_a_message_that_is_shorter_than_compute_and_does_not_hide_fails_its_claim():
    sentence = told(PROBE.findings(records_of(PARTLY)), "as long as the product")
    assert "50% as long as the product" in sentence
    assert "1.10 [1.10, 1.10] x the product alone; claim does not hold here" in sentence
    hidden = PARTLY | {"together": 20.2e-3}
    assert "; claim holds" in told(PROBE.findings(records_of(hidden)), "as long as the product")


def test_more_than_all_cannot_hide():
    waiting = PARTLY | {"in_turn": 40e-3}
    assert "so that all of the shorter hides" in told(PROBE.findings(records_of(waiting)), "as fast as in turn")


def test_a_message_that_is_longer_than_compute_is_no_case_of_that_claim():
    findings = PROBE.findings(records_of(PARTLY | {"all_reduce": 25e-3}))
    assert not [sentence for sentence in findings.sentences if "x the product alone" in sentence]


def test_each_is_told_how_the_other_slows_it():
    sentence = told(PROBE.findings(records_of(PARTLY)), "beside the other")
    assert "the product takes 1.30 [1.30, 1.30] x as long" in sentence
    assert "the all_reduce takes 2.00 [2.00, 2.00] x as long" in sentence
    assert "multiprocessors" not in sentence


def test_on_a_gpu_nccls_share_of_it_is_told_or_said_to_be_unknown():
    known = PROBE.findings(records_of(PARTLY, {"nccl_blocks": 24, "multiprocessors": 132}))
    assert "24 blocks, at most as many of 132 multiprocessors" in told(known, "beside the other")
    unknown = PROBE.findings(records_of(PARTLY, {"nccl_blocks": None, "multiprocessors": 132}))
    assert "is unknown" in told(unknown, "beside the other")


def test_the_table_shows_what_was_measured_and_leaves_out_what_was_not():
    (table,) = PROBE.findings(records_of({name: PARTLY[name] for name in ("in_turn", "together")})).tables
    (row,) = table.rows
    assert dict(zip(table.columns, row, strict=True))["together ms"] == "26.4"
    assert row.count("-") == 6
    assert PROBE.findings([]) == Findings()
