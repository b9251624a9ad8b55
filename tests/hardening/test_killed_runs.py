"""A run that is killed loses nothing that it had measured: a few kills here, hundreds by kill_runs.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TOOL = Path(__file__).with_name("kill_runs.py")


@pytest.mark.filterwarnings("ignore::pyperf_suite.errors.DamagedJournal")
def test_killed_anywhere_a_run_keeps_its_records_resumes_and_measures_nothing_twice(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("kill_runs", TOOL)
    kill_runs = importlib.util.module_from_spec(spec)
    # Where a dataclass looks for the module it is defined in.
    monkeypatch.setitem(sys.modules, "kill_runs", kill_runs)
    spec.loader.exec_module(kill_runs)
    message = kill_runs.kill_runs(2, tmp_path, seed=3, commands=["run"])
    assert "no record was lost or measured twice" in message
