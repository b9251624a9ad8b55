"""`--audit`: which kernels are checked as code that may be written to deceive."""

import json
import os

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.run import begin_audit
from pyperf_suite.workloads.workload import AUDIT_VARIABLE, ExecutionContext
from tests.commands import invoke

BENCH = """
import pyperf_suite as suite


@suite.kernel(n=1000)
def total(n):
    return suite.launch(sum, suite.rand(n).tolist())
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(AUDIT_VARIABLE, "")
    return tmp_path


@pytest.mark.parametrize(
    ("table", "option", "audited"),
    [
        ("", "", False),
        ("", "--audit", True),
        ("audit = true", "", True),
        ("audit = true", "--no-audit", False),
        ("audit = false", "", False),
    ],
)
def test_an_audit_is_requested_by_an_option_or_the_projects_file(folder, table, option, audited):
    (folder / "pyproject.toml").write_text(f"[tool.pyperf_suite]\n{table}\n")
    begin_audit({"--audit": True, "--no-audit": False}.get(option))
    assert (os.environ[AUDIT_VARIABLE] == "1") is audited
    assert ExecutionContext(Device("cpu")).audit is audited


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--audit", "--no-audit"])
def test_a_record_says_whether_its_kernel_was_audited(folder, option):
    (folder / "bench.py").write_text(BENCH)
    result = invoke("run", "bench.py", option, "--device", "cpu", "--results", "out")
    assert result.exit_code == 0, result.output
    lines = next(folder.glob("out/*/*/records.jsonl")).read_text().splitlines()
    (record,) = (each for each in map(json.loads, lines) if each["kind"] == "timing")
    assert record["verification"]["audited"] is (option == "--audit")
    assert record["verification"]["launches_checked"] > (500 if option == "--audit" else 50)
