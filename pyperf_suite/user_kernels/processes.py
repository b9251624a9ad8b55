"""The judge's handle on the processes in which a user's code runs: ask with a deadline, bound them, say how they ended.

Whatever the code does, it costs one case: it is ended with all that it started, by its group and by its descent.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from pyperf_suite import processes
from pyperf_suite.errors import Failed, Unsupported
from pyperf_suite.hardware import memory
from pyperf_suite.user_kernels import kernel_process
from pyperf_suite.user_kernels.here import require_answered
from pyperf_suite.user_kernels.reference import Reference

SCRIPT = str(Path(kernel_process.__file__))

# How often a waiting judge looks at the memory that the process holds.
WATCH_S = 0.05
LOOK_FOR_CHILDREN_S = 0.5

# Of what the process prints, the last is kept.
KEPT_LOG_BYTES = 64 << 10

LARGEST_ANSWER_BYTES = 64 << 20

# The reason in a record where the process ended during a request.
ENDED = "process ended"

# A template imports its modules before it answers; a process that waited so long is started by itself.
TEMPLATE_S = 30.0

# After this much of silence a process that was to end is killed.
POLITE_S = 0.3

# Which interpreter runs a user's code, by default this one's.
PYTHON_VARIABLE = "PYPERF_KERNEL_PYTHON"

# Of the memory that is free, what a kernel process may take.
MEMORY_SHARE = 0.8

# Threads of the reference process that wait for work take no core from what is timed.
NO_SPINNING = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}

_PR_SET_CHILD_SUBREAPER = 36
_CPU_CLOCK_OF_A_PROCESS = 2


class UserProcess:
    """A kernel process, started at once and alive until `close`.

    `called` is what the sentences of a failure call it; `memory_bytes` is how much it and its children may hold.
    """

    is_here, left = False, None

    def __init__(
        self,
        python: str,
        folder: Path,
        called: str,
        deadline_s: float,
        memory_bytes: int,
        environment: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        """Modules that are to be imported before are those of a template, of which it is then a copy."""
        _adopt_orphans()
        self._called, self._where, self._memory_bytes = called, "", memory_bytes
        self._root = Path()
        self.deadline_in(deadline_s)
        self._unread = b""
        self._tokens: deque[str] = deque(maxlen=8)  # of the latest requests
        self._watched: list[psutil.Process] = []
        self._looked_s = -LOOK_FOR_CHILDREN_S
        self._log: deque[bytes] = deque()
        self._stack = folder / "stack"
        requests, self._to = os.pipe()
        self._from, answers = os.pipe()
        output, printed = os.pipe()
        self._process: psutil.Process
        copied = _copy_of_a_template(python, preload, self._stack, (requests, answers, printed)) if preload else None
        try:
            self._process = copied or psutil.Popen(
                [python, SCRIPT, str(requests), str(answers), str(self._stack)],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=(requests, answers),
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            for each in (self._to, self._from, output):
                os.close(each)
            raise Unsupported(f"The interpreter {python} cannot be started: {error.strerror}.") from None
        finally:
            for each in (requests, answers, printed):
                os.close(each)
        self._reader = threading.Thread(target=self._read_log, args=(output,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def about(self, built: Mapping[str, Any]) -> None:
        """From now on a failure is reported for the function at that place."""
        self._where = f"{built['file']}:{built['line']}" if built["file"] else ""

    def deadline_in(self, seconds: float) -> None:
        self._end_s, self._deadline_s = time.monotonic() + seconds, seconds

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request. Raises Failed with a sentence, Unsupported with a reason."""
        return self.finish(self.begin(what, **arguments))

    def begin(self, what: str, **arguments: Any) -> str:
        if what == "start":
            self._where = arguments["target"].rpartition(":")[0] or arguments["target"]
            self._root = Path(arguments["root"]).resolve()
        self._token = secrets.token_hex(8)
        self._tokens.append(self._token)
        line = memoryview(json.dumps({"do": what, "token": self._token, **arguments}).encode() + b"\n")
        try:
            while line:
                line = line[os.write(self._to, line) :]
        except OSError:
            raise self._ended(what) from None
        return what

    def finish(self, what: str) -> dict[str, Any]:
        answer, *others = map(_parsed, [self._read_line(what), *self._unread.splitlines()])
        # The copy may come to speak when the next request is under way.
        if any(each.get("forked") and each.get("token") in self._tokens for each in (answer, *others)):
            raise self._lost("forked, and the copy of the process went on next to the one that is measured")
        if others or answer.get("token") != self._token:
            raise self._lost("wrote to the suite's own descriptors", reason="forged answer")
        return require_answered(answer, self._where)

    def pause(self, paused: bool) -> None:
        """Stop the process, threads that wait busily too, or let it go on."""
        if not self.is_closed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGSTOP if paused else signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """CPU time that the process and its living children have used, by Linux's own clock of each."""
        total = 0.0
        for each in self._family():
            with contextlib.suppress(OSError):
                total += time.clock_gettime((~each.pid << 3) | _CPU_CLOCK_OF_A_PROCESS)
        return total

    def last_words(self) -> str:
        lines = b"".join(self._log).decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    @property
    def is_closed(self) -> bool:
        return self._to < 0

    def close(self) -> None:
        if self.is_closed:
            return
        family = self._family()
        os.close(self._to)
        self._to = -1
        with contextlib.suppress(psutil.TimeoutExpired):
            self._process.wait(POLITE_S)
        self._kill(family)
        os.close(self._from)
        self._reader.join(timeout=1.0)

    def _read_line(self, what: str) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left_s = self._end_s - time.monotonic()
                if left_s <= 0:
                    raise self._hung(what)
                if not selector.select(min(left_s, WATCH_S)):
                    self._watch_memory()
                    continue
                part = os.read(self._from, 1 << 16)
                if not part:
                    raise self._ended(what)
                self._unread += part
                if len(self._unread) > LARGEST_ANSWER_BYTES:
                    raise self._lost("sent more than any answer to the suite")
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _watch_memory(self) -> None:
        # Who its children are takes long to find out.
        if time.monotonic() - self._looked_s > LOOK_FOR_CHILDREN_S:
            self._watched, self._looked_s = self._family(), time.monotonic()
        held = 0
        for each in self._watched:
            with contextlib.suppress(psutil.Error):
                held += each.memory_info().rss
        if held > self._memory_bytes:
            raise self._lost(f"took {held / 1e9:.1f} GB of memory, where {self._memory_bytes / 1e9:.1f} GB were free")

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._process, *self._process.children(recursive=True)]
        except psutil.Error:
            return []

    def _hung(self, what: str) -> Failed:
        place = ""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGUSR2)
            for _ in range(20):
                time.sleep(0.05)
                place = self._place_in_stack()
                if place:
                    break
        doing = {"start": "be imported", "build": "make its inputs", "make": "make inputs and a reference"}
        words = f"did not {doing.get(what, 'return')} within {self._deadline_s:.3g} s and was ended"
        return self._lost(words, place, witnesses=2)

    def _place_in_stack(self) -> str:
        """Where it was in the user's code, by the stack that it wrote."""
        try:
            return processes.crash_place(self._stack.read_text(errors="replace"), self._root)
        except OSError:
            return ""

    def _ended(self, what: str) -> Failed:
        code = None
        with contextlib.suppress(psutil.TimeoutExpired):
            code = self._process.wait(1.0)
        if code is None:
            return self._lost("closed its channel of requests", reason=ENDED)
        if code == -signal.SIGKILL:
            return self._lost("had its process killed (SIGKILL), by itself or because memory ran out", reason=ENDED)
        if code < 0:
            with contextlib.suppress(ValueError):
                words = f"had its process ended by {signal.Signals(-code).name}"
                return self._lost(words, self._place_in_stack(), ENDED, witnesses=2)
        return self._lost(f"ended its process with exit code {code}", reason=ENDED)

    def _lost(self, words: str, place: str = "", reason: str = "", witnesses: int = 0) -> Failed:
        """The failure of this case, at its own file; a place in another file is named behind it."""
        self.close()
        file = self._where.partition(":")[0]
        where, elsewhere = (place, "") if place.partition(":")[0] == file else (self._where, place and f" in {place}")
        printed = f" (it last printed: {said})" if (said := self.last_words()) else ""
        return Failed(f"{where}: {self._called} {words}{elsewhere}{printed}.", reason, witnesses)

    def _kill(self, family: list[psutil.Process]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for each in family:
            with contextlib.suppress(psutil.Error):
                each.kill()
        self._process.wait()

    def _read_log(self, output: int) -> None:
        kept = 0
        with os.fdopen(output, "rb", buffering=0) as file:
            while part := file.read(1 << 16):
                self._log.append(part)
                kept += len(part)
                while kept - len(self._log[0]) > KEPT_LOG_BYTES:
                    kept -= len(self._log.popleft())


class _Template:
    """A process that has imported modules, and runs nobody's code: copies of it start in no time."""

    def __init__(self, python: str, modules: Sequence[str]) -> None:
        self._environment = _read_by_libraries()
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(TEMPLATE_S)
        with theirs:
            self._process = subprocess.Popen(
                [python, SCRIPT, "serve", str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    @property
    def is_usable(self) -> bool:
        return self._process.poll() is None and self._environment == _read_by_libraries()

    def copy(self, stack: Path, descriptors: Sequence[int]) -> psutil.Process:
        """A process that writes stacks there and has these descriptors. Raises OSError where there is none."""
        told = {name: value for name, value in os.environ.items() if name.startswith(kernel_process.TOLD)}
        socket.send_fds(self._channel, [json.dumps([str(stack), str(Path.cwd()), told]).encode()], descriptors)
        return psutil.Process(int(self._channel.recv(32)))

    def close(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()


def _read_by_libraries() -> dict[str, str]:
    """The variables that decide what modules do as they are imported."""
    return {name: value for name, value in os.environ.items() if not name.startswith(kernel_process.TOLD)}


_templates: dict[tuple[str, ...], _Template] = {}


def _copy_of_a_template(
    python: str, modules: Sequence[str], stack: Path, descriptors: Sequence[int]
) -> psutil.Process | None:
    """Of that of an interpreter and modules, as long as it lives and the environment is the same; None without one."""
    key = (python, *modules)
    try:
        if key not in _templates or not _templates[key].is_usable:
            forget_templates()
            _templates[key] = _Template(python, modules)
        return _templates[key].copy(stack, descriptors)
    except (OSError, ValueError, psutil.Error):
        forget_templates()
        return None


@atexit.register
def forget_templates() -> None:
    """End the templates, as this process does when it ends in order."""
    while _templates:
        _templates.popitem()[1].close()


class ReferenceProcess(Reference):
    """The process that makes inputs and computes references; kept for the next case of the same file."""

    def __init__(self, start: Mapping[str, Any], end_s: float) -> None:
        """`start` is the first request to a process: the file or module, and where to find what it imports."""
        self._resources = contextlib.ExitStack()
        folder = self._resources.enter_context(memory_folder())
        left_s = end_s - time.monotonic()
        self._process = UserProcess(interpreter(), folder, "the reference", left_s, limit_bytes(), NO_SPINNING)
        self._resources.callback(self._process.close)
        try:
            started = self._process.ask("start", **start)
            self.library, self.preload = str(started["library"]), tuple(started["preload"])
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, end_s: float, **arguments: Any) -> dict[str, Any]:
        """One request; a process that is lost gets no further request. Raises Failed."""
        self._process.deadline_in(end_s - time.monotonic())
        self._process.pause(False)
        try:
            return self._process.ask(what, **arguments)
        except Failed:
            # What its code raised costs one case; other cases of the file go on with it.
            if self._process.is_closed:
                self.close()
            raise
        finally:
            # While others are timed it takes no core.
            self._process.pause(True)

    def cpu_seconds(self) -> float:
        return self._process.cpu_seconds()

    def close(self) -> None:
        self.is_lost = True
        self._process.pause(False)
        self._resources.close()


def interpreter() -> str:
    """What runs a user's code."""
    return os.environ.get(PYTHON_VARIABLE) or sys.executable


def limit_bytes() -> int:
    """What a kernel process may take of the memory that is free."""
    return int(MEMORY_SHARE * memory.available_bytes())


@contextlib.contextmanager
def memory_folder(size_bytes: int = 0) -> Iterator[Path]:
    """A folder in memory where there is room, else where temporary files lie; removed at the end."""
    shared = Path(processes.SHARED_MEMORY)
    roomy = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > size_bytes + (1 << 26)
    name = processes.owned_name("kernel", os.getpid())
    with tempfile.TemporaryDirectory(
        prefix=name, dir=str(shared) if roomy else None, ignore_cleanup_errors=True
    ) as path:
        yield Path(path)


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _adopt_orphans() -> None:
    """Have Linux give this process what the user's code left behind, so that it can be ended."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
