"""Ranks that are killed, stopped or ended while they start: `python tests/core/ranks/drills.py 360 [SEED [AT_ONCE]]`.

Each drill starts collectives by torchrun, hits one rank, and tells what is wrong with the end of that run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

import psutil

from tests.core.ranks.processes import wait_for_ranks

DEEDS = ("SIGKILL", "SIGSTOP", "SIGTERM")
COUNTS = (2, 4)
EVERY_S, UNTIL_S = 0.25, 15.0
# A rank that stands still is missed after this, and the launcher ends what stands still after 30 s.
DEADLINE_S = 8
ENDS_WITHIN_S = 100.0
SWEEP = "from pyperf_suite.process.system import sweep; sweep()"


@dataclass(frozen=True)
class Drill:
    """One rank of `count` gets the signal `deed` `at_s` seconds after torchrun was started."""

    deed: str
    count: int
    at_s: float
    victim: int

    def __str__(self) -> str:
        return f"{self.deed} of rank {self.victim} of {self.count} after {self.at_s:g} s"


def drills(number: int, seed: int = 0) -> list[Drill]:
    """Draw `number` drills of all signals, counts of ranks and moments; beyond all of them, repeat."""
    chance = random.Random(seed)
    moments = [EVERY_S * step for step in range(1, round(UNTIL_S / EVERY_S) + 1)]
    drawn = [
        Drill(deed, count, at_s, chance.randrange(count))
        for deed, count, at_s in itertools.product(DEEDS, COUNTS, moments)
    ]
    chance.shuffle(drawn)
    # A few drills take the signals in turn.
    by_deed = ([each for each in drawn if each.deed == deed] for deed in DEEDS)
    return list(itertools.chain(*zip(*by_deed, strict=True)))[:number]


def trouble(drill: Drill, folder: Path) -> str:
    """Make the drill and return what is wrong with the run's end, with its words; empty of a right one."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={drill.count}"]
    command = ["-m", "pyperf_suite", "collectives", "--profile", "standard", "--deadline", str(DEADLINE_S)]
    temporary = folder / "temporary"
    temporary.mkdir(parents=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    launcher = subprocess.Popen(
        [*launch, *command, "--results", str(folder / "results")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    began_s = time.monotonic()
    try:
        ranks = wait_for_ranks(launcher.pid, drill.count)
        time.sleep(max(0.0, drill.at_s - (time.monotonic() - began_s)))
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks[drill.victim].send_signal(getattr(signal, drill.deed))
        late = threading.Timer(ENDS_WITHIN_S, end_session, [launcher.pid])
        late.start()
        output = launcher.communicate()[0]
        is_late = not late.is_alive()
        late.cancel()
    finally:
        left = end_session(launcher.pid)
    if drill.deed == "SIGSTOP":  # what the launcher had to kill last, the next run clears up after
        subprocess.run([sys.executable, "-c", SWEEP], env=environment, check=True)
    faults = {
        "did not end": is_late,
        "ended with exit code 0": launcher.returncode == 0,
        "no rank is named": not is_named(" ".join(output.split()), drill.victim),
        "a traceback of the suite": bool(re.search(r'File "[^"]*pyperf_suite/', output)),
        "processes are left": bool(left),
        "files are left": any(each.name.startswith("pyperf") for each in temporary.iterdir()),
        "records cannot be read": not _are_readable(folder / "results"),
    }
    found = [fault for fault, is_so in faults.items() if is_so]
    return f"{drill}: {'; '.join(found)}\n{output[-3000:]}" if found else ""


def is_named(output: str, victim: int) -> bool:
    """True if the ranks name the victim.

    torchrun must name it as the first where others died with it, which it ends before Python has begun, or where no
    rank had begun.
    """
    sentences = re.findall(r"\b(?:rank \d+|Error): Ranks? (\d+(?:, \d+)*) ", output)
    if any(sentence == str(victim) for sentence in sentences):
        return True
    is_among = not sentences or any(str(victim) in sentence.split(", ") for sentence in sentences)
    return is_among and bool(re.search(rf"Root Cause .*?rank : {victim} \(", output))


def end_session(leader: int) -> list[int]:
    """End the processes of that session, and return those that were left after its leader."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process.pid)
                process.kill()
    return [pid for pid in left if pid != leader]


def _are_readable(results: Path) -> bool:
    try:
        for path in results.glob("*/*/records.jsonl"):
            for line in path.read_text().splitlines():
                json.loads(line)
    except ValueError:
        return False
    return True


def main() -> None:
    """Make as many drills as asked, by default one at a time, and end with 1 where one went wrong."""
    number, seed, at_once = (int(word) for word in [*sys.argv[1:], *("0", "1")[len(sys.argv) - 2 :]])
    wrong = 0
    with ThreadPool(at_once) as pool:
        for count, (drill, words, took_s) in enumerate(pool.imap_unordered(_timed, drills(number, seed)), 1):
            wrong += bool(words)
            print(f"{count} of {number}, {took_s:.0f} s: {words or f'{drill}: right'}", flush=True)
    print(f"{number - wrong} of {number} right", flush=True)
    raise SystemExit(bool(wrong))


def _timed(drill: Drill) -> tuple[Drill, str, float]:
    """Make the drill in a folder of its own; return it, its trouble and how many seconds it took."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        return drill, trouble(drill, Path(folder)), time.monotonic() - began_s


if __name__ == "__main__":
    main()
