"""Findings of the collectives probe against the machine that made the records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pyperf_suite.findings.axes import NO, YES, Sizes
from pyperf_suite.findings.data import Findings, Remark
from pyperf_suite.findings.rows import rows_of
from pyperf_suite.probes.collectives import PROBE, CollectivesAxes
from pyperf_suite.probes.collectives.curves import curves_of
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity

LADDER = Sizes(64, 64 * 2**20, 16)
ONE_SIZE = Sizes(2**30, 2**30)
HOPPERS = {"kind": "cuda", "model": "NVIDIA H200", "link": "nvlink4x18", "count": 8}
WRONG = {"passed": False, "wrong": 7, "compared": 100, "message": "rank 1 has 7 of 100 elements wrong"}


def cases(**changed: object) -> list[Case]:
    usual = CollectivesAxes(op=("all_reduce",), size=(LADDER,), ranks=(4,))
    return list(PROBE.sweep(replace(usual, **changed)))  # type: ignore[arg-type]


def remarks(findings: Findings, words: str) -> list[Remark]:
    """Remarks whose sentence has these words."""
    return [each for each in findings.remarks if isinstance(each, Remark) and words in each.template]


def said(findings: Findings, words: str) -> Mapping[str, Any]:
    """Kind, numbers and names of the one remark whose sentence has these words; quantities by their value."""
    (remark,) = remarks(findings, words)
    values = {name: each.value if isinstance(each, Quantity) else each for name, each in remark.values.items()}
    return {"kind": remark.kind} | values


def table(findings: Findings, title: str) -> list[dict[str, Any]]:
    """Rows by column; quantities by their value."""
    (found,) = [table for table in findings.tables if table.title == title]
    names = [column.name for column in found.columns]
    rows = [[cell.value if isinstance(cell, Quantity) else cell for cell in row] for row in found.rows]
    return [dict(zip(names, row, strict=True)) for row in rows]


def column(findings: Findings, title: str, name: str) -> list[Any]:
    return [row[name] for row in table(findings, title)]


def test_the_text_is_that_of_nccl_tests_column_by_column(network: Any) -> None:
    records = network().records(cases(op=("all_reduce", "broadcast"), size=(Sizes(2**20, 2**20),)))
    (document,) = PROBE.findings(records).documents
    rows = [line.split() for line in document.text.splitlines() if not line.startswith("#") and line]
    assert [row[:5] for row in rows] == [
        ["1048576", "262144", "float", "sum", "-1"],
        ["1048576", "262144", "float", "none", "0"],
    ]
    assert [float(cell) for cell in rows[0][5:9]] == pytest.approx([177.3, 5.91, 8.87, 0], abs=0.01)
    assert rows[0][9:] == ["N/A"] * 4
    assert document.text.count("# Out of bounds values : 0 OK") == 2
    # All rows and headings end in the same column.
    assert len({len(line) for line in document.text.splitlines() if " N/A" in line or "busbw" in line}) == 1


def test_wrong_elements_are_counted_and_their_times_left_out_also_where_all_is_wrong(network: Any) -> None:
    machine, requested = network(), cases()
    records = [machine.record(case, 0, place) for place, case in enumerate(requested)]
    records[-1] = machine.record(requested[-1], 0, 9, outcome="failed", verification=WRONG, metrics={}, sampling={})
    findings = PROBE.findings(records)
    assert len(table(findings, "all_reduce float32, 4 ranks, gloo")) == len(requested) - 1
    assert findings.remarks[0].kind == "caution"  # type: ignore[union-attr]
    assert (said(findings, "wrong")["elements"], said(findings, "wrong")["sizes"]) == (7, 1)
    assert "# Out of bounds values : 7 FAILED" in findings.documents[0].text
    assert findings.documents[0].text.splitlines()[-4].split()[-8:-4] == ["N/A", "N/A", "N/A", "7"]
    assert said(PROBE.findings(records[-1:]), "wrong")["elements"] == 7


LAWS = "Laws: time = start + size / rate, in straight pieces"


def test_the_law_finds_the_machines_constants_and_states_its_error(network: Any) -> None:
    findings = PROBE.findings(network(start_s=50e-6, gb_per_s=3.0).records(cases(op=("all_reduce", "broadcast"))))
    rows = table(findings, LAWS)
    assert [row["start"] for row in rows] == pytest.approx([50e-6, 50e-6])
    assert [row["last rate"] for row in rows] == pytest.approx([2e9, 3e9])
    assert [(row["from"], row["pieces"]) for row in rows] == [(0, 1), (0, 1)]
    error = said(findings, "held out by")
    assert (error["count"], round(error["median"], 6), round(error["worst"], 6)) == (2, 0, 0)


@pytest.mark.parametrize(
    ("nodes", "gb_per_s", "outcomes"),
    [
        (1, 25.0, []),
        (2, 100.0, ["holds"]),
        (2, 25.0, ["does not hold here", "holds"]),
        (4, 1.0, ["does not hold here", "does not hold here", "holds"]),
        (4, 0.1, ["does not hold here"] * 3),
    ],
)
def test_between_nodes_the_rate_is_judged_by_the_guides_thresholds(
    network: Any, nodes: int, gb_per_s: float, outcomes: list[str]
) -> None:
    machine = network(gb_per_s=gb_per_s, nodes=nodes, identity=HOPPERS)
    findings = PROBE.findings(machine.records(cases(implementation=("nccl",), ranks=(8,))))
    assert [each.outcome for each in findings.verdicts] == outcomes
    for verdict in findings.verdicts:
        assert verdict.measured.value == pytest.approx(gb_per_s * 1e9, rel=0.05)
        each = verdict.message.values["each"]
        assert each.value == pytest.approx(verdict.measured.value * (nodes - 1) / 7)  # type: ignore[union-attr]
    # NVLink's peak says nothing about a network between nodes.
    assert (said(findings, "{rate} busbw")["share"] is not None) == (nodes == 1)
    assert len(remarks(findings, "nodes are measured")) == (nodes == 2)


def test_only_what_differs_in_one_thing_is_compared(network: Any) -> None:
    requested = cases(op=("all_reduce", "broadcast"), implementation=("nccl", "c10d_nccl"), in_place=(NO, YES))
    compared = {
        (each.values["other"], each.values["operations"])
        for each in remarks(PROBE.findings(network().records(requested)), "takes {slower}")
    }
    assert compared == {("nccl in place", "all_reduce, broadcast"), ("c10d_nccl", "all_reduce, broadcast")}


def test_a_resumed_trial_replaces_the_one_before(network: Any) -> None:
    machine, (case,) = network(), cases(size=(Sizes(64, 64),))
    again = replace(machine, start_s=40e-6)
    (curve,) = curves_of(rows_of([machine.record(case, 0, 0), again.record(case, 0, 1)]))
    assert len(curve.points[64].trials) == 1
    assert curve.points[64].seconds == pytest.approx(40e-6, rel=1e-3)
