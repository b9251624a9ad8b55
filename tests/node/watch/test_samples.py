"""Trainers and loaders among a job's processes, and the readings of one that runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyperf_suite.node.watch.samples import Job, Process, teams

TRAIN = ("python", "train.py")
SPAWNED = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork")


def job(*processes: Process) -> dict[int, Process]:
    return {each.pid: each for each in processes}


def process(pid, parent, name="python", arguments=TRAIN, cpu_s=1.0, in_group=False, **ranks) -> Process:
    return Process(pid, parent, 1, name, arguments, ranks, cpu_s=cpu_s, in_group=in_group)


def test_a_shell_or_launcher_does_not_train_but_its_busy_child():
    groups = teams(
        job(
            process(1, 0, "bash", ("bash", "run.sh"), 0.0),
            process(2, 1, "tee", ("tee", "log"), 0.1),
            process(3, 1, cpu_s=50.0),
            process(4, 3, "pt_data_worker", cpu_s=200.0),
            process(5, 3, "python", ("python", "-c", "from multiprocessing.resource_tracker import main"), 0.0),
        )
    )
    [team] = groups
    assert (team.rank, team.trainer.pid, [each.pid for each in team.loaders]) == (0, 3, [4])
    assert {each.pid for each in team.members} == {1, 2, 3, 4, 5}


def test_ranks_are_told_apart_by_the_innermost_launcher():
    agent = process(1, 0, "pt_elastic", ("torchrun", "train.py"), SLURM_PROCID=0)
    ranks = [process(10 + rank, 1, RANK=rank, SLURM_PROCID=0) for rank in range(2)]
    loaders = [process(20 + rank, 10 + rank, "pt_data_worker", RANK=rank, SLURM_PROCID=0) for rank in range(2)]
    found = teams(job(agent, *ranks, *loaders))
    assert [(team.rank, team.trainer.pid, team.loaders[0].pid) for team in found] == [(0, 10, 20), (1, 11, 21)]


def test_ranks_that_one_process_spawned_are_told_apart_by_their_process_groups():
    ranks = [process(10 + rank, 1, arguments=SPAWNED, in_group=True) for rank in range(2)]
    loaders = [process(20 + rank, 10 + rank, "pt_data_worker", SPAWNED) for rank in range(2)]
    shell = process(30, 11, "sh", ("sh", "-c", "nvidia-smi"), cpu_s=90.0)
    found = teams(job(process(1, 0, cpu_s=50.0), *ranks[::-1], *loaders, shell))
    assert [(team.rank, team.trainer.pid, team.loaders[0].pid) for team in found] == [(0, 10, 20), (1, 11, 21)]
    assert {each.pid for team in found for each in team.members} == {10, 11, 20, 21, 30}


def test_a_rank_that_starts_the_others_is_the_first():
    found = teams(job(process(1, 0, in_group=True), process(2, 1, in_group=True), process(3, 1, "pt_data_worker")))
    assert [(team.rank, team.trainer.pid, len(team.loaders)) for team in found] == [(0, 1, 1), (1, 2, 0)]
    # One process group alone makes no ranks.
    [team] = teams(job(process(1, 0), process(2, 1, in_group=True, arguments=SPAWNED)))
    assert team.trainer.pid == 1


def test_a_process_whose_thread_is_named_late_is_in_a_group(tmp_path):
    def place(pid: int, parent: int, threads: list[str]) -> None:
        for tid, name in enumerate(threads, start=pid):
            task = tmp_path / str(pid) / "task" / str(tid)
            task.mkdir(parents=True, exist_ok=True)
            (task / "comm").write_text(f"{name}\n")
        fields = ["S", str(parent), *["0"] * 15, str(len(threads)), "0", "7", *["0"] * 10]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (python) {' '.join(fields)}")

    place(10, 1, ["python"])
    for rank in (20, 30):
        place(rank, 10, ["python"])
    watched = Job(10, proc=tmp_path)
    assert len(watched.teams) == 1
    for late in ("python", "pt_nccl_watchdg"):
        for rank in (20, 30):
            place(rank, 10, ["python", late])
        watched.sample()
    assert watched.rank_of == {20: 0, 30: 1}


@pytest.mark.slow
def test_a_running_process_is_sampled_with_its_children_until_it_ends():
    program = (
        "import multiprocessing as m, time\n"
        "def load():\n    while True: pass\n"
        "if __name__ == '__main__':\n"
        "    child = m.get_context('fork').Process(target=load, daemon=True); child.start()\n"
        "    held = bytearray(1 << 26)\n"
        "    print(flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        started.stdout.readline()
        waits_in = Path(f"/proc/{started.pid}/wchan")
        while "pipe" not in waits_in.read_text():
            time.sleep(0.01)
        watched = Job(started.pid)
        for _ in range(5):
            time.sleep(0.05)
            watched.look()
        sample = watched.sample()
        [rank] = sample.ranks
        assert (rank.pid, rank.loaders) == (started.pid, 1)
        assert rank.loader_busy > 0.3
        assert rank.occupied < 0.5
        assert rank.waits["pipe"] > 0.5
        assert rank.memory_bytes >= 1 << 26
        assert 1 <= sample.allowed_cores <= (os.cpu_count() or 1)
        started.communicate(b"\n")
    assert watched.sample() is None
