"""The watched command: started as it would be alone, its signals, its end, and the steps that it or its log reports."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

from pyperf_suite.errors import UserError, printable
from pyperf_suite.hardware.topology import COLOURS
from pyperf_suite.process import system
from pyperf_suite.user_kernels.api import MARK_FORMAT, MARKS_VARIABLE

FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
SIGNALS = {*FORWARDED, signal.SIGCHLD}
GROUPS = ("seconds", "ms", "tokens", "step")
MOST_STEPS = 100_000
_MARK = struct.Struct(MARK_FORMAT)
_DEATH_SIGNAL, _SUBREAPER, _FROM_TERMINAL = 1, 36, 0x80


def require_readable(pid: int) -> None:
    """Raise UserError for a process that is not there, or that belongs to somebody else."""
    if not system.state_of(pid):
        raise UserError(f"There is no running process {pid}: `ps` lists them.")
    try:
        Path(f"/proc/{pid}/io").read_text()
        Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        raise UserError(f"Process {pid} belongs to another user: watch it as that user.") from None


@contextlib.contextmanager
def marks_folder(owner: int, is_own: bool) -> Iterator[Path]:
    """Yield the folder of the marks of `watch_step` of this node's ranks; the watcher whose own it is removes it."""
    folder = Path(tempfile.gettempdir()) / f"{system.owned_name('watch', owner)}marks"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise UserError(f"{folder} belongs to somebody else: remove it, or set TMPDIR to another folder.")
    try:
        yield folder
    finally:
        if is_own:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def catching() -> Iterator[set[signal.Signals]]:
    """Signals are waited for instead of interrupting; gives those that were blocked before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield {each for each in before if isinstance(each, signal.Signals)}
    finally:
        while signal.sigtimedwait(SIGNALS, 0) is not None:  # one that came meanwhile interrupts nothing any more
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Command:
    """The watched command: started in this process group, so that a terminal's Ctrl-C reaches it by itself."""

    def __init__(
        self,
        command: Sequence[str],
        marks: Path,
        blocked: set[signal.Signals],
        launched: bool,
        is_copied: bool,
        to_stderr: bool = False,
    ) -> None:
        """Start it, with all that it prints on standard error if `to_stderr`. Raises UserError if it does not start."""
        self.is_alone, self._to_stderr = not launched, to_stderr
        libc = ctypes.CDLL(None)
        # The command's orphans stay below this process.
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
                command,
                env=environment,
                preexec_fn=become_child,
                stdout=pipe or (sys.stderr.fileno() if to_stderr else None),
                stderr=pipe,
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
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may run as another user, by sudo
            # The terminal sends its signals to the whole group itself.
            if received.si_code != _FROM_TERMINAL or os.getpgid(self._process.pid) != os.getpgrp():
                os.kill(self._process.pid, received.si_signo)

    def copy_output(self, copy: Callable[[IO[bytes], TextIO], None]) -> None:
        """Have `copy` read what the command prints, in a thread for each stream, where it prints to pipes."""
        output = sys.stderr if self._to_stderr else sys.stdout
        for source, target in ((self._process.stdout, output), (self._process.stderr, sys.stderr)):
            if source is not None:
                thread = threading.Thread(target=copy, args=(source, target), daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(timeout=1.0)


@dataclass
class EndedSteps:
    """The newest steps of one rank: how long each took, their tokens, and when the first and the last ended."""

    seconds: list[float] = field(default_factory=list)
    tokens: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    number: float | None = None

    def ended(
        self, at_s: float, tokens: float = 0.0, seconds: float | None = None, number: float | None = None
    ) -> None:
        """A step, or those since the last line with a number, ended at that time. The first has no duration."""
        if self.first_s is None:
            self.first_s = at_s if seconds is None else at_s - seconds
        if seconds is None and self.last_s:
            count = number - self.number if number is not None and self.number is not None else 1.0
            seconds = (at_s - self.last_s) / count if count > 0 else None
        if self.last_s or seconds is not None:
            self.tokens += tokens
        if seconds is not None:
            self.seconds.append(seconds)
            if len(self.seconds) > MOST_STEPS:
                del self.seconds[: MOST_STEPS // 2]
        self.last_s, self.number = at_s, number

    @property
    def tokens_per_s(self) -> float | None:
        elapsed_s = self.last_s - (self.first_s or 0.0)
        return self.tokens / elapsed_s if self.tokens and elapsed_s > 0 else None

    def quantile(self, share: float) -> float:
        """A quantile of the steps' seconds; the caller knows that there are some."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class MarkReader:
    """Reads what `watch_step` of the job's processes appended to files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def read(self, steps: dict[int, EndedSteps], rank_of: Mapping[int, int]) -> None:
        """Add the new steps to those of their ranks, as `rank_of` has them by process or else the process itself."""
        for path in sorted(self._folder.glob("*.steps")):
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                content = file.read()
            whole = len(content) - len(content) % _MARK.size
            self._read[path.name] = self._read.get(path.name, 0) + whole
            message, _, process = path.stem.partition("-")
            rank = rank_of.get(int(process), int(message))
            for at_s, tokens in _MARK.iter_unpack(content[:whole]):
                steps.setdefault(rank, EndedSteps()).ended(at_s, tokens)


class LogReader:
    """Finds steps in the lines of a log by a regular expression."""

    def __init__(self, pattern: str) -> None:
        """Raises UserError for what is no regular expression, or has no group that says something of a step."""
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise UserError(f"--step-pattern {pattern[:80]!r} is not a regular expression: {error}.") from None
        names = self._pattern.groupindex.keys()
        if not self._pattern.groups or (names and not names & {*GROUPS}):
            raise UserError(
                f"--step-pattern {pattern[:80]!r} has no group for what a line says of a step: name one of "
                f"{', '.join(f'(?P<{name}>...)' for name in GROUPS)}; one group without a name is the seconds."
            )
        self._unread = b""
        self.matched = False

    def feed(self, content: bytes, steps: EndedSteps) -> None:
        """Take what the log has grown by. A carriage return ends a line too, as progress bars write it."""
        *lines, self._unread = re.split(rb"[\r\n]", self._unread + content)
        self._unread = self._unread[-4096:]
        for line in lines:
            found = self._pattern.search(COLOURS.sub("", line[:4096].decode("utf-8", "replace")))
            if found:
                self.matched = True
                names = found.groupdict() if self._pattern.groupindex else {"seconds": found[1]}
                message = {name: _number(text) for name, text in names.items() if text is not None}
                seconds = message.get("seconds")
                if seconds is None and message.get("ms") is not None:
                    seconds = message["ms"] / 1e3  # type: ignore[operator]
                steps.ended(time.monotonic(), message.get("tokens") or 0.0, seconds, message.get("step"))


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None


def summary(
    steps: dict[int, EndedSteps], flop_per_token: float | None, peak_flop_per_s: float | None, ranks: int
) -> dict[str, Any]:
    """Steps' percentiles of each rank, tokens/s of all ranks together, FLOP/s, and their share of all GPUs' peak."""
    counted = {rank: each for rank, each in steps.items() if each.seconds}
    if not counted:
        return {}
    rates = [each.tokens_per_s for each in counted.values() if each.tokens_per_s]
    totals: dict[str, Any] = {
        "ranks": {
            rank: {"steps": len(each.seconds), **{f"p{n}_s": each.quantile(n / 100) for n in (50, 90, 99)}}
            for rank, each in sorted(counted.items())
        }
    }
    if rates:
        totals["tokens_per_s"] = sum(rates)
        if flop_per_token:
            totals["flop_per_s"] = sum(rates) * flop_per_token
            if peak_flop_per_s:
                totals["mfu"] = totals["flop_per_s"] / (peak_flop_per_s * max(1, ranks))
    return totals
