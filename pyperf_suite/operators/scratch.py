"""Folders that whoever starts workers makes for them and removes after their end: a killed worker cannot tidy up."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from pyperf_suite.hardware import memory
from pyperf_suite.measure.arrays import Array, Keep, computed_anew

# A worker's own folder, for files that nobody needs once it is gone.
VARIABLE = "PYPERF_SCRATCH"

# The folder of one run, where its workers find what one of them computed.
SHARED_VARIABLE = "PYPERF_SHARED"

# What is shared may take this part of the memory and of the disk that are free, as it is read through memory.
SHARED_PART = 1 / 8


def folder() -> str | None:
    """The worker's own; None where none was made, for the system's own place for temporary files."""
    return os.environ.get(VARIABLE) or None


def shared(key: str) -> Keep:
    """Keeps arrays for all workers of a run, under names that belong to `key`; for this process where none was made."""
    found = os.environ.get(SHARED_VARIABLE)
    return partial(SharedArrays(Path(found)).keep, key) if found else computed_anew


class SharedArrays:
    """Arrays in files of one folder, for processes that compute the same: the first writes, the others map them.

    An entry is a folder that appears whole, by a rename; one whose writer was killed never appears. What does not fit
    drives out what was read least recently; what cannot be written is computed by each process.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def keep(self, key: str, name: str, compute: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
        """What was kept under key and name, mapped from its files; else what `compute` returns, which is kept."""
        entry = self._folder / hashlib.sha256(f"{key}\n{name}".encode()).hexdigest()[:32]
        with suppress(OSError, ValueError):
            arrays = {path.stem: np.asarray(np.load(path, mmap_mode="r")) for path in entry.iterdir()}
            if arrays:
                os.utime(entry)
                return arrays
        arrays = dict(compute())
        with suppress(OSError):
            self._write(entry, arrays)
        return arrays

    def _write(self, entry: Path, arrays: Mapping[str, Array]) -> None:
        size_bytes = sum(array.nbytes for array in arrays.values())
        if not self._make_room(size_bytes):
            return
        unfinished = self._private_folder()
        try:
            for name, array in arrays.items():
                np.save(unfinished / f"{name}.npy", array, allow_pickle=False)
            unfinished.rename(entry)
        except OSError:
            # The disk is full, or another process was first.
            shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def _private_folder(self) -> Path:
        """A new folder that no reader looks into."""
        return Path(tempfile.mkdtemp(prefix="private_", dir=self._folder))

    def _make_room(self, size_bytes: int) -> bool:
        """Remove what was read least recently until so many bytes fit; whether they do."""
        sizes = {path: sum(each.stat().st_size for each in path.iterdir()) for path in self._folder.iterdir()}
        held_bytes = sum(sizes.values())
        most_bytes = self._most_bytes
        if most_bytes is None:
            free_bytes = min(shutil.disk_usage(self._folder).free, memory.available_bytes())
            most_bytes = int(SHARED_PART * (free_bytes + held_bytes))
        if size_bytes > most_bytes:
            return False
        for path in sorted(sizes, key=lambda path: path.stat().st_mtime_ns):
            if held_bytes + size_bytes <= most_bytes:
                break
            # As whole as it appeared it disappears, by a rename.
            aside = self._private_folder()
            with suppress(OSError):
                path.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
            held_bytes -= sizes[path]
        return True
