"""Cases of the overlap probe, and its findings on made-up products and messages."""

from __future__ import annotations

import pytest

from pyperf_suite.findings.data import Cell, Claim, ClaimVerdict, Findings, Remark
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes.overlap import HIDES, OVERLAPS, PROBE
from tests import records as made_up
from tests.records import records

CPU = Device("cpu")
# The message is half as long as the product and four fifths of it hide.
PARTLY = {
    "product": 20e-3,
    "all_reduce": 10e-3,
    "in_turn": 30e-3,
    "together": 22e-3,
    "product_beside": 26e-3,
    "all_reduce_beside": 20e-3,
}


def found(seconds: dict[str, float]) -> Findings:
    """Processes are faster and slower as a whole."""
    cases = [case for case in PROBE.sweep(PROBE.axes("standard", CPU)) if case.parameters.run in seconds]
    return PROBE.findings(records(cases, lambda case: seconds[case.parameters.run], wobble=0.2))


def verdicts(seconds: dict[str, float], claim: Claim) -> list[ClaimVerdict]:
    return made_up.verdicts(found(seconds), claim)


def cells(findings: Findings) -> dict[str, Cell]:
    """Cells of the only row; of two columns of a name, as the product and its time, the second."""
    (table,) = findings.tables
    (row,) = table.rows
    return {column.name: cell for column, cell in zip(table.columns, row, strict=True)}


def test_what_hides_is_a_share_of_the_shorter_and_each_is_told_how_the_other_slows_it():
    (verdict,) = verdicts(PARTLY, OVERLAPS)
    assert (verdict.measured.value, verdict.outcome) == (pytest.approx(30 / 22), "holds")
    findings = found(PARTLY)
    hidden = cells(findings)["hidden"]
    assert (hidden.value, hidden.low, hidden.high) == (pytest.approx(0.8), pytest.approx(0.8), pytest.approx(0.8))
    message = {each.values["run"]: each.values["longer"] for each in findings.remarks if isinstance(each, Remark)}
    assert message == {
        "product": cells(findings)["product slowdown"],
        "all_reduce": cells(findings)["all_reduce slowdown"],
    }
    assert [message[run].value for run in ("product", "all_reduce")] == [pytest.approx(1.3), pytest.approx(2.0)]


def test_a_message_that_is_shorter_than_compute_and_does_not_hide_fails_its_claim():
    (verdict,) = verdicts(PARTLY, HIDES)
    assert verdict.message.values["share"].value == pytest.approx(0.5)
    assert (verdict.measured.value, verdict.outcome) == (pytest.approx(1.1), "does not hold here")
    (verdict,) = verdicts(PARTLY | {"together": 20.2e-3}, HIDES)
    assert verdict.outcome == "holds"
