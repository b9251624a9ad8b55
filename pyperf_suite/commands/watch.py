"""`pyperf-suite watch`: a command run as it would be alone, sampled from outside, and what it waits for named."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite import files, processes
from pyperf_suite.api import MARKS_VARIABLE
from pyperf_suite.commands.options import Finite, path_option, results_option
from pyperf_suite.errors import UserError, printable

if TYPE_CHECKING:
    from pyperf_suite.watch.patterns import Pattern
    from pyperf_suite.watch.samples import Job, Sample
    from pyperf_suite.watch.steps import LogReader, RankSteps

LOOK_EVERY_S = 0.1
JUDGE_EVERY_S = 10.0
# Of one core: sampling slows down where it would take more.
OWN_SHARE, GRACE_S = 0.007, 10.0
RECENT_SAMPLES = 60
# Of a long job a sample is kept every so much of its time.
KEPT_EVERY = 0.003
FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_DEATH_SIGNAL, _SUBREAPER, _FROM_TERMINAL = 1, 36, 0x80


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND]...")
@click.option("--pid", type=click.IntRange(1), metavar="N", help="Watch a running process and all it started.")
@click.option("--for", "for_s", type=Finite(0, min_open=True), metavar="SECONDS", help="End watching --pid after that.")
@click.option("--interval", default=1.0, show_default=True, type=Finite(0, 3600, min_open=True), metavar="SECONDS")
@click.option(
    "--step-pattern", metavar="REGEX", help="What ends a step in the output; groups seconds, ms, tokens, step."
)
@click.option(
    "--flop-per-token", type=Finite(0, min_open=True), metavar="FLOP", help="Of the model, for FLOP/s and MFU."
)
@path_option("--config", help="A Hugging Face config.json, instead of --flop-per-token.")
@click.option("--seq", type=click.IntRange(1), metavar="N", help="Tokens of a sequence, with --config.")
@click.option("--dtype", default="bf16", show_default=True, metavar="NAME", help="Of the peak that MFU is a share of.")
@click.option("--live", is_flag=True, help="A view below the command's output; with --pid always, on a terminal.")
@results_option()
def watch(
    command: tuple[str, ...],
    pid: int | None,
    for_s: float | None,
    interval: float,
    step_pattern: str | None,
    flop_per_token: float | None,
    config: Path | None,
    seq: int | None,
    dtype: str,
    live: bool,
    results: Path,
) -> None:
    """Run COMMAND, or look at a running job, and name what it waits for: data, CPU, network, a slow rank.

    All its processes and their GPUs are sampled from outside, for at most 1 % of a core. The exit code is that of the
    command, and signals reach it. Steps come from pyperf_suite.watch_step(tokens=N) in the job, or --step-pattern.

    \b
    Examples:
      pyperf-suite watch -- python train.py
      pyperf-suite watch -- torchrun --nproc-per-node 8 train.py
      torchrun --nproc-per-node 8 -m pyperf_suite watch -- python train.py
      pyperf-suite watch --step-pattern 'step (?P<step>\\d+)' -- python train.py
      pyperf-suite watch --pid 4242 --for 60
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.ranks.launch import rank_environment

    if not sys.platform.startswith("linux"):
        raise UserError("watch reads /proc, which only Linux has.")
    if bool(command) == (pid is not None):
        raise UserError("watch takes either a command, as in `watch -- python train.py`, or a running job's --pid N.")
    if (pid is None and for_s) or (pid is not None and step_pattern):
        wrong, right = ("--for", "--pid") if pid is None else ("--step-pattern", "a command that watch starts")
        raise UserError(f"{wrong} goes with {right}.")
    log = None
    if step_pattern is not None:
        from pyperf_suite.watch.steps import LogReader

        log = LogReader(step_pattern)
    launched = pid is None and rank_environment().launched
    if config is not None:
        flop_per_token = _flop_per_token(config, seq)
    if pid is not None:
        _require_readable(pid)
    # One watcher a node samples the ranks of all.
    quiet = launched and rank_environment().local_rank > 0
    watching = None if quiet else _Watching(results, command, pid, interval, flop_per_token, dtype)
    top = pid or (os.getppid() if launched else os.getpid())
    with _marks_folder(top, is_own=watching is not None) as marks, _signals_taken() as taken:
        try:
            running = None if pid else _Command(command, marks, taken, launched, log is not None or live)
        except UserError:
            if watching is not None:
                watching.discard()
            raise
        if watching is None:
            assert running is not None
            while running.exit_code is None:
                running.receive(signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, 1.0))
            raise SystemExit(running.exit_code)
        with watching.shown(live or pid is not None):
            if running is not None:
                running.copy_output(watching, log)
            watching.follow(top, marks, running, for_s or math.inf)
    watching.finish(running)


def _flop_per_token(config: Path, seq: int | None) -> float:
    from pyperf_suite.commands.model_options import asked_model
    from pyperf_suite.laws.model_flop import model_flop

    model, length, _ = asked_model(config, seq, {})
    return float(model_flop(model, 1, length)) / length


def _require_readable(pid: int) -> None:
    """Raise UserError for a process that is not there, or that belongs to somebody else."""
    if not processes.state_of(pid):
        raise UserError(f"There is no running process {pid}: `ps` lists them.")
    try:
        Path(f"/proc/{pid}/io").read_text()
        Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        raise UserError(f"Process {pid} belongs to another user: watch it as that user.") from None


@contextlib.contextmanager
def _marks_folder(owner: int, is_own: bool) -> Iterator[Path]:
    """Where `watch_step` of all ranks of this node leaves its marks; the watcher whose own it is removes it."""
    folder = Path(tempfile.gettempdir()) / f"{processes.owned_name('watch', owner)}marks"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise UserError(f"{folder} belongs to somebody else: remove it, or set TMPDIR to another folder.")
    try:
        yield folder
    finally:
        if is_own:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _signals_taken() -> Iterator[set[signal.Signals]]:
    """Signals are waited for instead of interrupting; gives those that were blocked before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    try:
        yield {each for each in before if isinstance(each, signal.Signals)}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Command:
    """The watched command: started in this process group, so that a terminal's Ctrl-C reaches it by itself."""

    def __init__(
        self, command: Sequence[str], marks: Path, blocked: set[signal.Signals], launched: bool, is_copied: bool
    ) -> None:
        """Raises UserError where it does not start."""
        self.is_alone = not launched
        libc = ctypes.CDLL(None)
        # What it leaves behind as orphans stays below this process.
        libc.prctl(_SUBREAPER, 1)

        def become_child() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            if launched:  # a launcher kills this process, and means its rank
                libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)

        pipe = subprocess.PIPE if is_copied else None
        unbuffered = {"PYTHONUNBUFFERED": "1"} if is_copied else {}
        environment = {**os.environ, **unbuffered, MARKS_VARIABLE: str(marks)}
        self.began_s, self.exit_code = time.monotonic(), None
        try:
            self._process = subprocess.Popen(
                command, env=environment, preexec_fn=become_child, stdout=pipe, stderr=pipe
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"{printable(command[0])[:200]} cannot be started: {reason}.") from None
        self._threads: list[threading.Thread] = []

    exit_code: int | None

    def receive(self, received: signal.struct_siginfo | None) -> None:
        """Pass a signal on to the command, or see what ended."""
        if received is None:
            return
        if received.si_signo == signal.SIGCHLD:
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    if ended[0] == self._process.pid:
                        code = self._process.returncode = os.waitstatus_to_exitcode(ended[1])
                        self.exit_code = code if code >= 0 else 128 - code
            return
        with contextlib.suppress(ProcessLookupError):
            # The terminal sends its signals to the whole group itself.
            if received.si_code != _FROM_TERMINAL or os.getpgid(self._process.pid) != os.getpgrp():
                os.kill(self._process.pid, received.si_signo)

    def copy_output(self, watching: _Watching, log: LogReader | None) -> None:
        for source, target in ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)):
            if source is not None:
                thread = threading.Thread(target=watching.copy, args=(source, target, log), daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(timeout=1.0)


class _Watching:
    """The samples of a job, what they say, and the record of both."""

    def __init__(
        self,
        results: Path,
        command: Sequence[str],
        pid: int | None,
        interval_s: float,
        flop_per_token: float | None,
        dtype: str,
    ) -> None:
        from pyperf_suite.hardware.devices import Unavailable, resolve
        from pyperf_suite.hardware.machine import identity
        from pyperf_suite.hardware.nvml import nvml
        from pyperf_suite.history.pairs.ab import comparison_folder
        from pyperf_suite.watch import patterns, samples

        self._patterns, self._samples = patterns, samples  # imported before the command starts
        self._name = printable(" ".join(command)) if command else f"process {pid}"
        self._asked = {"command": list(command), "pid": pid, "interval_s": interval_s}
        self._folder = comparison_folder(results, identity(resolve("auto")).slug, self._asked, kind="watch")
        self._interval_s, self._flop_per_token, self._dtype = interval_s, flop_per_token, dtype
        manager = nvml()
        self._manager = None if isinstance(manager, Unavailable) else manager
        self.kept: list[Sample] = []
        self.recent: deque[Sample] = deque(maxlen=RECENT_SAMPLES)
        self.steps: dict[int, RankSteps] = {}
        self.patterns: list[Pattern] = []
        self._live: Any = None
        self._own_share = self._elapsed_s = 0.0
        self._is_over = self.has_log = False
        self._job: Job | None = None

    @contextlib.contextmanager
    def shown(self, live: bool) -> Iterator[None]:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, emoji=False)
        if not (live and self._console.is_terminal):
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def copy(self, source: Any, target: Any, log: LogReader | None) -> None:
        """Pass the command's output on, and find steps in it."""
        self.has_log = log is not None
        from pyperf_suite.watch.steps import RankSteps

        with contextlib.suppress(OSError, ValueError), source:  # closed where nobody reads any more
            while part := source.read1(1 << 16):
                if log is not None:
                    log.feed(part, self.steps.setdefault(0, RankSteps()))
                if self._live is not None:
                    self._live.console.out(part.decode("utf-8", "replace"), end="", highlight=False)
                else:
                    target.buffer.write(part)
                    target.flush()

    def follow(self, top: int, marks: Path, running: _Command | None, for_s: float) -> None:
        """Sample until the command ends, the process is gone, the time is over or, with --pid, a signal comes."""
        from pyperf_suite.watch.steps import MarkReader

        self._reader, wake_s = MarkReader(marks), 0.0
        self._began_s, self._own_s = time.monotonic(), time.process_time()
        while running is None or running.exit_code is None:
            pause_s = max(0.0, wake_s - time.monotonic())
            received = signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, min(pause_s, 60.0))
            if running is not None:
                running.receive(received)
            elif received is not None or self._elapsed_s >= for_s or self._is_over:
                break
            if time.monotonic() >= wake_s:
                try:
                    wake_s = self._look_or_sample(top)
                except Exception as error:  # whatever happens to who watches, the command goes on
                    self._say(f"watch: No more is sampled: {type(error).__name__}: {error}")
                    wake_s, self._is_over = math.inf, True
        self._read_steps()
        if running is not None:
            running.close()

    def _look_or_sample(self, top: int) -> float:
        """Look at the job, or sample it where it is time; returns when to do so next."""
        now = time.monotonic()
        if self._job is None:
            self._job = self._samples.Job(top, self._manager)
            self._sample_s, self._judge_s = now + self._interval_s, now + JUDGE_EVERY_S
        elif now < self._sample_s:
            self._job.look()
        else:
            self._sample_s = max(now, self._sample_s + self._interval_s)
            self._read_steps()
            sample = self._job.sample()
            if sample is None:
                self._is_over = True
            else:
                self._take(sample)
            if now >= self._judge_s:
                self._judge()
                self._judge_s = now + JUDGE_EVERY_S
            if self._live is not None and self.recent:
                self._live.update(self._view(), refresh=True)
        self._elapsed_s = time.monotonic() - self._began_s
        spent_s = time.process_time() - self._own_s
        self._own_share = spent_s / max(self._elapsed_s, LOOK_EVERY_S)
        pause_s = spent_s / OWN_SHARE - self._elapsed_s - GRACE_S
        return time.monotonic() + max(min(LOOK_EVERY_S, self._interval_s), pause_s)

    def _read_steps(self) -> None:
        if not self.has_log:
            self._reader.read(self.steps)

    def _take(self, sample: Sample) -> None:
        self.recent.append(sample)
        if not self.kept or sample.at_s - self.kept[-1].at_s >= KEPT_EVERY * sample.at_s:
            self.kept.append(sample)
            with (self._folder / "samples.jsonl").open("a") as record:
                record.write(json.dumps(asdict(sample)) + "\n")

    def _judge(self) -> None:
        """Say what is new of the last minute."""
        known = {(each.name, each.rank) for each in self.patterns}
        self.patterns = self._patterns.judge(list(self.recent), self.steps)
        for each in self.patterns:
            if self._live is None and (each.name, each.rank) not in known:
                self._say(f"watch: {_told(each)}")

    def _view(self) -> Any:
        """The ranks as a table, and what was found."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for heading in ("rank", "CPUs", "main thread", "waits for", "loaders", "memory", "GPU"):
            table.add_column(heading, justify="left" if heading == "waits for" else "right")
        last = self.recent[-1]
        for each in last.ranks:
            waits = sorted(each.waits.items(), key=lambda item: -item[1])
            gpus = [gpu for gpu in last.gpus if gpu["rank"] == each.rank]
            table.add_row(
                str(each.rank),
                f"{each.cores:.2f}",
                f"{each.main_share:.0%}",
                ", ".join(f"{kind} {share:.0%}" for kind, share in waits if kind != "running" and share >= 0.1) or "-",
                f"{each.loaders}, {each.loader_busy:.0%} busy" if each.loaders else "-",
                f"{each.memory_bytes / 2**30:.2f} GiB",
                "; ".join(f"{gpu.get('utilization', 0):.0%} {gpu.get('power_w', 0):.0f} W" for gpu in gpus) or "-",
            )
        return Group(table, *map(Text, self._lines())) if self._live is not None else table

    def _lines(self) -> list[str]:
        found = [f"• {_told(each)}" for each in self.patterns] or ["• nothing found"]
        return [*found, *filter(None, [self._rates()])]

    def _summary(self) -> dict[str, Any]:
        from pyperf_suite.hardware.catalogue import find_gpu
        from pyperf_suite.watch.steps import summary

        peak, names = None, self._job.gpu_names() if self._job else []
        with contextlib.suppress(UserError):
            peak = find_gpu(names[0]).peak(self._dtype) if names else None
        return summary(self.steps, self._flop_per_token, peak, len(names))

    def _rates(self) -> str:
        """Steps, tokens and MFU in a line; empty where no step is known."""
        found = self._summary()
        words = []
        for rank, each in list(found.get("ranks", {}).items())[:8]:
            times = ", ".join(f"p{n} {each[f'p{n}_s'] * 1e3:.4g} ms" for n in (50, 90, 99))
            words.append(f"rank {rank}: {each['steps']} steps, {times}")
        if "tokens_per_s" in found:
            words.append(f"{found['tokens_per_s']:.5g} tokens/s")
        if "flop_per_s" in found:
            words.append(f"{found['flop_per_s'] / 1e12:.4g} TFLOP/s")
        if "mfu" in found:
            words.append(f"MFU {found['mfu']:.1%}")
        return "; ".join(words)

    def finish(self, running: _Command | None) -> None:
        """Judge all, write the record and tell; exits with the command's code. Raises UserError if it ended at once."""
        from pyperf_suite.render.findings_json import as_data, as_text

        code = running.exit_code if running is not None and running.exit_code is not None else 0
        left = self._left_behind() if running is not None and running.is_alone else ""
        self.patterns = self._patterns.judge(self.kept, self.steps)
        steps = self._summary()
        found = {
            **self._asked,
            "exit_code": code if running is not None else None,
            "watched_s": self._elapsed_s,
            "own_cpu_share": self._own_share,
            "patterns": [
                {**as_data(each.evidence), "name": each.name, "rank": each.rank, "advice": each.advice}
                for each in self.patterns
            ],
            "steps": steps,
        }
        if not self.kept:
            self.discard()
            ended = f"The command ended with exit code {code} after {self._elapsed_s:.2g} s, before the first sample"
            if left:
                ended += f", and left {left} running: watch on with --pid"
            if code or running is None:
                self._say(f"watch: {ended}.")
                raise SystemExit(code)
            raise UserError(f"{ended}." if left else f"{ended}: a shorter --interval samples earlier.")
        manifest = json.loads((self._folder / "watch.json").read_text())
        files.write_in_results(self._folder / "watch.json", as_text({**manifest, **found}))
        if left:
            self._say(f"watch: The command ended, but left {left} running: watch on with --pid.")
        self._console.print(self._view(), highlight=False)
        for line in self._lines():
            self._say(line)
        if len(self._patterns.after_start(self.kept)) < 4:
            self._say("watch: Too short to tell what it waits for.")
        self._say(f"watch: {self._elapsed_s:.0f} s of {self._name}, {self._own_share:.2%} of a core; {self._folder}")
        raise SystemExit(code)

    def discard(self) -> None:
        """Remove the record of a job of which there is nothing to tell."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _left_behind(self) -> str:
        """Processes of the job that outlived the command, as one that made itself a daemon."""
        if self._job is None:
            return ""
        time.sleep(0.2)
        self._job.find()
        others = [f"{each.name} ({pid})" for pid, each in self._job.processes.items() if pid != os.getpid()]
        return printable(", ".join(others[:5]))

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _told(pattern: Pattern) -> str:
    from pyperf_suite.render.text import sentence

    return f"{pattern.name}: {sentence(pattern.evidence)}. Next: {pattern.advice}"
