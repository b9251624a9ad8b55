"""The data caches of the CPU: their sizes, and how many of each there are.

Linux's /sys says both; where it does not (some virtual machines, macOS), the C library or sysctl may.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from pyperf_suite.hardware.kernel_files import KernelFiles, parse_bytes, parse_cpu_list

# What nearly every server core since 2017 has at least; used, and said to be assumed, where nothing tells.
ASSUMED_BYTES = {1: 32 * 1024, 2: 1024 * 1024, 3: 0}
SYSCONF = {1: "SC_LEVEL1_DCACHE_SIZE", 2: "SC_LEVEL2_CACHE_SIZE", 3: "SC_LEVEL3_CACHE_SIZE"}
SYSCTL = {1: "hw.l1dcachesize", 2: "hw.l2cachesize", 3: "hw.l3cachesize"}


@dataclass(frozen=True)
class Caches:
    """Sizes in bytes: of one instance (the largest, where there are two kinds), and of all together."""

    l1d_bytes: int
    l2_bytes: int
    l2_total_bytes: int
    l3_bytes: int
    l3_total_bytes: int
    assumed: bool  # True where the machine tells nothing, and what is usual stands in


def read_caches(files: KernelFiles, logical_cores: int, sysctl: Callable[[str], str | None]) -> Caches:
    """Read the caches, from the most telling source that this machine has."""
    instances = _instances(files)
    sizes = {level: max(found.values()) for level, found in instances.items()}
    totals = {level: sum(found.values()) for level, found in instances.items()}
    assumed = False
    if 2 not in sizes:
        told = {level: _from_system(level, sysctl) for level in (1, 2, 3)}
        assumed = not told[2]
        sizes = {level: size or ASSUMED_BYTES[level] for level, size in told.items()}
        totals = {2: sizes[2] * logical_cores, 3: sizes[3]}
    return Caches(
        l1d_bytes=sizes.get(1, ASSUMED_BYTES[1]),
        l2_bytes=sizes[2],
        l2_total_bytes=totals[2],
        l3_bytes=sizes.get(3, 0),
        l3_total_bytes=totals.get(3, 0),
        assumed=assumed,
    )


def _instances(files: KernelFiles) -> dict[int, dict[frozenset[int], int]]:
    """Per level, the size in bytes of each data cache, by the set of CPUs that share it."""
    found: dict[int, dict[frozenset[int], int]] = defaultdict(dict)
    for folder in files.matching("sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*"):
        level = files.integer(f"{folder}/level")
        size = parse_bytes(files.text(f"{folder}/size"))
        shared = parse_cpu_list(files.text(f"{folder}/shared_cpu_list"))
        if level is not None and size and files.text(f"{folder}/type") in ("Data", "Unified"):
            # Without a list of sharers, a cache counts as the CPU's own.
            own = frozenset({int(folder.split("/cpu/cpu")[1].split("/")[0])})
            found[level][shared or own] = size
    return dict(found)


def _from_system(level: int, sysctl: Callable[[str], str | None]) -> int | None:
    """The size of a level's data cache in bytes, from the C library or else from sysctl."""
    try:
        size = os.sysconf(SYSCONF[level])
    except (OSError, ValueError):
        size = 0
    return size if size > 0 else parse_bytes(sysctl(SYSCTL[level]))
