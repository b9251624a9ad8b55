"""The side of a process that serves: requests are lines of JSON on standard input, answers on standard output.

Runs in any interpreter since Python 3.9, and is loaded by its path next to other builds of the suite: it imports the
standard library only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

# The process that this one must not outlive; one that finds another parent than this has been orphaned already.
PARENT_VARIABLE = "PYPERF_PARENT"
# Variables of the suite and of pytest, which no library reads as it is imported: a copy of a template is told them.
TOLD = ("PYPERF_", "PYTEST_")
# Files that are open where CUDA was initialised, of which no copy of a process can make use.
GPU_FILES = "/dev/nvidia"
STACKS_SIGNAL = signal.SIGUSR2
_PR_SET_PDEATHSIG = 1
# Taken before any code of a user's runs, which may put others in their places.
_DUMPS, _LOADS, _WRITE, _GETPID, _EXIT = json.dumps, json.loads, os.write, os.getpid, os._exit

_serving: list[Requests] = []


class Requests:
    """Requests to this process, and its answers; each answer repeats the token of the last request.

    Standard input is empty from now on, and what libraries print goes to standard error, the log; so do the stacks of
    a crash. This process dies with its parent. SIGINT interrupts it, so that the suite can end it politely, although a
    shell has jobs in the background ignore that signal.
    """

    def __init__(self, allow_nan: bool = True) -> None:
        end_with_parent()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._lines, self._answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        stacks = os.dup(2)
        faulthandler.enable(stacks)
        faulthandler.register(STACKS_SIGNAL, stacks)
        self._allow_nan, self._pid = allow_nan, _GETPID()
        self._token = ""
        _serving.append(self)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._lines:
            request: dict[str, Any] = _LOADS(line)
            self._token = request.pop("token", "")
            yield request

    def answer(self, answer: Mapping[str, Any]) -> None:
        """Send an answer. A copy that code of somebody else's forked and let go on says that it is one, and ends."""
        is_copy = _GETPID() != self._pid
        said = {"forked": True} if is_copy else answer
        line = memoryview(_DUMPS({**said, "token": self._token}, allow_nan=self._allow_nan).encode() + b"\n")
        while line:
            line = line[_WRITE(self._answers, line) :]
        if is_copy:
            _EXIT(1)


def end_copy() -> None:
    """End this copy of a process, which somebody else's code forked and let go on; whoever it serves hears of it."""
    for each in _serving:
        each.answer({})
    _EXIT(0)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have Linux send this signal when the parent dies; end now if the parent that started this is dead already."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    parent = os.environ.get(PARENT_VARIABLE, "")
    if parent.isdecimal() and os.getppid() != int(parent):
        # It died before the signal was set. Nobody is left to read a word.
        os._exit(1)


def libraries(own_folders: Sequence[str] = ()) -> list[str]:
    """Names of the modules that were imported from this interpreter's path without the folders `own_folders`, in order.

    A template may import these before it is known whose code a copy will run; none where there are no templates.
    """
    names = []
    for name, module in list(sys.modules.items()) if sys.platform == "linux" else ():
        file = str(getattr(module, "__file__", None) or "")
        place = max((each for each in sys.path if file.startswith(each.rstrip(os.sep) + os.sep)), key=len, default="")
        if place and place not in own_folders and name != "__main__" and name.partition(".")[0] != "pyperf_suite":
            names.append(name)
    return names


def _require_harmless(allowed: Set[str]) -> None:
    """End this template if copies would differ from fresh processes.

    That is if CUDA was initialised, if threads run, which are in no copy, or if a module besides the `allowed` ones was
    imported, of which a side may have its own.
    """
    opened = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            opened.append(str(each.readlink()))
    packages = {*allowed, *getattr(sys, "stdlib_module_names", ())}
    others = [name for name in libraries() if name not in packages and name.partition(".")[0] not in packages]
    if others or threading.active_count() > 1 or any(each.startswith(GPU_FILES) for each in opened):
        os._exit(1)


def serve_copies(channel: int, modules: Sequence[str], work: Callable[[], object]) -> None:
    """Import those modules once; then have a copy of this process `work` for each three descriptors that come.

    They become its standard input, output and error. It is a grandchild, so that the process that asks, which adopts
    orphans, is its parent; that is told its number.
    """
    import mmap
    import random
    import socket

    end_with_parent()
    known = {*sys.modules, *modules}
    for name in modules:
        importlib.import_module(name)
    _require_harmless(known)
    connection = socket.socket(fileno=channel)
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        folder, told = json.loads(message)
        number, written = os.pipe()
        between = os.fork()
        if not between:
            between = os.getpid()
            if own := os.fork():
                os.write(written, str(own).encode())
                os._exit(0)
            while os.getppid() == between:
                time.sleep(1e-4)
            connection.close()
            os.setsid()
            for standard, descriptor in enumerate(descriptors):
                os.dup2(descriptor, standard)
            for descriptor in (number, written, *descriptors):
                os.close(descriptor)
            for name in [name for name in os.environ if name.startswith(TOLD)]:
                del os.environ[name]
            os.environ.update(told)
            os.chdir(folder)
            # Arrays lie elsewhere in each copy, as the system has it for fresh processes.
            draw = random.SystemRandom().randrange
            elsewhere = bytearray(16 * draw(1, 4096)), mmap.mmap(-1, mmap.PAGESIZE * draw(1, 512))
            work()
            del elsewhere
            os._exit(0)
        os.waitpid(between, 0)
        connection.send(os.read(number, 32))
        for descriptor in (*descriptors, number, written):
            os.close(descriptor)
