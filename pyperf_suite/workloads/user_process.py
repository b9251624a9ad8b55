"""The judge's handle on a process in which a user's code runs: ask with a deadline, bound it, and say how it ended.

Whatever the code does, it costs one case: it is ended with all that it started, by its group and by its descent.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from pyperf_suite.errors import Failed, Unsupported
from pyperf_suite.kernel_arrays import POISON
from pyperf_suite.workloads import kernel_process
from pyperf_suite.workloads.operands import widen

# How often a waiting judge looks at the memory that the process holds.
WATCH_S = 0.05
LOOK_FOR_CHILDREN_S = 0.5

# Of what the process prints, the last is kept.
KEPT_LOG_BYTES = 64 << 10

LARGEST_ANSWER_BYTES = 64 << 20

# The reason in a record where the process ended while it was asked something.
ENDED = "process ended"

# After this much of silence a process that was told to end is killed.
POLITE_S = 0.3

_PR_SET_CHILD_SUBREAPER = 36
_CPU_CLOCK_OF_A_PROCESS = 2
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class UserProcess:
    """A kernel process, started at once and alive until `close`.

    `called` is what the sentences of a failure call it; `memory_bytes` is how much it and its children may hold.
    """

    def __init__(
        self,
        python: str,
        folder: Path,
        called: str,
        deadline_s: float,
        memory_bytes: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        _adopt_orphans()
        self._called, self._where, self._memory_bytes = called, "", memory_bytes
        self.deadline_in(deadline_s)
        self._unread = b""
        self._tokens: deque[str] = deque(maxlen=8)  # of the latest requests
        self._watched: list[psutil.Process] = []
        self._looked_s = -LOOK_FOR_CHILDREN_S
        self._log: deque[bytes] = deque()
        self.printed_bytes = 0
        self._stack = folder / "stack"
        requests, self._to = os.pipe()
        self._from, answers = os.pipe()
        output, printed = os.pipe()
        script = str(Path(kernel_process.__file__))
        try:
            self._process = subprocess.Popen(
                [python, script, str(requests), str(answers), str(self._stack)],
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
        """From now on a failure is told of the function at that place."""
        self._where = f"{built['file']}:{built['line']}" if built["file"] else ""

    def deadline_in(self, seconds: float) -> None:
        self._end_s, self._deadline_s = time.monotonic() + seconds, seconds

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request. Raises Failed with a sentence, Unsupported with a reason."""
        return self.finish(self.begin(what, **arguments))

    def begin(self, what: str, **arguments: Any) -> str:
        if what == "start":
            self._where = arguments["target"].rpartition(":")[0] or arguments["target"]
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
            raise self._lost("forked, and the copy of the process went on beside the one that is measured")
        if others or answer.get("token") != self._token:
            raise self._lost("wrote to the suite's own descriptors", reason="forged answer")
        if "unsupported" in answer:
            raise Unsupported(str(answer["unsupported"])[:1000])
        if "error" in answer:
            file, at = answer.get("file"), answer.get("line")
            place = f"{file}:{at}" if file and at else file or self._where
            raise Failed(f"{place}: {str(answer['error'])[:1000]}.", str(answer.get("reason", ""))[:40])
        return answer

    def pause(self, paused: bool) -> None:
        """Stop the process, threads that wait busily too, or let it go on."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

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

    def close(self) -> None:
        if self._to < 0:
            return
        family = self._family()
        os.close(self._to)
        self._to = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=POLITE_S)
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
            own = psutil.Process(self._process.pid)
            return [own, *own.children(recursive=True)]
        except psutil.Error:
            return []

    def _hung(self, what: str) -> Failed:
        place = ""
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGUSR2)
            for _ in range(20):
                time.sleep(0.05)
                place = self._place_in_stack()
                if place:
                    break
        doing = {"start": "be imported", "build": "make its inputs", "make": "make inputs and a reference"}
        words = f"did not {doing.get(what, 'return')} within {self._deadline_s:.3g} s and was ended"
        return self._lost(words, place)

    def _place_in_stack(self) -> str:
        """Of the stack that it wrote, the innermost place in code that is neither the suite's nor a library's."""
        try:
            frames = _FRAME.findall(self._stack.read_text(errors="replace"))
        except OSError:
            return ""
        ours = str(kernel_process.PACKAGE)
        theirs = [
            (file, line) for file, line in frames if not file.startswith((ours, "<")) and "/lib/python" not in file
        ]
        return f"{_short(theirs[0][0])}:{theirs[0][1]}" if theirs else ""

    def _ended(self, what: str) -> Failed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        code = self._process.returncode
        if code is None:
            return self._lost("closed what it is asked through", reason=ENDED)
        if code == -signal.SIGKILL:
            return self._lost("had its process killed (SIGKILL), by itself or because memory ran out", reason=ENDED)
        if code < 0:
            with contextlib.suppress(ValueError):
                return self._lost(
                    f"had its process ended by {signal.Signals(-code).name}", self._place_in_stack(), ENDED
                )
        return self._lost(f"ended its process with exit code {code}", reason=ENDED)

    def _lost(self, words: str, place: str = "", reason: str = "") -> Failed:
        self.close()
        said = self.last_words()
        return Failed(
            f"{place or self._where}: {self._called} {words}{f' (it last printed: {said})' if said else ''}.", reason
        )

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
                self.printed_bytes += len(part)
                self._log.append(part)
                kept += len(part)
                while kept - len(self._log[0]) > KEPT_LOG_BYTES:
                    kept -= len(self._log.popleft())


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _short(file: str) -> str:
    with contextlib.suppress(ValueError):
        return Path(file).relative_to(Path.cwd()).as_posix()
    return file


def _adopt_orphans() -> None:
    """Have Linux give this process what the user's code left behind, so that it can be ended."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


# bfloat16 and float8 are bits to numpy.
BITS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}

Array = NDArray[Any]


def read_tree(path: str) -> dict[str, Any]:
    """What a process wrote of a result; a Failed where it is none, for the process may write anything."""
    try:
        tree = json.loads(Path(f"{path}.json").read_text("utf-8"))
        _require_tree(tree, Path(path).stat().st_size)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Failed(f"The kernel process wrote a result that cannot be read ({error!r:.100}).") from None
    return dict(tree)


def _require_tree(tree: Any, size_bytes: int) -> None:
    if tree["kind"] in ("tuple", "dict"):
        for each in tree["items"] if tree["kind"] == "tuple" else tree["items"].values():
            _require_tree(each, size_bytes)
    elif tree["kind"] == "array":
        storage = stored_type(tree["dtype"])
        if math.prod(tree["shape"]) * storage.itemsize != tree["bytes"]:
            raise ValueError("an array of another size than its shape")
        if not 0 <= tree["offset"] <= tree["offset"] + tree["bytes"] <= size_bytes:
            raise ValueError("an array outside of its file")
    elif tree["kind"] != "plain" or "value" not in tree:
        raise ValueError("no result")


def float_bytes(dtype: str) -> int:
    """The size of a real or complex floating-point type's real part; 0 for other types."""
    if not dtype.startswith(("float", "bfloat", "complex")):
        return 0
    return stored_type(dtype).itemsize // (2 if dtype.startswith("complex") else 1)


def stored_type(dtype: str) -> np.dtype[Any]:
    """As numpy stores it. Raises ValueError for objects."""
    found = np.dtype(BITS.get(dtype, dtype))
    if found.hasobject:
        raise ValueError("objects")
    return found


def read_array(path: str, spec: Mapping[str, Any]) -> Array:
    """The values of an array in a file; of bfloat16 and float8 as float32."""
    count = math.prod(spec["shape"])
    values = np.fromfile(path, stored_type(spec["dtype"]), count, offset=spec["offset"]).reshape(spec["shape"])
    if spec["dtype"] == "float8_e5m2":  # the upper half of a float16
        return (values.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)
    return widen(values, spec["dtype"]) if spec["dtype"] in BITS else values


def holds_poison(tree: Mapping[str, Any], path: str) -> bool:
    """Whether a result holds a NaN that the suite put in its place."""
    if tree["kind"] in ("tuple", "dict"):
        items = tree["items"] if tree["kind"] == "tuple" else tree["items"].values()
        return any(holds_poison(each, path) for each in items)
    if tree["kind"] != "array":
        return False
    storage = stored_type(tree["dtype"])
    size = storage.itemsize // (2 if storage.kind == "c" else 1)
    if size not in POISON or not ("float" in tree["dtype"] or storage.kind == "c"):
        return False
    bits = read_bytes(path, tree["offset"], tree["bytes"]).view(f"i{size}")
    return bool((bits == POISON[size]).any())


def read_bytes(path: str, offset: int, size_bytes: int) -> Array:
    """Part of a file."""
    return np.fromfile(path, np.uint8, size_bytes, offset=offset)
