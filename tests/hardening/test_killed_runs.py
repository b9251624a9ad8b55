"""A run that is killed loses nothing that it had measured: a few kills here, 200 by tools/kill_runs.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "kill_runs.py"


@pytest.mark.filterwarnings("ignore::pyperf_suite.errors.DamagedJournal")
def test_killed_anywhere_a_run_keeps_its_records_resumes_and_measures_nothing_twice(tmp_path):
    spec = importlib.util.spec_from_file_location("kill_runs", TOOL)
    kill_runs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kill_runs)
    told = kill_runs.kill_runs(2, tmp_path, seed=3, cases=5)
    assert told.endswith("no record was lost or measured twice.")
