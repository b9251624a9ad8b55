"""Reads of a file from a disk into host memory: past the page cache by O_DIRECT, or out of it.

The file is unlinked before its first byte is written, so that nothing of it outlives the process, however that ends.
"""

from __future__ import annotations

import os
import random
import tempfile
from abc import abstractmethod
from pathlib import Path

import numpy as np
import psutil

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.workloads.training.host_memory import ANY_NODE, Bytes, fill, page_aligned
from pyperf_suite.workloads.training.transfer_parameters import TransferParameters, refuse_pinned
from pyperf_suite.workloads.workload import Checked, Implementation, Kernel, Place, Prepared, together

# Where runs are kept unless told otherwise (runner/results.py, which stands above this layer).
RESULTS = Path("bench_results")

# A read takes the next piece of a file of this size, or of its own where it is larger.
FILE_BYTES = 32 << 20

# Disks read whole blocks: none in use has larger ones.
BLOCK_BYTES = 4096

# Pieces that are read and compared, spread over the file: all of them would take longer than the measurement.
MOST_CHECKED = 32

# Here a file is memory, and no disk is read whatever flag it is opened with.
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


class DiskReads(Implementation[TransferParameters]):
    """One thread that asks for one piece after the other, in the file's order."""

    device_kind = "any"

    def validate(self, parameters: TransferParameters) -> None:
        """Raise UserError for cores, pinned memory or a node, none of which a read here has."""
        refuse_pinned(self.name, parameters)
        if parameters.workers != 1 or parameters.numa_node != ANY_NODE:
            raise UserError(f"{self.name} reads on 1 core into memory anywhere: leave workers and numa_node out.")

    @abstractmethod
    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        """Write the file. Raises Unsupported where it cannot be written or read so."""


class CachedReads(DiskReads):
    """What was written or read before and still lies in the page cache, copied out by the kernel."""

    name = "disk_cached"

    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        """Write the file. Raises Unsupported where there is no room for it."""
        return FileReads(parameters, place.seed, folder_of(parameters), 0, "page cache")


class DirectReads(DiskReads):
    """Past the page cache: the disk writes to this process's memory. The host of a virtual machine may cache still."""

    name = "disk_direct"

    def validate(self, parameters: TransferParameters) -> None:
        """Raise UserError for a piece that is not of whole blocks."""
        super().validate(parameters)
        if parameters.size_bytes % BLOCK_BYTES:
            raise UserError(
                f"O_DIRECT reads whole blocks of {BLOCK_BYTES} bytes, but {parameters.size_bytes} were asked for: "
                "ask for a multiple."
            )

    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        """Write the file. Raises Unsupported on a system or file system without O_DIRECT, or that is kept in memory."""
        if not hasattr(os, "O_DIRECT"):
            raise Unsupported("This system has no O_DIRECT.")
        folder = folder_of(parameters)
        kind = file_system(folder)
        if kind in IN_MEMORY:
            raise Unsupported(f"{folder} is on {kind}, which is memory and no disk: give another folder.")
        return FileReads(parameters, place.seed, folder, os.O_DIRECT, "O_DIRECT")


class FileReads(Prepared):
    """Reads of the next piece of a file, round and round, into one place."""

    sees_more = True

    def __init__(self, parameters: TransferParameters, seed: int, folder: Path, flag: int, path: str) -> None:
        self._size_bytes = parameters.size_bytes
        self._pieces = max(1, FILE_BYTES // self._size_bytes)
        self._written = page_aligned(self._pieces * self._size_bytes)
        fill(self._written, seed)
        self._target = page_aligned(self._size_bytes)
        self._begin = 0  # of the piece that was read last
        self._room = self._target.data
        self._file = _written_file(folder, self._written, flag)
        # Not where it lies: results tell of no path on a machine.
        details = {"file_bytes": self._written.size, "file_system": file_system(folder)}
        details["virtualised"] = cpu.detect().virtualised
        self.kernel = Kernel("preadv", path, details)

    def untimed(self, index: int) -> None:
        """Of any piece."""
        self.launch(random.randrange(self._pieces))

    def poison(self, index: int | None = None) -> None:
        np.invert(self._piece_read(), out=self._target)

    def left(self, index: int) -> Checked:
        """Every byte of the piece that was read last."""
        differ = np.flatnonzero(self._target != self._piece_read())
        first = f"byte {self._begin + differ[0]} of the file was read as it was not written" if differ.size else ""
        return Checked(int(differ.size), self._size_bytes, first)

    def kept(self, index: int) -> None:
        """Nothing: what was written is there to compare with."""

    def equals(self, index: int, kept: object) -> bool:
        return np.array_equal(self._target, self._piece_read())

    def _piece_read(self) -> Bytes:
        return self._written[self._begin : self._begin + self._size_bytes]

    def launch(self, index: int) -> None:
        begin = self._begin = (index % self._pieces) * self._size_bytes
        done = os.preadv(self._file, [self._room], begin)
        while done < self._size_bytes:  # a signal, or more than one call may read (2 GiB)
            more = os.preadv(self._file, [self._room[done:]], begin + done)
            if more == 0:
                raise OSError(f"the file ends after {begin + done} bytes, and {self._written.size} were written")
            done += more

    def check(self) -> Checked:
        """Pieces spread over the whole file, first and last among them, byte by byte."""
        checks = []
        for piece in np.unique(np.linspace(0, self._pieces - 1, MOST_CHECKED, dtype=int)).tolist():
            self._begin = piece * self._size_bytes
            self.poison()
            self.launch(piece)
            checks.append(self.left(0))
        return together(checks)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def folder_of(parameters: TransferParameters) -> Path:
    """The folder asked for, else the one that results go to, else where this process runs.

    Raises Unsupported for one that is not there.
    """
    folder = Path(parameters.folder) if parameters.folder else RESULTS if RESULTS.is_dir() else Path()
    if not folder.is_dir():
        raise Unsupported(f"There is no folder {folder} to write a file in.")
    return folder.resolve()


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on, as the system names it; empty where it does not tell."""
    mounted = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    return next((mounted[above] for above in (folder, *folder.parents) if above in mounted), "")


def _written_file(folder: Path, content: Bytes, flag: int) -> int:
    """A descriptor to read from of a file with that content on the disk and no name. Raises Unsupported."""
    try:
        writing, name = tempfile.mkstemp(prefix=".pyperf_transfer_", dir=folder)
        try:
            reading = os.open(name, os.O_RDONLY | flag)
        except OSError as refusal:
            os.close(writing)
            raise Unsupported(f"{folder} ({file_system(folder)}) cannot be read so: {refusal.strerror}.") from None
        finally:
            Path(name).unlink()
    except OSError as refusal:
        raise Unsupported(f"No file can be written in {folder}: {refusal.strerror}.") from None
    try:
        with os.fdopen(writing, "wb", buffering=0) as file:
            rest = content.data
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        if flag:
            # What is still cached would be given out of the cache's memory on some file systems.
            os.posix_fadvise(reading, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as refusal:
        os.close(reading)
        raise Unsupported(f"No {content.size} bytes can be written in {folder}: {refusal.strerror}.") from None
    return reading
