"""The command that is watched: started as it would be alone, signals passed on to it, its end seen."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TextIO

from pyperf_suite import processes
from pyperf_suite.errors import UserError, printable
from pyperf_suite.user_kernels.api import MARKS_VARIABLE

FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
TAKEN = {*FORWARDED, signal.SIGCHLD}
_DEATH_SIGNAL, _SUBREAPER, _FROM_TERMINAL = 1, 36, 0x80


def require_readable(pid: int) -> None:
    """Raise UserError for a process that is not there, or that belongs to somebody else."""
    if not processes.state_of(pid):
        raise UserError(f"There is no running process {pid}: `ps` lists them.")
    try:
        Path(f"/proc/{pid}/io").read_text()
        Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        raise UserError(f"Process {pid} belongs to another user: watch it as that user.") from None


@contextlib.contextmanager
def marks_folder(owner: int, is_own: bool) -> Iterator[Path]:
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
def signals_taken() -> Iterator[set[signal.Signals]]:
    """Signals are waited for instead of interrupting; gives those that were blocked before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
    try:
        yield {each for each in before if isinstance(each, signal.Signals)}
    finally:
        while signal.sigtimedwait(TAKEN, 0) is not None:  # one that came meanwhile interrupts nothing any more
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Command:
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
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may run as another user, by sudo
            # The terminal sends its signals to the whole group itself.
            if received.si_code != _FROM_TERMINAL or os.getpgid(self._process.pid) != os.getpgrp():
                os.kill(self._process.pid, received.si_signo)

    def copy_output(self, copy: Callable[[IO[bytes], TextIO], None]) -> None:
        """Have `copy` read what the command prints, in a thread for each stream, where it prints to pipes."""
        for source, target in ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)):
            if source is not None:
                thread = threading.Thread(target=copy, args=(source, target), daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(timeout=1.0)
