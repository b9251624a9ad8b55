"""A user's code in the process that judges it: the same requests as a process of its own is sent, answered by a call.

A crash of the code ends the process, which is a worker's, or pytest's where a test launches its own functions. What
only code that attacks its judge takes, two processes that share nothing, is audit's (audit/).
"""

from __future__ import annotations

import os
import secrets
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from pyperf_suite.errors import Failed, Unsupported
from pyperf_suite.process.serving import end_copy
from pyperf_suite.user_kernels.api import USUAL, DeclaredKernel, Launch
from pyperf_suite.user_kernels.arrays import Leaf, assign, replaced, walk
from pyperf_suite.user_kernels.kernel_case import KernelCase
from pyperf_suite.user_kernels.user_file import UserFile

# Bytes of inputs up to which one thread makes them and computes their reference.
SMALL_BYTES = 4 << 20
TEST_LAUNCH = "given"
# Settings of a whole process that the suite measures by: a user's holds while the user's code runs.
_CLOCKS = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep", "time", "time_ns")


def _settings() -> tuple[Any, ...]:
    return np.geterr(), warnings.filters, {name: getattr(time, name) for name in _CLOCKS}


_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}

# Settings that do not hold now: the suite's, as numpy and `time` have them, and no warning an error.
_others: tuple[Any, ...] = (_ERRORS, [], _settings()[2])


@contextmanager
def exchanged() -> Iterator[None]:
    """The other party's settings: the suite's within a user's, and the user's within those."""
    _exchange()
    try:
        yield
    finally:
        _exchange()


def _exchange() -> None:
    global _others
    mine, (errors, filters, clocks) = _settings(), _others
    np.seterr(**errors)
    warnings.filters = filters
    warnings._filters_mutated()  # type: ignore[attr-defined]
    for name, clock in clocks.items():
        setattr(time, name, clock)
    _others = mine


class Reference(ABC):
    """A file's inputs and references, by requests. `library` is what its arrays are of."""

    library: str
    # Modules that a process of its own may import before it is known whose it is.
    preload: tuple[str, ...] = ()

    @abstractmethod
    def ask(self, request: str, end_s: float | None = None, /, **arguments: Any) -> dict[str, Any]:
        """The answer to one request. Raises Failed."""

    def cpu_seconds(self) -> float:
        """CPU time that it used, if it is a process of its own."""
        return 0.0

    def build(self, requested: Mapping[str, Any], end_s: float) -> dict[str, Any]:
        """Describe a case: its arrays, and what its launch says of them."""
        return self.ask("build", end_s, **requested, seed=secrets.randbits(63), library=self.library)

    def make(
        self, case: Mapping[str, Any], slot: str, end_s: float, seed: int | None = None, inputs: str = USUAL
    ) -> dict[str, Any]:
        """A case's inputs under a seed, by default one that is drawn now, of a kind (api.INPUTS), written to a slot."""
        seed = secrets.randbits(63) if seed is None else seed  # which nobody knows
        return {**self.ask("make", end_s, **case, seed=seed, slot=slot, inputs=inputs), "seed": seed}

    def check(self, path: str, left: Any, end_s: float) -> dict[str, Any]:
        """Ask the file's own check about a result that is in a file, or that was `left` in this process."""
        return self.ask("check", end_s, result=path)

    def expect(
        self, expected: str, end_s: float, sizes: str = "", budget_s: float = 0.0, terms: float | None = None
    ) -> dict[str, Any]:
        """Compute the reference on the last inputs; report whether that shares memory with them, and its sizes."""
        return self.ask("expect", end_s, expected=expected, sizes=sizes, budget_s=budget_s, terms=terms)


class FileHere(Reference):
    """A user's file that this process imports: it makes inputs and computes references."""

    def __init__(self, file: UserFile, library: str, started: Mapping[str, Any], where: str = "") -> None:
        self.file, self.library, self.started, self._where = file, library, started, where

    @classmethod
    def imported(cls, start: Mapping[str, Any]) -> FileHere:
        """Import a file or module, by the request that a process of its own is started with. Raises Failed."""
        file = UserFile()
        started = _answered(file, start["target"], os.getpid(), "start", **start)
        return cls(file, started["library"], started, start["target"])

    @classmethod
    def of_launch(cls, launch: Launch, device: str) -> FileHere:
        """A file with that launch for its one kernel, whose inputs are copies of its arguments each time."""
        file = UserFile()
        file.caught = (Exception,)
        # Arrays stay what the test has made them of.
        module = ModuleType(TEST_LAUNCH)
        setattr(module, TEST_LAUNCH, _GivenKernel(launch))
        return cls(file, "", file.take(module, device))

    def ask(self, request: str, end_s: float | None = None, /, **arguments: Any) -> dict[str, Any]:
        with self._few_threads():
            return _answered(self.file, self._where, os.getpid(), request, **arguments)

    @contextmanager
    def _few_threads(self) -> Iterator[None]:
        """Have torch make small inputs and references by one thread: others would spin on, next to what is timed."""
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch is not None else 1
        if torch is None or threads == 1 or sum(leaf.spec.get("bytes", 0) for leaf in self.file.leaves) > SMALL_BYTES:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            if torch.get_num_threads() == 1:
                torch.set_num_threads(threads)

    def check(self, path: str, left: Any, end_s: float) -> dict[str, Any]:
        return self.ask("check_object", end_s, out=left)


class _GivenKernel(DeclaredKernel):
    """A kernel of one case, whose inputs are copies of a launch's; outputs that the test has made stay its own."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(lambda: launch, {})
        self.name, self.file, self.line = TEST_LAUNCH, "", 0

    def __call__(self, *args: Any, **axes: Any) -> Launch:
        """The launch with every array elsewhere in memory; one that is passed twice stays one."""
        launch = self.builder()
        arguments, copies = [list(launch.args), dict(launch.kwargs)], dict[int, Any]()
        for kind, leaf in walk(arguments):
            if kind == "array" and id(leaf) not in copies:
                copies[id(leaf)] = Leaf("array", leaf, "input", 0).room()
                assign(copies[id(leaf)], leaf)
        args_copy, kwargs = replaced(arguments, (copies.get(id(leaf), leaf) for _, leaf in walk(arguments)))
        outputs = tuple(copies[id(each)] for each in launch.outputs if id(each) in copies)
        return replace(launch, args=tuple(args_copy), kwargs=kwargs, outputs=outputs)


class CaseHere:
    """A case of a file that is launched in this process."""

    is_here = True

    def __init__(self, file: FileHere) -> None:
        self._kernel, self._where = KernelCase.of(file.file), ""
        self.pid = os.getpid()

    def about(self, built: Mapping[str, Any]) -> None:
        """From now on a failure is reported for the function at that place."""
        self._where = f"{built['file']}:{built['line']}" if built["file"] else ""

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request. Raises Failed with a sentence, Unsupported with a reason."""
        return _answered(self._kernel, self._where, self.pid, request, **arguments)

    @property
    def left(self) -> Any:
        """Return the last launch's result, fetched to no file."""
        return self._kernel.left

    def cpu_seconds(self) -> float:
        """CPU time of this process, its threads included."""
        return time.process_time()

    def close(self) -> None:
        self._kernel = KernelCase()


def _answered(file: UserFile, where: str, pid: int, request: str, **arguments: Any) -> dict[str, Any]:
    try:
        with exchanged():
            answer = file.answer({"do": request, **arguments})
    finally:
        if os.getpid() != pid:  # by whatever it raised, it must not go on as the suite
            end_copy()
    return require_answered(answer, where)


def require_answered(answer: dict[str, Any], where: str) -> dict[str, Any]:
    """The answer. Raises Failed with a sentence, at its own place or `where`, and Unsupported with a reason."""
    witnesses = int(answer.get("witnesses") or 0)
    if "unsupported" in answer:
        raise Unsupported(str(answer["unsupported"])[:1000], witnesses)
    if "error" in answer:
        file, at = answer.get("file"), answer.get("line")
        place = f"{file}:{at}" if file and at else file or where
        place = f"{place}: " if place else ""
        raise Failed(f"{place}{str(answer['error'])[:1000]}.", str(answer.get("reason", ""))[:40], witnesses)
    return answer
