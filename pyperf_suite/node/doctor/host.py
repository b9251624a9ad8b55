"""The machine without its GPUs: CPU settings, memory, and the folders for results and compiled kernels."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.hardware.cpu import CPUS, CpuLayout, read_layout
from pyperf_suite.hardware.kernel_files import KernelFiles, cpu_list, parse_bytes, parse_cpu_list
from pyperf_suite.hardware.machine import kernel_state
from pyperf_suite.node.doctor.check import Check, examined, gib, not_applicable, ok, problem, warning
from pyperf_suite.workloads.backends import SAME, CorePeak, cache_folder, core_peak

CLOCK_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
# Read without entering the kernel (vdso): a look at these costs tens of nanoseconds.
FAST_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
COARSE_CLOCK_S = 1e-6
GIB = 2**30
SCARCE_BYTES, TIGHT_BYTES = 1 * GIB, 4 * GIB
# A DataLoader's workers hand each batch over through /dev/shm, NCCL's ranks of one node their rings.
SMALL_SHARED_BYTES = 1 * GIB
TINY_SHARED_BYTES = 128 * 2**20
SWAPPED_SHARE = 0.05
SCARCE_DISK_BYTES, TIGHT_DISK_BYTES = 100 * 2**20, 2 * 2**30


@dataclass(frozen=True)
class CpuReadings:
    """What the kernel reports of the CPU; None where it does not."""

    model: str
    settings: Mapping[str, object]  # of `machine.kernel_state`
    layout: CpuLayout
    siblings: tuple[frozenset[int], ...]  # the CPUs of each core that this process may use
    memory_binds: bool  # an automatic balancing of memory between nodes is on
    clock_source: str | None
    clock_resolution_s: float


def read_cpu(files: KernelFiles) -> CpuReadings:
    """The readings of these kernel files."""
    found = cpu.read_cpu(files, affinity=None)
    layout = read_layout(files)
    cores = {
        parse_cpu_list(files.text(f"{CPUS}/cpu{number}/topology/thread_siblings_list")) & layout.allowed_cpus
        for number in sorted(layout.allowed_cpus)
    }
    return CpuReadings(
        found.model,
        kernel_state(files, frozenset(found.isa_flags)),
        layout,
        tuple(sorted((core for core in cores if core), key=min)),
        (files.integer("proc/sys/kernel/numa_balancing") or 0) > 0,
        files.text(CLOCK_SOURCE),
        time.get_clock_info("perf_counter").resolution,
    )


def machine(readings: CpuReadings) -> Check:
    """Bare metal or a guest of a hypervisor."""
    hypervisor, container = readings.settings["hypervisor"], readings.settings["container"]
    inside = f", in a container ({container})" if container else ""
    if hypervisor is None:
        return ok(f"{readings.model}, no hypervisor{inside}")
    return warning(
        f"{readings.model}, a virtual machine ({hypervisor}){inside}: clocks, caches and neighbours are the host's",
        "Compare versions in live pairs (`pyperf-suite ab`), and trust `--profile standard` more than one quick run.",
    )


def governor(readings: CpuReadings) -> Check:
    """Whether the kernel lowers clocks that are not asked for."""
    names = readings.settings["governors"]
    if not isinstance(names, list) or not names:
        return not_applicable("this kernel does not set the CPU's clocks")
    if names == ["performance"]:
        return ok("performance")
    return warning(
        f"{', '.join(names)}: cores start slow and speed up while they are measured",
        "Let cores keep their clock while measuring.",
        "sudo cpupower frequency-set -g performance",
    )


def turbo(readings: CpuReadings) -> Check:
    """Whether clocks above the base depend on heat and on how many cores work."""
    on = readings.settings["turbo"]
    if on is None:
        return not_applicable("the kernel does not report whether the CPU may exceed its base clock")
    if not on:
        return ok("off: clocks do not depend on heat or on how many cores work")
    return warning(
        "on: clocks above the base depend on heat and on how many cores work",
        "Leave it on for rates as training has them; switch it off while you compare small differences.",
        "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo   # AMD: echo 0 to cpufreq/boost",
    )


def threads(readings: CpuReadings) -> Check:
    """Whether two workers may land on two threads of one core."""
    cores = readings.siblings
    if not cores:
        return not_applicable("the kernel does not report which CPUs are threads of one core")
    total = sum(map(len, cores))
    if total == len(cores):
        return ok(f"{total} usable CPUs, each a core of its own")
    first = cpu_list(min(core) for core in cores)
    return warning(
        f"{total} usable CPUs are threads of {len(cores)} cores: two workers on one core share its units",
        f"Use one thread of each core, or ask for {len(cores)} workers with -a workers={len(cores)}.",
        f"taskset -c {first} pyperf-suite run",
    )


def quota(readings: CpuReadings) -> Check:
    """Whether a control group throttles this process."""
    cores = readings.settings["cpu_quota_cores"]
    usable = len(readings.layout.allowed_cpus)
    if not isinstance(cores, float) or 0 < usable <= cores:
        return ok("none that binds")
    advice = "Run without a CPU quota, or give whole CPUs instead of time (docker: --cpuset-cpus; SLURM: --exclusive)."
    if cores < 1:
        found = (
            f"{cores:g} of a core: this process is stopped for a part of every period, in the middle of measurements"
        )
        return problem(found, advice)
    found = (
        f"{cores:g} cores' time on {usable} CPUs: whoever uses more threads is stopped in the middle of measurements"
    )
    return warning(found, advice)


def cpuset(readings: CpuReadings) -> Check:
    """Which CPUs this process may run on."""
    allowed, online = readings.layout.allowed_cpus, readings.layout.online
    if not allowed or not online:
        return not_applicable("the kernel does not report")
    if allowed == online:
        return ok(f"all {len(online)} that are online")
    return ok(f"{cpu_list(allowed)}, {len(allowed)} of {len(online)} that are online")


def nodes(readings: CpuReadings) -> Check:
    """Whether threads and their memory may lie on different NUMA nodes."""
    layout = readings.layout
    if not layout.nodes:
        return not_applicable("the kernel reports no nodes")
    used = layout.nodes_of(layout.allowed_cpus)
    if len(layout.nodes) == 1:
        return ok("one node")
    if len(used) == 1 and layout.allowed_nodes <= set(used):
        return ok(f"this process keeps to node {used[0]} of {len(layout.nodes)}")
    moves = ", and the kernel moves memory between them while it is measured" if readings.memory_binds else ""
    return warning(
        f"{len(layout.nodes)} nodes, and this process may use CPUs of {len(used)} of them{moves}",
        "Keep threads and memory on one node; for GPU work, on the GPU's (`pyperf-suite run topology` names it).",
        f"numactl --cpunodebind={used[0] if used else 0} --membind={used[0] if used else 0} pyperf-suite run",
    )


def clock(readings: CpuReadings) -> Check:
    """Whether looking at the time is cheap, and how fine it is."""
    source = readings.clock_source
    fine = readings.clock_resolution_s <= COARSE_CLOCK_S
    summary = f"{source or 'not named'}, in steps of {readings.clock_resolution_s * 1e9:g} ns"
    if source is None and fine:
        return not_applicable(summary)
    if fine and source in FAST_CLOCKS:
        return ok(summary)
    return warning(
        f"{summary}: a look at it may cost a microsecond or more",
        "See whether the kernel offers a faster one, and why it was dropped (dmesg | grep -i clocksource).",
        "cat /sys/devices/system/clocksource/clocksource0/available_clocksource",
    )


@dataclass(frozen=True)
class MemoryReadings:
    """Bytes; None where this system does not report."""

    available_bytes: int
    limit_bytes: int | None
    huge_pages: str | None
    swap_total_bytes: int | None
    swap_used_bytes: int | None
    swapped_pages: int  # while the machine was watched
    shared_total_bytes: int | None
    shared_free_bytes: int | None
    locked_limit_bytes: int | None  # None: no limit
    has_network_cards: bool  # of InfiniBand or RoCE, whose buffers are locked


def read_memory(files: KernelFiles, swapped_pages: int) -> MemoryReadings:
    """The readings now; pages swapped are those of the time that `load` watched."""
    total, free = _shared()
    swap, unused = _meminfo(files, "SwapTotal"), _meminfo(files, "SwapFree")
    return MemoryReadings(
        available_bytes=memory.available_bytes(files),
        limit_bytes=memory.memory_limit_bytes(files),
        huge_pages=kernel_state(files, frozenset())["transparent_hugepages"],
        swap_total_bytes=swap,
        swap_used_bytes=None if swap is None or unused is None else swap - unused,
        swapped_pages=swapped_pages,
        shared_total_bytes=total,
        shared_free_bytes=free,
        locked_limit_bytes=_locked_limit(),
        has_network_cards=bool(files.matching("sys/class/infiniband/*")),
    )


def _meminfo(files: KernelFiles, name: str) -> int | None:
    """A figure of /proc/meminfo in bytes."""
    match = re.search(rf"^{name}:\s*(\d+ kB)$", files.text("proc/meminfo") or "", re.MULTILINE)
    return parse_bytes(match[1]) if match else None


def _shared() -> tuple[int | None, int | None]:
    try:
        found = os.statvfs("/dev/shm")
    except (AttributeError, OSError):
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _locked_limit() -> int | None:
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY else limit


def available(readings: MemoryReadings) -> Check:
    """What can be taken without swapping and without breaking a limit."""
    limit = f", of a limit of {gib(readings.limit_bytes)}" if readings.limit_bytes is not None else ""
    summary = f"{gib(readings.available_bytes)} can be taken{limit}"
    if readings.available_bytes >= TIGHT_BYTES:
        return ok(summary)
    return (problem if readings.available_bytes < SCARCE_BYTES else warning)(
        f"{summary}: large cases will be unsupported or killed",
        "Free memory, or raise the limit of the container or job (docker: --memory; SLURM: --mem).",
    )


def swap(readings: MemoryReadings) -> Check:
    """Whether what is measured may lie on a disk."""
    if readings.swapped_pages:
        return problem(
            f"{readings.swapped_pages} pages went to or came from the disk within a second",
            "Free memory before measuring; what is swapped now is timed as a disk's.",
        )
    total, used = readings.swap_total_bytes, readings.swap_used_bytes
    if total is None or used is None:
        return not_applicable("this system does not report")
    if total == 0:
        return ok("none")
    summary = f"{gib(used)} of {gib(total)} used"
    if used < SWAPPED_SHARE * total:
        return ok(summary)
    return warning(
        f"{summary}: pages that lie there come back in the middle of measurements",
        "Free memory, then take the pages back.",
        "sudo swapoff -a && sudo swapon -a",
    )


def huge_pages(readings: MemoryReadings) -> Check:
    """Whether large operands can lie in pages of 2 MiB."""
    if readings.huge_pages is None:
        return not_applicable("the kernel reports none")
    if readings.huge_pages != "never":
        return ok(readings.huge_pages)
    return warning(
        "never: large operands on the CPU are spread over pages of 4 KiB, whose addresses take time to look up",
        "Let programs ask for huge pages.",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


def shared(readings: MemoryReadings) -> Check:
    """What DataLoader's workers and NCCL's ranks of one node hand things over through."""
    total, free = readings.shared_total_bytes, readings.shared_free_bytes
    if total is None or free is None:
        if not sys.platform.startswith("linux"):
            return not_applicable("this system has none")
        return problem(
            "there is none: DataLoader's workers and the ranks of one node cannot hand data over in shared memory",
            "Mount one in the container.",
            "docker run --shm-size=8g ...   # or --ipc=host",
        )
    summary = f"{gib(free)} free of {gib(total)}"
    if free >= SMALL_SHARED_BYTES:
        return ok(summary)
    return (problem if free < TINY_SHARED_BYTES else warning)(
        f"{summary}: DataLoader's workers die of a bus error and NCCL of `unhandled system error` where it is full",
        "Start the container with more, or with the host's, or remove what finished jobs left there.",
        "docker run --shm-size=8g ...   # or --ipc=host",
    )


def locked(readings: MemoryReadings) -> Check:
    """Whether network cards may pin their buffers."""
    limit = readings.locked_limit_bytes
    if not readings.has_network_cards:
        return not_applicable("no InfiniBand or RoCE card here")
    if limit is None:
        return ok("no limit")
    return warning(
        f"at most {gib(limit)}: NCCL may fail to register buffers with the network card",
        "Raise the limit (docker: --ulimit memlock=-1; a service: LimitMEMLOCK=infinity).",
        "ulimit -l unlimited",
    )


@dataclass(frozen=True)
class DiskPlace:
    """A folder that may not be there yet: what was asked for, its nearest parent that exists, and what that allows."""

    name: str
    folder: str  # "" where there is none to be had
    exists: bool
    is_folder: bool
    writable: bool
    free_bytes: int | None


def read_places(results: Path) -> tuple[DiskPlace, ...]:
    """The results' folder and the compiled kernels', of this machine. Nothing is created to find out."""
    return (read_place("results", str(results)), read_place("kernel cache", cache_folder()))


def read_place(name: str, folder: str, writable: Callable[[Path], bool] | None = None) -> DiskPlace:
    """The folder's state, or its nearest parent's."""
    if not folder:
        return DiskPlace(name, "", False, False, False, None)
    path = Path(folder)
    nearest = path
    is_folder = False
    try:
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        is_folder = nearest.is_dir()
        free_bytes = shutil.disk_usage(nearest).free
    except OSError:
        free_bytes = None
    may = writable or (lambda place: os.access(place, os.W_OK | os.X_OK))
    return DiskPlace(name, folder, nearest == path, is_folder, may(nearest), free_bytes)


def place_check(place: DiskPlace) -> Check:
    """Whether the place takes what is to be written; without a cache kernels are compiled anew in each process."""
    is_cache = place.name == "kernel cache"
    choose = "Name another folder in PYPERF_CACHE_DIR." if is_cache else "Name another folder with --results."
    command = "export PYPERF_CACHE_DIR=/path/to/a/folder" if is_cache else ""
    if not place.folder:
        return warning("there is no home folder to keep it in", choose, command)
    summary = place.folder if place.exists else f"{place.folder} (not there yet)"
    if not (place.is_folder and place.writable):
        consequence = (
            ": each process compiles its own kernels" if is_cache else ": a run could not keep what it measured"
        )
        refused = "cannot be written" if place.is_folder else "is no folder"
        return (warning if is_cache else problem)(f"{summary} {refused}{consequence}", choose, command)
    if place.free_bytes is None:
        return ok(summary)
    summary = f"{summary}, {gib(place.free_bytes)} free"
    if place.free_bytes >= TIGHT_DISK_BYTES:
        return ok(summary)
    if place.free_bytes == 0:
        return problem(f"{summary}: the file system is full or takes no files", choose, command)
    judged = problem if place.free_bytes < SCARCE_DISK_BYTES and not is_cache else warning
    return judged(summary, f"Free some of the disk, or: {choose[0].lower()}{choose[1:]}", command)


CPU_CHECKS: Mapping[str, Callable[[CpuReadings], Check]] = {
    "machine": machine,
    "governor": governor,
    "turbo": turbo,
    "hyper-threads": threads,
    "CPU quota": quota,
    "CPUs allowed": cpuset,
    "NUMA": nodes,
    "clock": clock,
}
MEMORY_CHECKS: Mapping[str, Callable[[MemoryReadings], Check]] = {
    "memory": available,
    "swap": swap,
    "huge pages": huge_pages,
    "/dev/shm": shared,
    "locked memory": locked,
}


def cpu_checks(readings: CpuReadings) -> list[Check]:
    """Every check of the CPU."""
    return examined(CPU_CHECKS, readings)


def read_peaks(cores: int) -> tuple[CorePeak, ...]:
    """What one core multiplies, and each of all of them at once, of every dtype with instructions of its own.

    Takes a tenth of a second. Nothing where our kernels are not built.
    """
    found: dict[tuple[str, int], CorePeak] = {}
    try:
        for workers in dict.fromkeys((1, cores)):
            for dtype in ("float32", "bfloat16"):
                peak = core_peak(dtype, workers=workers)
                found.setdefault((peak.unit, workers), peak)
    except UserError:
        return ()
    return tuple(found.values())


def peak_check(peaks: Sequence[CorePeak]) -> Check:
    """How much cores multiply at most, and whether they lose clock by it or to each other."""
    if not peaks:
        return replace(not_applicable("our CPU kernels are not built"), name="peak")
    alone = [peak for peak in peaks if peak.workers == 1]
    summary = "; ".join(
        f"{peak.dtype} {peak.flop_per_s / 1e9:.0f} GFLOP/s a core ({peak.isa} {peak.unit}, {peak.flop_per_cycle:.0f} a "
        f"cycle at {peak.clock_hz / 1e9:.2f} GHz)"
        for peak in alone
    )
    for peak in alone:
        if peak.lowers_clock:
            summary += f"; {peak.unit} lowers the clock from {peak.idle_clock_hz / 1e9:.2f} GHz"
    for peak in peaks:
        own = next(each for each in alone if each.unit == peak.unit)
        if (share := peak.flop_per_s / own.flop_per_s) < SAME:
            return replace(
                warning(
                    f"{summary}; with {peak.workers} at once each core has {share:.0%} of its {peak.dtype} rate",
                    "Where these are two threads of a core or share a power limit, that is what there is; else see "
                    "what else runs here.",
                    "top",
                ),
                name="peak",
            )
    return replace(ok(summary), name="peak")


def memory_checks(readings: MemoryReadings) -> list[Check]:
    """Every check of memory."""
    return examined(MEMORY_CHECKS, readings)


def place_checks(places: tuple[DiskPlace, ...]) -> list[Check]:
    """One check for each folder."""
    return [replace(place_check(place), name=place.name) for place in places]
