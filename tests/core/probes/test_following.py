"""Cases that a probe asks for after it has seen records: each once, until nothing new is asked, and again on resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite import probes as discovery
from pyperf_suite.findings.data import Findings, findings, remark
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.rows import Rows
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.probes import MOST_ROUNDS, follow_ups
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.record import Record
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.workloads.matmul import MatmulParameters
from tests import records as made_up
from tests.commands import invoke


def a_case(n: int) -> Case:
    return Case("matmul", MatmulParameters(8, n, 8, Schedule("library", 1)), "torch")


def sizes(records: Sequence[Record]) -> list[int]:
    return [record.parsed_case().parameters.n for record in records if record.kind == "timing"]


def message(rows: Rows) -> Findings:
    return findings(remark("sizes {sizes}", sizes=str(sorted(sizes(rows.records)))))


def the_middle(records: Sequence[Record]) -> list[Case]:
    second = sorted(sizes(records))[1]
    return [a_case(second // 2)] if second > 4 else []


@dataclass(frozen=True)
class NoAxes:
    """There is nothing to replace."""


# Begins at 1 and 16 and asks for the middle of the first gap, down to 4.
HALVING = Probe(
    name="halving",
    question="Where is the middle?",
    topic="laws",
    axes=lambda profile, device: NoAxes(),
    sweep=lambda axes: [a_case(1), a_case(16)],
    analyse=message,
    follow_up=the_middle,
)


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The probe, and how it is given another search."""

    def be(**changed: Any) -> None:
        monkeypatch.setattr(discovery, "probe_names", lambda: (HALVING.name,))
        monkeypatch.setattr(discovery, "_load", lambda name: replace(HALVING, **changed))

    be()
    return be


def a_plan() -> Plan:
    return Plan(tuple(PlannedCase("halving", case) for case in (a_case(1), a_case(16))), QUICK, resolve("cpu"))


def a_record(case: Case) -> Record:
    return made_up.a_record(case, outcome="failed", probe="halving")


@pytest.mark.slow
def test_a_run_measures_what_its_probe_asks_for_and_tells_it(tmp_path: Path) -> None:
    result = invoke("run", "halving", "--results", tmp_path)
    assert "sizes [1, 4, 8, 16]" in result.output
    (journal,) = tmp_path.glob("*/*/records.jsonl")
    before = sizes(read_journal(journal))
    assert before == [1, 16, 8, 4] or before == [16, 1, 8, 4]
    again = invoke("run", "halving", "--results", tmp_path, "--resume")
    assert "sizes [1, 4, 8, 16]" in again.output
    assert sizes(read_journal(journal)) == before


def test_what_an_interrupted_run_began_beyond_its_plan_comes_first() -> None:
    records = [a_record(a_case(n)) for n in (1, 16, 8)]
    requested = []
    for planned in follow_ups(a_plan(), records):
        requested.append(planned.case.parameters.n)
        records.append(a_record(planned.case))
    assert requested == [8, 4]


def test_a_probe_that_never_ends_is_stopped(probe: Callable[..., None]) -> None:
    probe(follow_up=lambda records: [a_case(100 + len(records))])
    records: list[Record] = []
    for planned in follow_ups(a_plan(), records):
        records.append(a_record(planned.case))
    assert len(records) == MOST_ROUNDS
