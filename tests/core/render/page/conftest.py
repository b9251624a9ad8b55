"""Fixtures of the tests of the page: results made up of records of the suite's form, some with hostile names."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.matmul import MatmulParameters
from tests import records as made_up

MACHINE = "cpu-made-up-2c"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`{}%{y}\u202eevil"


def a_record(run_id: str, seconds: float | None, m: int = 64, process: int = 0, **fields: Any) -> dict[str, Any]:
    """One record as plain JSON; `seconds` of None failed."""
    parameters = MatmulParameters(m, 64, 64, Schedule("data_parallel", 1))
    case = Case("matmul", parameters, fields.pop("implementation", "native"))
    usual: dict[str, Any] = {
        "run_id": run_id,
        "case_id": f"{m:016d}",
        "process": process,
        "position": process,
        "started_at": datetime.datetime.strptime(run_id[:16], "%Y%m%dT%H%M%S%z").isoformat(timespec="milliseconds"),
        "probe": "made_up",
        "profile": "quick",
        "identity": {"kind": "cpu", "slug": MACHINE, "model": "Made-up processor"},
        "state": {"python": "CPython 3.11.7", "source": {"commit": "a" * 40, "dirty": False}},
    }
    outcome = "failed" if seconds is None else "ok"
    return made_up.a_record(case, seconds, outcome=outcome, **usual).to_json() | fields


def write(results: Path, run_id: str, records: list[dict[str, Any]], machine: str = MACHINE) -> Path:
    """A run's folder with its journal and manifest; returns the journal."""
    folder = results / machine / run_id
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"run_id": run_id, "plan_id": "0", "profile": "quick", "device": "cpu", "seed": 0, "probes": ["made_up"]}
    (folder / "run.json").write_text(json.dumps(manifest))
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def a_history(results: Path, machine: str = MACHINE, **fields: Any) -> None:
    """Twelve runs of two cases; the first became slower by a half with the seventh."""
    for day in range(1, 13):
        run_id = f"202601{day:02d}T000000Z-0001"
        slow = 1.5 if day > 6 else 1.0
        commit = {"state": {"source": {"commit": ("b" if day > 6 else "a") * 40, "dirty": False}}}
        wobble = 1 + 0.002 * (day % 3)
        records = [
            a_record(run_id, slow * wobble * 1e-3, 64, **commit | fields),
            a_record(run_id, wobble * 2e-3, 128, **commit | fields),
            a_record(run_id, None, 256, **commit | fields),
        ]
        write(results, run_id, records, machine)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """An empty results folder."""
    folder = tmp_path / "bench_results"
    folder.mkdir()
    return folder
