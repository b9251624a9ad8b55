"""Folders that whoever starts workers makes for them and removes after their end: a killed worker cannot tidy up."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from pyperf_suite.hardware import memory
from pyperf_suite.measure.tolerance import Array, Keep, computed_anew

# A worker's own folder, for files that nobody needs once it is gone.
VARIABLE = "PYPERF_SCRATCH"

# The folder of one run, where its workers find what one of them computed.
SHARED_VARIABLE = "PYPERF_SHARED"

# What is shared may take this part of the memory and of the disk that are free, as it is read through memory.
SHARED_PART = 1 / 8

_ALIGNMENT = 64


def folder() -> str | None:
    """The worker's own; None where none was made, for the system's own place for temporary files."""
    return os.environ.get(VARIABLE) or None


def shared(key: str) -> Keep:
    """Keeps arrays for all workers of a run, under names that belong to `key`; for this process where none was made."""
    found = os.environ.get(SHARED_VARIABLE)
    return partial(SharedArrays(Path(found)).keep, key) if found else computed_anew


class SharedArrays:
    """Arrays in files of one folder, for processes that compute the same: the first writes, the others map them.

    A file appears whole, by a rename; one whose writer was killed never appears. What does not fit drives out what was
    read least recently; what cannot be written or read is computed by each process.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        """By default what is kept takes at most `SHARED_PART` of the memory and of the disk that are free."""
        self._folder = folder
        self._most_bytes = most_bytes

    def keep(self, key: str, name: str, compute: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
        """What was kept under key and name, mapped from its file; else what `compute` returns, which is kept."""
        path = self._folder / hashlib.sha256(f"{key}\n{name}".encode()).hexdigest()[:32]
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = _mapped(path)
            os.utime(path)
            return found
        arrays = {name: np.ascontiguousarray(array) for name, array in compute().items()}
        with suppress(OSError):
            if self._make_room(sum(array.nbytes for array in arrays.values())):
                _write(path, arrays)
        return arrays

    def _make_room(self, size_bytes: int) -> bool:
        """Remove what was read least recently until so many bytes fit; whether they do."""
        with os.scandir(self._folder) as entries:
            held = sorted(((each.stat(), each.path) for each in entries), key=lambda file: file[0].st_mtime_ns)
        held_bytes = sum(status.st_size for status, _ in held)
        most_bytes = self._most_bytes
        if most_bytes is None:
            free_bytes = min(shutil.disk_usage(self._folder).free, memory.available_bytes())
            most_bytes = int(SHARED_PART * (free_bytes + held_bytes))
        if size_bytes > most_bytes:
            return False
        for status, path in held:
            if held_bytes + size_bytes <= most_bytes:
                break
            # Whoever has it mapped keeps it.
            Path(path).unlink(missing_ok=True)
            held_bytes -= status.st_size
        return True


def _write(path: Path, arrays: Mapping[str, Array]) -> None:
    """A line of JSON that tells type, shape and place of each array, and the arrays' bytes. Raises OSError."""
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = (array.dtype.str, array.shape, end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    header = json.dumps({"arrays": places, "bytes": end}).encode()
    header += b" " * (-(len(header) + 1) % _ALIGNMENT) + b"\n"
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix="unfinished_", delete=False) as file:
        try:
            file.write(header)
            for array in arrays.values():
                file.write(array.data)
                file.write(bytes(-array.nbytes % _ALIGNMENT))
            file.close()
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise


def _mapped(path: Path) -> dict[str, Array]:
    """The arrays of a file. Raises OSError, ValueError, KeyError or TypeError for anything but a whole one."""
    with path.open("rb") as file:
        header = file.readline()
    described = json.loads(header)
    content = np.memmap(path, np.uint8, "r", offset=len(header))
    if content.size != described["bytes"]:
        raise ValueError(f"{path} is not whole")
    arrays = {}
    for name, (dtype, shape, begin) in described["arrays"].items():
        size_bytes = np.dtype(dtype).itemsize * math.prod(shape)
        arrays[name] = np.asarray(content[begin : begin + size_bytes].view(dtype).reshape(shape))
    return arrays
