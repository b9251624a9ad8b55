"""The CPU this process runs on, by /proc and /sys first: model, cores it may use, caches, sockets, memory nodes."""

from __future__ import annotations

import functools
import os
import platform
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import psutil

from pyperf_suite.hardware import memory
from pyperf_suite.hardware.kernel_files import KernelFiles, parse_bytes, parse_cpu_list, parse_integer

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
DMI = "sys/class/dmi/id"
# Arm cores by implementer and part number of the Main ID Register (Arm's technical reference manuals, lscpu's table).
IMPLEMENTERS = {
    0x41: "Arm",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0xC0: "Ampere",
}
PARTS = {
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD83): "Neoverse-V3AE",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x46, 0x001): "A64FX",
    (0x48, 0xD01): "TaiShan-v110",
    (0x4E, 0x004): "Carmel",
    (0x6D, 0xD49): "Azure-Cobalt-100",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}
# Firmware's names of a virtual machine, and the field's short name for it.
FIRMWARE = {
    "amazon ec2": "nitro",
    "bochs": "qemu",
    "google": "kvm",
    "innotek": "virtualbox",
    "kvm": "kvm",
    "openstack": "kvm",
    "parallels": "parallels",
    "qemu": "qemu",
    "virtual machine": "hyper-v",
    "vmware": "vmware",
    "xen": "xen",
}
# Sizes of nearly every server core since 2017, at least; used, and called assumed, if nothing is reported.
ASSUMED_BYTES = {1: 32 * 1024, 2: 1024 * 1024, 3: 0}
SYSCONF = {1: "SC_LEVEL1_DCACHE_SIZE", 2: "SC_LEVEL2_CACHE_SIZE", 3: "SC_LEVEL3_CACHE_SIZE"}


@dataclass(frozen=True)
class Cpu:
    """Properties of the CPU that a plan needs. Sizes in bytes are of one instance, unless called total."""

    model: str
    usable_cores: int  # those this process may use: affinity and control group quota, whichever is less
    l1d_bytes: int
    l2_bytes: int
    l2_total_bytes: int
    l3_bytes: int  # 0 where there is none
    l3_total_bytes: int
    caches_assumed: bool  # the machine does not report its caches' sizes, and usual ones stand in
    isa_flags: tuple[str, ...]  # sorted, in the kernel's spelling: avx2, avx512f, asimd, sve, ...
    virtualised: bool

    @property
    def vector_bits(self) -> int:
        """How wide its widest vectors are; 128 where nothing wider is reported."""
        return 512 if "avx512f" in self.isa_flags else 256 if "avx2" in self.isa_flags else 128


@dataclass(frozen=True)
class NumaNode:
    """A node's CPUs and memory; `distances` is the firmware's to each node in order, 10 to itself."""

    number: int
    cpus: frozenset[int]
    memory_bytes: int
    distances: tuple[int, ...]


@dataclass(frozen=True)
class CpuLayout:
    """Sockets and cores of the CPUs that are online; 0 if unknown. `nodes` are those with CPUs or memory."""

    sockets: int
    cores: int
    online: frozenset[int]
    nodes: tuple[NumaNode, ...]
    allowed_cpus: frozenset[int]
    allowed_nodes: frozenset[int]  # whose memory this process may take

    def nodes_of(self, cpus: frozenset[int]) -> tuple[int, ...]:
        """The nodes that those CPUs are of."""
        return tuple(node.number for node in self.nodes if node.cpus & cpus)


@functools.cache
def detect() -> Cpu:
    """Describe the CPU of this process; read once, then remembered."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return read_cpu(KernelFiles(), affinity=usable)


def read_cpu(files: KernelFiles, affinity: int | None) -> Cpu:
    """Describe the CPU these kernel files speak of, for a process allowed on `affinity` CPUs (None: all)."""
    information: dict[str, str] = {}
    for line in (files.text("proc/cpuinfo") or "").splitlines():
        key, colon, value = line.partition(":")
        if colon and value.strip():
            information.setdefault(key.strip().lower(), value.strip())
    flags = frozenset((information.get("flags") or information.get("features") or "").split())
    online = parse_cpu_list(files.text("sys/devices/system/cpu/online"))
    listed = re.findall(r"^processor\s*:", files.text("proc/cpuinfo") or "", re.MULTILINE)
    logical = len(online) or len(listed) or psutil.cpu_count(logical=True) or 1
    return Cpu(
        model=_model(files, information),
        usable_cores=_usable_cores(logical, affinity, memory.cpu_quota_cores(files)),
        **_caches(files, logical),
        isa_flags=tuple(sorted(flags)),
        virtualised=hypervisor(files, flags) is not None,
    )


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


def hypervisor(files: KernelFiles, flags: frozenset[str] = frozenset()) -> str | None:
    """The hypervisor's name, `unnamed` where the CPU admits to one that nothing names, None on bare metal."""
    product = (files.text(f"{DMI}/product_name") or "").lower()
    named = files.text("sys/hypervisor/type") or files.text("proc/device-tree/hypervisor/compatible")
    # Cloud firmware names its vendor on bare-metal instances too: the x86 flag decides where there is one.
    if "metal" in product or (flags and "hypervisor" not in flags and named is None):
        return None
    if named is not None:
        return named.split("\0")[0].removeprefix("linux,")
    firmware = f"{files.text(f'{DMI}/sys_vendor') or ''} {product}".lower()
    for mark, name in FIRMWARE.items():
        if mark in firmware:
            return name
    return "unnamed" if "hypervisor" in flags else None


def container(files: KernelFiles) -> str | None:
    """The kind of container this process lives in, None where it lives in none that can be seen."""
    if files.exists(".dockerenv"):
        return "docker"
    if files.exists("run/.containerenv"):
        return "podman"
    if files.exists(".singularity.d"):
        return "apptainer"
    groups = files.text("proc/self/cgroup") or ""
    for mark in ("kubepods", "docker", "lxc", "libpod"):
        if mark in groups:
            return mark
    return None


def core_name(implementer: str | None, part: str | None) -> str | None:
    """The core's name from the two hexadecimal numbers of /proc/cpuinfo; None where either is no number.

    >>> core_name("0x41", "0xd4f")
    'Arm Neoverse-V2'
    """
    try:
        by, number = int(implementer or "", 16), int(part or "", 16)
    except ValueError:
        return None
    return f"{IMPLEMENTERS.get(by, f'implementer {by:#x}')} {PARTS.get((by, number), f'part {number:#x}')}"


def _model(files: KernelFiles, information: dict[str, str]) -> str:
    """The name people know the CPU by; on Arm, where the kernel prints none, its core's name."""
    return " ".join(
        (
            _x86_name(information)
            or core_name(information.get("cpu implementer"), information.get("cpu part"))
            or information.get("cpu")  # POWER
            or files.text("proc/device-tree/model")
            or platform.processor()
            or platform.machine()
            or "unknown CPU"
        ).split()
    )


def _x86_name(information: dict[str, str]) -> str | None:
    """The name that the processor gives itself, with family and model where a hypervisor took its number out of it.

    A cloud calls processors of several generations "AMD EPYC", and their times are not comparable.

    >>> _x86_name({"model name": "AMD EPYC", "cpu family": "26", "model": "2"})
    'AMD EPYC (family 26, model 2)'
    """
    name, family, model = (information.get(key) for key in ("model name", "cpu family", "model"))
    if name and family and model and not re.search(r"\d", name.partition("@")[0]):
        return f"{name} (family {family}, model {model})"
    return name


def _usable_cores(logical: int, affinity: int | None, quota_cores: float | None) -> int:
    """The narrowest of the three; a worker on a fraction of a core would only be throttled."""
    limits = [logical, affinity or logical]
    if quota_cores is not None:
        limits.append(int(quota_cores))
    return max(1, min(limits))


def _caches(files: KernelFiles, logical_cores: int) -> dict[str, Any]:
    """The fields of `Cpu` about caches, from the best source that this machine has; of two kinds, the larger's size."""
    # Per level, the size in bytes of each data cache, by the set of CPUs that share it.
    instances: dict[int, dict[frozenset[int], int]] = defaultdict(dict)
    for folder in files.matching("sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*"):
        level = files.integer(f"{folder}/level")
        size = parse_bytes(files.text(f"{folder}/size"))
        shared = parse_cpu_list(files.text(f"{folder}/shared_cpu_list"))
        if level is not None and size and files.text(f"{folder}/type") in ("Data", "Unified"):
            # Without a list of sharers, a cache counts as the CPU's own.
            own = frozenset({int(folder.split("/cpu/cpu")[1].split("/")[0])})
            instances[level][shared or own] = size
    sizes = {level: max(found.values()) for level, found in instances.items()}
    totals = {level: sum(found.values()) for level, found in instances.items()}
    assumed = False
    if 2 not in sizes:
        reported = {level: _from_system(level) for level in (1, 2, 3)}
        assumed = not reported[2]
        sizes = {level: size or ASSUMED_BYTES[level] for level, size in reported.items()}
        totals = {2: sizes[2] * logical_cores, 3: sizes[3]}
    return {
        "l1d_bytes": sizes.get(1, ASSUMED_BYTES[1]),
        "l2_bytes": sizes[2],
        "l2_total_bytes": totals[2],
        "l3_bytes": sizes.get(3, 0),
        "l3_total_bytes": totals.get(3, 0),
        "caches_assumed": assumed,
    }


def _from_system(level: int) -> int | None:
    """The size of a level's data cache in bytes, from the C library."""
    try:
        size = os.sysconf(SYSCONF[level])
    except (OSError, ValueError):
        size = 0
    return size if size > 0 else None


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


def _allowed(status: str, resource: str) -> frozenset[int]:
    """The list of `Cpus_allowed_list` or `Mems_allowed_list` in /proc/self/status."""
    match = re.search(rf"^{resource}_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    return parse_cpu_list(match[1]) if match else frozenset()
