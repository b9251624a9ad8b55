"""`pyperf-suite accept` with stand-ins for the workers: every device in turn, exit codes, JSON, baseline, budget."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import Result

from pyperf_suite import run
from pyperf_suite.hardware.devices import Device
from pyperf_suite.node.probes.accept import PROBE
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import read_journal
from pyperf_suite.runner import workers
from pyperf_suite.runner.profiles import Effort
from tests.commands import invoke
from tests.node.made_up import cpu_node
from tests.records import metric


class MadeUp(workers.Workers):
    """Answers at once: products at 20 GFLOP/s a core, times `slow`, and everything else well."""

    slow = 1.0
    placed: ClassVar[list[str]] = []

    def __init__(self, device: Device, deadline_s: float = 0.0, alternates: bool = False) -> None:
        self.device = str(device)

    def __enter__(self) -> "MadeUp":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def close(self) -> None:
        return

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, Any]:
        self.placed.append(f"{process} on {self.device}")
        if case.operator == "topology":
            host = cpu_node()[-1].kernel["details"]
            return {"kind": "static", "outcome": "ok", "kernel": {"name": "topology", "path": "host", "details": host}}
        p = case.parameters
        seconds = {"transfer": 2**26 / 10e9, "collective": 2**22 / 1e9}.get(case.operator)
        seconds = seconds or 2 * p.m**3 / (20e9 * p.schedule.workers) * self.slow
        quality = {"converged": True, "before": {"cpu_mhz": {"high": 2000.0}}, "elapsed_s": 1.0}
        quality |= {"cpu_busy_s": 1.0, "process_cpu_s": 1.0, "cpu_steal_s": 0.0}
        time = dataclasses.asdict(metric(seconds))
        return {"outcome": "ok", "metrics": {"time": time}, "work": {"flop": 0, "bytes": 0}, "quality": quality}


@pytest.fixture(autouse=True)
def made_up_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WorkerPool", MadeUp)
    monkeypatch.setattr(run, "WorkerPool", MadeUp)
    monkeypatch.setattr(MadeUp, "placed", [])


def accept(results: Path, *words: str) -> Result:
    return invoke("accept", "--device", "cpu", "--results", results, *words)


def test_a_node_as_its_peak_promises_is_accepted(tmp_path):
    done = accept(tmp_path, "--all")
    assert done.exit_code == 0, done.output
    (journal,) = tmp_path.glob("*/*/records.jsonl")
    assert {each.probe for each in read_journal(journal)} == {"accept", "sentinel"}
    assert "pyperf-suite accept --device cpu" in (journal.parent / "findings.md").read_text()


def test_a_slow_node_has_exit_code_one_and_each_check_in_json(tmp_path, monkeypatch):
    monkeypatch.setattr(MadeUp, "slow", 10.0)
    done = accept(tmp_path, "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["exit_code"]) == (1, 1)
    low = {each["what"]: each for each in answer["checks"] if each["verdict"] == "caution"}
    assert {name.split(",")[0] for name in low} == {"float32 products"}
    found = low["float32 products, burst, 1 core"]
    assert found["found"]["value"] == pytest.approx(2e9)
    assert found["off"] < -0.5
    assert found["expected"]["low"] > 2e9
    assert found["why"]


def test_a_run_is_held_against_an_earlier_one(tmp_path, monkeypatch):
    assert accept(tmp_path).exit_code == 0
    assert accept(tmp_path, "--baseline", "latest").exit_code == 0
    monkeypatch.setattr(MadeUp, "slow", 1.2)
    again = accept(tmp_path, "--baseline", "latest", "--json")
    low = [each for each in json.loads(again.stdout)["checks"] if each["verdict"] == "caution"]
    assert again.exit_code == 1
    assert {each["source"] for each in low} == {"the baseline"}
    assert {each["part"] for each in low} == {"cpu"}
    assert len(low) == len([c for c in cases() if c.operator == "matmul"])


def cases() -> list[Case]:
    return PROBE.cases("", Device("cpu"))


def test_what_a_budget_leaves_out_is_not_accepted_and_can_be_resumed(tmp_path):
    cut = accept(tmp_path, "--budget", "1")
    assert re.search(r"The budget of 1 s is expected to leave out .*: \w+\[\w+ .*\]", cut.stderr)
    assert cut.stderr.index("expected to leave out") < cut.stderr.index("leaves no time")
    assert (cut.exit_code, "leaves no time" in cut.stderr) == (3, True), "nothing was measured"
    whole = accept(tmp_path, "--resume")
    assert whole.exit_code == 0
    (journal,) = tmp_path.glob("*/*/records.jsonl")
    assert {each.case_id for each in read_journal(journal)} >= {case.case_id for case in cases()}
