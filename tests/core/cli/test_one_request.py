"""The command line and pytest open a run by the same request, and equal requests write equal records."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BENCH = """import pyperf_suite as suite


@suite.kernel(n=(10, 11, 12, 1000))
def ordered(n):
    ways = {"reversed": lambda items: sorted(items, reverse=True)[::-1], "sorted": sorted}
    return suite.launch(ways, list(range(n)), reference=sorted, bytes=8 * n)
"""
TEST = """import pytest


@pytest.mark.probe("bench.py")
def test_ordered(measured):
    measured()
"""
OPTIONS = ("device=cpu", "seed=5", "budget=600", "axis=n=10,11,1000")
# Fields of measurements, their times and costs: cases that take turns are written as they are done.
MEASURED = {"metrics", "sampling", "quality", "verification", "started_at", "trial_s", "run_id", "position", "sealed"}


def requested(folder: Path, front_end: str, *options: str) -> list[dict[str, Any]]:
    """The manifest and the records of a run, without what was measured."""
    words = {"run": ["pyperf_suite", "run", "bench.py"], "pytest": ["pytest", "test_bench.py", "--benchmark-only"]}
    words["pytest"] += ["-p", "no:cacheprovider"]
    prefix = "--" if front_end == "run" else "--suite-"
    given = [word for each in (*options, f"results={front_end}") for word in each.split("=", 1)]
    given = [f"{prefix}{word}" if at % 2 == 0 else word for at, word in enumerate(given)]
    command = [sys.executable, "-m", *words[front_end], *given]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    (journal,) = folder.glob(f"{front_end}/*/*/records.jsonl")
    manifest = json.loads((journal.parent / "run.json").read_text())
    records = [manifest, *map(json.loads, journal.read_text().splitlines())]
    for record in records:
        record["audited"] = record.get("verification", {}).get("audited")
    plain = [{name: value for name, value in each.items() if name not in MEASURED} for each in records]
    return sorted(plain, key=lambda each: json.dumps([each.get("case"), each.get("process")]))


@pytest.mark.parametrize("options", [OPTIONS, ("device=cpu", "seed=2", "profile=standard", "axis=n=10,1000")])
def test_equal_requests_write_equal_records(tmp_path, monkeypatch, options):
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)
    (tmp_path / "pyproject.toml").write_text("[tool.pyperf_suite]\naudit = true\n")
    (tmp_path / "bench.py").write_text(BENCH)
    (tmp_path / "test_bench.py").write_text(TEST)
    by_command, by_pytest = (requested(tmp_path, each, *options) for each in ("run", "pytest"))
    assert len(by_command) > 6
    assert by_command == by_pytest
    assert {record["audited"] for record in by_command if record.get("kind") == "timing"} == {True}
