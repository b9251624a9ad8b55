"""`pyperf-suite watch`: a command run as it would be alone, sampled from outside, and what it waits for named."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite import files
from pyperf_suite.cli.options import Finite, json_option, path_option, results_option
from pyperf_suite.errors import UserError, offer, printable

if TYPE_CHECKING:
    from pyperf_suite.cli.parts import Parts
    from pyperf_suite.node.watch.command import Command, EndedSteps, LogReader
    from pyperf_suite.node.watch.samples import Job, Sample

LOOK_EVERY_S = 0.1
JUDGE_EVERY_S = 10.0
# Sampling slows down where it would take a larger share of one core; time before the start counts as well.
OWN_SHARE, GRACE_S = 0.007, 25.0
RECENT_SAMPLES = 60
# Interval of the kept samples of a long job, as a share of its time.
KEPT_EVERY = 0.003


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND]...")
@click.option(
    "--pid",
    type=click.IntRange(1),
    metavar="N",
    help="Watch a running process and all processes that it started. Example: --pid 4242.",
)
@click.option(
    "--for",
    "for_s",
    type=Finite(0, min_open=True),
    metavar="SECONDS",
    help="Stop watching --pid after this time. Default: until the process ends. Example: --for 60.",
)
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=Finite(0, 3600, min_open=True),
    metavar="SECONDS",
    help="Time between two samples. Example: --interval 0.5.",
)
@click.option(
    "--step-pattern",
    metavar="REGEX",
    help="Regular expression of a line of output that ends a step. Its named groups are seconds, ms, tokens, step. "
    "Example: --step-pattern 'step (?P<step>\\d+)'.",
)
@click.option(
    "--flop-per-token",
    type=Finite(0, min_open=True),
    metavar="FLOP",
    help="FLOP of the model for one token. Without it FLOP/s and MFU are not reported. Example: --flop-per-token 42e9.",
)
@path_option(
    "--config", help="A Hugging Face config.json that replaces --flop-per-token. Example: --config config.json."
)
@click.option(
    "--seq",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens of a sequence, for --config. Default: the model's longest, at most 4096. Example: --seq 8192.",
)
@click.option(
    "--dtype",
    default="bf16",
    show_default=True,
    metavar="NAME",
    help="Dtype of the peak that MFU is a share of. Example: --dtype fp8.",
)
@results_option("Folder that the record is written to. Example: --results /tmp/results.")
@json_option("Print the record, watch.json, on standard output at the end; what COMMAND prints goes to standard error.")
@click.pass_obj
def watch(
    parts: Parts,
    command: tuple[str, ...],
    pid: int | None,
    for_s: float | None,
    interval: float,
    step_pattern: str | None,
    flop_per_token: float | None,
    config: Path | None,
    seq: int | None,
    dtype: str,
    results: Path,
    as_json: bool,
) -> None:
    """Run COMMAND, or watch a running job, and report what it waits for: data, CPU, network, a slow rank.

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
    from pyperf_suite.hardware.catalogue import DTYPES
    from pyperf_suite.node.watch.command import SIGNALS, Command, LogReader, catching, marks_folder, require_readable
    from pyperf_suite.ranks.launch import ALONE, rank_environment

    if not sys.platform.startswith("linux"):
        raise UserError("watch reads /proc, which only Linux has.")
    if bool(command) == (pid is not None):
        raise UserError("watch takes either a command, as in `watch -- python train.py`, or a running job's --pid N.")
    if (pid is None and for_s) or (pid is not None and step_pattern):
        wrong, right = ("--for", "--pid") if pid is None else ("--step-pattern", "a command that watch starts")
        raise UserError(f"{wrong} goes with {right}.")
    if dtype not in DTYPES:
        raise UserError(f"There is no dtype {dtype[:40]!r}: {offer(dtype, DTYPES)}")
    if step_pattern is not None:
        LogReader(step_pattern)
    ranked = ALONE
    if pid is None:
        with contextlib.suppress(UserError):  # a job may have variables of its own that are no launcher's
            ranked = rank_environment()
    if config is not None:
        if parts.flop_per_token is None:
            raise UserError("--config needs the planner, which is not installed: leave it out.")
        flop_per_token = parts.flop_per_token(config, seq)
    if pid is not None:
        require_readable(pid)
    # One watcher a node samples the ranks of all.
    watching = None if ranked.local_rank else _Watching(results, command, pid, interval, flop_per_token, dtype)
    top = pid or (os.getppid() if ranked.launched else os.getpid())
    with marks_folder(top, is_own=watching is not None) as marks, catching() as taken:
        try:
            is_copied = watching is not None and step_pattern is not None
            running = None if pid else Command(command, marks, taken, ranked.launched, is_copied, as_json)
        except UserError:
            if watching is not None:
                watching.discard()
            raise
        if watching is None:
            assert running is not None
            while running.exit_code is None:
                running.receive(signal.sigtimedwait(SIGNALS, 1.0))
            raise SystemExit(running.exit_code)
        if running is not None and step_pattern is not None:
            running.copy_output(functools.partial(watching.copy, step_pattern=step_pattern))
        watching.follow(top, marks, running, for_s or math.inf)
        watching.finish(running, as_json)


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
        import json

        from rich.console import Console

        from pyperf_suite.hardware.devices import Unavailable, resolve
        from pyperf_suite.hardware.machine import identity
        from pyperf_suite.hardware.nvml import nvml
        from pyperf_suite.node.watch import patterns, record, samples
        from pyperf_suite.regressions.pairs.ab import comparison_folder

        self._patterns, self._samples, self._record = patterns, samples, record  # imported before the command starts
        requested = {"command": list(command), "pid": pid, "interval_s": interval_s}
        self._folder = comparison_folder(results, identity(resolve("auto")).slug, requested, kind="watch")
        self._manifest = json.loads((self._folder / record.MANIFEST).read_text())
        self._interval_s, self._flop_per_token, self._dtype = interval_s, flop_per_token, dtype
        self._console = Console(stderr=True, emoji=False)
        manager = nvml()
        self._manager = None if isinstance(manager, Unavailable) else manager
        self.kept: list[Sample] = []
        self.recent: deque[Sample] = deque(maxlen=RECENT_SAMPLES)
        self.steps: dict[int, EndedSteps] = {}
        self._printed: set[tuple[str, int | None]] = set()
        self._own_share = self._elapsed_s = self._energy_j = 0.0
        self._began_s = time.monotonic()
        self._is_over = self._is_torn = self._has_started = False
        self.logs: list[LogReader] = []
        self._job: Job | None = None

    def copy(self, source: Any, target: Any, step_pattern: str) -> None:
        """Pass one of the command's streams on, and find steps in it."""
        from pyperf_suite.node.watch.command import EndedSteps, LogReader

        log = LogReader(step_pattern)
        self.logs.append(log)
        with contextlib.suppress(OSError, ValueError), source:  # closed where nobody reads any more
            while part := source.read1(1 << 16):
                log.feed(part, self.steps.setdefault(0, EndedSteps()))
                target.buffer.write(part)
                target.flush()

    def follow(self, top: int, marks: Path, running: Command | None, for_s: float) -> None:
        """Sample until the command ends, the process is gone, the time is over or, with --pid, a signal comes."""
        from pyperf_suite.node.watch.command import SIGNALS, MarkReader

        self._reader, wake_s = MarkReader(marks), 0.0
        self._own_s = time.process_time()
        while running is None or running.exit_code is None:
            pause_s = max(0.0, wake_s - time.monotonic())
            received = signal.sigtimedwait(SIGNALS, min(pause_s, 60.0))
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
        self._elapsed_s = time.monotonic() - self._began_s
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
            sample = self._job.sample()
            self._read_steps()
            if sample is None:
                self._is_over = True
            else:
                self._take(sample)
            if now >= self._judge_s:
                self._judge()
                self._judge_s = now + JUDGE_EVERY_S
        self._elapsed_s = time.monotonic() - self._began_s
        spent_s = time.process_time() - self._own_s
        self._own_share = spent_s / max(self._elapsed_s, LOOK_EVERY_S)
        pause_s = spent_s / OWN_SHARE - self._elapsed_s - GRACE_S
        return time.monotonic() + max(min(LOOK_EVERY_S, self._interval_s), pause_s)

    def _read_steps(self) -> None:
        if not self.logs:
            self._reader.read(self.steps, self._job.rank_of if self._job else {})

    def _take(self, sample: Sample) -> None:
        self.recent.append(sample)
        self._energy_j += sum(each.get("energy_j", 0.0) for each in sample.gpus)
        if not self.kept or sample.at_s - self.kept[-1].at_s >= KEPT_EVERY * sample.at_s:
            self.kept.append(sample)
            try:
                with (self._folder / self._record.SAMPLES).open("a") as record:
                    record.write(_line(sample))
            except OSError:  # a full disk or a folder that is gone: all of them are written at the end
                self._is_torn = True

    def _judge(self) -> None:
        """Print new patterns in the last samples after the start, each name of a rank once."""
        from pyperf_suite.render.text import sentence

        if not self._has_started and self.recent:
            stepped = any(each.first_s is not None for each in list(self.steps.values()))
            age_s = self.recent[-1].at_s - self.kept[0].started_s
            self._has_started = stepped or age_s >= self._patterns.LONGEST_START_S
            self.recent.clear()
        for each in self._patterns.judge(list(self.recent), self._record.medians(self._summary())):
            if (each.name, each.rank) not in self._printed:
                self._printed.add((each.name, each.rank))
                self._say(f"watch: {sentence(self._record.named(each))}")

    def _summary(self) -> dict[str, Any]:
        from pyperf_suite.hardware.catalogue import find_gpu
        from pyperf_suite.node.watch.command import summary

        peak, names = None, self._job.gpu_names() if self._job else []
        with contextlib.suppress(UserError):
            peak = find_gpu(names[0]).peak(self._dtype) if names else None
        return summary(self.steps, self._flop_per_token, peak, len(names))

    def finish(self, running: Command | None, as_json: bool = False) -> None:
        """Judge all, write and print the record, exit with the command's code. UserError if --pid ended at once."""
        from pyperf_suite.render.terminal import print_remarks_and_tables
        from pyperf_suite.render.text import as_data, as_text

        code = running.exit_code if running is not None and running.exit_code is not None else 0
        left = self._left_behind() if running is not None and running.is_alone else ""
        manifest = {**self._manifest, "watched_s": self._elapsed_s, "own_cpu_share": self._own_share}
        manifest |= {"energy_j": self._energy_j or None, "steps": self._summary()}
        patterns = self._patterns.judge(self.kept, self._record.medians(manifest["steps"]))
        manifest["exit_code"] = code if running is not None else None
        manifest["patterns"] = [
            {**as_data(each.evidence), "name": each.name, "rank": each.rank, "advice": each.advice} for each in patterns
        ]
        manifest["ranks"] = self._patterns.figures(self._patterns.after_start(self.kept))
        if not self.kept:
            self.discard()
            after = f"after {self._elapsed_s:.2g} s, before the first sample"
            if running is None:
                raise UserError(f"Watching ended {after}: a shorter --interval samples earlier.")
            if left:
                after += f", and left {left} running: watch on with --pid"
            self._say(f"watch: The command ended with exit code {code} {after}.")
            raise SystemExit(code)
        try:
            if self._is_torn:
                self._folder.mkdir(parents=True, exist_ok=True)
                files.write_whole(self._folder / self._record.SAMPLES, "".join(map(_line, self.kept)))
            files.write_whole(self._folder / self._record.MANIFEST, as_text(manifest))
        except OSError as error:  # the command's end is worth more than its record
            self._say(f"watch: {self._folder} cannot be written ({error.strerror}): the result is only printed here.")
        if self.logs and not any(log.matched for log in self.logs):
            self._say("watch: No line of the command's output matched --step-pattern, so no steps were counted.")
        if left:
            self._say(f"watch: The command ended, but left {left} running: watch on with --pid.")
        if self._job and self._job.closed:
            closed = ", ".join(sorted(self._job.closed)[:5])
            self._say(f"watch: Of process {closed} little can be read, as of another user's: watch it as that user.")
        record = self._record.WatchRecord(self._folder, manifest, tuple(self.kept))
        if as_json:
            click.echo(as_text({**manifest, "folder": str(self._folder)}), nl=False)
        print_remarks_and_tables(self._console, record.findings(), more="the record")
        self._say(f"watch: {self._folder}")
        raise SystemExit(code)

    def discard(self) -> None:
        """Remove the record of a job of which nothing is known."""
        import shutil

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


def _line(sample: Sample) -> str:
    import json

    return json.dumps(asdict(sample)) + "\n"
