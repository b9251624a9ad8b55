"""The machine without its GPUs: CPU settings, memory, and the folders for results and compiled kernels."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.hardware.cpu import CPUS, CpuLayout, read_layout
from pyperf_suite.hardware.kernel_files import KernelFiles, cpu_list, parse_cpu_list
from pyperf_suite.hardware.machine import kernel_state
from pyperf_suite.node.check import Check, caution, failed, of_part, ok, size_text, unknown
from pyperf_suite.workloads.backends import SAME_CLOCK_SHARE, CorePeak, core_peak

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


def cpu_checks(files: KernelFiles) -> list[Check]:
    """Judge the kernel's report of the CPU."""
    processor, layout = cpu.read_cpu(files, affinity=None), read_layout(files)
    settings = kernel_state(files, frozenset(processor.isa_flags))
    siblings = {
        parse_cpu_list(files.text(f"{CPUS}/cpu{number}/topology/thread_siblings_list")) & layout.allowed_cpus
        for number in layout.allowed_cpus
    }
    balances = (files.integer("proc/sys/kernel/numa_balancing") or 0) > 0
    checks = {
        "machine": machine(processor.model, settings["hypervisor"], settings["container"]),
        "governor": governor(settings["governors"]),
        "turbo": turbo(settings["turbo"]),
        "hyper-threads": threads(sorted((core for core in siblings if core), key=min)),
        "CPU quota": quota(settings["cpu_quota_cores"], len(layout.allowed_cpus)),
        "CPUs allowed": cpuset(layout.allowed_cpus, layout.online),
        "NUMA": nodes(layout, balances),
        "clock": clock(files.text(CLOCK_SOURCE), time.get_clock_info("perf_counter").resolution),
    }
    return of_part("CPU", checks)


def machine(model: str, hypervisor: str | None, container: str | None) -> Check:
    """Bare metal or a guest of a hypervisor."""
    inside = f", in a container ({container})" if container else ""
    if hypervisor is None:
        return ok(f"{model}, no hypervisor{inside}")
    return caution(
        f"{model}, a virtual machine ({hypervisor}){inside}: clocks, caches and neighbours are the host's",
        "Compare versions in live pairs (`pyperf-suite ab`), and trust `--profile standard` more than one quick run.",
    )


def governor(names: Sequence[str]) -> Check:
    """Check that the kernel does not lower the clocks of idle cores."""
    if not names:
        return unknown("this kernel does not set the CPU's clocks")
    if names == ["performance"]:
        return ok("performance")
    return caution(
        f"{', '.join(names)}: cores start slow and speed up while they are measured",
        "Let cores keep their clock while measuring.",
        "sudo cpupower frequency-set -g performance",
    )


def turbo(is_on: bool | None) -> Check:
    """Check whether clocks above the base depend on heat and on how many cores work."""
    if is_on is None:
        return unknown("the kernel does not report whether the CPU may exceed its base clock")
    if not is_on:
        return ok("off: clocks do not depend on heat or on how many cores work")
    return caution(
        "on: clocks above the base depend on heat and on how many cores work",
        "Leave it on for rates as training has them; switch it off while you compare small differences.",
        "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo   # AMD: echo 0 to cpufreq/boost",
    )


def threads(cores: Sequence[frozenset[int]]) -> Check:
    """Check whether two workers may land on two threads of one core, by the usable CPUs of each core."""
    total = sum(map(len, cores))
    if not cores:
        return unknown("the kernel does not report which CPUs are threads of one core")
    if total == len(cores):
        return ok(f"{total} usable CPUs, each a core of its own")
    return caution(
        f"{total} usable CPUs are threads of {len(cores)} cores: two workers on one core share its units",
        f"Use one thread of each core, or {len(cores)} workers with -a workers={len(cores)}.",
        f"taskset -c {cpu_list(min(core) for core in cores)} pyperf-suite run",
    )


def quota(cores: float | None, usable: int) -> Check:
    """Check that no control group throttles this process."""
    if cores is None or 0 < usable <= cores:
        return ok("none that binds")
    advice = "Run without a CPU quota, or give whole CPUs instead of time (docker: --cpuset-cpus; SLURM: --exclusive)."
    if cores < 1:
        return failed(f"{cores:g} of a core: this process is stopped in every period, while it measures", advice)
    return caution(f"{cores:g} cores' time on {usable} CPUs: more threads are stopped while they measure", advice)


def cpuset(allowed: frozenset[int], online: frozenset[int]) -> Check:
    """Check the CPUs that this process may run on."""
    if not allowed or not online:
        return unknown()
    if allowed == online:
        return ok(f"all {len(online)} that are online")
    return ok(f"{cpu_list(allowed)}, {len(allowed)} of {len(online)} that are online")


def nodes(layout: CpuLayout, balances: bool) -> Check:
    """Check that threads and their memory lie on one NUMA node; the kernel may move memory between nodes."""
    used = layout.nodes_of(layout.allowed_cpus)
    if not layout.nodes:
        return unknown("the kernel reports no nodes")
    if len(layout.nodes) == 1:
        return ok("one node")
    if len(used) == 1 and layout.allowed_nodes <= set(used):
        return ok(f"this process keeps to node {used[0]} of {len(layout.nodes)}")
    moves = ", and the kernel moves memory between them while it is measured" if balances else ""
    first = used[0] if used else 0
    return caution(
        f"{len(layout.nodes)} nodes, and this process may use CPUs of {len(used)} of them{moves}",
        "Keep threads and memory on one node; for GPU work, on the GPU's (`pyperf-suite run topology` names it).",
        f"numactl --cpunodebind={first} --membind={first} pyperf-suite run",
    )


def clock(source: str | None, resolution_s: float) -> Check:
    """Check that reading the time is cheap, and its resolution."""
    is_fine = resolution_s <= COARSE_CLOCK_S
    summary = f"{source or 'not named'}, in steps of {resolution_s * 1e9:g} ns"
    if source is None and is_fine:
        return unknown(summary)
    if is_fine and source in FAST_CLOCKS:
        return ok(summary)
    return caution(
        f"{summary}: reading it may cost a microsecond or more",
        "See whether the kernel offers a faster one, and why it was dropped (dmesg | grep -i clocksource).",
        "cat /sys/devices/system/clocksource/clocksource0/available_clocksource",
    )


def memory_checks(files: KernelFiles, swapped_bytes: int) -> list[Check]:
    """Memory, judged; `swapped_bytes` went to or came from the disk while `load` watched."""
    used, size, free = psutil.swap_memory(), None, None
    with contextlib.suppress(AttributeError, OSError):
        found = os.statvfs("/dev/shm")
        size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    lockable = None if limit == resource.RLIM_INFINITY else limit
    checks = {
        "memory": available(memory.available_bytes(files), memory.memory_limit_bytes(files)),
        "swap": swap(used.total, used.used, swapped_bytes),
        "huge pages": huge_pages(kernel_state(files, frozenset())["transparent_hugepages"]),
        "/dev/shm": shared(size, free),
        "locked memory": locked(lockable, bool(files.matching("sys/class/infiniband/*"))),
    }
    return of_part("Memory", checks)


def available(free_bytes: int, limit_bytes: int | None) -> Check:
    """Check the memory that can be taken without swapping and without breaking a limit."""
    limit = f", of a limit of {size_text(limit_bytes)}" if limit_bytes is not None else ""
    summary = f"{size_text(free_bytes)} can be taken{limit}"
    if free_bytes >= TIGHT_BYTES:
        return ok(summary)
    return (failed if free_bytes < SCARCE_BYTES else caution)(
        f"{summary}: large cases will be unsupported or killed",
        "Free memory, or raise the limit of the container or job (docker: --memory; SLURM: --mem).",
    )


def swap(total_bytes: int, used_bytes: int, swapped_bytes: int) -> Check:
    """Check that no measured memory lies on a disk."""
    if swapped_bytes:
        return failed(
            f"{size_text(swapped_bytes)} went to or came from the disk within a second",
            "Free memory before measuring; what is swapped now is timed as a disk's.",
        )
    if total_bytes == 0:
        return ok("none")
    summary = f"{size_text(used_bytes)} of {size_text(total_bytes)} used"
    if used_bytes < SWAPPED_SHARE * total_bytes:
        return ok(summary)
    return caution(
        f"{summary}: pages that lie there come back in the middle of measurements",
        "Free memory, then take the pages back.",
        "sudo swapoff -a && sudo swapon -a",
    )


def huge_pages(setting: str | None) -> Check:
    """Check that large operands can lie in pages of 2 MiB."""
    if setting is None:
        return unknown()
    if setting != "never":
        return ok(setting)
    return caution(
        "never: large operands on the CPU are spread over pages of 4 KiB, whose addresses take time to look up",
        "Let programs use huge pages.",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


def shared(total_bytes: int | None, free_bytes: int | None) -> Check:
    """Check the shared memory through which DataLoader's workers and NCCL's ranks of one node hand things over."""
    command = "docker run --shm-size=8g ...   # or --ipc=host"
    if total_bytes is None or free_bytes is None:
        if not sys.platform.startswith("linux"):
            return unknown("this system has none")
        return failed(
            "there is none: DataLoader's workers and the ranks of one node cannot hand data over in shared memory",
            "Mount one in the container.",
            command,
        )
    summary = f"{size_text(free_bytes)} free of {size_text(total_bytes)}"
    if free_bytes >= SMALL_SHARED_BYTES:
        return ok(summary)
    return (failed if free_bytes < TINY_SHARED_BYTES else caution)(
        f"{summary}: DataLoader's workers die of a bus error and NCCL of `unhandled system error` where it is full",
        "Start the container with more, or with the host's, or remove what finished jobs left there.",
        command,
    )


def locked(limit_bytes: int | None, has_network_cards: bool) -> Check:
    """Check that network cards, of InfiniBand or RoCE, may pin their buffers; None is no limit."""
    if not has_network_cards:
        return unknown("no InfiniBand or RoCE card here")
    if limit_bytes is None:
        return ok("no limit")
    return caution(
        f"at most {size_text(limit_bytes)}: NCCL may fail to register buffers with the network card",
        "Raise the limit (docker: --ulimit memlock=-1; a service: LimitMEMLOCK=infinity).",
        "ulimit -l unlimited",
    )


def place_check(folder: str, is_cache: bool = False, writable: Callable[[Path], bool] | None = None) -> Check:
    """Check that a folder, or else its nearest parent that exists, takes files.

    Nothing is created to find out. Without a cache kernels are compiled anew in each process, which is slow and works.
    """
    choose = "Name another folder in PYPERF_CACHE_DIR." if is_cache else "Name another folder with --results."
    command = "export PYPERF_CACHE_DIR=/path/to/a/folder" if is_cache else ""
    if not folder:
        return caution("there is no home folder to keep it in", choose, command)
    path = nearest = Path(folder)
    is_folder, free_bytes = False, None
    with contextlib.suppress(OSError):
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        is_folder = nearest.is_dir()
        free_bytes = shutil.disk_usage(nearest).free
    may = writable or (lambda place: os.access(place, os.W_OK | os.X_OK))
    summary = folder if nearest == path else f"{folder} (not there yet)"
    if not (is_folder and may(nearest)):
        consequence = "each process compiles its own kernels" if is_cache else "a run could not keep what it measured"
        refused = "cannot be written" if is_folder else "is no folder"
        return (caution if is_cache else failed)(f"{summary} {refused}: {consequence}", choose, command)
    if free_bytes is None:
        return ok(summary)
    summary = f"{summary}, {size_text(free_bytes)} free"
    if free_bytes >= TIGHT_DISK_BYTES:
        return ok(summary)
    if free_bytes == 0:
        return failed(f"{summary}: the file system is full or takes no files", choose, command)
    judged = failed if free_bytes < SCARCE_DISK_BYTES and not is_cache else caution
    return judged(summary, f"Free some of the disk, or: {choose[0].lower()}{choose[1:]}", command)


def read_peaks(cores: int) -> tuple[CorePeak, ...]:
    """Return the peak of one core, and of each of all at once, for every dtype with instructions of its own.

    Takes a tenth of a second. Nothing where our kernels are not built.
    """
    peaks: dict[tuple[str, int], CorePeak] = {}
    try:
        for workers in dict.fromkeys((1, cores)):
            for dtype in ("float32", "bfloat16"):
                peak = core_peak(dtype, workers=workers)
                peaks.setdefault((peak.unit, workers), peak)
    except UserError:
        return ()
    return tuple(peaks.values())


def peak_check(peaks: Sequence[CorePeak]) -> Check:
    """How much cores multiply at most, and whether they lose clock by it or to each other."""
    if not peaks:
        return unknown("our CPU kernels are not built")
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
        if (share := peak.flop_per_s / own.flop_per_s) < SAME_CLOCK_SHARE:
            return caution(
                f"{summary}; with {peak.workers} at once each core has {share:.0%} of its {peak.dtype} rate",
                "This is normal for two threads of one core and for cores that share a power limit; else see what "
                "else runs here.",
                "top",
            )
    return ok(summary)
