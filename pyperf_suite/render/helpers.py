"""Work that is spread over the machine's cores where there is enough of it: reading journals, finding, tracking."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

# Less is read sooner than processes are started.
WORTH_BYTES = 8 * 2**20

Submit = Callable[..., Future[Any]]


@contextmanager
def helpers(work_bytes: int) -> Iterator[Submit]:
    """What to submit a function and its arguments to; for little work it answers with futures that are ready."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if work_bytes < WORTH_BYTES or cores == 1:
        yield _at_once
        return
    # Forked, so that nothing is imported again. Python warns of threads there: numpy's, which know how to stand it.
    with ProcessPoolExecutor(min(cores, 4), multiprocessing.get_context("fork")) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield pool.submit


def _at_once(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    done: Future[Any] = Future()
    try:
        done.set_result(work(*arguments))
    except Exception as error:
        done.set_exception(error)
    return done
