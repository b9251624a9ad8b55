"""Work that is spread over the machine's cores where there is enough of it: reading journals, finding, tracking."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

Answer = TypeVar("Answer")

# Less is read sooner than processes are started.
WORTH_BYTES = 8 * 2**20


class Helpers:
    """Use as a context manager; `submit` answers with a future, which is ready at once where there are no helpers."""

    def __init__(self, work_bytes: int) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self._pool: ProcessPoolExecutor | None = None
        if work_bytes >= WORTH_BYTES and cores > 1:
            # Forked, so that nothing is imported again.
            self._pool = ProcessPoolExecutor(min(cores, 4), multiprocessing.get_context("fork"))

    def __enter__(self) -> Helpers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=error is not None)

    def submit(self, work: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        """Have it done; what it raises is raised by the future's `result`."""
        if self._pool:
            with warnings.catch_warnings():
                # Python warns of threads in a process that forks: numpy's, which know how to stand it.
                warnings.simplefilter("ignore", DeprecationWarning)
                return self._pool.submit(work, *arguments)
        done: Future[Answer] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done
