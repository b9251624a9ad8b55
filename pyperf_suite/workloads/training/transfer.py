"""Bytes on their way: from host memory to host memory, to a GPU and back, and from a disk to host memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import tempfile
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import psutil
from numpy.typing import NDArray

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.kernel_files import KernelFiles, parse_cpu_list
from pyperf_suite.limits import Within
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.operator import sets_to_rotate
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.workload import (
    Checked,
    Implementation,
    Kernel,
    Place,
    Prepared,
    Work,
    Workload,
    by_name,
    together,
)

Bytes = NDArray[np.uint8]

# Wherever the kernel puts it.
ANY_NODE = -1

# The kernel backs memory of this size with large pages where it is asked to, as NumPy asks.
WORTH_LARGE_PAGES = 1 << 22

# More slots would prove nothing more, and take longer to make than to copy.
MOST_SLOTS = 4096

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


@dataclass(frozen=True)
class TransferParameters:
    """So many bytes at once.

    `workers` are CPU cores that copy. `pinned` host memory is what a GPU reads without a detour. `numa_node` is where
    the host's source lies (a GPU's target too), ANY_NODE for wherever the kernel puts it. `folder` is the one on whose
    disk a file is read; empty for the one that results go to.
    """

    size_bytes: Annotated[int, Within(1)]
    workers: Annotated[int, Within(1)] = 1
    pinned: bool = False
    numa_node: int = ANY_NODE
    folder: str = ""

    def validate(self) -> None:
        """Raise UserError for a NUMA node that there is not."""
        require_node(self.numa_node)


class Compared(Prepared):
    """Transfers of bytes that are compared with what was sent, which is there all the time."""

    @abstractmethod
    def compared(self, index: int) -> tuple[Bytes, Bytes, str]:
        """What arrived, when all has, and what was sent, both in host memory; and where in words."""

    def left(self, index: int) -> Checked:
        arrived, sent, where = self.compared(index)
        differ = np.flatnonzero(arrived != sent)
        first = ""
        if differ.size:
            byte = differ[0]
            first = f"byte {byte} of {where} arrived as {arrived[byte]} and was sent as {sent[byte]}"
        return Checked(int(differ.size), int(sent.size), first)

    def kept(self, index: int) -> None:
        """Nothing: what was sent is there to compare with."""

    def equals(self, index: int, kept: object) -> bool:
        return np.array_equal(*self.compared(index)[:2])


@dataclass(frozen=True)
class Slots:
    """A buffer cut into places of one transfer each, of which step i takes place i modulo their number."""

    size_bytes: int
    count: int

    @classmethod
    def beyond_caches(cls, size_bytes: int) -> Slots:
        """As many as turn the level-2 caches over, so that copies do not find what the last ones left."""
        return cls(size_bytes, sets_to_rotate(size_bytes, Device("cpu"), MOST_SLOTS)[0])

    @property
    def total_bytes(self) -> int:
        """Of the whole buffer."""
        return self.size_bytes * self.count

    def cut(self, buffer: Any) -> list[Any]:
        """The places of a tensor or array, in order."""
        return [buffer[start : start + self.size_bytes] for start in range(0, self.total_bytes, self.size_bytes)]

    def place(self, index: int | None) -> slice:
        """That place in the buffer, or all of it."""
        if index is None:
            return slice(None)
        return slice(index * self.size_bytes, (index + 1) * self.size_bytes)


class Copies(Compared):
    """From a seeded source to a target, in slots: as many as turn the level-2 caches over."""

    def __init__(self, parameters: TransferParameters) -> None:
        self.slots = Slots.beyond_caches(parameters.size_bytes)
        self.sets = self.slots.count
        self.details = {"slots": self.sets, "buffer_bytes": self.slots.total_bytes}


class HostCopies(Copies):
    """From host memory on the asked node to host memory of the copying thread's own."""

    def __init__(self, parameters: TransferParameters, seed: int) -> None:
        super().__init__(parameters)
        self._held = ExitStack()
        with running_on(parameters.numa_node):
            self.source = page_aligned(self.slots.total_bytes)
            fill(self.source, seed)
        if parameters.numa_node != ANY_NODE:
            # Only a thread that stays can tell a near node from a far one.
            self._held.enter_context(running_on(nodes()[0]))
        self.target = page_aligned(self.slots.total_bytes)
        self.poison()

    def poison(self, index: int | None = None) -> None:
        where = self.slots.place(index)
        np.invert(self.source[where], out=self.target[where])

    def compared(self, index: int) -> tuple[Bytes, Bytes, str]:
        where = self.slots.place(index)
        return self.target[where], self.source[where], f"slot {index}"

    def close(self) -> None:
        self._held.close()


class MemcpySteps(HostCopies):
    """Calls through ctypes, whose own cost is part of the latency: about a third of a microsecond."""

    def __init__(self, parameters: TransferParameters, seed: int) -> None:
        super().__init__(parameters, seed)
        size_bytes = self._size_bytes = self.slots.size_bytes
        target, source = self.target.ctypes.data, self.source.ctypes.data
        self._addresses = [(target + slot * size_bytes, source + slot * size_bytes) for slot in range(self.sets)]
        self.kernel = Kernel("memmove", "libc", self.details)

    def launch(self, index: int) -> None:
        target, source = self._addresses[index % self.sets]
        ctypes.memmove(target, source, self._size_bytes)


class TorchHostCopies(HostCopies):
    """The same buffers as tensors."""

    def __init__(self, parameters: TransferParameters, seed: int) -> None:
        where = TorchDevice(Device("cpu"), parameters.workers)
        super().__init__(parameters, seed)
        self._targets = self.slots.cut(where.torch.from_numpy(self.target))
        self._sources = self.slots.cut(where.torch.from_numpy(self.source))
        self.kernel = Kernel("copy_", "torch", {**self.details, **where.details()})

    def launch(self, index: int) -> None:
        slot = index % self.sets
        self._targets[slot].copy_(self._sources[slot])


class DeviceCopies(Copies):
    """Between a GPU and host memory, pinned or pageable, on the asked node. Not yet measured on a GPU."""

    def __init__(self, parameters: TransferParameters, seed: int, where: TorchDevice, to_device: bool) -> None:
        super().__init__(parameters)
        torch, self._where, self._pinned = where.torch, where, parameters.pinned
        with running_on(parameters.numa_node):
            # Pinned memory is placed when it is allocated, other memory when it is first written.
            host = torch.empty(self.slots.total_bytes, dtype=torch.uint8, pin_memory=parameters.pinned)
            fill(host.numpy(), seed)
        self._sent = host.numpy().copy()
        on_device = host.to(where.device)
        self._target, source = (on_device, host) if to_device else (host, on_device)
        self._targets, self._sources = self.slots.cut(self._target), self.slots.cut(source)
        way = f"{'host_to_device' if to_device else 'device_to_host'}, {'pinned' if self._pinned else 'pageable'}"
        self.kernel = Kernel("copy_", way, {**self.details, **where.details()})

    @property
    def stopwatch(self) -> Stopwatch:
        return self._where.stopwatch

    def launch(self, index: int) -> None:
        slot = index % self.sets
        self._targets[slot].copy_(self._sources[slot], non_blocking=self._pinned)

    def poison(self, index: int | None = None) -> None:
        self._where.synchronize()
        where = self.slots.place(index)
        self._target[where].copy_(self._where.torch.from_numpy(np.invert(self._sent[where])))
        self._where.synchronize()

    def compared(self, index: int) -> tuple[Bytes, Bytes, str]:
        self._where.synchronize()
        where = self.slots.place(index)
        return self._target[where].cpu().numpy(), self._sent[where], f"slot {index}"


class FileReads(Compared):
    """Reads of the next piece of a file, round and round, into one place.

    The file is unlinked before its first byte is written, so that nothing of it outlives the process, however that
    ends.
    """

    sees_more = True

    def __init__(self, parameters: TransferParameters, seed: int, flag: int, path: str) -> None:
        """Write the file in the folder asked for, and open it to read with that flag. Raises Unsupported."""
        folder = folder_of(parameters)
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

    def launch(self, index: int) -> None:
        begin = self._begin = (index % self._pieces) * self._size_bytes
        done = os.preadv(self._file, [self._room], begin)
        while done < self._size_bytes:  # a signal, or more than one call may read (2 GiB)
            more = os.preadv(self._file, [self._room[done:]], begin + done)
            if more == 0:
                raise OSError(f"the file ends after {begin + done} bytes, and {self._written.size} were written")
            done += more

    def untimed(self, index: int) -> None:
        """Of any piece."""
        self.launch(random.randrange(self._pieces))

    def poison(self, index: int | None = None) -> None:
        np.invert(self.compared(0)[1], out=self._target)

    def compared(self, index: int) -> tuple[Bytes, Bytes, str]:
        """The piece that was read last."""
        sent = self._written[self._begin : self._begin + self._size_bytes]
        return self._target, sent, f"the file from {self._begin} on"

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


class Way(Implementation[TransferParameters]):
    """One way for bytes to go; of `workers`, `pinned` and `numa_node` it takes those that are named."""

    takes: ClassVar[tuple[str, ...]] = ()

    def validate(self, parameters: TransferParameters) -> None:
        usual = TransferParameters(parameters.size_bytes)
        for name in ("workers", "pinned", "numa_node"):
            if getattr(parameters, name) != getattr(usual, name) and name not in self.takes:
                others = ", ".join(each.name for each in Transfer.implementations.values() if name in each.takes)
                raise UserError(
                    f"{name}={getattr(parameters, name)} was asked for, which {self.name} does not take: leave it out, "
                    f"or ask for one of {others}."
                )
        require_cores(parameters.workers)


class Memcpy(Way):
    """The C library's memmove on one core."""

    name = "memcpy"
    takes = ("numa_node",)

    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        return MemcpySteps(parameters, place.seed)


class TorchCopy(Way):
    """`Tensor.copy_` between host tensors, on as many cores as asked for, of whose threads none is kept on a node."""

    name = "torch"
    takes = ("workers",)

    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        return TorchHostCopies(parameters, place.seed)


class HostToDevice(Way):
    """`Tensor.copy_` over the bus, timed by the GPU: towards it, as batches and offloaded states travel."""

    name = "host_to_device"
    device_kind = "cuda"
    takes = ("pinned", "numa_node")

    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        if place.device.kind != "cuda":
            raise Unsupported("There is no GPU to copy to or from.")
        # A copy from pageable memory waits for the stream, which a held one would never let go on.
        where = TorchDevice(place.device, queueing="held" if parameters.pinned else "open")
        return DeviceCopies(parameters, place.seed, where, self.name == HostToDevice.name)


class DeviceToHost(HostToDevice):
    """Away from the GPU, as offloaded gradients and activations travel."""

    name = "device_to_host"


class CachedReads(Way):
    """One thread that asks for one piece of a file after the other, which the kernel copies out of the page cache."""

    name = "disk_cached"

    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        return FileReads(parameters, place.seed, 0, "page cache")


class DirectReads(Way):
    """Past the page cache: the disk writes to this process's memory. The host of a virtual machine may cache still."""

    name = "disk_direct"

    def validate(self, parameters: TransferParameters) -> None:
        super().validate(parameters)
        if parameters.size_bytes % BLOCK_BYTES:
            raise UserError(
                f"O_DIRECT reads whole blocks of {BLOCK_BYTES} bytes, but {parameters.size_bytes} were asked for: "
                "ask for a multiple."
            )

    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        if not hasattr(os, "O_DIRECT"):
            raise Unsupported("This system has no O_DIRECT.")
        folder = folder_of(parameters)
        kind = file_system(folder)
        if kind in IN_MEMORY:
            raise Unsupported(f"{folder} is on {kind}, which is memory and no disk: give another folder.")
        return FileReads(parameters, place.seed, os.O_DIRECT, "O_DIRECT")


def page_aligned(size_bytes: int) -> Bytes:
    """Fresh memory of the host at a page's begin, in large pages where it is large; no page of it is placed yet."""
    memory = mmap.mmap(-1, size_bytes)
    if size_bytes >= WORTH_LARGE_PAGES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


def fill(buffer: Bytes, seed: int) -> None:
    """Seeded bytes without a period, so that none that came from elsewhere passes for right."""
    buffer[:] = np.random.default_rng(seed).integers(0, 256, buffer.size, dtype=np.uint8)


def nodes(files: KernelFiles | None = None) -> tuple[int, ...]:
    """The numbers of the machine's NUMA nodes; none where the system does not tell."""
    return tuple(sorted(parse_cpu_list((files or KernelFiles()).text("sys/devices/system/node/online"))))


def require_node(node: int, files: KernelFiles | None = None) -> None:
    """Raise UserError for a node that there is not; ANY_NODE is always there."""
    there = nodes(files)
    if node != ANY_NODE and node not in there:
        named = ", ".join(map(str, there)) or "none that the system tells of"
        raise UserError(
            f"NUMA node {node} was asked for, but this machine has {named}: leave it at {ANY_NODE} for wherever it is."
        )


@contextmanager
def running_on(node: int, files: KernelFiles | None = None) -> Iterator[None]:
    """Keep this thread on the node's CPUs for as long as the block lasts; anywhere for ANY_NODE.

    Raises Unsupported where this process may use none of the node's CPUs.
    """
    if node == ANY_NODE:
        yield
        return
    listed = (files or KernelFiles()).text(f"sys/devices/system/node/node{node}/cpulist")
    allowed = os.sched_getaffinity(0)
    chosen = allowed & parse_cpu_list(listed)
    if not chosen:
        raise Unsupported(f"This process may use no CPU of NUMA node {node}, so it cannot place memory there.")
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class Transfer(Workload[TransferParameters]):
    """A copy of so many bytes; what counts is the payload once, though memory sees it read and written."""

    name = "transfer"
    parameters_type = TransferParameters
    implementations = by_name(Memcpy(), TorchCopy(), HostToDevice(), DeviceToHost(), CachedReads(), DirectReads())

    def work(self, parameters: TransferParameters) -> Work:
        return Work(0, parameters.size_bytes)

    def footprint_bytes(self, parameters: TransferParameters) -> int:
        """Source, target, and as much again by which they are compared."""
        return 3 * parameters.size_bytes
