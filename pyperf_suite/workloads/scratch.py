"""Files that processes leave for each other: scratch folders, shared references, compiled kernels.

Folders are made and removed by whoever starts workers: a killed worker cannot tidy up. A kept kernel that is damaged,
or another's, is compiled again. Nothing is read that another user could have written, for it runs on the GPU and here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyperf_suite import files
from pyperf_suite.measure.tolerance import Array, Keep, computed_anew

VARIABLE = "PYPERF_SCRATCH"  # a worker's own folder, for files that nobody needs once it is gone
SHARED_VARIABLE = "PYPERF_SHARED"  # the folder of one run, where its workers find what one of them computed
SHARED_PART = 1 / 8  # part of the free memory and disk that shared arrays may take, as the disk is read through memory
_ALIGNMENT = 64

MAGIC = b"pyperf_suite kernel 2\n"
LARGEST_BYTES = 256 * 2**20


def folder() -> str | None:
    """The worker's own; None if none was made: then the system's own place for temporary files."""
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
        """Return the arrays kept under key and name, mapped from their file; else compute and keep them."""
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
        with os.scandir(self._folder) as entries:
            files = sorted(((each.stat(), each.path) for each in entries), key=lambda file: file[0].st_mtime_ns)
        held_bytes = sum(status.st_size for status, _ in files)
        most_bytes = self._most_bytes
        if most_bytes is None:
            from pyperf_suite.hardware import memory  # needs psutil, which a user's interpreter may lack

            free_bytes = min(shutil.disk_usage(self._folder).free, memory.available_bytes())
            most_bytes = int(SHARED_PART * (free_bytes + held_bytes))
        if size_bytes > most_bytes:
            return False
        for status, path in files:
            if held_bytes + size_bytes <= most_bytes:
                break
            # Whoever has it mapped keeps it.
            Path(path).unlink(missing_ok=True)
            held_bytes -= status.st_size
        return True


def _write(path: Path, arrays: Mapping[str, Array]) -> None:
    """A line of JSON with type, shape and place of each array, and the arrays' bytes. Raises OSError."""
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


@dataclass(frozen=True)
class MachineCode:
    """Machine code, what the compiler printed, the seconds it took to get them, and whether they were kept."""

    cubin: bytes
    log: str
    seconds: float
    from_cache: bool


class KernelCache:
    """A compiler of kernels (`_native.cuda.Compiler`) that remembers; `folder` "" keeps nothing on disk."""

    def __init__(self, compiler: Any, folder: str) -> None:
        self._compiler, self._folder = compiler, Path(folder) if folder else None
        self._compiled: dict[str, tuple[bytes, str]] = {}
        self._lock = threading.Lock()
        self._warned = False

    def compile(
        self, name: str, source: str, headers: Mapping[str, str], architecture: str, options: Sequence[str]
    ) -> MachineCode:
        """The machine code of a source. Raises what the compiler raises; a folder of no use is warned of once."""
        began = time.perf_counter()
        all_it_sees = [self._compiler.version, architecture, list(options), name, source, sorted(headers.items())]
        key = hashlib.sha256(json.dumps(all_it_sees).encode()).hexdigest()
        with self._lock:
            code = self._compiled.get(key) or self._load(key)
            kept = code is not None
            if code is None:
                compiled = self._compiler.compile(name, source, dict(headers), architecture, list(options))
                code = bytes(compiled.cubin), str(compiled.log)
                self._store(key, *code)
            self._compiled[key] = code
        return MachineCode(*code, time.perf_counter() - began, kept)

    def _load(self, key: str) -> tuple[bytes, str] | None:
        if self._folder is None or not self._folder.exists():
            return None
        path = self._folder / f"{key}.kernel"
        foreign = files.why_not_private(self._folder) or files.why_not_private(path)
        if foreign:
            self._warn(foreign)
            return None
        try:
            content = files.read_bytes(path, LARGEST_BYTES)
        except OSError:
            return None
        magic, digest, body = content[: len(MAGIC)], content[len(MAGIC) :][:32], content[len(MAGIC) + 32 :]
        if magic != MAGIC or hashlib.sha256(key.encode() + body).digest() != digest:
            return None
        log_bytes = int.from_bytes(body[:8], "little")
        return body[8 + log_bytes :], body[8 : 8 + log_bytes].decode()

    def _store(self, key: str, cubin: bytes, log: str) -> None:
        if self._folder is None:
            return
        text = log.encode()
        body = len(text).to_bytes(8, "little") + text + cubin
        content = MAGIC + hashlib.sha256(key.encode() + body).digest() + body
        try:
            if not self._folder.exists():
                self._folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._folder.mkdir(exist_ok=True, mode=0o700)
            foreign = files.why_not_private(self._folder)
            if foreign:
                self._warn(foreign)
                return
            files.write_whole(self._folder / f"{key}.kernel", content, mode=0o600)
        except OSError as error:
            self._warn(error.strerror or str(error))

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"Compiled kernels cannot be kept in {self._folder} ({why}), so each process compiles its own: set "
                "PYPERF_CACHE_DIR to a folder of your own that can be written.",
                RuntimeWarning,
                stacklevel=4,
            )
