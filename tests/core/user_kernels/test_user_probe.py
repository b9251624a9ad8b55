"""A user kernel's table: its checks, and what makes a row doubtful."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyperf_suite.findings.data import Findings, Remark
from pyperf_suite.findings.rows import rows_of
from pyperf_suite.record.case import MODES, Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.user_kernels.declared import parameters_of
from pyperf_suite.user_kernels.probe import user_probe
from tests.records import a_record

NAME = "bench.py:kernel"
CASE = Case(NAME, parameters_of(("n",))(n=8), "mine")


def found(*verifications: dict[str, Any], moved: int = 0) -> Findings:
    """Findings on one case, whose processes checked that."""
    work = {"flop": 0, "bytes": moved}
    records = [
        a_record(CASE, process=number, verification={"passed": True, "message": "", **each}, work=work)
        for number, each in enumerate(verifications)
    ]
    return user_probe(NAME).analyse(rows_of(records))


def cell(findings: Findings) -> Any:
    """Cell of errors in the table."""
    [table] = findings.tables
    [row] = table.rows
    return dict(zip([column.name for column in table.columns], row, strict=True))["errors"]


def test_the_bound_on_errors_is_of_the_launches_that_all_processes_checked() -> None:
    one = {"launches_checked": 1010, "caching_checked": True}
    assert cell(found(one)) == "< 1 in 337"
    assert cell(found(one, one, one)) == "< 1 in 1,011"


def test_a_rate_above_that_of_a_copy_is_a_caution_with_both() -> None:
    checks = {"launches_checked": 4, "copied_bytes_per_s": 13e9}
    [doubt] = found(checks, moved=1_319_000_000).remarks
    assert isinstance(doubt, Remark)
    assert doubt.kind == "caution"
    values = [each.value for each in doubt.values.values() if isinstance(each, Quantity)]
    assert values == [1_319e9, 13e9]
    assert not found(checks, moved=20_000_000).remarks


def test_rows_of_several_modes_say_theirs_and_are_compared_within_each() -> None:
    cases = [replace(CASE, implementation=who, mode=mode) for who in ("mine", "base") for mode in MODES]
    kernel = {"details": {"baseline": "base"}}
    times = (1e-3, 2e-3, 3e-3, 4e-3)
    records = [a_record(case, seconds, kernel=kernel) for case, seconds in zip(cases, times, strict=True)]
    findings = user_probe(NAME).analyse(rows_of(records))
    assert "mode" in [column.name for column in findings.tables[0].columns]
    gains = {remark.values["implementation"]: remark.values["faster"].value for remark in findings.remarks}
    assert gains == {"mine": pytest.approx(3.0), "mine, sustained": pytest.approx(2.0)}
