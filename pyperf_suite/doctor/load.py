"""Who else uses this machine now: other processes, other guests of the hypervisor, the last minutes' queue."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyperf_suite.doctor.check import Check
from pyperf_suite.hardware.activity import Activity, observe
from pyperf_suite.hardware.kernel_files import KernelFiles

WATCHED_S = 1.0
# Of the machine's cores: where others take that much, figures move by more than what profiles promise.
BUSY_SHARE, CROWDED_SHARE = 0.02, 0.25
# Of the time that cores wanted. A tick is 10 ms, so less than 1 % cannot be told from nothing within a second.
STOLEN_SHARE, ROBBED_SHARE = 0.015, 0.1
WHOLE_CORE = 0.95
CONSUMERS_TOLD = 3


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


def load_checks(readings: LoadReadings) -> tuple[Check, ...]:
    """Every check of what others do."""
    return (stolen(readings), others(readings), whole_core(readings), average(readings))


def stolen(readings: LoadReadings) -> Check:
    """Time that a hypervisor gave to others."""
    if readings.activity is None:
        return Check("stolen time", "not applicable", "this system does not count it")
    share = readings.activity.steal_share
    if share < STOLEN_SHARE:
        return Check("stolen time", "ok", f"{share:.1%} of the time wanted in a second")
    return Check(
        "stolen time",
        "problem" if share >= ROBBED_SHARE else "warning",
        f"{share:.1%} of the time that this machine's cores wanted in a second went to other guests of its host",
        "Measure at another time, or on a machine with cores of its own (a dedicated host or instance).",
    )


def others(readings: LoadReadings) -> Check:
    """Cores that other processes keep busy, and which processes those are."""
    activity = readings.activity
    if activity is None:
        return Check("other processes", "not applicable", "this system does not tell")
    greedy = [
        f"{name} ({number}) {cores / readings.cores:.0%}"
        for name, number, cores in activity.consumers[:CONSUMERS_TOLD]
        if cores / readings.cores >= BUSY_SHARE / 4
    ]
    share = activity.other_cores / readings.cores
    told = f"{share:.0%} of {readings.cores} CPUs busy with others" + (f": {', '.join(greedy)}" if greedy else "")
    if share < BUSY_SHARE:
        return Check("other processes", "ok", told)
    return Check(
        "other processes",
        "problem" if share >= CROWDED_SHARE else "warning",
        told,
        "Stop what is not needed, or wait until it is done.",
        "top -o %CPU",
    )


def whole_core(readings: LoadReadings) -> Check:
    """What a thread that wants a whole core gets of it."""
    if readings.activity is None:
        return Check("one busy thread", "not applicable", "this system does not tell")
    busy = readings.activity.busy
    interruption = f", its longest interruption {busy.longest_interruption_s * 1e3:.2g} ms"
    told = (
        f"got {busy.share:.0%} of a core for {busy.wall_s:.1f} s{interruption if busy.longest_interruption_s else ''}"
    )
    if busy.share >= WHOLE_CORE:
        return Check("one busy thread", "ok", told)
    return Check(
        "one busy thread",
        "warning",
        f"{told}: others, a quota or the hypervisor had the rest",
        "See the checks of other processes, stolen time and the CPU quota.",
    )


def average(readings: LoadReadings) -> Check:
    """The run queue of the last minutes: a job that pauses just now comes back."""
    if readings.load_average is None:
        return Check("load average", "not applicable", "this system does not tell")
    one, five, fifteen = readings.load_average
    told = f"{one:.2f}, {five:.2f}, {fifteen:.2f} over 1, 5 and 15 minutes on {readings.cores} CPUs"
    if five < max(0.5, readings.cores / 4):
        return Check("load average", "ok", told)
    return Check(
        "load average", "warning", f"{told}: this machine was busy, and may be again", "Find out what comes and goes."
    )
