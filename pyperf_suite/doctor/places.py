"""Where results and compiled kernels are kept: whether these can be written, and what is left of the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyperf_suite.doctor.check import Check, Verdict, gib
from pyperf_suite.workloads.backends import cache_folder

SCARCE_BYTES, TIGHT_BYTES = 100 * 2**20, 2 * 2**30


@dataclass(frozen=True)
class Place:
    """A folder that may not be there yet: what was asked for, its nearest parent that exists, and what that allows."""

    name: str
    folder: str  # "" where there is none to be had
    exists: bool
    is_folder: bool
    writable: bool
    free_bytes: int | None


def read_places(results: Path) -> tuple[Place, ...]:
    """The results' folder and the compiled kernels', of this machine. Nothing is created to find out."""
    return (read_place("results", str(results)), read_place("kernel cache", cache_folder()))


def read_place(name: str, folder: str, writable: Callable[[Path], bool] | None = None) -> Place:
    """The folder's state, or its nearest parent's."""
    if not folder:
        return Place(name, "", False, False, False, None)
    path = Path(folder)
    nearest = path
    is_folder = False
    try:
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        is_folder = nearest.is_dir()
        free_bytes = shutil.disk_usage(nearest).free
    except OSError:
        free_bytes = None
    may = writable or (lambda place: os.access(place, os.W_OK | os.X_OK))
    return Place(name, folder, nearest == path, is_folder, may(nearest), free_bytes)


def place_checks(places: tuple[Place, ...]) -> tuple[Check, ...]:
    """One check a place."""
    return tuple(place_check(place) for place in places)


def place_check(place: Place) -> Check:
    """Whether the place takes what is to be written; without a cache kernels are compiled anew in each process."""
    is_cache = place.name == "kernel cache"
    choose = "Name another folder in PYPERF_CACHE_DIR." if is_cache else "Name another folder with --results."
    command = "export PYPERF_CACHE_DIR=/path/to/a/folder" if is_cache else ""
    if not place.folder:
        return Check(place.name, "warning", "there is no home folder to keep it in", choose, command)
    told = place.folder if place.exists else f"{place.folder} (not there yet)"
    if not (place.is_folder and place.writable):
        consequence = (
            ": each process compiles its own kernels" if is_cache else ": a run could not keep what it measured"
        )
        refused = "cannot be written" if place.is_folder else "is no folder"
        return Check(
            place.name, "warning" if is_cache else "problem", f"{told} {refused}{consequence}", choose, command
        )
    if place.free_bytes is None:
        return Check(place.name, "ok", told)
    told = f"{told}, {gib(place.free_bytes)} free"
    if place.free_bytes >= TIGHT_BYTES:
        return Check(place.name, "ok", told)
    if place.free_bytes == 0:
        return Check(place.name, "problem", f"{told}: the file system is full or takes no files", choose, command)
    verdict: Verdict = "problem" if place.free_bytes < SCARCE_BYTES and not is_cache else "warning"
    return Check(place.name, verdict, told, f"Free some of the disk, or: {choose[0].lower()}{choose[1:]}", command)
