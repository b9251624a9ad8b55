"""The processes in which a user's code runs, as the judge sees them: what they are asked, and what their end says."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyperf_suite.errors import Failed, Unsupported
from pyperf_suite.hardware.memory import limit_bytes
from pyperf_suite.process.child import ENDED, FORGED, HUNG, ChildProcess, ProcessLost
from pyperf_suite.process.system import SHARED_MEMORY, OwnedFolder
from pyperf_suite.user_kernels.audit import kernel_process
from pyperf_suite.user_kernels.here import Reference, require_answered

SCRIPT = str(Path(kernel_process.__file__))
PYTHON_VARIABLE = "PYPERF_KERNEL_PYTHON"
# Threads of the reference process that wait for work take no core from what is timed.
NO_SPINNING = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


class UserProcess(ChildProcess):
    """A kernel process, started at once and alive until `close`.

    Each request has the time that is left of `deadline_in`. Raises Failed with a sentence from any request.
    """

    POLITE_S = 0.3

    is_here, left = False, None

    def __init__(
        self,
        python: str,
        called: str,
        deadline_s: float,
        memory_bytes: int,
        environment: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        """`called` is what the sentences of a failure call it; the others are as of ChildProcess."""
        self._called, self._where = called, ""
        try:
            super().__init__([python, SCRIPT], {**os.environ, **(environment or {})}, memory_bytes, preload)
        except OSError as error:
            raise Unsupported(f"The interpreter {python} cannot be started: {error.strerror}.") from None
        self.deadline_in(deadline_s)

    def about(self, built: Mapping[str, Any]) -> None:
        """From now on a failure is reported for the function at that place."""
        self._where = f"{built['file']}:{built['line']}" if built["file"] else ""

    def ask(self, request: str, end_s: float | None = None, /, **arguments: Any) -> dict[str, Any]:
        """The answer to one request, by another deadline if given. Raises Failed or Unsupported with a reason."""
        if end_s is not None:
            self.deadline_in(end_s - time.monotonic())
        return self.finish(self.begin(request, **arguments))

    def begin(self, request: str, **arguments: Any) -> str:
        if request == "start":
            self._where = arguments["target"].rpartition(":")[0] or arguments["target"]
            self._root = Path(arguments["root"]).resolve()
        self._doing = request
        self.send({"do": request, **arguments})
        return request

    def finish(self, _: str) -> dict[str, Any]:
        answer = self.receive()
        self.expect_silence()
        return require_answered(answer, self._where)

    def failure(self, lost: ProcessLost) -> Failed:
        """The failure of this case, at its own file; a place in another file is named behind it."""
        words, place, witnesses = lost.words, "", 0
        if lost.cause == HUNG:
            doing = {"start": "be imported", "build": "make its inputs", "make": "make inputs and a reference"}
            words = f"did not {doing.get(self._doing, 'return')} within {lost.deadline_s:.3g} s and was ended"
            if lost.deadline_s <= 0:
                words = f"was not begun to {doing.get(self._doing, 'return')}: the case's time was over (--deadline)"
            place, witnesses = lost.place, 2
        elif lost.cause == FORGED:
            words = "wrote to the suite's own descriptors"
        elif lost.cause == ENDED and not lost.how:
            words = "closed its channel of requests"
        elif lost.how == "signal SIGKILL":
            words = "had its process killed (SIGKILL), by itself or because memory ran out"
        elif lost.how.startswith("signal "):
            words, place, witnesses = f"had its process ended by {lost.how.split()[1]}", lost.place, 2
        elif lost.cause == ENDED:
            words = f"ended its process with {lost.how}"
        reason = lost.cause if lost.cause in (ENDED, FORGED) else ""
        file = self._where.partition(":")[0]
        where, elsewhere = (place, "") if place.partition(":")[0] == file else (self._where, place and f" in {place}")
        printed = f" (it last printed: {lost.last_words})" if lost.last_words else ""
        return Failed(f"{where}: {self._called} {words}{elsewhere}{printed}.", reason, witnesses)


class ReferenceProcess(UserProcess, Reference):
    """The process that makes inputs and computes references; kept for the next case of the same file.

    It goes on after what its code raised, and takes no core between two requests, while others are timed.
    """

    def __init__(self, start: Mapping[str, Any], end_s: float) -> None:
        """`start` is the first request to a process: the file or module, and where to find what it imports."""
        super().__init__(interpreter(), "the reference", end_s - time.monotonic(), limit_bytes(), NO_SPINNING)
        try:
            started = self.ask("start", **start)
            self.library, self.preload = str(started["library"]), tuple(started["preload"])
        except BaseException:
            self.close()
            raise

    def ask(self, request: str, end_s: float | None = None, /, **arguments: Any) -> dict[str, Any]:
        self.signal(signal.SIGCONT)
        try:
            return super().ask(request, end_s, **arguments)
        finally:
            if self.is_waited_for:  # an exception ended the request
                self.close()
            self.signal(signal.SIGSTOP)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        super().close()


def interpreter() -> str:
    """Return the interpreter of a user's code."""
    return os.environ.get(PYTHON_VARIABLE) or sys.executable


@contextlib.contextmanager
def memory_folder(size_bytes: int = 0) -> Iterator[Path]:
    """A folder in memory where there is room, else where temporary files lie; removed at the end."""
    shared = Path(SHARED_MEMORY)
    roomy = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > size_bytes + (1 << 26)
    with OwnedFolder("kernel", str(shared) if roomy else None) as path:
        yield Path(path)
