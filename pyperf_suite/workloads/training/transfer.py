"""Bytes on their way: from host memory to host memory, to a GPU and back, and from a disk to host memory."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training.disk_reads import CachedReads, DirectReads
from pyperf_suite.workloads.training.host_memory import (
    ANY_NODE,
    Bytes,
    fill,
    nodes,
    page_aligned,
    require_node,
    running_on,
)
from pyperf_suite.workloads.training.transfer_parameters import TransferParameters, refuse_pinned
from pyperf_suite.workloads.workload import Checked, Implementation, Kernel, Place, Prepared, Work, Workload

# Copies rotate through buffers of this many times the level-2 caches, so that they do not find what the last ones left.
CACHE_TURNOVER = 3
# More slots would prove nothing more, and take longer to make than to copy.
MOST_SLOTS = 4096


class Transfer(Workload[TransferParameters]):
    """A copy of so many bytes; what counts is the payload once, though memory sees it read and written."""

    name = "transfer"
    parameters_type = TransferParameters

    def __init__(self) -> None:
        ways = (Memcpy(), TorchCopy(), HostToDevice(), DeviceToHost(), CachedReads(), DirectReads())
        self.implementations: Mapping[str, Implementation[TransferParameters]] = {way.name: way for way in ways}

    def validate(self, parameters: TransferParameters) -> None:
        """Raise UserError for a copy that cannot be."""
        for name in ("size_bytes", "workers"):
            if getattr(parameters, name) < 1:
                raise UserError(f"A transfer needs {name} of at least 1, but {getattr(parameters, name)} is given.")
        require_node(parameters.numa_node)

    def work(self, parameters: TransferParameters) -> Work:
        """The payload, counted once."""
        return Work(0, parameters.size_bytes)

    def footprint_bytes(self, parameters: TransferParameters) -> int:
        """Source, target, and as much again by which they are compared."""
        return 3 * parameters.size_bytes


@dataclass(frozen=True)
class Slots:
    """A buffer cut into places of one transfer each, of which step i takes place i modulo their number."""

    size_bytes: int
    count: int

    @classmethod
    def beyond_caches(cls, size_bytes: int) -> Slots:
        """As many as turn the level-2 caches over."""
        wanted = -(-CACHE_TURNOVER * cpu.detect().l2_total_bytes // size_bytes)
        return cls(size_bytes, max(1, min(wanted, MOST_SLOTS)))

    @property
    def total_bytes(self) -> int:
        """Of the whole buffer."""
        return self.size_bytes * self.count

    def cut(self, buffer: Any) -> list[Any]:
        """The places of a tensor or array, in order."""
        return [buffer[start : start + self.size_bytes] for start in range(0, self.total_bytes, self.size_bytes)]


class Copies(Prepared):
    """Copies from a seeded source, in slots; subclasses know where source and target lie."""

    def __init__(self, slots: Slots) -> None:
        self._slots, self.sets = slots, slots.count

    @abstractmethod
    def poison(self, index: int | None = None) -> None:
        """Leave no byte of a slot, or of all, as it must become."""

    @abstractmethod
    def compared(self, index: int) -> tuple[Bytes, Bytes]:
        """What arrived in a slot, when all has, and what was sent; both in host memory."""

    def left(self, index: int) -> Checked:
        """Every byte of a slot."""
        arrived, sent = self.compared(index)
        differ = np.flatnonzero(arrived != sent)
        first = ""
        if differ.size:
            byte = differ[0]
            first = f"byte {byte} of slot {index} arrived as {arrived[byte]} and was sent as {sent[byte]}"
        return Checked(int(differ.size), int(sent.size), first)

    def kept(self, index: int) -> Any:
        """Nothing: what was sent is there to compare with."""
        return None

    def equals(self, index: int, kept: Any) -> bool:
        return np.array_equal(*self.compared(index))

    def _bytes_of(self, index: int | None) -> slice:
        if index is None:
            return slice(None)
        return slice(index * self._slots.size_bytes, (index + 1) * self._slots.size_bytes)


class HostCopies(Copies):
    """From host memory on the asked node to host memory of the copying thread's own."""

    def __init__(self, parameters: TransferParameters, seed: int) -> None:
        super().__init__(Slots.beyond_caches(parameters.size_bytes))
        self._held = ExitStack()
        total_bytes = self._slots.total_bytes
        with running_on(parameters.numa_node):
            self.source = page_aligned(total_bytes)
            fill(self.source, seed)
        if parameters.numa_node != ANY_NODE:
            # Only a thread that stays can tell a near node from a far one.
            self._held.enter_context(running_on(nodes()[0]))
        self.target = page_aligned(total_bytes)
        self.poison()
        self._details = {"slots": self._slots.count, "buffer_bytes": total_bytes}

    def poison(self, index: int | None = None) -> None:
        where = self._bytes_of(index)
        np.invert(self.source[where], out=self.target[where])

    def compared(self, index: int) -> tuple[Bytes, Bytes]:
        where = self._bytes_of(index)
        return self.target[where], self.source[where]

    def close(self) -> None:
        self._held.close()


class Memcpy(Implementation[TransferParameters]):
    """The C library's memmove on one core."""

    name = "memcpy"
    device_kind = "any"

    def validate(self, parameters: TransferParameters) -> None:
        """Raise UserError for pinned memory or for several cores."""
        refuse_pinned(self.name, parameters)
        if parameters.workers != 1:
            raise UserError(f"memcpy runs on 1 core, but {parameters.workers} were asked for: torch copies on several.")

    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        """Fill the source on its node."""
        return MemcpySteps(parameters, place.seed)


class MemcpySteps(HostCopies):
    """Calls through ctypes, whose own cost is part of the latency: about a third of a microsecond."""

    def __init__(self, parameters: TransferParameters, seed: int) -> None:
        super().__init__(parameters, seed)
        size_bytes, count = self._slots.size_bytes, self._slots.count
        target, source = self.target.ctypes.data, self.source.ctypes.data
        self._addresses = [(target + slot * size_bytes, source + slot * size_bytes) for slot in range(count)]
        self.kernel = Kernel("memmove", "libc", self._details)

    def launch(self, index: int) -> None:
        target, source = self._addresses[index % self._slots.count]
        ctypes.memmove(target, source, self._slots.size_bytes)


class TorchCopy(Implementation[TransferParameters]):
    """`Tensor.copy_` between host tensors, on as many cores as asked for."""

    name = "torch"
    device_kind = "any"

    def validate(self, parameters: TransferParameters) -> None:
        """Raise UserError for pinned memory, more cores than there are, or a node that threads could not be kept on."""
        refuse_pinned(self.name, parameters)
        require_cores(parameters.workers)
        if parameters.numa_node != ANY_NODE:
            raise UserError("torch's threads are not kept on a NUMA node: ask for memcpy, or leave the node out.")

    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        """Raises Unsupported where torch is absent."""
        return TorchHostCopies(parameters, place.seed)


class TorchHostCopies(HostCopies):
    """The same buffers as memcpy's, as tensors."""

    def __init__(self, parameters: TransferParameters, seed: int) -> None:
        where = TorchDevice(Device("cpu"), parameters.workers)
        super().__init__(parameters, seed)
        self._targets = self._slots.cut(where.torch.from_numpy(self.target))
        self._sources = self._slots.cut(where.torch.from_numpy(self.source))
        self.kernel = Kernel("copy_", "torch", {**self._details, **where.details()})

    def launch(self, index: int) -> None:
        slot = index % self._slots.count
        self._targets[slot].copy_(self._sources[slot])


class DeviceCopy(Implementation[TransferParameters]):
    """`Tensor.copy_` over the bus, timed by the GPU."""

    device_kind = "cuda"
    to_device: bool

    def validate(self, parameters: TransferParameters) -> None:
        """Raise UserError for more than one core, of which none copies here."""
        if parameters.workers != 1:
            raise UserError(f"{self.name} takes 1 core, but {parameters.workers} were asked for.")

    def prepare(self, parameters: TransferParameters, place: Place) -> Prepared:
        """Allocate on both sides. Raises Unsupported where there is no GPU, or torch is absent or cannot use it."""
        if place.device.kind != "cuda":
            raise Unsupported("There is no GPU to copy to or from.")
        # A copy from pageable memory waits for the stream, which a held one would never let go on.
        where = TorchDevice(place.device, queueing="held" if parameters.pinned else "open")
        return DeviceCopies(parameters, place.seed, where, self.to_device)


class HostToDevice(DeviceCopy):
    """Towards the GPU, as batches and offloaded states travel."""

    name = "host_to_device"
    to_device = True


class DeviceToHost(DeviceCopy):
    """Away from the GPU, as offloaded gradients and activations travel."""

    name = "device_to_host"
    to_device = False


class DeviceCopies(Copies):
    """Between a GPU and host memory, pinned or pageable, on the asked node. Not yet measured on a GPU."""

    def __init__(self, parameters: TransferParameters, seed: int, where: TorchDevice, to_device: bool) -> None:
        super().__init__(Slots.beyond_caches(parameters.size_bytes))
        torch, total_bytes = where.torch, self._slots.total_bytes
        self._where, self._to_device, self._pinned = where, to_device, parameters.pinned
        with running_on(parameters.numa_node):
            # Pinned memory is placed when it is allocated, other memory when it is first written.
            self._host = torch.empty(total_bytes, dtype=torch.uint8, pin_memory=parameters.pinned)
            fill(self._host.numpy(), seed)
        self._sent = self._host.numpy().copy()
        self._on_device = self._host.to(where.device)
        ends = (self._on_device, self._host) if to_device else (self._host, self._on_device)
        self._targets, self._sources = (self._slots.cut(end) for end in ends)
        kind = "pinned" if parameters.pinned else "pageable"
        details = {"slots": self._slots.count, "buffer_bytes": total_bytes, **where.details()}
        self.kernel = Kernel("copy_", f"{'host_to_device' if to_device else 'device_to_host'}, {kind}", details)

    @property
    def stopwatch(self) -> Stopwatch:
        return self._where.stopwatch

    def launch(self, index: int) -> None:
        slot = index % self._slots.count
        self._targets[slot].copy_(self._sources[slot], non_blocking=self._pinned)

    def poison(self, index: int | None = None) -> None:
        self._where.synchronize()
        where = self._bytes_of(index)
        inverted = self._where.torch.from_numpy(np.invert(self._sent[where]))
        (self._on_device if self._to_device else self._host)[where].copy_(inverted)
        self._where.synchronize()

    def compared(self, index: int) -> tuple[Bytes, Bytes]:
        self._where.synchronize()
        where = self._bytes_of(index)
        return (self._on_device[where].cpu() if self._to_device else self._host[where]).numpy(), self._sent[where]
