"""Sockets, cores and NUMA nodes, and which of them this process may run on and take memory from.

From Linux's /sys and /proc; elsewhere there is nothing to tell, and empty is what they read as.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyperf_suite.hardware.kernel_files import KernelFiles, parse_bytes, parse_cpu_list, parse_integer

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"


@dataclass(frozen=True)
class NumaNode:
    """A node's CPUs and memory; `distances` is the firmware's to each node in order, 10 to itself."""

    number: int
    cpus: frozenset[int]
    memory_bytes: int
    distances: tuple[int, ...]


@dataclass(frozen=True)
class CpuLayout:
    """Sockets and cores of the CPUs that are online; 0 where it is not told. `nodes` are those with CPUs or memory."""

    sockets: int
    cores: int
    online: frozenset[int]
    nodes: tuple[NumaNode, ...]
    allowed_cpus: frozenset[int]
    allowed_nodes: frozenset[int]  # whose memory this process may take

    def nodes_of(self, cpus: frozenset[int]) -> tuple[int, ...]:
        """The nodes that those CPUs are of."""
        return tuple(node.number for node in self.nodes if node.cpus & cpus)


def read_layout(files: KernelFiles) -> CpuLayout:
    """The layout that these kernel files speak of."""
    online = parse_cpu_list(files.text(f"{CPUS}/online"))
    places = [
        (package, files.integer(f"{CPUS}/cpu{cpu}/topology/core_id"))
        for cpu in sorted(online)
        if (package := files.integer(f"{CPUS}/cpu{cpu}/topology/physical_package_id")) is not None
    ]
    status = files.text("proc/self/status") or ""
    nodes = [_node(files, path) for path in files.matching(f"{NODES}/node[0-9]*")]
    return CpuLayout(
        sockets=len({package for package, _ in places}),
        cores=len(set(places)),
        online=online,
        nodes=tuple(sorted((node for node in nodes if node is not None), key=lambda node: node.number)),
        allowed_cpus=_allowed(status, "Cpus") & online if online else _allowed(status, "Cpus"),
        allowed_nodes=_allowed(status, "Mems"),
    )


def _node(files: KernelFiles, folder: str) -> NumaNode | None:
    """A node; None where it has neither CPUs nor memory."""
    number = parse_integer(folder.rpartition("/node")[2])
    total = re.search(r"MemTotal:\s*(\d+ kB)", files.text(f"{folder}/meminfo") or "")
    memory_bytes = (parse_bytes(total[1]) if total else None) or 0
    cpus = parse_cpu_list(files.text(f"{folder}/cpulist"))
    distances = [parse_integer(word) for word in (files.text(f"{folder}/distance") or "").split()]
    if number is None or not (cpus or memory_bytes):
        return None
    return NumaNode(number, cpus, memory_bytes, tuple(each for each in distances if each is not None))


def _allowed(status: str, what: str) -> frozenset[int]:
    """The list of `Cpus_allowed_list` or `Mems_allowed_list` in /proc/self/status."""
    match = re.search(rf"^{what}_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    return parse_cpu_list(match[1]) if match else frozenset()
