"""Fixtures of the tests of history: runs made up of records of the suite's form, written where the runner would."""

import datetime
import json
from pathlib import Path

import pytest

from tests.records import a_product, a_record, metric

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


CASE = a_product(64)


@pytest.fixture
def make_record():
    """Makes one record as plain JSON: `seconds` of None failed; `exact` figures make a static kernel's."""

    def make(run_id="20260101T000000Z-0001", seconds=1e-3, exact=None, metrics=None, **fields):
        usual = {
            "run_id": run_id,
            "kind": "timing" if exact is None else "static",
            "case_id": "0123456789abcdef",
            "started_at": datetime.datetime.strptime(run_id[:16], "%Y%m%dT%H%M%S%z").isoformat(timespec="milliseconds"),
            "outcome": "failed" if seconds is None else "ok",
            "probe": "tile_wave",
            "profile": "quick",
            "quality": {"converged": True, "discarded": [], "steal_share": 0.25},
            "identity": {"kind": "cpu", "slug": MACHINE},
            "state": STATE,
        }
        figures = {name: metric(value, "bytes") for name, value in (exact or {}).items()}
        made = a_record(CASE, seconds if exact is None else None, metrics=figures, **usual).to_json()
        return made | {"metrics": made["metrics"] | (metrics or {})} | fields

    return make


@pytest.fixture
def results(tmp_path) -> Path:
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
