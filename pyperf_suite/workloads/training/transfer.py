"""Bytes on their way: from host memory to host memory, to a GPU and back, and from a disk to host memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import tempfile
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
from numpy.typing import NDArray

from pyperf_suite.errors import Unsupported, UserError, Within
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.workloads.backends import TorchDevice, require_cores
from pyperf_suite.workloads.operator import sets_to_rotate
from pyperf_suite.workloads.workload import (
    Checked,
    ExecutionContext,
    Implementation,
    Kernel,
    Prepared,
    Work,
    Workload,
    by_name,
    together,
)

Bytes = NDArray[np.uint8]

WORTH_LARGE_PAGES = 1 << 22  # the kernel backs memory of this size with large pages on request, as NumPy does
MOST_SLOTS = 4096  # more slots would prove nothing more, and take longer to make than to copy
RESULTS = Path("bench_results")  # default folder of runs (runner/results.py, which stands above this layer)
FILE_BYTES = 32 << 20  # a read takes the next piece of a file of this size, or of its own where it is larger
BLOCK_BYTES = 4096  # disks read whole blocks: none in use has larger ones

# Pieces that are read and compared, spread over the file: all of them would take longer than the measurement.
MOST_CHECKED = 32
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")  # here a file is memory, and no disk is read whatever flag it is opened with


@dataclass(frozen=True)
class TransferParameters:
    """One transfer: `workers` CPU cores copy, host memory is `pinned`, a file lies in `folder` (empty: results')."""

    size_bytes: Annotated[int, Within(1)]
    workers: Annotated[int, Within(1)] = 1
    pinned: bool = False
    folder: str = ""


class Compared(Prepared):
    """Transfers of bytes that are compared with what was sent, which is there all the time."""

    @abstractmethod
    def compared(self, index: int) -> tuple[Bytes, Bytes, str]:
        """Return the bytes received, when all have arrived, and those sent, in host memory; and the place in words."""

    def verify_last(self, index: int) -> Checked:
        arrived, sent, where = self.compared(index)
        differ = np.flatnonzero(arrived != sent)
        first = ""
        if differ.size:
            byte = differ[0]
            first = f"byte {byte} of {where} arrived as {arrived[byte]} and was sent as {sent[byte]}"
        return Checked(int(differ.size), int(sent.size), first)

    def matches(self, index: int, snapshot: object) -> bool:
        return np.array_equal(*self.compared(index)[:2])


class Copies(Compared):
    """From seeded bytes to a target, in slots of one transfer each, so that copies do not find what others left."""

    def __init__(self, parameters: TransferParameters, seed: int) -> None:
        self.size_bytes = parameters.size_bytes
        self.sets = sets_to_rotate(self.size_bytes, Device("cpu"), MOST_SLOTS)[0]
        total_bytes = self.size_bytes * self.sets
        self.details = {"slots": self.sets, "buffer_bytes": total_bytes}
        self.source, self.target = page_aligned(total_bytes), self._target_of(total_bytes)
        fill(self.source, seed)
        self.poison()

    def cut(self, buffer: Any) -> list[Any]:
        return [buffer[self.slot(index)] for index in range(self.sets)]

    def slot(self, index: int | None) -> slice:
        return slice(None) if index is None else slice(index * self.size_bytes, (index + 1) * self.size_bytes)

    def poison(self, index: int | None = None) -> None:
        where = self.slot(index)
        np.invert(self.source[where], out=self.target[where])

    def compared(self, index: int) -> tuple[Bytes, Bytes, str]:
        where = self.slot(index)
        return self.target[where], self.source[where], f"slot {index}"

    def _target_of(self, size_bytes: int) -> Any:
        return page_aligned(size_bytes)


class MemcpySteps(Copies):
    """The C library's memmove on one core, by ctypes, which adds about a third of a microsecond."""

    def __init__(self, parameters: TransferParameters, place: ExecutionContext) -> None:
        super().__init__(parameters, place.seed)
        targets, sources = self.cut(self.target), self.cut(self.source)
        self._addresses = [(to.ctypes.data, of.ctypes.data) for to, of in zip(targets, sources, strict=True)]
        self.kernel = Kernel("memmove", "libc", self.details)

    def launch(self, index: int) -> None:
        target, source = self._addresses[index % self.sets]
        ctypes.memmove(target, source, self.size_bytes)


class TorchCopies(Copies):
    """`Tensor.copy_` in host memory on as many cores as requested; or between a GPU and it, pinned or pageable."""

    def __init__(
        self, parameters: TransferParameters, place: ExecutionContext, target: str = "cpu", source: str = "cpu"
    ) -> None:
        crosses = target != source
        if crosses and place.device.kind != "cuda":
            raise Unsupported("There is no GPU to copy to or from.")
        # A copy from pageable memory waits for the stream, which a held one would never let go on.
        queueing, device = "held" if parameters.pinned else "open", place.device if crosses else Device("cpu")
        self._where = where = TorchDevice(device, parameters.workers, queueing)
        self._pinned, self._to, self.stopwatch = parameters.pinned, target, where.stopwatch
        super().__init__(parameters, place.seed)
        sent = where.torch.from_numpy(self.source)
        if crosses:
            sent = self._buffer(source, self.source.size).copy_(sent)
        self._targets, self._sources = self.cut(self.target), self.cut(sent)
        way = (
            f"{'host_to_device' if target == 'cuda' else 'device_to_host'}, {'pinned' if self._pinned else 'pageable'}"
        )
        self.kernel = Kernel("copy_", way if crosses else "torch", {**self.details, **where.details()})

    def launch(self, index: int) -> None:
        slot = index % self.sets
        self._targets[slot].copy_(self._sources[slot], non_blocking=self._pinned)

    def poison(self, index: int | None = None) -> None:
        self._where.synchronize()
        where = self.slot(index)
        self.target[where].copy_(self._where.torch.from_numpy(np.invert(self.source[where])))
        self._where.synchronize()

    def compared(self, index: int) -> tuple[Bytes, Bytes, str]:
        self._where.synchronize()
        arrived, sent, where = super().compared(index)
        return arrived.cpu().numpy(), sent, where  # type: ignore[attr-defined]

    def _target_of(self, size_bytes: int) -> Any:
        return self._buffer(self._to, size_bytes)

    def _buffer(self, at: str, size_bytes: int) -> Any:
        torch = self._where.torch
        if not self._where.is_gpu:
            return torch.from_numpy(page_aligned(size_bytes))
        return torch.empty(size_bytes, dtype=torch.uint8, device=at, pin_memory=self._pinned and at == "cpu")


class FileReads(Compared):
    """Reads of the next piece of a file, round and round, into one place.

    The kernel copies them out of its page cache; with `direct` the disk writes to this process's memory past it, though
    the host of a virtual machine may cache still. The file is unlinked before its first byte is written, so that
    nothing of it outlives the process, however that ends.
    """

    sees_more = True

    def __init__(self, parameters: TransferParameters, place: ExecutionContext, direct: bool = False) -> None:
        folder = folder_of(parameters)
        kind = file_system(folder)
        if direct and not hasattr(os, "O_DIRECT"):
            raise Unsupported("This system has no O_DIRECT.")
        if direct and kind in IN_MEMORY:
            raise Unsupported(f"{folder} is on {kind}, which is memory and no disk: give another folder.")
        self._size_bytes = parameters.size_bytes
        self._pieces = max(1, FILE_BYTES // self._size_bytes)
        self._written = page_aligned(self._pieces * self._size_bytes)
        fill(self._written, place.seed)
        self._target = page_aligned(self._size_bytes)
        self._begin = 0  # of the piece that was read last
        self._room = self._target.data
        self._file = _written_file(folder, self._written, os.O_DIRECT if direct else 0)
        # Not where it lies: results contain no path of a machine.
        details = {"file_bytes": self._written.size, "file_system": kind, "virtualised": cpu.detect().virtualised}
        self.kernel = Kernel("preadv", "O_DIRECT" if direct else "page cache", details)

    def launch(self, index: int) -> None:
        begin = self._begin = (index % self._pieces) * self._size_bytes
        done = os.preadv(self._file, [self._room], begin)
        while done < self._size_bytes:  # a signal, or more than one call may read (2 GiB)
            more = os.preadv(self._file, [self._room[done:]], begin + done)
            if more == 0:
                raise OSError(f"the file ends after {begin + done} bytes, and {self._written.size} were written")
            done += more

    def untimed(self, index: int) -> None:
        self.launch(random.randrange(self._pieces))

    def poison(self, index: int | None = None) -> None:
        np.invert(self.compared(0)[1], out=self._target)

    def compared(self, index: int) -> tuple[Bytes, Bytes, str]:
        sent = self._written[self._begin : self._begin + self._size_bytes]
        return self._target, sent, f"the file from {self._begin} on"

    def check(self) -> Checked:
        checks = []
        for piece in np.unique(np.linspace(0, self._pieces - 1, MOST_CHECKED, dtype=int)).tolist():
            self._begin = piece * self._size_bytes
            self.poison()
            self.launch(piece)
            checks.append(self.verify_last(0))
        return together(checks)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def folder_of(parameters: TransferParameters) -> Path:
    """The requested folder, else the results', else where this process runs. Raises Unsupported if it is not there."""
    folder = Path(parameters.folder) if parameters.folder else RESULTS if RESULTS.is_dir() else Path()
    if not folder.is_dir():
        raise Unsupported(f"There is no folder {folder} to write a file in.")
    return folder.resolve()


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on, as the system names it; empty where it does not say."""
    mounted = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    return next((mounted[above] for above in (folder, *folder.parents) if above in mounted), "")


def _written_file(folder: Path, content: Bytes, flag: int) -> int:
    refused = f"No file can be written in {folder}"
    try:
        with tempfile.NamedTemporaryFile(prefix=".pyperf_transfer_", dir=folder) as named:
            refused = f"{folder} ({file_system(folder)}) cannot be read so"
            file = os.open(named.name, os.O_RDWR | flag)
        refused = f"No {content.size} bytes can be written in {folder}"
        try:
            written = 0
            while written < content.size:
                written += os.pwrite(file, content.data[written:], written)
            os.fsync(file)
        except OSError:
            os.close(file)
            raise
    except OSError as error:
        raise Unsupported(f"{refused}: {error.strerror}.") from None
    return file


def page_aligned(size_bytes: int) -> Bytes:
    """Fresh memory of the host at a page's begin, in large pages where it is large; no page of it is placed yet."""
    memory = mmap.mmap(-1, size_bytes)
    if size_bytes >= WORTH_LARGE_PAGES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


def fill(buffer: Bytes, seed: int) -> None:
    """Seeded bytes without a period, so that none that came from elsewhere passes for right."""
    buffer[:] = np.random.default_rng(seed).integers(0, 256, buffer.size, dtype=np.uint8)


@dataclass(frozen=True)
class TransferImplementation(Implementation[TransferParameters]):
    """One way for bytes to go; of `workers` and `pinned` it takes what is named."""

    name: str  # type: ignore[misc]
    make: Callable[[TransferParameters, ExecutionContext], Prepared]
    takes: tuple[str, ...] = ()
    device_kind: str = "any"  # type: ignore[misc]
    whole_blocks: bool = False

    def validate(self, parameters: TransferParameters) -> None:
        usual = TransferParameters(parameters.size_bytes)
        for name in ("workers", "pinned"):
            value = getattr(parameters, name)
            if value != getattr(usual, name) and name not in self.takes:
                others = ", ".join(each.name for each in WAYS.values() if name in each.takes)
                raise UserError(
                    f"{name}={value} was requested, which {self.name} does not take: leave it out, or ask for one of "
                    f"{others}."
                )
        require_cores(parameters.workers)
        if self.whole_blocks and parameters.size_bytes % BLOCK_BYTES:
            raise UserError(
                f"O_DIRECT reads whole blocks of {BLOCK_BYTES} bytes, but {parameters.size_bytes} were requested: "
                "ask for a multiple."
            )

    def prepare(self, parameters: TransferParameters, place: ExecutionContext) -> Prepared:
        return self.make(parameters, place)


WAYS: dict[str, TransferImplementation] = by_name(
    TransferImplementation("memcpy", MemcpySteps),
    TransferImplementation("torch", TorchCopies, takes=("workers",)),
    # As batches and offloaded states travel, and as offloaded gradients and activations do.
    TransferImplementation("host_to_device", partial(TorchCopies, target="cuda"), ("pinned",), "cuda"),
    TransferImplementation("device_to_host", partial(TorchCopies, source="cuda"), ("pinned",), "cuda"),
    TransferImplementation("disk_cached", FileReads),
    TransferImplementation("disk_direct", partial(FileReads, direct=True), whole_blocks=True),
)


class Transfer(Workload[TransferParameters]):
    """A copy of `size_bytes` bytes; the payload counts once, though memory sees it read and written."""

    name = "transfer"
    parameters_type = TransferParameters
    implementations = WAYS

    def work(self, parameters: TransferParameters) -> Work:
        return Work(0, parameters.size_bytes)

    def footprint_bytes(self, parameters: TransferParameters) -> int:
        return 3 * parameters.size_bytes
