"""The clocks of ranks brought together, so that arrivals on different machines can be compared.

Ranks on one machine share a clock; others exchange stamps with rank 0, and the quickest exchange counts (Cristian,
Probabilistic clock synchronization, 1989).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pyperf_suite.ranks.group import Group

EXCHANGES = 50
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Clock:
    """What is added to this rank's `time.monotonic_ns()` to get rank 0's, and how far that may be off."""

    offset_ns: int
    uncertainty_ns: int


def machine_id(group: Group) -> str:
    """Text that ranks share which run on one machine, since it was started; a rank's own where there is no telling."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else f"rank {group.rank}"


def align(group: Group, deadline_s: float) -> Clock:
    """This rank's clock against rank 0's; exact where both are on one machine. All ranks call it together."""
    machines = group.gather("compare machines", machine_id(group), deadline_s)
    clock = Clock(0, 0)
    for rank in range(1, group.count):
        if machines[rank] == machines[0]:
            continue
        with group.within(f"align the clock of rank {rank}", deadline_s):
            if group.rank == 0:
                _answer_stamps(group, rank)
            elif group.rank == rank:
                clock = _exchange_stamps(group, rank)
    return clock


def _answer_stamps(group: Group, rank: int) -> None:
    for exchange in range(EXCHANGES):
        group.store.get(f"clock/{rank}/{exchange}/asked")
        group.store.set(f"clock/{rank}/{exchange}/told", str(time.monotonic_ns()))


def _exchange_stamps(group: Group, rank: int) -> Clock:
    exchanges = []
    for exchange in range(EXCHANGES):
        asked_ns = time.monotonic_ns()
        group.store.set(f"clock/{rank}/{exchange}/asked", "")
        told_ns = int(group.store.get(f"clock/{rank}/{exchange}/told"))
        round_trip_ns = time.monotonic_ns() - asked_ns
        exchanges.append((round_trip_ns, told_ns - (asked_ns + round_trip_ns // 2)))
    round_trip_ns, offset_ns = min(exchanges)
    return Clock(offset_ns, -(-round_trip_ns // 2))
