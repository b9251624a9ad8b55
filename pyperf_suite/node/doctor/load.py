"""Who else uses this machine now: other processes, other guests of the hypervisor, the last minutes' queue."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyperf_suite.hardware.kernel_files import KernelFiles
from pyperf_suite.node.check import Check, caution, examined, failed, ok, unknown

# A pause longer than this between two looks at the clock was no instruction of ours.
INTERRUPTION_S = 20e-6
WATCHED_S = 1.0
# Of the machine's cores: where others take that much, figures move by more than what profiles promise.
BUSY_SHARE, CROWDED_SHARE = 0.02, 0.25
# Of the time that cores wanted. A tick is 10 ms, so less than 1 % cannot be distinguished from nothing within a second.
STOLEN_SHARE, ROBBED_SHARE = 0.015, 0.1
WHOLE_CORE = 0.95
MOST_CONSUMERS = 3


@dataclass(frozen=True)
class Moment:
    """Counts since boot: ticks of all cores together, of each process by its number, pages swapped."""

    busy_ticks: int
    steal_ticks: int
    processes: dict[int, tuple[str, int]]  # name, ticks
    swapped_pages: int


@dataclass(frozen=True)
class Busy:
    """What one thread that wanted a whole core for `wall_s` got of it."""

    wall_s: float
    cpu_s: float
    longest_interruption_s: float

    @property
    def share(self) -> float:
        """Between 0 and 1; a loaded or throttled machine gives less than 1."""
        return min(1.0, self.cpu_s / self.wall_s)


@dataclass(frozen=True)
class Activity:
    """Between two moments: `consumers` are (name, process, cores), the greediest first, this process left out."""

    busy: Busy
    steal_share: float  # of the time that this machine's cores wanted
    other_cores: float  # kept busy by other processes
    consumers: tuple[tuple[str, int, float], ...]
    swapped_pages: int


def observe(seconds: float, files: KernelFiles | None = None) -> Activity | None:
    """Keep one thread busy and say what else happened; None where the kernel keeps no count, as on macOS."""
    files = files or KernelFiles()
    before = read_moment(files)
    busy = keep_busy(seconds)
    after = read_moment(files)
    if before is None or after is None:
        return None
    return between(before, after, busy, os.sysconf("SC_CLK_TCK"), os.getpid())


def keep_busy(seconds: float, clock: Callable[[], float] = time.perf_counter) -> Busy:
    """Look at the clock for so long."""
    began_cpu, began = time.process_time(), clock()
    last, longest = began, 0.0
    while last - began < seconds:
        now = clock()
        longest = max(longest, now - last)
        last = now
    longest = longest if longest >= INTERRUPTION_S else 0.0
    return Busy(last - began, time.process_time() - began_cpu, longest)


def read_moment(files: KernelFiles) -> Moment | None:
    """The counts now (proc(5): stat, pid/stat, vmstat); None where there is no such count."""
    first = (files.text("proc/stat") or "").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu" or not all(word.isdigit() for word in first[1:9]):
        return None
    user, nice, system, _idle, _waiting, interrupts, soft, steal = (int(ticks) for ticks in first[1:9])
    processes = {}
    for path in files.matching("proc/[0-9]*/stat"):
        # The name is in brackets and may hold anything, brackets too.
        match = re.fullmatch(r"(\d+) \((.*)\) \S(?: \S+){10} (\d+) (\d+)(?: .*)?", files.text(path) or "", re.DOTALL)
        if match:
            processes[int(match[1])] = (match[2], int(match[3]) + int(match[4]))
    swapped = re.findall(r"^pswp(?:in|out) (\d+)$", files.text("proc/vmstat") or "", re.MULTILINE)
    return Moment(user + nice + system + interrupts + soft, steal, processes, sum(map(int, swapped)))


def between(before: Moment, after: Moment, busy: Busy, ticks_per_s: int, own: int) -> Activity:
    """What happened between two moments, `own` being the process that looked."""
    busy_ticks = max(0, after.busy_ticks - before.busy_ticks)
    stolen = max(0, after.steal_ticks - before.steal_ticks)
    per_core = ticks_per_s * busy.wall_s
    used = [
        (name, number, (ticks - before.processes.get(number, (name, 0))[1]) / per_core)
        for number, (name, ticks) in after.processes.items()
        if number != own
    ]
    greedy = sorted((each for each in used if each[2] > 0), key=lambda each: (-each[2], each[1]))
    return Activity(
        busy,
        steal_share=stolen / (busy_ticks + stolen) if busy_ticks + stolen else 0.0,
        other_cores=max(0.0, busy_ticks / per_core - busy.cpu_s / busy.wall_s),
        consumers=tuple(greedy),
        swapped_pages=max(0, after.swapped_pages - before.swapped_pages),
    )


@dataclass(frozen=True)
class LoadReadings:
    """A second's activity, None where the kernel keeps no count; the mean run queue of the last minutes."""

    activity: Activity | None
    cores: int
    load_average: tuple[float, float, float] | None


def read_load(files: KernelFiles) -> LoadReadings:
    """Watch this machine for `WATCHED_S`, one thread kept busy."""
    try:
        average: tuple[float, float, float] | None = os.getloadavg()
    except (AttributeError, OSError):
        average = None
    return LoadReadings(observe(WATCHED_S, files), os.cpu_count() or 1, average)


def stolen(readings: LoadReadings) -> Check:
    """Time that a hypervisor gave to others."""
    if readings.activity is None:
        return unknown()
    share = readings.activity.steal_share
    if share < STOLEN_SHARE:
        return ok(f"{share:.1%} of the time wanted in a second")
    return (failed if share >= ROBBED_SHARE else caution)(
        f"{share:.1%} of the time that this machine's cores wanted in a second went to other guests of its host",
        "Measure at another time, or on a machine with cores of its own (a dedicated host or instance).",
    )


def others(readings: LoadReadings) -> Check:
    """Cores that other processes keep busy, and which processes those are."""
    activity = readings.activity
    if activity is None:
        return unknown()
    greedy = [
        f"{name} ({number}) {cores / readings.cores:.0%}"
        for name, number, cores in activity.consumers[:MOST_CONSUMERS]
        if cores / readings.cores >= BUSY_SHARE / 4
    ]
    share = activity.other_cores / readings.cores
    summary = f"{share:.0%} of {readings.cores} CPUs busy with others" + (f": {', '.join(greedy)}" if greedy else "")
    if share < BUSY_SHARE:
        return ok(summary)
    return (failed if share >= CROWDED_SHARE else caution)(
        summary,
        "Stop what is not needed, or wait until it is done.",
        "top -o %CPU",
    )


def whole_core(readings: LoadReadings) -> Check:
    """What a thread that wants a whole core gets of it."""
    if readings.activity is None:
        return unknown()
    busy = readings.activity.busy
    interruption = f", its longest interruption {busy.longest_interruption_s * 1e3:.2g} ms"
    summary = (
        f"got {busy.share:.0%} of a core for {busy.wall_s:.1f} s{interruption if busy.longest_interruption_s else ''}"
    )
    if busy.share >= WHOLE_CORE:
        return ok(summary)
    return caution(
        f"{summary}: others, a quota or the hypervisor had the rest",
        "See the checks of other processes, stolen time and the CPU quota.",
    )


def average(readings: LoadReadings) -> Check:
    """The run queue of the last minutes: a job that pauses just now comes back."""
    if readings.load_average is None:
        return unknown()
    one, five, fifteen = readings.load_average
    summary = f"{one:.2f}, {five:.2f}, {fifteen:.2f} over 1, 5 and 15 minutes on {readings.cores} CPUs"
    if five < max(0.5, readings.cores / 4):
        return ok(summary)
    return caution(f"{summary}: this machine was busy, and may be again", "Find out what comes and goes.")


LOAD_CHECKS: Mapping[str, Callable[[LoadReadings], Check]] = {
    "stolen time": stolen,
    "other processes": others,
    "one busy thread": whole_core,
    "load average": average,
}


def load_checks(readings: LoadReadings) -> list[Check]:
    """Every check of what others do."""
    return examined("Load", LOAD_CHECKS, readings)
