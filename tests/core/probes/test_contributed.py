"""The probe and the workload of examples/extending, which docs/contributing.md names."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from pyperf_suite import probes as discovery
from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.user_kernels.declared import PATH_VARIABLE
from tests.commands import invoke

EXAMPLES = Path(__file__).parents[3] / "examples" / "extending"
PROBE, WORKLOAD = ((EXAMPLES / name).read_text() for name in ("row_sum.py", "thread_start.py"))


@pytest.fixture
def row_sum(tmp_path, monkeypatch):
    """The module of the probe, where the suite finds it as another package's."""
    (tmp_path / "row_sum.py").write_text(PROBE)
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("row_sum")
    monkeypatch.setattr(discovery, "probe_names", lambda: ("row_sum",))
    monkeypatch.setattr(discovery, "_load", lambda name: module.PROBE)
    yield module
    del sys.modules["row_sum"]


def test_the_probe_takes_at_most_forty_lines():
    assert len(PROBE.splitlines()) <= 40


@pytest.mark.slow
def test_the_probe_runs_with_its_table_its_comparison_and_its_figure(row_sum, tmp_path):
    command = ["run", "row_sum", "-a", "columns=64,1024", "--results", str(tmp_path / "results")]
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    (path,) = (tmp_path / "results").glob("*/*/findings.json")
    (section,) = json.loads(path.read_text())["probes"]
    assert section["name"] == "row_sum"
    assert {len(table["rows"]) for table in section["tables"]} == {4}
    assert any("einsum" in str(remark) for remark in section["remarks"])
    assert section["figures"]


def test_the_workload_is_found_by_its_name_checked_and_timed(monkeypatch, tmp_path):
    (tmp_path / "thread_start.py").write_text(WORKLOAD)
    name = "pyperf_suite.workloads.thread_start"
    spec = importlib.util.spec_from_file_location(name, tmp_path / "thread_start.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    answer = measure_case(Case("thread_start", module.ThreadStartParameters(4), "threading"), None, Device("cpu"))
    assert (answer["outcome"], answer["verification"]["compared"]) == ("ok", 4)
    monkeypatch.setattr(module.Threads, "launch", lambda self, index: self.ran.append(0))
    answer = measure_case(Case("thread_start", module.ThreadStartParameters(4), "threading"), None, Device("cpu"))
    assert (answer["outcome"], answer["verification"]["wrong"]) == ("failed", 3)
