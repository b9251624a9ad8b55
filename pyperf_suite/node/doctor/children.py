"""Try in a process of its own what could crash, hang or take memory here, as opening a vendor's library may.

A child runs this file's functions; what it does wrong is a finding.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyperf_suite.hardware.software import mapped
from pyperf_suite.process.child import ChildProcess, ProcessLost
from pyperf_suite.process.serving import Requests

# -B: a bytecode cache is a change too.
COMMAND = (sys.executable, "-B", "-m", __name__)
DEADLINE_S = 30.0
LONGEST_REASON = 200


class ExaminedProcess:
    """A process that answers one question. It is started at once, so that several answer in parallel."""

    def __init__(self, question: str, *arguments: str, command: Sequence[str] = COMMAND) -> None:
        self._resources = contextlib.ExitStack()
        try:
            self._process = self._resources.enter_context(contextlib.closing(ChildProcess(command)))
            self._process.deadline_in(DEADLINE_S)
            self._process.send({"question": question, "arguments": arguments})
            self._reason = ""
        except (OSError, ProcessLost) as error:
            self._reason = str(error)

    def answer(self) -> dict[str, Any]:
        """Return the child's answer, or {"error": why}; the deadline counts from its start."""
        if self._reason:
            return {"error": self._reason}
        with self._resources:
            try:
                return self._process.receive()
            except ProcessLost as lost:
                return {"error": str(lost)}


def library(name: str, function: str) -> dict[str, Any]:
    """Open a library by path or name and call `function(int*)`, `function(int*, int*)` for NVRTC, for its version."""
    opened = ctypes.CDLL(name)
    answers = (ctypes.c_int * 2)()
    first, second = (ctypes.byref(answers, 4 * position) for position in (0, 1))
    two = function == "nvrtcVersion"
    requested = getattr(opened, function)
    code = requested(first, second) if two else requested(first)
    if code:
        return {"error": f"{function} answered {code}"}
    return {"version": f"{answers[0]}.{answers[1]}" if two else nccl_version(answers[0])}


def nccl_version(number: int) -> str:
    """NCCL's version as people write it; minor and patch had one decimal and two before 2.9 (nccl.h).

    >>> nccl_version(22705), nccl_version(2804)
    ('2.27.5', '2.8.4')
    """
    if number >= 10000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def torch(use_gpu: str) -> dict[str, Any]:
    """Torch's version, what torch was built for, whether a sum on each GPU is right, what it opened."""
    import torch as package

    answer: dict[str, Any] = {
        "version": package.__version__,
        "cuda": package.version.cuda,
        "threads": package.get_num_threads(),
    }
    if use_gpu == "yes" and package.version.cuda:
        # For each GPU `ok` or why a sum on it failed; free and total bytes, up to the first that does not report.
        answer |= {"devices": [], "memory": []}
        for index in range(package.cuda.device_count()):
            try:
                total = float(package.ones(1024, device=f"cuda:{index}").sum())
                answer["devices"].append("ok" if total == 1024 else f"1024 ones add up to {total:g}")
            except Exception as error:
                answer["devices"].append(f"{type(error).__name__}: {str(error).splitlines()[0][:LONGEST_REASON]}")
        with contextlib.suppress(Exception):
            for index in range(package.cuda.device_count()):
                answer["memory"].append(package.cuda.mem_get_info(index))
    maps = Path("/proc/self/maps").read_text("utf-8", "replace")
    answer["opened"] = {stem: path for stem in ("libnccl", "libnvrtc") if (path := mapped(maps, stem))}
    return answer


QUESTIONS = {"library": library, "torch": torch}

if __name__ == "__main__":
    requests = Requests()
    for request in requests:
        try:
            answer = QUESTIONS[request["question"]](*request["arguments"])  # type: ignore[operator]
        except Exception as error:
            words = (str(error).splitlines() or [""])[0]
            answer = {"error": f"{type(error).__name__}: {words[:LONGEST_REASON]}"}
        requests.answer(answer)
    os._exit(0)  # taking torch apart takes a second
