"""The condition a measurement was made in: versions, kernel settings, limits; no host name, no path.

It goes into each Record: a change of state between two runs is a marked break, not a different machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from pathlib import Path
from typing import Any

from pyperf_suite import __version__
from pyperf_suite.hardware import cgroup, cpu, virtualisation
from pyperf_suite.hardware.cuda_driver import driver, gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.kernel_files import KernelFiles
from pyperf_suite.hardware.nvml import nvml
from pyperf_suite.hardware.shared_library import Unavailable
from pyperf_suite.hardware.source import source
from pyperf_suite.hardware.wiring import wiring

PACKAGES = ("numpy", "pytest-benchmark", "torch", "triton")
CPU_SETTINGS = "sys/devices/system/cpu"


def state(device: Device) -> dict[str, Any]:
    """The machine's state now, for a run on that device."""
    condition: dict[str, Any] = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {"pyperf_suite": __version__, **{name: _version(name) for name in PACKAGES}},
        "compiler": compiler_of_extension(),
        "source": source(),
        **kernel_state(KernelFiles(), frozenset(cpu.detect().isa_flags)),
    }
    if device.kind == "cuda":
        condition["gpu"] = gpu_state(device.index)
    return condition


def kernel_state(files: KernelFiles, flags: frozenset[str]) -> dict[str, Any]:
    """What the kernel tells of itself, of power and scheduling, and of the walls around this process."""
    return {
        "kernel": f"{platform.system()} {platform.release()}",
        "governors": sorted(
            {files.text(path) or "" for path in files.matching(f"{CPU_SETTINGS}/cpu[0-9]*/cpufreq/scaling_governor")}
            - {""}
        ),
        "turbo": _turbo(files),
        "smt": files.text(f"{CPU_SETTINGS}/smt/control"),
        "transparent_hugepages": _chosen(files.text("sys/kernel/mm/transparent_hugepage/enabled")),
        "cpu_quota_cores": cgroup.cpu_quota_cores(files),
        "hypervisor": virtualisation.hypervisor(files, flags),
        "container": virtualisation.container(files),
    }


def gpu_state(index: int) -> dict[str, Any]:
    """UUID, driver, CUDA version and settings of a GPU, and how it and others are wired.

    What cannot be asked says why under `unavailable`.
    """
    found, manager = driver(), nvml()
    condition: dict[str, Any] = {}
    try:
        if isinstance(found, Unavailable):
            raise found
        uuid = found.gpu(index).uuid
        condition |= {"uuid": uuid, "cuda": found.version()}
        if isinstance(manager, Unavailable):
            raise manager
        condition |= {"driver": manager.driver_version(), **manager.settings(uuid)}
        condition |= {"links": links} if (links := wiring(gpus(), manager)) else {}
    except Unavailable as reason:
        condition["unavailable"] = str(reason)
    return condition


def compiler_of_extension() -> str | None:
    """The compiler that built the C++ extension, by the note compilers leave in it; None if not built."""
    extension = importlib.util.find_spec("pyperf_suite._native")
    if extension is None or extension.origin is None:
        return None
    return compiler_note(Path(extension.origin))


def compiler_note(binary: Path) -> str | None:
    """The first GCC or clang version string in a binary file (its ELF section .comment)."""
    try:
        note = re.search(rb"GCC: \([^)\0]{1,80}\) [0-9.]{1,16}|clang version [0-9.]{1,16}", binary.read_bytes())
    except OSError:
        return None
    return note[0].decode("ascii", "replace") if note else None


def _version(name: str) -> str | None:
    """A distribution's version without importing it; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _turbo(files: KernelFiles) -> bool | None:
    """Whether the CPU may exceed its base clock; None where the kernel does not say."""
    no_turbo = files.integer(f"{CPU_SETTINGS}/intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == 0
    boost = files.integer(f"{CPU_SETTINGS}/cpufreq/boost")
    return None if boost is None else boost == 1


def _chosen(setting: str | None) -> str | None:
    """The bracketed word of a setting such as `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", setting or "")
    return match[1] if match else None
