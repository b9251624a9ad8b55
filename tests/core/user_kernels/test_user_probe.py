"""A user kernel's table: its checks, and what makes a row doubtful."""

from __future__ import annotations

from typing import Any

from pyperf_suite.findings.data import Findings, Remark
from pyperf_suite.findings.rows import rows_of
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.render.text import sentence
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


def test_a_narrow_terminal_keeps_the_time_and_leaves_out_axes_of_one_value() -> None:
    [table] = found({"launches_checked": 4}).tables
    priorities = {column.name: column.priority for column in table.columns}
    assert max(priorities, key=priorities.__getitem__) == "time"
    assert priorities["n"] == min(priorities.values())


def test_a_release_is_mentioned_in_a_unit_that_fits_and_only_where_it_takes_a_microsecond() -> None:
    [mentioned] = found({"launches_checked": 4, "released_s": 2.0}).remarks
    assert "takes 2 s more" in sentence(mentioned)
    verification = {"passed": True, "message": "", "launches_checked": 4, "released_s": 5e-7}
    short = [a_record(CASE, 1e-6, verification=verification)]
    assert not user_probe(NAME).analyse(rows_of(short)).remarks
