"""Kill runs of the command line at random moments and see that nothing is lost.

Run it as python tests/hardening/kill_runs.py 200.

Small runs, alone and with ranks, are killed and resumed again and again. After each kill a reader of this file's own
compares the journal's bytes, and no process of the run may live on. In the end every trial has been measured once and
no temporary folder is left.
"""

import argparse
import contextlib
import json
import os
import random
import re
import secrets
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
# All processes of a run inherit it, whatever sessions and groups they make.
MARK = "PYPERF_KILL_RUNS"
# How long processes whose run is gone may take to go too.
ORPHANS_S = 10.0
LONGEST_RUN_S = 300.0

COMMANDS = {
    "run": "run tile_wave -a tile=32x32x32 -a k=32 -a workers=1 -a waves=1,2,3 -a schedule=data_parallel",
    "ranks": "collectives --ranks 2 -a op=all_reduce -a size=8,16,32,64,128,256,512,1024,2048,4096",
}
# Faults of a run. The run killed alone is the hardest, for its workers and ranks are left.
KINDS = (
    "run killed",
    "run and its processes killed",
    "a process of it killed",
    "run stopped and killed",
    "run stopped, continued and killed",
    "a process of it stopped, continued, run killed",
    "resumed twice at once, the winner killed",
)


def main() -> None:
    """Either kill, as a person asked, or be the command line that is killed."""
    if sys.argv[1:2] == ["--as-command-line"]:
        be_command_line(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=COMMANDS, help="Kill only runs of this command.")
    requested = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = [requested.only] if requested.only else list(COMMANDS)
        print(kill_runs(requested.kills, Path(folder), requested.seed, lambda line: print(line, flush=True), commands))


def be_command_line(arguments: list[str]) -> None:
    """The suite's; a run with ranks has no sentinel."""
    from pyperf_suite.__main__ import main as command_line
    from pyperf_suite.runner import session

    sys.argv = ["pyperf-suite", *arguments]
    if arguments[:1] != ["run"]:
        session.Session._measure_sentinel = lambda *_: None
    command_line()


def kill_runs(
    kills: int,
    folder: Path,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
    commands: list[str] | None = None,
) -> str:
    """Kill so often, and return a sentence on what was seen. Raises AssertionError where anything was lost."""
    draw, done, finished = random.Random(seed), Counter(), 0
    while done.total() < kills:
        name = draw.choice(commands or list(COMMANDS))
        campaign = Campaign(COMMANDS[name].split(), folder / f"{name}-{finished}", draw)
        while done.total() < kills and not campaign.is_over:
            kind = draw.choice(KINDS)
            if campaign.kill(kind):
                done[f"{name}: {kind}"] += 1
                tell(f"{done.total()} kills, {finished} runs finished; the last: {name}: {kind}")
        campaign.finish()
        finished += 1
    kinds = "; ".join(f"{count} of {kind}" for kind, count in sorted(done.items()))
    return (
        f"{done.total()} kills ({kinds}), {finished} runs finished; no record was lost or measured twice, "
        f"no process lived {ORPHANS_S:g} s longer than its run, no temporary folder was left."
    )


@dataclass
class Campaign:
    """One run that is killed and resumed until it is over."""

    arguments: list[str]
    folder: Path
    draw: random.Random
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    journal_lines: bytes = b""  # whole lines of the journal when it was last looked at
    is_over: bool = False

    def __post_init__(self) -> None:
        self.results, self.temporary = self.folder / "results", self.folder / "tmp"
        for each in (self.results, self.temporary):
            each.mkdir(parents=True)

    def kill(self, kind: str) -> bool:
        """Go on with the run and do this to it; False where it ended first, or there was nothing to do it to."""
        twice = "twice" in kind and self._can_resume()
        runs = [self._start() for _ in range(2 if twice else 1)]
        try:
            run = self._the_winner(runs) if twice else runs[0]
            if run is None or not self._comes_to_a_moment(run):
                return False
            before = self.journal()
            killed = self._do(kind, run)
            for process in runs:
                self._end(process, was_killed=killed)
            assert self.journal().startswith(whole_lines(before)), "records are gone after a kill"
            return killed
        finally:
            for process in runs:
                process.kill()
                process.wait()
            self._wait_for_orphans()
            self._look()

    def finish(self) -> None:
        """Go on with it undisturbed, and see that each trial has been measured once and nothing is left."""
        self._end(self._start(), was_killed=False)
        self._wait_for_orphans()
        self._look()
        left = [path.name for path in self.temporary.iterdir() if path.name.startswith("pyperf_")]
        assert not left, f"temporary folders are left: {left}"
        planned = json.loads(next(self.results.glob("*/*/run.json")).read_text())
        trials = measured(self.journal_lines)
        assert len(trials) >= planned["cases"] * planned["processes"], f"{len(trials)} trials of {planned}"
        # By the suite's own readers too: what they show is what this one has read.
        from pyperf_suite.record.journal import read_journal
        from pyperf_suite.regressions.stored.store import Store

        kept = read_journal(self._journals()[0])
        assert sum(record.outcome == "ok" and record.kind == "timing" for record in kept) == trials.total()
        read = Store(self.results).measured
        assert sum(each.ok for each in read) == sum(record.outcome == "ok" for record in kept)

    def journal(self) -> bytes:
        journals = self._journals()
        assert len(journals) <= 1, "a resumed run began another one"
        return journals[0].read_bytes() if journals else b""

    def _journals(self) -> list[Path]:
        return list(self.results.glob("*/*/records.jsonl"))

    def _can_resume(self) -> bool:
        return bool(list(self.results.glob("*/*/run.json")))

    def _start(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), MARK: self.mark, "TMPDIR": str(self.temporary)}
        command = [sys.executable, "-W", "ignore", __file__, "--as-command-line", *self.arguments]
        command += [
            "--json",
            "--device",
            "cpu",
            "--results",
            str(self.results),
            *(["--resume"] if self._can_resume() else []),
        ]
        self._errors = self.folder / "errors"
        with self._errors.open("ab") as errors:
            return subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=errors, env=environment, start_new_session=True
            )

    def _the_winner(self, runs: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes] | None:
        """The one that may go on, of two that resume one run at once; the other has to end in a sentence."""
        end = time.monotonic() + LONGEST_RUN_S
        while all(run.poll() is None for run in runs):
            assert time.monotonic() < end, "neither of two resumes ended"
            time.sleep(0.005)
        loser, winner = sorted(runs, key=lambda run: run.poll() is None)
        if loser.returncode == 0:
            # The run was as good as over: one resumed it after the other.
            winner.wait(LONGEST_RUN_S)
            return None
        assert loser.returncode == 2, self._said()
        assert "Another process is writing" in self._said()
        return winner

    def _comes_to_a_moment(self, run: subprocess.Popen[bytes]) -> bool:
        """Wait for a random moment; most lie within the trials, a kill by the clock would mostly meet imports."""
        if self.draw.random() < 0.3:
            pause_s = self.draw.uniform(0.0, 4.0)
        else:
            lines, begun = self.journal().count(b"\n") + self.draw.randrange(4), time.monotonic()
            while run.poll() is None and self.journal().count(b"\n") <= lines:
                assert time.monotonic() - begun < LONGEST_RUN_S, f"it hangs: {self._said()}"
                time.sleep(0.005)
            pause_s = self.draw.uniform(0.0, 0.2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(timeout=pause_s)
        return run.poll() is None

    def _do(self, kind: str, run: subprocess.Popen[bytes]) -> bool:
        below = self._processes(but=run.pid)
        if "a process of it" in kind and not below:
            return False
        victim = self.draw.choice(below) if "a process of it" in kind else psutil.Process(run.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            if "stopped" in kind:
                victim.suspend()
                time.sleep(self.draw.uniform(0.0, 0.5))
            if "continued" in kind:
                victim.resume()
                time.sleep(self.draw.uniform(0.0, 0.5))
            if kind == "a process of it killed":
                victim.kill()
                return True
            run.kill()
            for each in below if kind == "run and its processes killed" else []:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        return True

    def _end(self, run: subprocess.Popen[bytes], was_killed: bool) -> None:
        run.wait(LONGEST_RUN_S)
        # 3: the case of a process that was killed has failed, and is measured again when the run is resumed.
        assert run.returncode in ((0, 2, 3, -9) if was_killed else (0,)), (
            f"it ended with {run.returncode}: {self._said()}"
        )
        assert "Traceback" not in self._said(), self._said()
        self.is_over = self.is_over or run.returncode == 0

    def _said(self) -> str:
        return self._errors.read_text(errors="replace")

    def _processes(self, but: int = 0) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != but and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return [each for each in found if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    def _wait_for_orphans(self) -> None:
        end = time.monotonic() + ORPHANS_S
        while alive := self._processes():
            assert time.monotonic() < end, f"these outlived their run by {ORPHANS_S:g} s: {alive}"
            time.sleep(0.05)

    def _look(self) -> None:
        """See that all that was there is there, byte by byte, that every line is whole, and no trial measured twice."""
        now = whole_lines(self.journal())
        assert now.startswith(self.journal_lines), "records of before are gone or changed"
        self.journal_lines = now
        twice = {trial: count for trial, count in measured(now).items() if count > 1}
        assert not twice, f"measured twice: {twice}"


def whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def measured(lines: bytes) -> Counter:
    """How often each trial was measured in order. Raises AssertionError where a line is not as its seal says."""
    trials: Counter = Counter()
    for line in lines.splitlines():
        sealed = re.fullmatch(rb'(.*),"sealed":"(\d+):([0-9a-f]{8})"\}', line)
        assert sealed, line
        content = sealed[1] + b"}"
        assert (len(content), zlib.crc32(content)) == (int(sealed[2]), int(sealed[3], 16)), line
        record = json.loads(content)
        is_first_visit = record["sampling"].get("visit_due")  # whose line stays behind that of both visits
        if record["kind"] == "timing" and record["outcome"] == "ok" and not is_first_visit:
            trials[record["probe"], record["case_id"], record["process"]] += 1
    return trials


if __name__ == "__main__":
    main()
