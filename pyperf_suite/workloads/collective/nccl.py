"""Collectives by NCCL, driven by our own C++: each call by itself, or one capture of it replayed.

Between GPUs it is the real library; the host's memory takes a GPU's place where PYPERF_LIBNCCL names a double of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from pyperf_suite.errors import OneOf, Unsupported
from pyperf_suite.hardware.catalogue import architecture
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels.nvrtc import wheels
from pyperf_suite.ranks.group import Group
from pyperf_suite.workloads.backends import cuda_device, native_extension
from pyperf_suite.workloads.collective import POISON_BYTE, CollectiveParameters, Exchange, Stored
from pyperf_suite.workloads.on_ranks import agree, do_together, require_started_so
from pyperf_suite.workloads.operands import element_type
from pyperf_suite.workloads.workload import ExecutionContext, Implementation, Kernel, RankTimes, Transfers

# Below site-packages: where the wheels of NVIDIA put it, of which torch brings one along.
WHEEL_PATTERNS = ("nvidia/nccl/lib/libnccl.so.2", "nvidia/cu1?/lib/libnccl.so.2")
OVERRIDE = "PYPERF_LIBNCCL"

# NCCL's names where they are not ours.
DTYPES = {"float8_e4m3fn": "float8_e4m3"}
FUNCTIONS = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
    "all_to_all": "ncclAlltoAll",
    "gather": "ncclGather",
    "scatter": "ncclScatter",
}
NCCL_PATIENCE_S = 10.0  # longer than any step of the ranks: the watchdog, which knows who is missing, is to speak first
SEND_AND_RECEIVE = "ncclSend, ncclRecv"
RANKS_PER_ID = 128  # ranks of one id: meeting takes time in proportion to them, and this is torch's own share of one

# Calls in one graph of a short message: launching the graph, and the two events around it, then weigh a sixteenth.
GRAPH_CALLS = 16
SHORT_BYTES = 1 << 20


class Nccl(Implementation[CollectiveParameters]):
    """Calls of NCCL in a loop of C++, each waited for."""

    name = "nccl"
    graph: ClassVar[bool] = False

    def validate(self, parameters: CollectiveParameters) -> None:
        for name in parameters.configuration:
            OneOf(native_extension().nccl.SETTINGS).check("settings", name)

    def prepare(self, parameters: CollectiveParameters, place: ExecutionContext) -> Transfers:
        connection = _connection(parameters.configuration, place.ranks, place.device, place.deadline_s)
        _require_supported(parameters, connection, place.device)
        with _translated(connection.nccl):
            return NcclTransfers(parameters, connection, self.graph, place.deadline_s)


class NcclGraph(Nccl):
    """The same call captured once in a graph, which is replayed: time without any work of the host."""

    name = "nccl_graph"
    graph = True


@dataclass(frozen=True)
class Connection:
    """The library and the communicator of all ranks, with a collective of one element that serves as barrier."""

    nccl: ModuleType
    library: Any
    communicator: Any
    barrier: Any


# Communicators of this process, which belongs to one group of ranks for as long as it lives, by device and settings.
_CONNECTIONS: dict[tuple[Any, ...], Connection] = {}


def _connection(settings: dict[str, int], group: Group, device: Device, deadline_s: float) -> Connection:
    key = (device.kind, *sorted(settings.items()))
    if key in _CONNECTIONS:
        return _CONNECTIONS[key]
    nccl, library, memory, unique_id = agree(group, "look for NCCL", lambda: _open(settings, group, device), deadline_s)
    versions = group.gather("compare NCCL's versions", library.version_text, deadline_s)
    other = next((rank for rank, version in enumerate(versions) if version != versions[0]), None)
    if other is not None:
        raise Unsupported(
            f"Rank 0 has NCCL {versions[0]} and rank {other} has NCCL {versions[other]}: install the same on all nodes."
        )
    unique_ids = bytes.fromhex("".join(group.gather("share NCCL's unique ids", unique_id.hex(), deadline_s)))

    def connect() -> Connection:
        patience_s = deadline_s + NCCL_PATIENCE_S
        communicator = nccl.Communicator(library, memory, unique_ids, group.rank, group.count, patience_s, settings)
        element = nccl.Buffer(communicator, 4)
        barrier = nccl.Collective(communicator, "all_reduce", 1, "int32", element, in_place=True)
        return Connection(nccl, library, communicator, barrier)

    connection = do_together(group, "connect by NCCL", connect, deadline_s)
    # A call that hangs in NCCL cannot be interrupted, but given up: before the watchdog ends the process it is.
    group.watchdog.before_end.append(connection.communicator.request_abort)
    _CONNECTIONS[key] = connection
    return connection


def _open(settings: dict[str, int], group: Group, device: Device) -> tuple[ModuleType, Any, Any, bytes]:
    if device.kind != "cuda" and not os.environ.get(OVERRIDE):
        raise Unsupported("NCCL needs GPUs, and the requested device is the CPU: ask for gloo.")
    nccl = native_extension().nccl
    with _translated(nccl):
        library = nccl.Library(list(wheels(WHEEL_PATTERNS)))
        library.check_settings(settings)
        if device.kind == "cuda":
            gpu = cuda_device(device.index)
            source = (files("pyperf_suite.kernels") / "cuda" / "periodic.cu").read_text("utf-8")
            memory = nccl.CudaDevice(gpu.context, gpu.compile("periodic.cu", source, {}, ("--std=c++17",)))
        else:
            memory = nccl.HostDevice()
        several = library.optional["ncclCommInitRankScalable"]
        asks = group.rank % RANKS_PER_ID == 0 if several else group.rank == 0
        return nccl, library, memory, library.unique_id() if asks else b""


@contextmanager
def _translated(nccl: ModuleType) -> Iterator[None]:
    try:
        yield
    except (nccl.NotAvailable, native_extension().cuda.OutOfMemory) as reason:
        raise Unsupported(str(reason)) from None


def _require_supported(parameters: CollectiveParameters, connection: Connection, device: Device) -> None:
    """Raise Unsupported for what this library on this device does not do, or these processes were not started for."""
    require_started_so(parameters.peer_to_peer)
    library = f"NCCL {connection.library.version_text}"
    if parameters.registered and not connection.library.optional["ncclCommRegister"]:
        raise Unsupported(f"{library} cannot register buffers, 2.19 and later can: update it, or leave registered out.")
    if parameters.symmetric and not connection.library.optional["ncclCommWindowRegister"]:
        raise Unsupported(f"{library} has no symmetric windows, 2.27 and later has: update it, or leave symmetric out.")
    if parameters.dtype.startswith("float8") and parameters.operation.reduces and device.kind == "cuda":
        capability = tuple(cuda_device(device.index).context.properties.compute_capability)
        if "float8_sums" not in architecture(capability).features:
            raise Unsupported(
                f"NCCL reduces float8 on GPUs of compute capability 9.0 or more, and this one has "
                f"{capability[0]}.{capability[1]}: ask for bfloat16."
            )


class NcclTransfers(Exchange):
    """One rank's buffers and the collective that is timed.

    NCCL starts a thread of the host for each call on a communicator that does not block, which is in the time of a call
    by itself (settings="blocking=1" has none); a captured call has been through it when the graph is replayed. The loop
    is C++ without the interpreter's lock: seconds are between two events on the stream, around the call, and stamps are
    taken before the call and when the host sees that it is done.
    """

    def __init__(
        self, parameters: CollectiveParameters, connection: Connection, graph: bool, deadline_s: float
    ) -> None:
        nccl, communicator = connection.nccl, connection.communicator

        def allocated(count: int) -> BufferMemory:
            size_bytes, patience_s = count * parameters.element_bytes, deadline_s + NCCL_PATIENCE_S
            window = {"window_within_s": patience_s} if parameters.symmetric else {}
            buffer = nccl.Buffer(communicator, size_bytes, parameters.registered, **window)
            if parameters.symmetric and not buffer.registered:
                raise Unsupported(
                    "NCCL made no symmetric window of these buffers, whose GPUs do not reach each other's memory or "
                    "whose memory is none of the driver's (NCCL_CUMEM_ENABLE=0): leave symmetric out."
                )
            return BufferMemory(buffer, parameters.dtype)

        super().__init__(parameters, communicator.rank, allocated)
        self._barrier, self._graph = connection.barrier, graph
        is_short = parameters.message_bytes <= SHORT_BYTES
        self.calls = GRAPH_CALLS if graph and is_short and not self.unchecked else 1
        self._patience_s = deadline_s + NCCL_PATIENCE_S
        self._collective = nccl.Collective(
            communicator,
            parameters.op,
            parameters.count,
            DTYPES.get(parameters.dtype, parameters.dtype),
            *(memory.buffer if memory else None for memory in (self.send, self.receive)),
            reduction=parameters.reduction,
            root=parameters.root,
            in_place=parameters.in_place,
            pattern=list(parameters.pairs) if parameters.operation.by_pairs else [],
        )
        self._has_run = False
        # A version may lack the function: it is then made of the last.
        function = FUNCTIONS.get(parameters.op, SEND_AND_RECEIVE)
        function = function if connection.library.optional.get(function, True) else SEND_AND_RECEIVE
        self.kernel = Kernel(function, "nccl", self._details(connection.library))

    def poison(self, index: int | None = None) -> None:
        if not self._has_run:
            # The first run makes connections; it must not be the one that is checked, which in place it would change.
            self._collective.run(self._patience_s)
            self._has_run = True
        super().poison(index)

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        # Ranks learn of a block one after the other; what is timed begins for all at once.
        patience_s = deadline_s + NCCL_PATIENCE_S
        self._barrier.run(patience_s)
        if not self.takes_part:
            return RankTimes(np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        seconds, arrived_ns, done_ns = self._collective.time(
            iterations, patience_s, synchronise_each=True, graph_calls=self.calls if self._graph else 0
        )
        # The calls of one replay count an equal share each.
        return RankTimes(seconds / self.calls, arrived_ns, arrived_ns + (done_ns - arrived_ns) // self.calls)

    def close(self) -> None:
        self._collective = None
        super().close()

    def _details(self, library: Any) -> dict[str, Any]:
        """The copy in use and what was set for it: a user's own settings explain many a figure."""
        settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")}
        details: dict[str, Any] = {"nccl": library.version_text, "library": library.path}
        p = self.data.parameters
        has_thread = not p.configuration.get("blocking")
        details |= {"graph": True, "calls_per_graph": self.calls} if self._graph else {"thread_per_call": has_thread}
        details |= {"registered": self.send.buffer.registered} if self.send and p.registered else {}
        details |= {"symmetric": True} if p.symmetric else {}
        details |= {"configuration": p.configuration} if p.configuration else {}
        return details | ({"settings": settings} if settings else {})


@dataclass(frozen=True)
class BufferMemory:
    """A buffer of a communicator as data.Memory."""

    buffer: Any
    dtype: str

    def poison(self) -> None:
        self.buffer.fill(POISON_BYTE)

    def repeat(self, first: int, values: Stored, count: int) -> None:
        self.buffer.repeat(values, count * values.itemsize, first * values.itemsize)

    def outside(self, first: int, low: Stored, high: Stored, count: int) -> tuple[int, int]:
        found: tuple[int, int] = self.buffer.outside(low, high, count, first * low.itemsize)
        return found

    def read(self, first: int, count: int) -> Stored:
        element = element_type(self.dtype)
        found = self.buffer.read(count * element.size_bytes, first * element.size_bytes)
        read: Stored = np.frombuffer(found, element.storage)
        return read
