"""What the tests of history share: runs made up of records of the suite's form, written where the runner would."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

MACHINE = "cpu-made-up-2c"
STATE = {
    "python": "CPython 3.11.7",
    "packages": {"pyperf_suite": "0.1.0", "numpy": "2.4.6", "triton": None},
    "governors": [],
    "source": {"commit": "a" * 40, "dirty": False},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """The folder in which what was read of journals is kept, of each test's own."""
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "history"


@pytest.fixture
def make_record():
    """Makes one record as plain JSON: `seconds` of None failed; `exact` figures make a static kernel's."""

    def make(run_id="20260101T000000Z-0001", seconds=1e-3, exact=None, metrics=None, **fields):
        parameters = {"m": 64, "n": 64, "k": 64, "schedule": "data_parallel@1"}
        case = {"operator": "matmul", "parameters": parameters, "implementation": "native"}
        if exact is not None:
            figures = {name: _metric("bytes", value, [value]) for name, value in exact.items()}
        else:
            figures = {"time": _metric("s", seconds, [seconds] * 4)} if seconds is not None else {}
        return {
            "run_id": run_id,
            "kind": "timing" if exact is None else "static",
            "case": case,
            "case_id": "0123456789abcdef",
            "process": 0,
            "position": 0,
            "started_at": datetime.datetime.strptime(run_id[:16], "%Y%m%dT%H%M%S%z").isoformat(timespec="milliseconds"),
            "outcome": "failed" if seconds is None else "ok",
            "reason": "a made-up reason" if seconds is None else "",
            "probe": "tile_wave",
            "profile": "quick",
            "metrics": figures | (metrics or {}),
            "work": {"flop": 2 * 64**3},
            "quality": {"converged": True, "discarded": [], "steal_share": 0.25},
            "identity": {"kind": "cpu", "slug": MACHINE},
            "state": STATE,
            "schema_version": 1,
        } | fields

    return make


@pytest.fixture
def results(tmp_path) -> Path:
    """An empty results folder."""
    folder = tmp_path / "bench_results"
    folder.mkdir()
    return folder


@pytest.fixture
def write_run(results, make_record):
    """Appends records to a run's journal: one a value of `seconds`, each a process; or whole `records`."""

    def write(run_id="20260101T000000Z-0001", seconds=(1e-3,), records=None, machine=MACHINE, **fields):
        path = results / machine / run_id / "records.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        if records is None:
            fields = {"identity": {"kind": "cpu", "slug": machine}} | fields
            records = [
                make_record(run_id, value, **{"process": process, "position": process} | fields)
                for process, value in enumerate(seconds)
            ]
        with path.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        return path

    return write


def _metric(unit, value, samples):
    return {"unit": unit, **dict.fromkeys(("value", "low", "high", "q20", "q80"), value), "samples": samples}
