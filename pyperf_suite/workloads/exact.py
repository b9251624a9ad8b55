"""Figures that are read and not timed: machine code of our GPU kernels, and how this machine is put together.

Kernels are compiled for a target that need not be here, so one that starts to spill is seen without a GPU. Of the
machine: sockets, memory nodes, PCIe links, and GPUs among each other; what to expect of it is the probe's business.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, Unsupported, UserError
from pyperf_suite.hardware import cpu, links, memory, topology
from pyperf_suite.hardware.cpu import CpuLayout, read_layout
from pyperf_suite.hardware.devices import Gpu, Unavailable, gpus
from pyperf_suite.hardware.kernel_files import KernelFiles, cpu_list, parse_cpu_list
from pyperf_suite.hardware.links import PcieLink
from pyperf_suite.hardware.nvml import Nvml, nvml
from pyperf_suite.kernels import disassembly, nvrtc, static
from pyperf_suite.workloads.workload import ByFunction, Exact, ExecutionContext, Kernel, Workload, by_name, exact_metric

TARGETS = sorted({*static.cuda_targets(), *static.triton_targets()})
PARTS = ("host", "gpus")
# Fields of a processor that are reported as it is detected.
OF_CPU = ("model", "l2_bytes", "l2_total_bytes", "l3_bytes", "l3_total_bytes", "caches_assumed", "vector_bits")
# Variables that take a path away from NCCL, as left behind by yesterday's search for an error.
NCCL_SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_P2P_LEVEL")
# An idle GPU's link comes back within milliseconds of the first copy; this is how long it is waited for.
AWAKE_S = 0.3
COPIED_BYTES = 16 << 20


@dataclass(frozen=True)
class CompiledKernelParameters:
    """A kernel of a target's default set, by name, and the target as compilers write it."""

    kernel: str
    target: Annotated[str, OneOf(TARGETS)]

    def validate(self) -> None:
        known = {**static.cuda_kernels(self.target), **static.triton_kernels(self.target)}
        if self.kernel not in known and self.kernel not in static.hinted_kernels(self.target):
            raise UserError(
                f"Unknown kernel {self.kernel!r} for {self.target}: choose from {', '.join(sorted(known))}."
            )


def compiled(
    read: Callable[[CompiledKernelParameters], static.StaticMetrics],
    parameters: CompiledKernelParameters,
    _place: ExecutionContext,
) -> Exact:
    """Sources through the compiler that `read` takes."""
    try:
        found = read(parameters)
    except (ImportError, nvrtc.NoCompiler, disassembly.NoDisassembler) as reason:
        raise Unsupported(str(reason)) from None
    details = {"threads": found.threads, "limited_by": found.occupancy.limited_by, **found.state()}
    return Exact(Kernel(found.kernel, found.target, details), found.metrics())


def read_cuda(parameters: CompiledKernelParameters) -> static.StaticMetrics:
    """Our CUDA sources through NVRTC."""
    return static.cuda_kernels(parameters.target)[parameters.kernel].read(parameters.kernel, parameters.target)


def read_triton(parameters: CompiledKernelParameters) -> static.StaticMetrics:
    """Our Triton kernels through Triton's own compiler."""
    known = {**static.hinted_kernels(parameters.target), **static.triton_kernels(parameters.target)}
    kernel = known[parameters.kernel]
    return static.of_triton(parameters.kernel, kernel.compile_for(parameters.target), kernel.source())


class CompiledKernel(Workload[CompiledKernelParameters]):
    """One kernel of ours, compiled for one target."""

    name = "compiled_kernel"
    parameters_type = CompiledKernelParameters
    is_exact = True
    implementations = by_name(
        ByFunction("nvrtc", partial(compiled, read_cuda)), ByFunction("triton", partial(compiled, read_triton))
    )


@dataclass(frozen=True)
class TopologyParameters:
    """Part to read: the "host", or the "gpus" that this process sees."""

    part: Annotated[str, OneOf(PARTS)] = "host"


def by_system(parameters: TopologyParameters, _place: ExecutionContext) -> Exact:
    """The operating system's word, and the driver's for GPUs."""
    files = KernelFiles()
    details = host_details(files) if parameters.part == "host" else gpu_details(files)
    counts: dict[str, int] = {name: len(details[name]) for name in ("nodes", "pcie", "gpus") if name in details}
    counts.update((name, details[name]) for name in ("sockets", "cores") if name in details)
    metrics = {name: exact_metric("", value) for name, value in counts.items()}
    return Exact(Kernel("topology", parameters.part, details), metrics)


class Topology(Workload[TopologyParameters]):
    """Links between the parts of a machine."""

    name = "topology"
    parameters_type = TopologyParameters
    implementations = by_name(ByFunction("system", by_system))
    is_exact = True


def host_details(files: KernelFiles) -> dict[str, Any]:
    """Plain JSON about CPUs, memory nodes, links, and the walls around this process."""
    processor, layout = cpu.detect(), read_layout(files)
    return {
        **{name: getattr(processor, name) for name in OF_CPU},
        "sockets": layout.sockets,
        "cores": layout.cores,
        "online": cpu_list(layout.online),
        "quota_cores": memory.cpu_quota_cores(files),
        "memory_left_bytes": memory.memory_available_bytes(files),
        "hypervisor": cpu.hypervisor(files, frozenset(processor.isa_flags)),
        "container": cpu.container(files),
        "pcie": [device.to_json() for device in links.devices(files)],
        **_placement(layout),
    }


def gpu_details(files: KernelFiles) -> dict[str, Any]:
    """Plain JSON about the GPUs that CUDA lets this process see. Raises Unsupported where there is none."""
    try:
        present = gpus()
    except Unavailable as reason:
        raise Unsupported(f"The GPUs cannot be queried: {reason}.") from None
    if not present:
        raise Unsupported("This process sees no GPU.")
    manager, graph = nvml(), topology.read()
    return {
        "gpus": [_gpu(gpu, manager, files) for gpu in present],
        "direct_copies": _direct_copies(present, manager),
        "matrix": None if isinstance(graph, Unavailable) else graph.to_json(),
        "unavailable": [str(each) for each in (manager, graph) if isinstance(each, Unavailable)],
        "nccl": {name: value for name in NCCL_SWITCHES if (value := os.environ.get(name)) is not None},
        **_placement(read_layout(files)),
    }


def _direct_copies(present: Sequence[Gpu], manager: Nvml | Unavailable) -> dict[str, str]:
    """For every two GPUs by CUDA's numbers, as in `0-3`, what NVML says of copies between them; of slices nothing."""
    if isinstance(manager, Unavailable):
        return {}
    pairs = combinations((gpu for gpu in present if not gpu.uuid.startswith("MIG-")), 2)
    message = ((one, other, manager.direct_copies(one.uuid, other.uuid)) for one, other in pairs)
    return {f"{one.index}-{other.index}": words for one, other, words in message if words is not None}


def _placement(layout: CpuLayout) -> dict[str, Any]:
    return {
        "allowed_cpus": cpu_list(layout.allowed_cpus),
        "allowed_nodes": cpu_list(layout.allowed_nodes),
        "nodes": [
            {
                "number": node.number,
                "cpus": cpu_list(node.cpus),
                "memory_bytes": node.memory_bytes,
                "distances": list(node.distances),
            }
            for node in layout.nodes
        ],
    }


def _gpu(gpu: Gpu, manager: Nvml | Unavailable, files: KernelFiles) -> dict[str, Any]:
    message: dict[str, Any] = {"index": gpu.index, "name": gpu.name}
    message |= {"compute_capability": list(gpu.compute_capability)}
    if isinstance(manager, Unavailable):
        return message
    address = manager.pci_address(gpu.uuid)
    link = links.device(files, address) if address else None
    cpus = parse_cpu_list(files.text(f"{links.FOLDER}/{address}/local_cpulist")) if address else frozenset()
    now, awake = _link_now(gpu, manager)
    figures = manager.pcie(gpu.uuid)
    slot = _link(figures, "slot_generation", "slot_width")
    card = link.card if link else None
    if "card_generation" in figures and (card or slot):
        card = PcieLink(figures["card_generation"], (card or slot).width)  # type: ignore[union-attr]
    number = manager.index(gpu.uuid)
    return message | {
        "smi": None if number is None else f"GPU{number}",
        "numa_node": link.numa_node if link else None,
        "cpus": cpu_list(cpus),
        "now": str(now) if now else None,
        "awake": awake,
        "slot": str(slot) if slot else None,
        "card": str(card) if card else None,
        "nvlinks": list(manager.nvlink_states(gpu.uuid)),
        "pcie_replays": manager.pcie_replays(gpu.uuid),
        "settings": manager.settings(gpu.uuid),
        "health": {**manager.health(gpu.uuid), **manager.memory_errors(gpu.uuid)},
    }


def _link_now(gpu: Gpu, manager: Nvml) -> tuple[PcieLink | None, bool]:

    def ask() -> PcieLink | None:
        return _link(manager.pcie(gpu.uuid), "generation", "width")

    now = ask()
    best = _link(manager.pcie(gpu.uuid), "slot_generation", "slot_width")
    if now is None or best is None or now.common(best) == best:
        return now, now is not None
    at_work = _at_work(gpu.index, ask)
    return (max(at_work, now), True) if at_work else (now, False)


def _at_work(index: int, ask: Callable[[], PcieLink | None]) -> PcieLink | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    speeds: list[PcieLink] = []
    # An exclusive GPU that another process holds, or one without free memory, stays asleep to us.
    with contextlib.suppress(RuntimeError, AssertionError):
        host = torch.empty(COPIED_BYTES, dtype=torch.uint8)
        there = torch.empty_like(host, device=torch.device("cuda", index))
        end = time.monotonic() + AWAKE_S
        while time.monotonic() < end:
            there.copy_(host)
            if (link := ask()) is not None:
                speeds.append(link)
    return max(speeds, default=None)


def _link(figures: Mapping[str, int], generation: str, width: str) -> PcieLink | None:
    if not figures.get(generation) or not figures.get(width):
        return None
    return PcieLink(figures[generation], figures[width])
