"""Find other users of this machine: other processes, other guests of the hypervisor, the last minutes' queue."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from pyperf_suite.measure.telemetry import Around
from pyperf_suite.node.check import Check, caution, failed, of_part, ok, unknown

# A pause longer than this between two looks at the clock was no instruction of ours.
INTERRUPTION_S = 20e-6
WATCHED_S = 1.0
# Share of the machine's cores in other hands from which figures move by more than profiles promise.
BUSY_SHARE, CROWDED_SHARE = 0.02, 0.25
# Share of the time that cores wanted. A tick is 10 ms, so less than 1 % cannot be told from nothing within a second.
STOLEN_SHARE, ROBBED_SHARE = 0.015, 0.1
WHOLE_CORE = 0.95
MOST_CONSUMERS = 3


def load_checks(seconds: float = WATCHED_S) -> tuple[list[Check], int]:
    """Every check of what others do while one thread is kept busy for so long, and the bytes swapped meanwhile."""
    cores, before_s, swapped = os.cpu_count() or 1, _process_times_s(), _swapped_bytes()
    with Around() as around:
        longest_s = keep_busy(seconds)
    report, after_s = around.report, _process_times_s()
    elapsed_s, own_s = report["elapsed_s"], report["process_cpu_s"]
    taken = max(0.0, report["cpu_busy_s"] - own_s) / elapsed_s if "cpu_busy_s" in report else None
    checks = {
        "stolen time": stolen(report.get("steal_share")),
        "other processes": others(cores, taken, consumers(before_s, after_s, elapsed_s)),
        "one busy thread": whole_core(min(1.0, own_s / elapsed_s), elapsed_s, longest_s),
        "load average": average(report["before"].get("load_average"), cores),
    }
    return of_part("Load", checks), _swapped_bytes() - swapped


def keep_busy(seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Look at the clock for so long; returns the longest interruption in seconds, 0 if there was none."""
    began = last = clock()
    longest_s = 0.0
    while last - began < seconds:
        now = clock()
        longest_s = max(longest_s, now - last)
        last = now
    return longest_s if longest_s >= INTERRUPTION_S else 0.0


Times = Mapping[int, tuple[str, float]]
Consumer = tuple[str, int, float]


def consumers(before_s: Times, after_s: Times, elapsed_s: float) -> list[Consumer]:
    """Name, number and cores of other processes by their CPU time, the greediest first; a new one began from 0."""
    used = [
        (name, number, (cpu_s - before_s.get(number, (name, 0.0))[1]) / elapsed_s)
        for number, (name, cpu_s) in after_s.items()
        if number != os.getpid()
    ]
    return sorted((each for each in used if each[2] > 0), key=lambda each: (-each[2], each[1]))


def _process_times_s() -> Times:
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        if times := process.info["cpu_times"]:
            found[process.pid] = (str(process.info["name"]), times.user + times.system)
    return found


def _swapped_bytes() -> int:
    swap = psutil.swap_memory()
    return int(swap.sin + swap.sout)


def stolen(share: float | None) -> Check:
    """Time that a hypervisor gave to others."""
    if share is None:
        return unknown()
    if share < STOLEN_SHARE:
        return ok(f"{share:.1%} of the time wanted in a second")
    return (failed if share >= ROBBED_SHARE else caution)(
        f"{share:.1%} of the time that this machine's cores wanted in a second went to other guests of its host",
        "Measure at another time, or on a machine with cores of its own (a dedicated host or instance).",
    )


def others(cores: int, busy_cores: float | None, greediest: Sequence[Consumer]) -> Check:
    """Check the cores that other processes keep busy, and name those processes."""
    if busy_cores is None:
        return unknown()
    greedy = [
        f"{name} ({number}) {used / cores:.0%}"
        for name, number, used in greediest[:MOST_CONSUMERS]
        if used / cores >= BUSY_SHARE / 4
    ]
    share = busy_cores / cores
    summary = f"{share:.0%} of {cores} CPUs busy with others" + (f": {', '.join(greedy)}" if greedy else "")
    if share < BUSY_SHARE:
        return ok(summary)
    judged = failed if share >= CROWDED_SHARE else caution
    return judged(summary, "Stop what is not needed, or wait until it is done.", "top -o %CPU")


def whole_core(share: float, seconds: float, longest_s: float) -> Check:
    """Check the share of a core that a thread gets which wants all of it, and its longest interruption."""
    summary = f"got {share:.0%} of a core for {seconds:.1f} s"
    summary += f", its longest interruption {longest_s * 1e3:.2g} ms" if longest_s else ""
    if share >= WHOLE_CORE:
        return ok(summary)
    return caution(
        f"{summary}: others, a quota or the hypervisor had the rest",
        "See the checks of other processes, stolen time and the CPU quota.",
    )


def average(over: Sequence[float] | None, cores: int) -> Check:
    """The run queue of the last minutes: a job that pauses just now comes back."""
    if over is None:
        return unknown()
    one, five, fifteen = over
    summary = f"{one:.2f}, {five:.2f}, {fifteen:.2f} over 1, 5 and 15 minutes on {cores} CPUs"
    if five < max(0.5, cores / 4):
        return ok(summary)
    return caution(f"{summary}: this machine was busy, and may be again", "Find out what comes and goes.")
