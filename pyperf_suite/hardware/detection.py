"""Which GPU of the catalogue is in this machine, by the names that the CUDA driver and NVML give it.

What the device tells of itself is believed before its data sheet: multiprocessors, memory, the links that are active.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.hardware.cuda_driver import Gpu, driver, gpus
from pyperf_suite.hardware.links import LinkPeak, nvlink_of, pcie_of
from pyperf_suite.hardware.nvml import Nvml, nvml
from pyperf_suite.hardware.shared_library import Unavailable

BY_DRIVER = "the CUDA driver"


def installed_gpu(index: int = 0) -> GpuSpec:
    """The GPU of that index in this machine, as `described`.

    Raises:
        UserError: there is no such GPU, or the catalogue does not know it.
    """
    found = driver()
    try:
        present = gpus()
    except Unavailable as reason:
        found, present = reason, []
    if isinstance(found, Unavailable):
        raise UserError(f"No GPU of this machine can be looked up, as {found}: name one with --gpu, as in --gpu H200.")
    if index >= len(present):
        raise UserError(f"There is no GPU {index} in this machine, which has {len(present)}: name one with --gpu.")
    return described(present[index], len(present), nvml())


def described(gpu: Gpu, count: int, manager: Nvml | Unavailable) -> GpuSpec:
    """A GPU that the CUDA driver reports, one of `count`, as the catalogue has it and the device tells it.

    A slice under MIG has its share of what its GPU has: rates of computing by multiprocessors, all else by memory.
    Raises UserError where neither the driver's name of it nor NVML's, looked up by UUID, is in the catalogue.
    """
    spec = _in_catalogue(gpu, manager)
    profile = re.search(r"\bMIG (\S+)", gpu.name)
    told: dict[str, Any] = {"sms": gpu.multiprocessors, "memory_bytes": gpu.memory_bytes}
    sources = dict.fromkeys(told, BY_DRIVER)
    if profile:
        share = _share(gpu, spec)
        told |= share
        sources |= {field: f"{spec.sources[field]}, a slice's share" for field in share}
    elif count > 1 and not isinstance(manager, Unavailable):
        link = _active_link(gpu, manager)
        told["link_bytes_per_s"] = link.gb_per_s * 1e9
        sources["link_bytes_per_s"] = f"NVML: {link.name}"
    name = f"{spec.name} MIG {profile[1]}" if profile else spec.name
    return replace(spec, name=name, **told, sources={**spec.sources, **sources})


def _in_catalogue(gpu: Gpu, manager: Nvml | Unavailable) -> GpuSpec:
    """The catalogue's entry by the driver's name, else by NVML's; it must be of the compute capability reported."""
    names = [re.split(r"\bMIG\b", gpu.name)[0].strip()]
    if not isinstance(manager, Unavailable):
        names.append(manager.name(gpu.uuid) or names[0])
    for name in names:
        with contextlib.suppress(UserError):
            spec = find_gpu(name)
            if spec.compute_capability == gpu.compute_capability:
                return spec
    major, minor = gpu.compute_capability
    raise UserError(
        f"This machine's GPU calls itself {gpu.name!r}, of compute capability {major}.{minor}, and the catalogue has "
        "none of that name and kind: name one that is like it with --gpu."
    )


def _share(gpu: Gpu, spec: GpuSpec) -> Mapping[str, Any]:
    """What a slice under MIG has of its GPU; nothing joins slices but the host."""
    of_compute, of_memory = gpu.multiprocessors / spec.sms, min(1.0, gpu.memory_bytes / spec.memory_bytes)
    return {
        "peak_flop_per_s": {dtype: peak * of_compute for dtype, peak in spec.peak_flop_per_s.items()},
        "memory_bytes_per_s": spec.memory_bytes_per_s * of_memory,
        "l2_bytes": round(spec.l2_bytes * of_memory),
        "link_bytes_per_s": None,
    }


def _active_link(gpu: Gpu, manager: Nvml) -> LinkPeak:
    """What joins the GPU to its neighbours: as many NVLinks as are active, PCIe where none is."""
    active = re.fullmatch(r"nvlink\d*x(\d+)", manager.nvlink(gpu.uuid) or "")
    generation = nvlink_of(gpu.compute_capability)
    if active is None or generation is None or generation.per_link_gb_per_s is None:
        return pcie_of(gpu.compute_capability)
    links = int(active[1])
    return LinkPeak(f"{links} x {generation.name}", links * generation.per_link_gb_per_s, generation.source)
