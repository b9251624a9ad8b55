import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.measure import checks
from pyperf_suite.measure.sampling import SteadyRule, StopRule, to_the_end
from pyperf_suite.ranks.group import Group
from pyperf_suite.ranks.launch import ALONE
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import read_journal
from pyperf_suite.runner.measuring import measure_ranked
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.session import SENTINELS
from pyperf_suite.runner.workers import WorkerPool
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.workload import (
    BUILD_ON_EACH_OTHER,
    Checked,
    ExecutionContext,
    Kernel,
    RankTimes,
    Transfers,
    Work,
)
from tests.core.ranks.processes import ranks_of, wait_for_ranks

pytest.importorskip("torch.distributed")

EFFORT = Effort(SteadyRule(min_time_s=0.0, time_cap_s=0.01), StopRule(time_cap_s=0.05))
DEADLINE_S = 15.0
COLLECTIVES = (sys.executable, "-m", "pyperf_suite", "collectives")
SMALL = ("-a", "op=all_reduce", "-a", "size=8,1024", "-a", "dtype=float32")


def all_reduce(size: int, ranks: int = 2, implementation: str = "gloo") -> Case:
    return Case("collective", CollectiveParameters("all_reduce", size, ranks), implementation)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """One pool for all tests: starting a group takes seconds, and one that lost a rank is replaced anyway."""
    with WorkerPool(resolve("cpu"), DEADLINE_S) as pool:
        yield pool


@pytest.mark.slow
def test_a_group_measures_a_case_on_every_rank_and_keeps_the_rank_axis(pool):
    answer = pool.measure(0, all_reduce(1 << 16), EFFORT)
    assert answer["outcome"] == "ok", answer
    assert answer["work"] == {"flop": 0, "bytes": 1 << 16}
    assert answer["verification"] | {"passed": True, "wrong": 0, "compared": 2 * (1 << 14)} == answer["verification"]
    assert {"time", "transfer", "skew"} == answer["metrics"].keys()
    sampling = answer["sampling"]
    assert sampling["ranks"] == len(sampling["rank_median_s"]) == len(sampling["rank_lag_s"]) == 2
    first, second = sampling["rank_samples_s"]
    samples = answer["metrics"]["time"]["samples"]
    assert len(first) == len(second) == len(samples) * sampling["launches_per_sample"]
    if sampling["launches_per_sample"] == 1:
        assert samples == pytest.approx([(one + two) / 2 for one, two in zip(first, second, strict=True)], rel=1e-3)
    assert min(sampling["rank_lag_s"]) < max(sampling["rank_lag_s"])


@pytest.mark.slow
def test_cases_take_turns_on_ranks_that_live_on(pool):
    answers = dict(pool.measure_by_turns(0, [all_reduce(size) for size in (8, 1024, 1 << 16)], EFFORT))
    assert {number: answer["outcome"] for number, answer in answers.items()} == dict.fromkeys(range(3), "ok"), answers
    ranks = [each.pid for each in ranks_of(os.getpid())]
    assert pool.measure(0, all_reduce(8), EFFORT)["outcome"] == "ok"
    assert [each.pid for each in ranks_of(os.getpid())] == ranks


@pytest.mark.slow
@pytest.mark.parametrize("alternates", [False, True])
def test_a_group_and_a_process_that_measures_alone_live_together_only_where_a_plan_alternates(alternates):
    before = set(psutil.Process().children())
    with WorkerPool(resolve("cpu"), DEADLINE_S, alternates) as pool:
        living = []
        for case in (SENTINELS["cpu"], all_reduce(8), SENTINELS["cpu"]):
            assert pool.measure(0, case, None)["outcome"] == "ok"
            living.append(set(psutil.Process().children()) - before)
    assert [len(each) for each in living] == ([1, 2, 2] if alternates else [1, 1, 1])
    assert living[0] <= living[2] if alternates else not living[0] & living[2]


class SometimesWrong(Transfers):
    """Transfers of a fifth of a millisecond, which are wrong where `is_wrong` says so of their number, while timed."""

    kernel = Kernel("made up", "test")

    def __init__(self, is_wrong: Callable[[int], bool], repeatable: bool) -> None:
        self.unchecked = "" if repeatable else BUILD_ON_EACH_OTHER
        self._is_wrong, self._done, self._last_was_wrong = is_wrong, 0, False

    def poison(self, index: int | None = None) -> None:
        self._last_was_wrong = True  # nothing has been written yet

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        begun = np.empty(iterations, np.int64)
        for index in range(iterations):
            begun[index] = time.monotonic_ns()
            time.sleep(2e-4)
        self._done += iterations
        # A rank that runs one alone is looked at, and such a launch is always right.
        self._last_was_wrong = iterations > 1 and self._is_wrong(self._done)
        return RankTimes(np.full(iterations, 2e-4), begun, begun + 200_000)

    def verify_last(self, index: int = 0) -> Checked:
        return Checked(int(self._last_was_wrong), 1, "the only one")

    def close(self) -> None:
        pass


BRIEFLY = StopRule(time_cap_s=0.4)
# Some forty blocks of 15 ms, of each of which one launch is looked at: where one of four is wrong, 0.75^40 see none.
FORTY_BLOCKS = StopRule(min_samples=3_000, max_samples=3_000, time_cap_s=20)


def measured_alone(transfers: Transfers, until: StopRule = BRIEFLY) -> dict[str, Any]:
    """Return the measurement of these transfers by one rank that is a group of its own."""
    workload: Any = SimpleNamespace(
        ranks=lambda parameters: 1,
        work=lambda parameters: Work(bytes=8),
        prepare=lambda *_: transfers,
    )
    effort = Effort(SteadyRule(time_cap_s=0.1), until)
    with Group(ALONE) as group:
        place = ExecutionContext(resolve("cpu"), group=group, deadline_s=20)
        return to_the_end(measure_ranked(workload, all_reduce(8, 1), effort, place))


@pytest.mark.parametrize(
    ("is_wrong", "until"), [(lambda number: True, BRIEFLY), (lambda number: number % 4 == 0, FORTY_BLOCKS)]
)
@pytest.mark.slow
def test_what_is_wrong_while_it_is_timed_is_seen_also_in_a_few_launches_drawn_at_random(monkeypatch, is_wrong, until):
    monkeypatch.setattr(checks, "CHECKING_SHARE", 100)
    monkeypatch.setattr(secrets, "randbelow", random.Random(3).randrange)
    answer = measured_alone(SometimesWrong(is_wrong, repeatable=True), until)
    assert answer["outcome"] == "failed"
    assert "while it was timed" in answer["reason"]
    assert answer["verification"]["wrong"] == 1


def test_the_record_tells_how_many_timed_launches_were_looked_at_and_what_that_excludes(
    monkeypatch,
):
    monkeypatch.setattr(checks, "CHECKING_SHARE", 100)
    verification = measured_alone(SometimesWrong(lambda number: False, repeatable=True))["verification"]
    checked = verification["launches_checked"]
    assert checked >= 5
    one_of = verification["excludes_errors_in_one_of"]
    assert (1 - 1 / one_of) ** checked <= 0.05 < (1 - 1 / (one_of + 1)) ** checked
    assert verification["confidence"] == 0.95


@pytest.mark.slow
def test_what_no_rank_can_do_is_unsupported_in_everyones_words_and_the_group_goes_on(pool):
    refused = pool.measure(0, all_reduce(64, implementation="c10d_nccl"), EFFORT)
    assert refused["outcome"] == "unsupported"
    assert not refused["reason"].startswith("Rank ")
    verified = pool.measure(0, all_reduce(64), None)
    assert verified["outcome"] == "ok"
    assert "metrics" not in verified, "verifying alone takes no samples"


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
def test_a_rank_killed_under_load_is_named_and_a_fresh_group_takes_the_next_case(pool, victim):
    pool.measure(0, all_reduce(64), None)
    before = ranks_of(os.getpid())
    assert len(before) == 2
    # Long enough to be in it, far from its own end.
    long = Effort(SteadyRule(min_time_s=5.0, time_cap_s=6.0), StopRule(time_cap_s=5.0))
    killer = threading.Timer(0.5, before[victim].kill)
    killer.start()
    began = time.monotonic()
    answer = pool.measure(0, all_reduce(1 << 20), long)
    assert answer["outcome"] == "failed"
    assert f"Rank {victim} stopped answering" in answer["reason"]
    assert time.monotonic() - began < 0.5 + DEADLINE_S + 2
    _, alive = psutil.wait_procs(before, timeout=5)
    assert alive == []
    if victim == 1:  # the next parameter starts with it
        assert pool.measure(0, all_reduce(64), EFFORT)["outcome"] == "ok"


def two_ranks(results: Path, *options: tuple[str, ...]) -> list[tuple[int, str]]:
    """Exit code and output of two ranks of the command line, each with its own options, as a launcher starts them."""
    store = pytest.importorskip("torch.distributed").TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    place |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [*COLLECTIVES, *of_rank, "--results", str(results)],
            env=os.environ | place | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, of_rank in enumerate(options)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in started]
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


@pytest.mark.slow
def test_what_cannot_be_is_said_by_rank_0_alone_and_no_rank_is_called_missing(tmp_path):
    (code, first), (_, second) = two_ranks(tmp_path, *[("-a", "op=allreduce")] * 2)
    assert code == 2
    assert first.count("op=allreduce") == 1
    assert "op=allreduce" not in second
    assert "stopped answering" not in first + second
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_all_ranks_measure_what_rank_0_was_asked_which_alone_reports_and_records(tmp_path):
    sizes = [("-a", "op=all_reduce", "-a", "dtype=float32", "-a", f"size={size}") for size in ("64,1024", "4096")]
    (code, output), (other_code, other) = two_ranks(tmp_path, *sizes)
    assert (code, other_code) == (0, 0), output + other
    assert output.count("records  ") == 1
    assert "records  " not in other
    (journal,) = tmp_path.glob("*/*/records.jsonl")
    timing = [record for record in read_journal(journal) if record.kind == "timing"]
    assert sorted(record.parsed_case().parameters.bytes for record in timing) == [64, 1024]
    assert {record.outcome for record in timing} == {"ok"}


@pytest.mark.slow
def test_a_rank_killed_under_torchrun_costs_nothing_that_was_measured(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launch, "-m", *COLLECTIVES[2:], *SMALL, "--soak", "5", "--results", str(tmp_path)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        _, second = wait_for_ranks(running.pid, 2)
        end = time.monotonic() + 40
        while time.monotonic() < end and len(measured(tmp_path)) < 2:
            time.sleep(0.1)
        before = measured(tmp_path)
        second.send_signal(signal.SIGKILL)
        output, _ = running.communicate(timeout=60)
    finally:
        running.kill()
    assert "Rank 1 stopped answering" in output
    assert len(before) >= 2
    assert measured(tmp_path)[: len(before)] == before


def measured(results: Path) -> list[str]:
    """Case ids that were timed so far, in order."""
    journals = list(results.glob("*/*/records.jsonl"))
    records = read_journal(journals[0]) if journals else []
    return [record.case_id for record in records if record.kind == "timing" and record.outcome == "ok"]
