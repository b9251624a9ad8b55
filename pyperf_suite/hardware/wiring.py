"""How the GPUs that this process sees are wired to each other: nvidia-smi's matrix by CUDA's numbers.

CUDA and nvidia-smi may count differently, and CUDA may see fewer: GPUs are matched by UUID.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Protocol

from pyperf_suite.hardware import topology
from pyperf_suite.hardware.cuda_driver import Gpu
from pyperf_suite.hardware.shared_library import Unavailable
from pyperf_suite.hardware.topology import LinkGraph


class Manager(Protocol):
    """`hardware.nvml.Nvml`."""

    def index(self, uuid: str) -> int | None: ...


def wiring(gpus: Sequence[Gpu], manager: Manager, graph: LinkGraph | Unavailable | None = None) -> dict[str, Any]:
    """For every two GPUs, as in `0-3`, the path between them and the GB/s (1e9) that it carries at best, or null.

    Empty where there are fewer than two, or nvidia-smi does not tell. `graph` is read from it if not given.
    """
    if len(gpus) < 2:
        return {}
    graph = topology.read() if graph is None else graph
    names = {gpu.index: f"GPU{manager.index(gpu.uuid)}" for gpu in gpus}
    if isinstance(graph, Unavailable) or not set(names.values()) <= set(graph.gpus):
        return {}
    told = {}
    for one, other in combinations(gpus, 2):
        path = graph.path(names[one.index], names[other.index])
        peaks = graph.expected_gb_per_s(one.compute_capability)
        pair = (names[one.index], names[other.index])
        told[f"{one.index}-{other.index}"] = {
            "path": str(path),
            "gb_per_s": peaks.get(pair, peaks.get((pair[1], pair[0]))),
        }
    return told
