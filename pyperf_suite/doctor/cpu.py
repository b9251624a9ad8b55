"""The CPU's settings: clocks that move, cores that are two threads of one, limits, memory of other nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from pyperf_suite.doctor.check import Check
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.cpu_layout import CpuLayout, read_layout
from pyperf_suite.hardware.kernel_files import KernelFiles, cpu_list, parse_cpu_list
from pyperf_suite.hardware.state import kernel_state

CPUS = "sys/devices/system/cpu"
CLOCK_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
# Read without entering the kernel (vdso): a look at these costs tens of nanoseconds.
FAST_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
COARSE_CLOCK_S = 1e-6


@dataclass(frozen=True)
class CpuReadings:
    """What the kernel tells of the CPU; None where it does not."""

    model: str
    settings: Mapping[str, object]  # of `state.kernel_state`
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


def cpu_checks(readings: CpuReadings) -> tuple[Check, ...]:
    """Every check of the CPU."""
    return (
        machine(readings),
        governor(readings),
        turbo(readings),
        threads(readings),
        quota(readings),
        cpuset(readings),
        nodes(readings),
        clock(readings),
    )


def machine(readings: CpuReadings) -> Check:
    """Bare metal or a guest of a hypervisor."""
    hypervisor, container = readings.settings["hypervisor"], readings.settings["container"]
    inside = f", in a container ({container})" if container else ""
    if hypervisor is None:
        return Check("machine", "ok", f"{readings.model}, no hypervisor{inside}")
    return Check(
        "machine",
        "warning",
        f"{readings.model}, a virtual machine ({hypervisor}){inside}: clocks, caches and neighbours are the host's",
        "Compare versions in live pairs (`pyperf-suite ab`), and trust `--profile standard` more than one quick run.",
    )


def governor(readings: CpuReadings) -> Check:
    """Whether the kernel lowers clocks that are not asked for."""
    names = readings.settings["governors"]
    if not isinstance(names, list) or not names:
        return Check("governor", "not applicable", "this kernel does not set the CPU's clocks")
    if names == ["performance"]:
        return Check("governor", "ok", "performance")
    return Check(
        "governor",
        "warning",
        f"{', '.join(names)}: cores start slow and speed up while they are measured",
        "Let cores keep their clock while measuring.",
        "sudo cpupower frequency-set -g performance",
    )


def turbo(readings: CpuReadings) -> Check:
    """Whether clocks above the base depend on heat and on how many cores work."""
    on = readings.settings["turbo"]
    if on is None:
        return Check("turbo", "not applicable", "the kernel does not tell whether the CPU may exceed its base clock")
    if not on:
        return Check("turbo", "ok", "off: clocks do not depend on heat or on how many cores work")
    return Check(
        "turbo",
        "warning",
        "on: clocks above the base depend on heat and on how many cores work",
        "Leave it on for rates as training has them; switch it off while you compare small differences.",
        "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo   # AMD: echo 0 to cpufreq/boost",
    )


def threads(readings: CpuReadings) -> Check:
    """Whether two workers may land on two threads of one core."""
    cores = readings.siblings
    if not cores:
        return Check("hyper-threads", "not applicable", "the kernel does not tell which CPUs are threads of one core")
    total = sum(map(len, cores))
    if total == len(cores):
        return Check("hyper-threads", "ok", f"{total} usable CPUs, each a core of its own")
    first = cpu_list(min(core) for core in cores)
    return Check(
        "hyper-threads",
        "warning",
        f"{total} usable CPUs are threads of {len(cores)} cores: two workers on one core share its units",
        f"Use one thread of each core, or ask for {len(cores)} workers with -a workers={len(cores)}.",
        f"taskset -c {first} pyperf-suite run",
    )


def quota(readings: CpuReadings) -> Check:
    """Whether a control group throttles this process."""
    cores = readings.settings["cpu_quota_cores"]
    usable = len(readings.layout.allowed_cpus)
    if not isinstance(cores, float) or 0 < usable <= cores:
        return Check("CPU quota", "ok", "none that binds")
    advice = "Run without a CPU quota, or give whole CPUs instead of time (docker: --cpuset-cpus; SLURM: --exclusive)."
    if cores < 1:
        found = (
            f"{cores:g} of a core: this process is stopped for a part of every period, in the middle of measurements"
        )
        return Check("CPU quota", "problem", found, advice)
    found = (
        f"{cores:g} cores' time on {usable} CPUs: whoever uses more threads is stopped in the middle of measurements"
    )
    return Check("CPU quota", "warning", found, advice)


def cpuset(readings: CpuReadings) -> Check:
    """Which CPUs this process may run on."""
    allowed, online = readings.layout.allowed_cpus, readings.layout.online
    if not allowed or not online:
        return Check("CPUs allowed", "not applicable", "the kernel does not tell")
    if allowed == online:
        return Check("CPUs allowed", "ok", f"all {len(online)} that are online")
    return Check("CPUs allowed", "ok", f"{cpu_list(allowed)}, {len(allowed)} of {len(online)} that are online")


def nodes(readings: CpuReadings) -> Check:
    """Whether threads and their memory may lie on different NUMA nodes."""
    layout = readings.layout
    if not layout.nodes:
        return Check("NUMA", "not applicable", "the kernel tells of no nodes")
    used = layout.nodes_of(layout.allowed_cpus)
    if len(layout.nodes) == 1:
        return Check("NUMA", "ok", "one node")
    if len(used) == 1 and layout.allowed_nodes <= set(used):
        return Check("NUMA", "ok", f"this process keeps to node {used[0]} of {len(layout.nodes)}")
    moves = ", and the kernel moves memory between them while it is measured" if readings.memory_binds else ""
    return Check(
        "NUMA",
        "warning",
        f"{len(layout.nodes)} nodes, and this process may use CPUs of {len(used)} of them{moves}",
        "Keep threads and memory on one node; for GPU work, on the GPU's (`pyperf-suite run topology` names it).",
        f"numactl --cpunodebind={used[0] if used else 0} --membind={used[0] if used else 0} pyperf-suite run",
    )


def clock(readings: CpuReadings) -> Check:
    """Whether looking at the time is cheap, and how finely it is told."""
    source = readings.clock_source
    fine = readings.clock_resolution_s <= COARSE_CLOCK_S
    told = f"{source or 'not named'}, told in steps of {readings.clock_resolution_s * 1e9:g} ns"
    if source is None and fine:
        return Check("clock", "not applicable", told)
    if fine and source in FAST_CLOCKS:
        return Check("clock", "ok", told)
    return Check(
        "clock",
        "warning",
        f"{told}: a look at it may cost a microsecond or more",
        "See whether the kernel offers a faster one, and why it was dropped (dmesg | grep -i clocksource).",
        "cat /sys/devices/system/clocksource/clocksource0/available_clocksource",
    )
