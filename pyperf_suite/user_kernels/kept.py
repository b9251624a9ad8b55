"""Processes that run a user's code for a case: this one, which imports a file once, or some kept for the next case."""

from __future__ import annotations

import atexit
import os

from pyperf_suite.user_kernels.audit.processes import PYTHON_VARIABLE, ReferenceProcess, interpreter
from pyperf_suite.user_kernels.declared import PATH_VARIABLE, root, split, start_request
from pyperf_suite.user_kernels.here import FileHere
from pyperf_suite.workloads.workload import ExecutionContext


def is_run_here(place: ExecutionContext) -> bool:
    """True where a user's code runs in this process: nothing is to be kept from it, and no other interpreter is named.

    Sides of a pair have processes of their own, each fresh, next to a judge that stays.
    """
    return not place.audit and place.inputs is None and PYTHON_VARIABLE not in os.environ


_files: dict[tuple[str, str], FileHere] = {}


def file_here(name: str, device: str) -> FileHere:
    """The file of that kernel, imported by this process once. Raises Failed."""
    key = (split(name)[0], device)
    if key not in _files:
        _files[key] = FileHere.imported(start_request(name, device))
    return _files[key]


_kept: dict[tuple[str, ...], ReferenceProcess] = {}


def reference_process(name: str, device: str, end_s: float, others: int) -> ReferenceProcess:
    """Return the process of that file; `others` other processes are kept at most."""
    key = (split(name)[0], device, interpreter(), os.environ.get(PATH_VARIABLE, ""), str(root(split(name)[0])))
    if key not in _kept or _kept[key].is_closed:
        _kept.pop(key, None)
        while len(_kept) > others:
            _kept.pop(next(iter(_kept))).close()
        _kept[key] = ReferenceProcess(start_request(name, device), end_s)
    return _kept[key]


def shared_preload() -> list[str]:
    """Modules that all kept processes found worth importing before a copy is made, in the order of the first."""
    first, *others = (each.preload for each in _kept.values())
    return [name for name in first if all(name in other for other in others)]


@atexit.register
def forget_reference() -> None:
    """End the reference process that is kept, as this process does when it ends in order; and forget files."""
    _files.clear()
    while _kept:
        _kept.popitem()[1].close()
