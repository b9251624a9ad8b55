"""A run that is killed loses nothing that it had measured: a few kills here, hundreds by kill_runs.py."""

from __future__ import annotations

import pytest

from tests.hardening.kill_runs import kill_runs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyperf_suite.errors.DamagedJournal")
def test_killed_anywhere_a_run_keeps_its_records_resumes_and_measures_nothing_twice(tmp_path):
    message = kill_runs(2, tmp_path, seed=3, commands=["run"])
    assert "no record was lost or measured twice" in message
