"""The handle on a process that answers requests: ask with a deadline, bound its memory, say how it ended, end it.

Whatever the process does costs its one request: it is ended with all that it started, by its group and by its descent.
Templates are processes that have imported modules and run nobody's code, of which copies start in no time.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from pyperf_suite.process.serving import PARENT_VARIABLE, STACKS_SIGNAL, TOLD
from pyperf_suite.process.system import crash_place

# How often a waiting handle looks whether there is progress, and at the memory of a process that is bounded.
LOOK_S, LOOK_AT_MEMORY_S, LOOK_FOR_CHILDREN_S = 1.0, 0.05, 0.5
# The last LOG_TAIL_BYTES of the process's output are read; a log larger than LARGEST_LOG_BYTES is emptied.
LOG_TAIL_BYTES, LARGEST_LOG_BYTES, LARGEST_ANSWER_BYTES = 64 << 10, 16 << 20, 64 << 20
# A template imports its modules before it answers; a process that waited this long is started by itself.
ANSWERS_WITHIN_S = 30.0
HUNG, ENDED, FORGED = "no answer in time", "process ended", "forged answer"
# How long a process whose channel closed may take to end, and one that hangs to write its stacks down.
_ENDING_S, _WRITING_S = 1.0, 1.0
# How faulthandler begins stacks, on request and at a crash.
_STACKS = re.compile(r"^(?:Fatal Python error: |Timeout \(|(?:Current thread|Thread) 0x)", re.MULTILINE)
_PR_SET_CHILD_SUBREAPER = 36
_CPU_CLOCK_OF_A_PROCESS = 2


@dataclass(eq=False)
class ProcessLost(Exception):
    """A process answers no more: the `cause`, and what the process did, in words that follow its name.

    `code` is that of a process that ended by itself; `place` is where its crash or its hang was, in nobody's library;
    `deadline_s` is how long the last answer was waited for.
    """

    cause: str
    words: str
    code: int | None
    place: str
    last_words: str
    deadline_s: float

    def __str__(self) -> str:
        how = f" ({self.how})" if self.how else ""
        place = f" at {self.place}" if self.place else ""
        return f"{self.words}{how}{place}" + (f"; its last words: {self.last_words}" if self.last_words else "")

    @property
    def how(self) -> str:
        """`signal SIGSEGV` or `exit code 3`; empty for a process that was ended from here."""
        if self.code is None or self.code >= 0:
            return "" if self.code is None else f"exit code {self.code}"
        try:
            return f"signal {signal.Signals(-self.code).name}"
        except ValueError:
            return f"signal {-self.code}"


class ChildProcess:
    """One process, alive until `close` or until it is lost; subclasses have their `failure` and their `progress`."""

    # How long a process that is to end by itself may take.
    POLITE_S = 2.0

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        memory_bytes: float = math.inf,
        preload: Sequence[str] = (),
    ) -> None:
        """`environment` is all that the process gets; `memory_bytes` is what it and its children may hold.

        `preload` are modules that a template of the command has imported: the process is then a copy of it, if there
        can be one. Raises OSError where the command cannot be started.
        """
        self._memory_bytes, self._is_bounded = memory_bytes, memory_bytes < math.inf
        self._watched: list[psutil.Process] = []
        self._looked_s = -math.inf
        self._tokens: deque[str] = deque([""], maxlen=8)  # of the latest requests; each answer repeats its own
        self._unanswered = 0
        self._unread = b""
        self._heard_bytes = 0  # of the log, before its last words
        self._end_s = self._deadline_s = 0.0
        self._root = Path.cwd()
        self._log = _new_log()
        if self._is_bounded or preload:
            _adopt_orphans()
        variables = {**(os.environ if environment is None else environment), PARENT_VARIABLE: str(os.getpid())}
        requests, self._to = _pipe()
        self._from, answers = _pipe()
        self._answers = select.poll()
        self._answers.register(self._from, select.POLLIN)
        try:
            with requests, answers:
                files = (requests, answers, self._log)
                copy = copy_of_a_template(command, preload, files, variables) if preload else None
                standard = {"stdin": requests, "stdout": answers, "stderr": self._log}
                self._process: psutil.Process = copy or psutil.Popen(
                    command, **standard, env=variables, start_new_session=True
                )
        except BaseException:
            for each in (self._to, self._from, self._log):  # a process whose start is interrupted ends
                each.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_closed(self) -> bool:
        return self._log.closed

    @property
    def is_waited_for(self) -> bool:
        """True if answers to the last request are due: the next request needs another process."""
        return self._unanswered > 0

    def progress(self) -> object:
        """Another value than before where the deadline of an answer begins anew."""

    def failure(self, lost: ProcessLost) -> Exception:
        """The exception that tells of a loss."""
        return lost

    def send(self, request: Mapping[str, Any], answers: int = 1) -> None:
        """Send a request, due `answers` answers, and do not wait. Raises `failure` if none reads it or some are due."""
        if self.is_closed:
            raise self.lost(ENDED, "had ended before it was sent a request")
        if self.is_waited_for:
            raise self.lost("request refused", "was sent a request before it had answered the last one, and was ended")
        self._bound_log()
        self._tokens.append(secrets.token_hex(8))
        self._unanswered = answers
        line = memoryview(json.dumps({**request, "token": self._tokens[-1]}).encode() + b"\n")
        try:
            while line:
                line = line[self._to.write(line) :]
        except (OSError, ValueError):
            raise self.lost(ENDED, "died before it was sent a request") from None

    def deadline_in(self, seconds: float) -> None:
        """Answers are due so long from now, and anew so long from each progress."""
        self._end_s, self._deadline_s = time.monotonic() + seconds, seconds

    def receive(self, deadline_s: float | None = None) -> dict[str, Any]:
        """The next answer, due after `deadline_s` or as set before. Raises `failure`, also for another request's."""
        if deadline_s is not None:
            self.deadline_in(deadline_s)
        answer = self._checked(self._read_line())
        self._unanswered -= 1
        return answer

    def expect_silence(self) -> None:
        """Raise `failure` if something follows the last answer."""
        for line in self._unread.splitlines():
            self._checked(line)
            raise self._forged()

    def forget_words(self) -> None:
        """Forget what was printed until now, which is of something that is over."""
        if not self.is_closed:
            self._heard_bytes = os.fstat(self._log.fileno()).st_size

    def signal(self, number: int) -> None:
        """Send it a signal, if it still lives."""
        if not self.is_closed:
            with contextlib.suppress(psutil.Error):
                self._process.send_signal(number)

    def cpu_seconds(self) -> float:
        """CPU time that the process and its living children have used, by Linux's own clock of each."""
        total = 0.0
        for each in self._family():
            with contextlib.suppress(OSError):
                total += time.clock_gettime((~each.pid << 3) | _CPU_CLOCK_OF_A_PROCESS)
        return total

    def lost(self, cause: str, words: str) -> Exception:
        """End the process, and return the exception that says why."""
        code = None
        with contextlib.suppress(psutil.TimeoutExpired):
            code = self._process.wait(_ENDING_S if cause == ENDED else 0)
        if cause == HUNG:  # what serves writes down where it is
            self.signal(STACKS_SIGNAL)
            end_s = time.monotonic() + _WRITING_S
            while not self._said()[1] and time.monotonic() < end_s:
                time.sleep(0.05)
        if not self.is_closed:
            self._kill(self._family())
        last_words, place = self._said()
        failure = self.failure(ProcessLost(cause, words, code, place, last_words, self._deadline_s))
        self.close()
        return failure

    def let_go(self) -> None:
        """Send no further request, so that the process can end."""
        with contextlib.suppress(OSError):
            self._to.close()

    def close(self) -> None:
        """End the process: politely, so that it ends what it started, then by signals to its group and descendants."""
        if self.is_closed:
            return
        family = self._family() if self._is_bounded else []
        if self.is_waited_for:  # it is at work, and would not look at its input
            self.signal(signal.SIGINT)
        self.let_go()
        try:
            self._process.wait(self.POLITE_S)
            if family:
                self._kill(family)
        except BaseException as error:
            self._kill(family or self._family())
            if not isinstance(error, psutil.TimeoutExpired):
                raise
        self._from.close()
        self._log.close()

    def choose(self, lines: Sequence[str]) -> str:
        """Return the line of the process's output that tells most of its end."""
        return lines[-1] if lines else ""

    def _said(self) -> tuple[str, str]:
        """Its last words, and `file:line` where its stacks say that it crashed or hangs."""
        if self.is_closed:
            return "", ""
        size = os.fstat(self._log.fileno()).st_size
        begin = max(size - LOG_TAIL_BYTES, self._heard_bytes if self._heard_bytes <= size else 0)
        log = os.pread(self._log.fileno(), LOG_TAIL_BYTES, begin).decode(errors="replace")
        printed, *stacks = _STACKS.split(log, maxsplit=1)
        return self.choose(printed.strip().splitlines())[:300], crash_place("".join(stacks), self._root)

    def _checked(self, line: bytes) -> dict[str, Any]:
        """The answer in a line, without its token; raises `failure` where it is none to the last request."""
        try:
            answer: dict[str, Any] = json.loads(line)
            token = answer.pop("token", "")
        except (ValueError, AttributeError, TypeError, RecursionError):
            words = f"answered something that is no JSON object ({line[:60]!r}) and was ended"
            raise self.lost(FORGED, words) from None
        # A copy may come to speak when the next request is under way.
        if answer.get("forked") and token in self._tokens:
            raise self.lost("process copied", "forked, and the copy of the process went on next to it")
        if token != self._tokens[-1] and answer.get("fatal"):  # said between two requests
            raise self.lost(ENDED, f"was no longer there: {answer.get('reason')}")
        if token != self._tokens[-1]:
            raise self._forged()
        return answer

    def _forged(self) -> Exception:
        return self.lost(FORGED, "answered another request than its last one and was ended")

    def _read_line(self) -> bytes:
        look_s = LOOK_AT_MEMORY_S if self._is_bounded else LOOK_S
        progress = self.progress()
        while b"\n" not in self._unread:
            left_s = self._end_s - time.monotonic()
            if self._answers.poll(1000 * max(0.0, min(left_s, look_s))):
                part = self._from.read(1 << 16)
                if not part:
                    raise self.lost(ENDED, "died")
                self._unread += part
                if len(self._unread) > LARGEST_ANSWER_BYTES:
                    raise self.lost("answer too long", "sent more than any answer to the suite")
                continue
            self._bound_log()
            if self._is_bounded:
                # The search for its children takes long.
                if time.monotonic() - self._looked_s > LOOK_FOR_CHILDREN_S:
                    self._watched, self._looked_s = self._family(), time.monotonic()
                resident = 0
                for each in self._watched:
                    with contextlib.suppress(psutil.Error):
                        resident += each.memory_info().rss
                if resident > self._memory_bytes:
                    words = f"took {resident / 1e9:.1f} GB of memory, where {self._memory_bytes / 1e9:.1f} GB were free"
                    raise self.lost("memory", words)
            last, progress = progress, self.progress()
            if progress != last:
                self.deadline_in(self._deadline_s)
            elif time.monotonic() >= self._end_s:
                raise self.lost(HUNG, f"did not answer within {self._deadline_s:.3g} s and was ended")
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _bound_log(self) -> None:
        if os.fstat(self._log.fileno()).st_size > LARGEST_LOG_BYTES:
            os.ftruncate(self._log.fileno(), 0)

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._process, *self._process.children(recursive=True)]
        except psutil.Error:
            return []

    def _kill(self, family: Sequence[psutil.Process]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for each in family:
            with contextlib.suppress(psutil.Error):
                each.kill()
        self._process.wait()


class Template:
    """One template, started at once. With `serve CHANNEL MODULES` behind it `command` serves copies (serving.py)."""

    def __init__(self, command: Sequence[str], modules: Sequence[str]) -> None:
        self._environment = _read_by_libraries()
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(ANSWERS_WITHIN_S)
        with theirs:
            self._process = subprocess.Popen(
                [*command, "serve", str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
            )

    @property
    def is_usable(self) -> bool:
        """True while it lives and would import the same in this environment."""
        return self._process.poll() is None and self._environment == _read_by_libraries()

    def copy(self, standard: Sequence[BinaryIO], variables: Mapping[str, str]) -> psutil.Process:
        """A process with this standard input, output and error, told of the variables. Raises OSError without one."""
        message = [str(Path.cwd()), {name: value for name, value in variables.items() if name.startswith(TOLD)}]
        socket.send_fds(self._channel, [json.dumps(message).encode()], [each.fileno() for each in standard])
        return psutil.Process(int(self._channel.recv(32)))

    def close(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()


def _read_by_libraries() -> dict[str, str]:
    """The variables that decide what modules do as they are imported."""
    return {name: value for name, value in os.environ.items() if not name.startswith(TOLD)}


templates: dict[tuple[str, ...], Template] = {}
# Templates that could not be made once: each further try would take as long as the imports.
_refused: set[tuple[str, ...]] = set()


def copy_of_a_template(
    command: Sequence[str], modules: Sequence[str], standard: Sequence[BinaryIO], variables: Mapping[str, str]
) -> psutil.Process | None:
    """A copy of the template of that command and modules, made where it is not; None where one could not be once."""
    key = (*command, *modules)
    if key in _refused:
        return None
    try:
        if key not in templates or not templates[key].is_usable:
            forget_templates()
            templates[key] = Template(command, modules)
        return templates[key].copy(standard, variables)
    except (OSError, ValueError, psutil.Error):
        forget_templates()
        _refused.add(key)
        return None


@atexit.register
def forget_templates() -> None:
    """End the templates, as this process does when it ends in order."""
    while templates:
        templates.popitem()[1].close()


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    """A file to read from and one to write to, which close when nobody has them any more."""
    readable, writable = os.pipe()
    return os.fdopen(readable, "rb", buffering=0), os.fdopen(writable, "wb", buffering=0)


def _new_log() -> BinaryIO:
    """A file without a name that is always written at its end: in memory where there can be one."""
    if not hasattr(os, "memfd_create"):
        return tempfile.TemporaryFile("a+b", buffering=0)
    import fcntl

    log = os.fdopen(os.memfd_create("log"), "r+b", buffering=0)
    fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
    return log


def _adopt_orphans() -> None:
    """Have Linux give this process what the child left behind, so that it can be ended."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
