"""Cases that a probe asks for after it has seen records: each once, until nothing new is asked, and again on resume."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyperf_suite.cli import main
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.operators.matmul import MatmulParameters
from pyperf_suite.probes.probe import Probe
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.journal import read_journal
from pyperf_suite.runner.plan import Plan, PlannedCase
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.runner.record import Record
from pyperf_suite.spec import discovery
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.following import MOST_ROUNDS, follow_ups


def a_case(n: int) -> Case:
    return Case("matmul", MatmulParameters(8, n, 8, Schedule("library", 1)), "torch")


def sizes(records: Sequence[Record]) -> list[int]:
    return [record.parsed_case().parameters.n for record in records if record.kind == "timing"]


class Halving(Probe):
    """Begins at 1 and 16 and asks for the middle of the first gap, down to 4."""

    name = "halving"
    question = "Where is the middle?"

    def axes(self, profile: str, device: Device) -> Any:
        raise NotImplementedError

    def sweep(self, axes: Any) -> list[Case]:
        raise NotImplementedError

    def cases(self, profile: str, device: Device, overrides: Any = None) -> list[Case]:
        return [a_case(1), a_case(16)]

    def findings(self, records: Sequence[Record]) -> Findings:
        return Findings((f"sizes {sorted(sizes(records))}",))

    def follow_up(self, records: Sequence[Record]) -> list[Case]:
        second = sorted(sizes(records))[1]
        return [a_case(second // 2)] if second > 4 else []


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch) -> Halving:
    probe = Halving()
    monkeypatch.setitem(discovery.REPLACED, probe.name, probe)
    return probe


def a_plan() -> Plan:
    return Plan(tuple(PlannedCase("halving", case) for case in (a_case(1), a_case(16))), QUICK, resolve("cpu"))


def a_record(case: Case) -> Record:
    return Record("made-up", "timing", case.to_json(), case.case_id, 0, 0, "", "failed", probe="halving")


def test_a_run_measures_what_its_probe_asks_for_and_tells_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["run", "halving", "--results", str(tmp_path)], catch_exceptions=False)
    assert "sizes [1, 4, 8, 16]" in result.output
    (journal,) = tmp_path.glob("*/*/records.jsonl")
    before = sizes(read_journal(journal))
    assert before == [1, 16, 8, 4] or before == [16, 1, 8, 4]
    again = CliRunner().invoke(main, ["run", "halving", "--results", str(tmp_path), "--resume"], catch_exceptions=False)
    assert "sizes [1, 4, 8, 16]" in again.output
    assert sizes(read_journal(journal)) == before


def test_what_an_interrupted_run_began_beyond_its_plan_comes_first() -> None:
    records = [a_record(a_case(n)) for n in (1, 16, 8)]
    asked = []
    for planned in follow_ups(a_plan(), records):
        asked.append(planned.case.parameters.n)
        records.append(a_record(planned.case))
    assert asked == [8, 4]


def test_a_probe_that_never_ends_is_stopped(probe: Halving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "follow_up", lambda records: [a_case(100 + len(records))])
    records: list[Record] = []
    for planned in follow_ups(a_plan(), records):
        records.append(a_record(planned.case))
    assert len(records) == MOST_ROUNDS


def test_a_case_that_can_never_be_measured_is_refused(probe: Halving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "follow_up", lambda records: [a_case(0)])
    with pytest.raises(UserError, match="N = 0"):
        next(follow_ups(a_plan(), []))
