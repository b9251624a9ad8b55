"""How fast bytes reach where they are needed: copies in host memory, over the bus of a GPU, and out of files.

Each way is latency plus bytes over bandwidth, in straight lines joined end to end (laws/network/alpha_beta.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training import host_memory
from pyperf_suite.operators.training.disk_reads import BLOCK_BYTES
from pyperf_suite.operators.training.host_memory import ANY_NODE
from pyperf_suite.operators.training.transfer_parameters import TransferParameters
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.transfer_findings import explain
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.axes import Sizes
from pyperf_suite.spec.findings import Findings

IN_HOST, ON_DISK, OVER_BUS = ("memcpy", "torch"), ("disk_cached", "disk_direct"), ("host_to_device", "device_to_host")
MEMORY = ("pinned", "pageable")

# The folder that results go to.
RESULTS = "results"

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True)
class TransferAxes:
    """What the probe varies.

    memcpy and the ways over a GPU's bus take each `size`, torch each `torch_size` on each number of `workers`, reads of
    a file each `disk_size`. `memory` is the host's end of a copy to or from a GPU. `numa_node` is where the host's
    source lies, -1 for wherever the kernel puts it; `folder` names the disk, "results" for that of the results.
    """

    way: tuple[str, ...]
    size: tuple[Sizes, ...]
    torch_size: tuple[Sizes, ...]
    disk_size: tuple[Sizes, ...]
    workers: tuple[int, ...]
    memory: tuple[str, ...]
    numa_node: tuple[int, ...] = (ANY_NODE,)
    folder: tuple[str, ...] = (RESULTS,)

    def __post_init__(self) -> None:
        """Raise UserError for a word there is not, or a piece of a file that no disk reads."""
        for name, words in (("way", (*IN_HOST, *ON_DISK, *OVER_BUS)), ("memory", MEMORY)):
            for value in getattr(self, name):
                if value not in words:
                    raise UserError(f"{name}={value} was asked for: choose from {', '.join(words)}.")
        for size_bytes in _ladder(self.disk_size):
            if "disk_direct" in self.way and size_bytes % BLOCK_BYTES:
                raise UserError(
                    f"disk_size={size_bytes} was asked for, but O_DIRECT reads whole blocks: take a multiple of "
                    f"{BLOCK_BYTES}, or leave disk_direct out of way."
                )


class TransferProbe(Probe):
    """Copies of growing size by every way there is."""

    name = "transfer"
    question = "How fast do bytes get to where they are computed with, from memory, from a disk and over the bus?"

    def axes(self, profile: str, device: Device) -> TransferAxes:
        """From below the level-1 cache to beyond all caches; on a GPU both directions over its bus as well."""
        return _cuda_axes(profile) if device.kind == "cuda" else _cpu_axes(profile)

    def sweep(self, axes: TransferAxes) -> list[Case]:
        """Every way at its sizes, in each kind of memory that it has."""
        return list({case.case_id: case for case in _cases(axes)}.values())

    def findings(self, records: Sequence[Record]) -> Findings:
        """Latency and bandwidth of each way, what cores, pinning and nearness give, and what a disk costs."""
        return explain(records)

    def group(self, case: Case) -> str:
        """One table a way."""
        return f"transfer {case.implementation}"


def _cpu_axes(profile: str) -> TransferAxes:
    cores = cpu.detect().usable_cores
    quick = TransferAxes(
        way=("memcpy", *ON_DISK),
        size=(Sizes(64 * KIB, 64 * KIB), Sizes(16 * MIB, 16 * MIB)),
        torch_size=(),
        disk_size=(Sizes(1 * MIB, 1 * MIB),),
        workers=(),
        memory=(),
    )
    if profile == "quick":
        return quick
    several = tuple(node for node in host_memory.nodes() if len(host_memory.nodes()) > 1)
    standard = replace(
        quick,
        way=(*IN_HOST, *ON_DISK),
        size=(Sizes(2 * KIB, 64 * MIB, 8),),
        torch_size=(Sizes(16 * MIB, 16 * MIB),),
        disk_size=(Sizes(4 * KIB, 16 * MIB, 64),),
        workers=tuple(sorted({1, cores})),
        numa_node=several or (ANY_NODE,),
    )
    if profile == "standard":
        return standard
    return replace(
        standard,
        size=(Sizes(1 * KIB, 256 * MIB, 4),),
        torch_size=(Sizes(1 * KIB, 256 * MIB, 4),),
        disk_size=(Sizes(4 * KIB, 64 * MIB, 4),),
        workers=tuple(sorted({1, *(2**power for power in range(1, 10) if 2**power < cores), cores})),
    )


def _cuda_axes(profile: str) -> TransferAxes:
    """The bus first: what is measured in host memory does not change with the GPU."""
    quick = replace(_cpu_axes("quick"), way=OVER_BUS, size=(Sizes(64 * MIB, 64 * MIB),), memory=MEMORY)
    if profile == "quick":
        return quick
    host = _cpu_axes(profile)
    return replace(host, way=(*OVER_BUS, *host.way), memory=MEMORY)


def _cases(axes: TransferAxes) -> Iterator[Case]:
    for way in axes.way:
        for parameters in _parameters(way, axes):
            yield Case("transfer", parameters, way)


def _parameters(way: str, axes: TransferAxes) -> Iterator[TransferParameters]:
    if way == "torch":
        for size_bytes, workers in itertools.product(_ladder(axes.torch_size), axes.workers):
            yield TransferParameters(size_bytes, workers)
    elif way in ON_DISK:
        for size_bytes, folder in itertools.product(_ladder(axes.disk_size), axes.folder):
            yield TransferParameters(size_bytes, folder="" if folder == RESULTS else folder)
    else:
        memory = axes.memory if way in OVER_BUS else ("pageable",)
        for size_bytes, kind, node in itertools.product(_ladder(axes.size), memory, axes.numa_node):
            yield TransferParameters(size_bytes, pinned=kind == "pinned", numa_node=node)


def _ladder(sizes: Sequence[Any]) -> list[int]:
    return sorted({size_bytes for each in sizes for size_bytes in each.ladder()})
