"""Kill a run at so many random moments and see that nothing it had measured is lost: python tools/kill_runs.py 200.

A run of tiny cases, with the suite's own session, journal and workers, is killed with SIGKILL again and again: the run
alone, the run with its workers, or a worker. After each kill every record that the run had been told is on disk has to
be there, workers have to end by themselves, and the resumed run has to finish with every visit measured once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
CASES = 50
PROCESSES = 2
# How long a worker whose run is gone may take to go too.
ORPHANS_S = 20.0
# What is killed: of the three kinds the run alone is the hardest, for its workers are left.
KINDS = ("run", "run and workers", "worker")


def main() -> None:
    """Either kill, as a person asked, or be the run that is killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--as-run", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.as_run is not None:
        measure(asked.as_run, asked.cases)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(kill_runs(asked.kills, Path(folder), asked.seed, print, asked.cases))


def measure(results: Path, count: int) -> None:
    """Begin or resume the run in that folder and tell of each visit once its record is on disk."""
    from pyperf_suite.errors import UserError
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.hardware.identity import identity
    from pyperf_suite.runner import session as runner
    from pyperf_suite.runner.results import create_run, find_run

    plan, cpu = tiny_plan(count), resolve("cpu")
    # The usual one is a library's, which takes longer to import than this whole run.
    runner.SENTINELS = {"cpu": plan.cases[0].case}
    try:
        folder = find_run(results, identity(cpu), plan)
    except UserError:
        folder = create_run(results, identity(cpu), plan)
    session = runner.Session(plan, folder).open()
    for planned in plan.cases:
        for record in session.measure(planned):
            print(record.outcome, record.case_id, record.process, flush=True)
    session.finish()
    print("finished", flush=True)


def tiny_plan(count: int):
    """Products of our own kernel that take microseconds, each visited by two processes."""
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.laws.matmul.tiling import Schedule, Tile
    from pyperf_suite.measure.steady import SteadyRule
    from pyperf_suite.measure.stop_rule import StopRule
    from pyperf_suite.operators.matmul import MatmulParameters
    from pyperf_suite.runner.case import Case
    from pyperf_suite.runner.plan import Plan, PlannedCase
    from pyperf_suite.runner.profiles import Effort, Profile

    effort = Effort(SteadyRule(min_time_s=0.0, time_cap_s=0.01), StopRule(time_cap_s=0.02))
    schedule, tile = Schedule("persistent", 1), Tile(32, 32, 32)
    cases = [
        Case("matmul", MatmulParameters(size, size, size, schedule, tile), "native") for size in range(8, 8 + count)
    ]
    profile = Profile("quick", PROCESSES, effort, "to be killed")
    return Plan(tuple(PlannedCase("tile_wave", case) for case in cases), profile, resolve("cpu"))


def kill_runs(kills: int, folder: Path, seed: int = 0, tell=lambda _: None, cases: int = CASES) -> str:
    """Kill so often, and return a sentence on what was seen. Raises AssertionError where anything was lost."""
    draw, done, finished, number = random.Random(seed), Counter(), 0, 0
    while sum(done.values()) < kills:
        results, number = folder / f"results-{number}", number + 1
        while not is_complete(results, cases):
            kind = draw.choice(KINDS) if sum(done.values()) < kills else None
            told, killed = run_until_killed(results, cases, kind, draw)
            if kind is not None:
                done[kind] += killed
            check(results, told)
            tell(f"{sum(done.values())} kills ({dict(done)}), {finished} runs finished")
        finished += 1
    kinds = ", ".join(f"{count} of the {kind}" for kind, count in sorted(done.items()))
    return f"{sum(done.values())} kills ({kinds}), {finished} runs finished; no record was lost or measured twice."


def run_until_killed(results: Path, cases: int, kind: str | None, draw: random.Random) -> tuple[set[str], int]:
    """Run, and kill at a random moment what `kind` says, None for nothing: the visits told, and whether it came to it.

    Most moments lie within the first visits, where a kill by the clock would mostly meet Python's imports.
    """
    results.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", __file__, "--as-run", str(results), "--cases", str(cases)]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        run = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        try:
            killed = 0
            if kind is not None and (
                is_running_after(run, draw.uniform(0.0, 4.0))
                if draw.random() < 0.25
                else has_told(run, output, draw.randrange(8)) and is_running_after(run, draw.uniform(0.0, 0.1))
            ):
                killed = kill(run, kind, draw)
            run.wait(timeout=300)
        finally:
            run.kill()
        output.seek(0)
        lines = output.read().decode().split("\n")[:-1]  # a line that was cut off was not told
        errors.seek(0)
        assert run.returncode in (0, -9), errors.read().decode()
    return {line for line in lines if line.startswith("ok ")}, killed


def is_running_after(run: subprocess.Popen, seconds: float) -> bool:
    """Whether it is still there when so many seconds have passed."""
    try:
        run.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def has_told(run: subprocess.Popen, output: IO[bytes], visits: int) -> bool:
    """Wait until it has told of so many visits that were not measured before; False where it ended first."""
    told_before = None
    while run.poll() is None:
        told = os.pread(output.fileno(), 1 << 20, 0).count(b"\n")
        told_before = told if told_before is None and told else told_before
        if told - (told_before or 0) >= visits:
            return True
        time.sleep(0.005)
    return False


def kill(run: subprocess.Popen, kind: str, draw: random.Random) -> int:
    """Kill what `kind` says and wait for orphans; 0 where there was nothing left to kill."""
    try:
        workers = psutil.Process(run.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return 0
    victims: list[Any] = draw.sample(workers, k=min(1, len(workers))) if kind == "worker" else [run]
    victims += workers if kind == "run and workers" else []
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    if kind != "worker":
        run.wait()
        _, alive = psutil.wait_procs(workers, timeout=ORPHANS_S)
        assert not alive, f"{len(alive)} workers outlived their run by {ORPHANS_S} s"
    return int(bool(victims))


def records_in(results: Path):
    """All records of the one run there; none where it was killed before it had a journal."""
    from pyperf_suite.runner.journal import read_journal

    journals = list(results.glob("*/*/records.jsonl"))
    assert len(journals) <= 1, "a resumed run began another one"
    return read_journal(journals[0]) if journals else []


def check(results: Path, told: set[str]) -> None:
    """Every visit that was told is there, and none twice; the newest run and the index can be read."""
    from pyperf_suite.history.stored.find_side import find_side
    from pyperf_suite.history.stored.store import Store

    visits = [record for record in records_in(results) if record.kind == "timing"]
    kept = Counter(f"ok {record.case_id} {record.process}" for record in visits if record.outcome == "ok")
    assert told <= kept.keys(), f"lost: {told - kept.keys()}"
    assert all(count == 1 for count in kept.values()), f"measured twice: {kept}"
    if any(record.kind == "sentinel" or record.outcome == "ok" for record in records_in(results)):
        find_side("latest", results)
    for _ in range(2):  # as it was left, and made anew
        with Store(results) as store:
            store.update()
            assert sum(run.ok for run in store.runs()) == sum(each.outcome == "ok" for each in records_in(results))
        for index in results.glob(".index.sqlite*"):
            index.unlink()


def is_complete(results: Path, cases: int) -> bool:
    """Whether each case was measured by each process."""
    visits = {
        (each.case_id, each.process)
        for each in records_in(results)
        if each.outcome == "ok" and each.probe == "tile_wave"
    }
    return len(visits) == cases * PROCESSES


if __name__ == "__main__":
    main()
