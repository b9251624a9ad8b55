"""The CPU this process runs on: model, the cores it may use, caches, instruction sets.

Linux's /proc and /sys are asked first, macOS's sysctl and psutil where they have nothing.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass

import psutil

from pyperf_suite.hardware import arm, cgroup, virtualisation
from pyperf_suite.hardware.caches import read_caches
from pyperf_suite.hardware.kernel_files import KernelFiles, parse_cpu_list


@dataclass(frozen=True)
class Cpu:
    """What a plan needs to know of the CPU. Sizes in bytes are of one instance, unless called total."""

    model: str
    logical_cores: int  # hardware threads that are online
    usable_cores: int  # those this process may use: affinity and control group quota, whichever is less
    l1d_bytes: int
    l2_bytes: int
    l2_total_bytes: int
    l3_bytes: int  # 0 where there is none
    l3_total_bytes: int
    caches_assumed: bool  # the machine does not tell its caches' sizes, and usual ones stand in
    isa_flags: tuple[str, ...]  # sorted, in the kernel's spelling: avx2, avx512f, asimd, sve, ...
    numa_nodes: int
    virtualised: bool


@functools.cache
def detect() -> Cpu:
    """Describe the CPU of this process; asked once, then remembered."""
    return read_cpu(KernelFiles(), affinity=_affinity())


def read_cpu(files: KernelFiles, affinity: int | None) -> Cpu:
    """Describe the CPU these kernel files speak of, for a process allowed on `affinity` CPUs (None: all)."""
    information = _first_values(files.text("proc/cpuinfo") or "")
    flags = frozenset((information.get("flags") or information.get("features") or "").split())
    logical = _logical_cores(files)
    caches = read_caches(files, logical, _sysctl)
    return Cpu(
        model=_model(files, information),
        logical_cores=logical,
        usable_cores=_usable_cores(logical, affinity, cgroup.cpu_quota_cores(files)),
        l1d_bytes=caches.l1d_bytes,
        l2_bytes=caches.l2_bytes,
        l2_total_bytes=caches.l2_total_bytes,
        l3_bytes=caches.l3_bytes,
        l3_total_bytes=caches.l3_total_bytes,
        caches_assumed=caches.assumed,
        isa_flags=tuple(sorted(flags)),
        numa_nodes=len(parse_cpu_list(files.text("sys/devices/system/node/online"))) or 1,
        virtualised=virtualisation.hypervisor(files, flags) is not None,
    )


def _first_values(cpuinfo: str) -> dict[str, str]:
    """The first value of each key of /proc/cpuinfo, keys in lower case."""
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, colon, value = line.partition(":")
        if colon and value.strip():
            values.setdefault(key.strip().lower(), value.strip())
    return values


def _model(files: KernelFiles, information: dict[str, str]) -> str:
    """The name people know the CPU by; on Arm, where the kernel prints none, its core's name."""
    return " ".join(
        (
            information.get("model name")
            or arm.core_name(information.get("cpu implementer"), information.get("cpu part"))
            or information.get("cpu")  # POWER
            or files.text("proc/device-tree/model")
            or _sysctl("machdep.cpu.brand_string")
            or platform.processor()
            or platform.machine()
            or "unknown CPU"
        ).split()
    )


def _logical_cores(files: KernelFiles) -> int:
    online = parse_cpu_list(files.text("sys/devices/system/cpu/online"))
    cpuinfo = (files.text("proc/cpuinfo") or "").splitlines()
    listed = sum(1 for line in cpuinfo if line.partition(":")[0].strip() == "processor")
    return len(online) or listed or psutil.cpu_count(logical=True) or 1


def _usable_cores(logical: int, affinity: int | None, quota_cores: float | None) -> int:
    """The narrowest of the three; a worker on a fraction of a core would only be throttled."""
    limits = [logical, affinity or logical]
    if quota_cores is not None:
        limits.append(int(quota_cores))
    return max(1, min(limits))


def _affinity() -> int | None:
    """The number of CPUs the scheduler may put this process on; None where the system has no such notion."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return None


def _sysctl(name: str) -> str | None:
    """A macOS or BSD kernel variable; None on systems without that one."""
    if platform.system() not in ("Darwin", "FreeBSD") or shutil.which("sysctl") is None:
        return None
    try:
        answer = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
