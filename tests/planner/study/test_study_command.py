"""`pyperf-suite study`: refusals, the example's SLURM job, and studies that run, fail in part, and go on."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from click.testing import CliRunner, Result

from pyperf_suite.cli.main import main
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.planner.commands.study_run import of_this_world
from pyperf_suite.planner.study.grid import cases_of, default_axes
from pyperf_suite.planner.study.results import results_of
from pyperf_suite.planner.study.search import search_steps
from pyperf_suite.ranks.launch import ALONE
from pyperf_suite.record.journal import read_journal
from pyperf_suite.runner.workers import WorkerPool, Workers
from tests.core.ranks.processes import ranks_of

pytestmark = pytest.mark.slow

TINY = ("--hidden", "32", "--heads", "2", "--layers", "2", "--seq", "16", "--vocab", "64")
SHORT = ("--device", "cpu", "--steps", "3", "--warm-up", "1")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["study", *arguments], catch_exceptions=False)


def records_in(results: Path) -> list[Any]:
    (path,) = results.glob("*/*/records.jsonl")
    return [record for record in read_journal(path) if record.kind == "timing"]


class Doubles(Workers):
    """Workers that answer at once: a step takes as many seconds as there are ranks, and ZeRO a little; `lost` fail."""

    lost: ClassVar[dict[str, str]] = {}
    interrupted_after: int | None = None
    requested: ClassVar[list[tuple[str, int]]] = []

    def measure(self, process: int, case: Any, effort: Any) -> dict[str, Any]:
        if case.operator != "parallel_step":
            return {"outcome": "failed", "reason": "no sentinel here"}
        if self.interrupted_after is not None and len(self.requested) >= self.interrupted_after:
            raise KeyboardInterrupt
        self.requested.append((case.parameters.name, process))
        if case.parameters.name in self.lost:
            return {"outcome": "failed", "reason": self.lost[case.parameters.name]}
        seconds = case.parameters.ranks * (1 + 0.01 * process) + 0.1 * case.parameters.zero_stage
        metric = {"unit": "s", "samples": [seconds] * effort.stop.max_samples}
        metric |= dict.fromkeys(("value", "low", "high", "q20", "q80"), seconds)
        return {
            "outcome": "ok",
            "metrics": {"time": metric},
            "work": {"flop": 0, "bytes": 0},
            "kernel": {"name": "a double", "details": {}},
            "quality": {"converged": True},
        }


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Doubles]]:
    monkeypatch.setattr(WorkerPool, "measure_by_turns", lambda self, *arguments: Doubles().measure_by_turns(*arguments))
    Doubles.lost, Doubles.interrupted_after, Doubles.requested = {}, None, []
    return Doubles


def test_a_study_visits_every_configuration_in_every_experiment_and_ranks_them(doubles, tmp_path: Path) -> None:
    result = invoke(
        *SHORT, "--data", "1,2", "--zero", "0,1", "--experiments", "2", "--results", str(tmp_path), "--json"
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)
    found = results_of(records_in(tmp_path))
    assert [each.name for each in found] == ["1 rank flash", "dp2 flash", "dp2 zero1 flash"]
    assert [len(each.rates) for each in found] == [2, 2, 2]
    assert found[0].rates == pytest.approx([8.0, 8 / 1.01])
    # One experiment of all before the next of any.
    assert [process for _, process in doubles.requested] == [0, 0, 0, 1, 1, 1]
    assert {record.profile for record in records_in(tmp_path)} == {"3 steps after 1"}


def test_what_fails_is_a_row_with_its_reason_and_the_study_goes_on(doubles, tmp_path: Path) -> None:
    doubles.lost = {"dp2 flash": "Rank 1 stopped answering: the process died."}
    result = invoke(*SHORT, "--data", "1,2", "--experiments", "1", "--results", str(tmp_path))
    assert result.exit_code == 3, result.output
    assert "1 of 2 configurations gave no time: dp2 flash" in result.output
    (lost,) = [record for record in records_in(tmp_path) if record.outcome == "failed"]
    assert lost.reason == "Rank 1 stopped answering: the process died."
    assert "8 samples/s" in result.output
    (picture,) = tmp_path.glob("*/*/study.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_study_keeps_what_it_has_and_resumes_where_it_stopped(doubles, tmp_path: Path) -> None:
    doubles.interrupted_after = 3
    options = (*SHORT, "--data", "1,2,4", "--experiments", "2", "--results", str(tmp_path))
    stopped = invoke(*options)
    assert stopped.exit_code == 130
    assert "Interrupted; " in stopped.output
    (folder,) = (path.parent for path in tmp_path.glob("*/*/run.json"))
    assert f"--resume {folder.name}" in stopped.output
    doubles.interrupted_after = None
    resumed = invoke(*options, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert len(set(doubles.requested)) == 6
    assert len(doubles.requested) == 6


def test_more_experiments_can_be_added_to_a_study_and_telling_measures_nothing(doubles, tmp_path: Path) -> None:
    options = (*SHORT, "--data", "1", "--results", str(tmp_path))
    assert invoke(*options, "--experiments", "1").exit_code == 0
    assert invoke(*options, "--experiments", "3", "--resume").exit_code == 0
    assert invoke(*options, "--experiments", "3", "--tell").exit_code == 0
    assert [process for _, process in doubles.requested] == [0, 1, 2]


SMALL_SEARCH = ("--search", "--data", "1,2", "--batch", "1,2", "--tensor", "1", "--pipeline", "1", "--zero", "0")


def test_a_search_keeps_its_path_in_the_records_and_goes_on_where_it_was_interrupted(doubles, tmp_path: Path) -> None:
    options = (*SHORT, *SMALL_SEARCH, "--results", str(tmp_path))
    doubles.interrupted_after = 3
    assert invoke(*options).exit_code == 130
    doubles.interrupted_after = None
    result = invoke(*options, "--resume", "--json")
    assert result.exit_code == 0, result.output
    steps = search_steps(records_in(tmp_path))
    assert steps[0].verdict == "fits"
    assert {each.verdict for each in steps[1:]} == {"not faster"}, "more ranks only cost here"
    assert len(doubles.requested) == sum(each.runs for each in steps) == 7
    (study,) = json.loads(result.stdout)["probes"]
    assert "The path of the search" in [each["title"] for each in study["tables"]]


def test_only_some_configurations_go_into_a_run_that_knows_them_all(doubles, tmp_path: Path) -> None:
    options = (*SHORT, "--data", "1,2", "--experiments", "1", "--results", str(tmp_path), "--resume", "a-job")
    assert invoke(*options, "--only", "2").exit_code == 0
    assert invoke(*options, "--only", "1").exit_code == 0
    assert doubles.requested == [("dp2 flash", 0), ("1 rank flash", 0)]
    assert [path.parent.name for path in tmp_path.glob("*/*/records.jsonl")] == ["a-job"]


def test_what_has_no_room_is_a_row_and_the_rest_runs(doubles, tmp_path: Path, monkeypatch) -> None:
    # Weights and gradients of the model take 0.23 MB, on each of two ranks.
    monkeypatch.setattr("pyperf_suite.hardware.memory.available_bytes", lambda: 300_000)
    result = invoke(*SHORT, *TINY, "--data", "1,2", "--experiments", "1", "--results", str(tmp_path))
    assert result.exit_code == 0, result.output
    (lost,) = [record for record in records_in(tmp_path) if record.outcome == "unsupported"]
    assert "of memory are free: ask for a smaller model" in lost.reason
    assert len(doubles.requested) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--data", "two"), "data=two was requested, but data takes int values"),
        (("--data", "1,,2"), "data= was requested"),
        (("--implementation", "nccl"), "runs on cuda, but the requested device is cpu"),
        (("--steps", "1"), "steps=1 was requested"),
        (("--only", "12"), "--only 12 was requested, but configurations are numbered 1 to 11"),
        (("--only", "x"), "--only x was requested, but configurations are"),
        (("nowhere.toml",), "nowhere.toml cannot be read: No such file"),
        (("--resume", "../../etc", "--only", "1"), "cannot name a run"),
        (("--tell",), "There is no run of the same cases"),
        (("--data", "4096", "--global-batch", "8192"), "4096 ranks were requested on"),
        (("--hidden", "262144", "--heads", "4096"), "Weights and gradients take"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    device = () if "--device" in arguments else ("--device", "cpu")
    result = invoke(*arguments, *device, "--results", str(tmp_path))
    assert result.exit_code == 2, result.output
    assert sentence in result.output
    assert len([line for line in result.output.strip().splitlines() if not line.startswith("not run: ")]) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_list_numbers_configurations_and_measures_nothing(tmp_path: Path) -> None:
    result = invoke("--list", "--device", "cpu", "--results", str(tmp_path))
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == len(cases_of(default_axes(Device("cpu"))))
    assert " 2  dp2 flash  (2 ranks" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_with_another_number_of_ranks_is_told_which_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = cases_of(default_axes(Device("cpu")))
    monkeypatch.setattr("pyperf_suite.planner.commands.study_run.rank_environment", lambda: replace(ALONE, count=4))
    assert {case.parameters.ranks for case in of_this_world(cases)} == {4}
    monkeypatch.setattr("pyperf_suite.planner.commands.study_run.rank_environment", lambda: replace(ALONE, count=3))
    with pytest.raises(UserError, match=r"No configuration takes 3 ranks .*: those requested take 1, 2, 4"):
        of_this_world(cases)


def a_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_job_starts_each_experiment_of_each_configuration_once_and_tells_at_the_end(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Run by bash with programs in the place of srun, scontrol and python that write down how they were called."""
    options = ("my grid.toml", "--data", "1,8,12,16,24")
    listed = invoke(*options[1:], "--batch", "1", "--global-batch", "48", "--device", "cpu", "--list").output
    (tmp_path / "listed").write_text(listed)
    programs = tmp_path / "bin"
    programs.mkdir()
    log = tmp_path / "log"
    # The second configuration dies each time.
    write = f'printf "%s|" "$(basename "$0")" "$@" >> {log}; echo >> {log}'
    a_program(programs / "srun", f'{write}; [[ "$*" != *"--only 2"* ]]')
    a_program(programs / "python", f'if [[ "$*" == *--list ]]; then cat {tmp_path / "listed"}; else {write}; fi')
    a_program(programs / "scontrol", "echo node-a; echo node-b")
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "4",
                   "SLURM_JOB_NODELIST": "node-[a-d]", "EXPERIMENTS": "2"}  # fmt: skip
    script = pytestconfig.rootpath / "examples" / "study.sbatch"
    done = subprocess.run(["bash", script, *options], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("configuration 2, experiment") == 2
    calls = [line.rstrip("|").split("|") for line in log.read_text().splitlines()]
    assert [call[0] for call in calls] == ["srun"] * 10 + ["python"]
    assert [call[-1] for call in calls] == ["1", "2", "3", "4", "5"] * 2 + ["--tell"]
    # As few nodes of eight GPUs as hold the ranks evenly.
    placed = [tuple(word.split("=")[1] for word in call if word.startswith(("--nnodes", "--nproc"))) for call in calls]
    assert placed == [("1", "1"), ("1", "8"), ("2", "6"), ("2", "8"), ("3", "8")] * 2 + [()]
    for call in calls:
        assert "my grid.toml" in call
        assert "study-77" in call
    assert all("--rdzv-endpoint=node-a:29500" in call for call in calls[:-1])
    assert len({next(word for word in call if word.startswith("--rdzv-id=")) for call in calls[:-1]}) == 10


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A real study of two configurations of two ranks, of which one rank was killed in the first that ran."""
    results = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "pyperf_suite", "study", *TINY, "--device", "cpu", "--data", "2", "--zero", "0,1"]
    command += ["--steps", "60", "--warm-up", "1", "--experiments", "1", "--results", str(results)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end and not _kill_rank_1(process.pid):
        time.sleep(0.05)
    out, err = process.communicate(timeout=240)
    return results, subprocess.CompletedProcess(command, process.returncode, out, err)


def _kill_rank_1(pid: int) -> bool:
    try:
        _, rank_1 = ranks_of(pid)
        rank_1.kill()
    except (ValueError, psutil.Error):  # ranks that have not all begun, or are over
        return False
    return True


def test_a_rank_that_is_killed_costs_its_configuration_and_the_study_goes_on(killed) -> None:
    results, done = killed
    assert done.returncode == 3, done.stderr
    outcomes = sorted(record.outcome for record in records_in(results))
    assert outcomes == ["failed", "ok"]
    (lost,) = [record for record in records_in(results) if record.outcome == "failed"]
    assert lost.reason
    assert "Traceback" not in done.stderr + done.stdout
    assert "fastest of 2 configurations" in done.stdout
    (page,) = results.glob("*/*/findings.md")
    assert "1 of 2 configurations gave no time" in page.read_text()
    (timed,) = [record for record in records_in(results) if record.outcome == "ok"]
    assert len(timed.metrics["time"].samples) == 60
    assert timed.sampling["warmup_launches"] == 1
    assert timed.verification["passed"]


def test_under_torchrun_its_ranks_are_the_study_and_another_world_waits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    command += ["pyperf_suite", "study", *TINY, *SHORT, "--data", "1,2", "--experiments", "2"]
    command += ["--results", str(tmp_path), "--resume", "job", "--only", "1,2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 configurations take other numbers of ranks" in done.stderr
    (record,) = records_in(tmp_path)
    assert (record.outcome, record.process, record.sampling["ranks"]) == ("ok", 0, 2)
    assert "only configuration" in done.stdout
