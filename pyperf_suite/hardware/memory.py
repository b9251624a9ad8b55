"""Memory and CPU time this process may take: the machine's, or the narrowest of its control groups', up to the root."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

from pyperf_suite.hardware.kernel_files import KernelFiles, parse_integer

MOUNT = PurePosixPath("sys/fs/cgroup")
NO_LIMIT_BYTES = 1 << 60


MEMORY_SHARE = 0.8  # share of the free memory that a user's code may take


def available_bytes(files: KernelFiles | None = None) -> int:
    """Bytes that can be allocated without swapping and without breaking a control group's limit."""
    free = int(psutil.virtual_memory().available)
    granted = memory_available_bytes(files or KernelFiles())
    return free if granted is None else min(free, granted)


def limit_bytes() -> int:
    """Bytes that a user's code may take: a share of the memory that is free."""
    return int(MEMORY_SHARE * available_bytes())


def resident_peak_bytes() -> int:
    """The most of this process's memory resident since it began or `clear_refs`; else what is resident now."""
    with contextlib.suppress(OSError):
        if found := re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text()):
            return int(found[1]) << 10
    return int(psutil.Process().memory_info().rss)


def cpu_quota_cores(files: KernelFiles) -> float | None:
    """How many cores' time the narrowest quota grants per second of wall time; None where there is none."""
    quotas = []
    for folder in _groups(files, "cpu"):
        # Both in microseconds: version 2 has them in one file.
        words = [*(files.text(f"{folder}/cpu.max") or "").split(), "", ""]
        pairs = [
            (parse_integer(words[0]), parse_integer(words[1])),
            (files.integer(f"{folder}/cpu.cfs_quota_us"), files.integer(f"{folder}/cpu.cfs_period_us")),
        ]
        quotas += [quota / period for quota, period in pairs if quota and period and quota > 0 and period > 0]
    return min(quotas, default=None)


def cpu_throttled_s(files: KernelFiles) -> float | None:
    """Seconds that quotas kept this process's groups from running so far; None without a counter."""
    # The groups above count each for all their children, so the largest holds.
    found = []
    for folder in _groups(files, "cpu"):
        text = files.text(f"{folder}/cpu.stat") or ""
        for name, scale in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
            found += [int(value) / scale for value in re.findall(rf"^{name} (\d+)$", text, re.MULTILINE)]
    return max(found, default=None)


def memory_limit_bytes(files: KernelFiles) -> int | None:
    """The narrowest limit on this process's memory; None where there is none."""
    limits = [
        limit
        for folder in _groups(files, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (limit := files.integer(f"{folder}/{name}")) is not None
    ]
    # Version 1 writes "no limit" as the largest number of pages.
    return min((limit for limit in limits if limit < NO_LIMIT_BYTES), default=None)


def memory_available_bytes(files: KernelFiles) -> int | None:
    """Memory that the narrowest limit leaves, inactive page cache included; None where there is no limit."""
    # The kernel counts that cache as used, but gives it up before anything is refused.
    left = []
    for folder in _groups(files, "memory"):
        version_2 = files.exists(f"{folder}/memory.max")
        limit = files.integer(f"{folder}/{'memory.max' if version_2 else 'memory.limit_in_bytes'}")
        used = files.integer(f"{folder}/{'memory.current' if version_2 else 'memory.usage_in_bytes'}")
        if limit is not None and used is not None:
            statistics, name = files.text(f"{folder}/memory.stat") or "", "" if version_2 else "total_"
            reclaimable = re.search(rf"^{name}inactive_file\s+(\d+)$", statistics, re.MULTILINE)
            left.append(max(0, limit - max(0, used - int(reclaimable[1] if reclaimable else 0))))
    return min(left, default=None)


def _groups(files: KernelFiles, controller: str) -> Iterator[str]:
    """The folders of this process's groups for a controller, from its own to the root of what is mounted.

    In a container the path in /proc/self/cgroup may be the host's while the mount shows the container's own
    group as its root; the folders of that path then do not exist, and only the root counts.
    """
    for line in (files.text("proc/self/cgroup") or "0::/").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        _, controllers, path = fields
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [MOUNT / controllers, MOUNT / controller] if controllers else [MOUNT, MOUNT / "unified"]
        mount = next((mount for mount in mounts if files.exists(str(mount))), None)
        if mount is None:
            continue
        own = PurePosixPath(path.lstrip("/"))
        if ".." in own.parts:  # a group outside this cgroup namespace cannot be seen
            own = PurePosixPath()
        for group in (own, *own.parents):
            yield str(mount / group)
