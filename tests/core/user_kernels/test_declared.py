"""Tests of the names that bench files have in records, from wherever they are measured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.record.journal import read_journal
from pyperf_suite.user_kernels import declared

BENCH = "import pyperf_suite as suite\n\n@suite.kernel()\ndef adds():\n    return suite.launch(sum, [1, 2])\n"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(declared, "_roots", [])
    monkeypatch.setattr(declared, "_named", {})
    monkeypatch.setenv(declared.ROOT_VARIABLE, "")  # so that it is taken back
    monkeypatch.delenv(declared.ROOT_VARIABLE)


@pytest.fixture
def bench(tmp_path):
    """A bench file two folders below."""
    path = tmp_path / "project" / "benches" / "bench.py"
    path.parent.mkdir(parents=True)
    path.write_text(BENCH)
    return path


@pytest.mark.parametrize(
    ("mark", "name"), [("", "bench.py"), ("pyproject.toml", "benches/bench.py"), (".git", "benches/bench.py")]
)
@pytest.mark.parametrize("here", ["", "project", "project/benches"])
def test_a_file_has_one_name_from_every_folder_and_processes_find_it(bench, tmp_path, monkeypatch, here, mark, name):
    if mark:
        (tmp_path / "project" / mark).touch()
    monkeypatch.chdir(tmp_path / here)
    for asked in (str(bench), os.path.relpath(bench)):
        assert declared.canonical(f"{asked}:adds") == f"{name}:adds"
    assert declared.canonical("package.module:adds") == "package.module:adds"
    request = declared.start_request(f"{name}:adds", "cpu")
    assert Path(request["root"], request["target"]).samefile(bench)
    assert declared.canonical(f"{name}:adds") == f"{name}:adds"


@pytest.mark.parametrize("here", ["", "other"])
def test_two_files_of_one_name_are_never_one_benchmark(bench, tmp_path, monkeypatch, here):
    other = tmp_path / "other" / "bench.py"
    other.parent.mkdir()
    other.write_text(BENCH)
    monkeypatch.chdir(tmp_path / here)
    declared.canonical(str(other))
    with pytest.raises(UserError, match=r"both called bench\.py .* --results of its own"):
        declared.canonical(str(bench))


@pytest.mark.slow
def test_runs_of_a_file_from_two_folders_are_one_benchmark(bench, tmp_path):
    cases = set()
    for here in (tmp_path, bench.parent):
        command = [sys.executable, "-m", "pyperf_suite", "run", os.path.relpath(bench, here), "--device=cpu"]
        done = subprocess.run([*command, f"--results={tmp_path / 'results'}"], cwd=here, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    for path in (tmp_path / "results").glob("*/*/records.jsonl"):
        cases |= {(record.probe, record.case_id) for record in read_journal(path) if record.kind == "timing"}
    assert len(cases) == 1
