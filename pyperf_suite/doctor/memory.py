"""Memory: how much may be taken, whether it stays in memory, in which pages, and what processes share."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from pyperf_suite.doctor.check import Check, gib
from pyperf_suite.hardware import cgroup, memory
from pyperf_suite.hardware.kernel_files import KernelFiles, parse_bytes
from pyperf_suite.hardware.state import kernel_state

GIB = 2**30
SCARCE_BYTES, TIGHT_BYTES = 1 * GIB, 4 * GIB
# A DataLoader's workers hand each batch over through /dev/shm, NCCL's ranks of one node their rings.
SMALL_SHARED_BYTES = 1 * GIB
TINY_SHARED_BYTES = 128 * 2**20
SWAPPED_SHARE = 0.05


@dataclass(frozen=True)
class MemoryReadings:
    """Bytes; None where this system does not tell."""

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
    swap, unused = _told(files, "SwapTotal"), _told(files, "SwapFree")
    return MemoryReadings(
        available_bytes=memory.available_bytes(files),
        limit_bytes=cgroup.memory_limit_bytes(files),
        huge_pages=kernel_state(files, frozenset())["transparent_hugepages"],
        swap_total_bytes=swap,
        swap_used_bytes=None if swap is None or unused is None else swap - unused,
        swapped_pages=swapped_pages,
        shared_total_bytes=total,
        shared_free_bytes=free,
        locked_limit_bytes=_locked_limit(),
        has_network_cards=bool(files.matching("sys/class/infiniband/*")),
    )


def _told(files: KernelFiles, name: str) -> int | None:
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


def memory_checks(readings: MemoryReadings) -> tuple[Check, ...]:
    """Every check of memory."""
    return (available(readings), swap(readings), huge_pages(readings), shared(readings), locked(readings))


def available(readings: MemoryReadings) -> Check:
    """What can be taken without swapping and without breaking a limit."""
    limit = f", of a limit of {gib(readings.limit_bytes)}" if readings.limit_bytes is not None else ""
    told = f"{gib(readings.available_bytes)} can be taken{limit}"
    if readings.available_bytes >= TIGHT_BYTES:
        return Check("memory", "ok", told)
    return Check(
        "memory",
        "problem" if readings.available_bytes < SCARCE_BYTES else "warning",
        f"{told}: large cases will be unsupported or killed",
        "Free memory, or raise the limit of the container or job (docker: --memory; SLURM: --mem).",
    )


def swap(readings: MemoryReadings) -> Check:
    """Whether what is measured may lie on a disk."""
    if readings.swapped_pages:
        return Check(
            "swap",
            "problem",
            f"{readings.swapped_pages} pages went to or came from the disk within a second",
            "Free memory before measuring; what is swapped now is timed as a disk's.",
        )
    total, used = readings.swap_total_bytes, readings.swap_used_bytes
    if total is None or used is None:
        return Check("swap", "not applicable", "this system does not tell")
    if total == 0:
        return Check("swap", "ok", "none")
    told = f"{gib(used)} of {gib(total)} used"
    if used < SWAPPED_SHARE * total:
        return Check("swap", "ok", told)
    return Check(
        "swap",
        "warning",
        f"{told}: pages that lie there come back in the middle of measurements",
        "Free memory, then take the pages back.",
        "sudo swapoff -a && sudo swapon -a",
    )


def huge_pages(readings: MemoryReadings) -> Check:
    """Whether large operands can lie in pages of 2 MiB."""
    if readings.huge_pages is None:
        return Check("huge pages", "not applicable", "the kernel tells of none")
    if readings.huge_pages != "never":
        return Check("huge pages", "ok", readings.huge_pages)
    return Check(
        "huge pages",
        "warning",
        "never: large operands on the CPU are spread over pages of 4 KiB, whose addresses take time to look up",
        "Let programs ask for huge pages.",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


def shared(readings: MemoryReadings) -> Check:
    """What DataLoader's workers and NCCL's ranks of one node hand things over through."""
    total, free = readings.shared_total_bytes, readings.shared_free_bytes
    if total is None or free is None:
        if not sys.platform.startswith("linux"):
            return Check("/dev/shm", "not applicable", "this system has none")
        return Check(
            "/dev/shm",
            "problem",
            "there is none: DataLoader's workers and the ranks of one node cannot hand data over in shared memory",
            "Mount one in the container.",
            "docker run --shm-size=8g ...   # or --ipc=host",
        )
    told = f"{gib(free)} free of {gib(total)}"
    if free >= SMALL_SHARED_BYTES:
        return Check("/dev/shm", "ok", told)
    return Check(
        "/dev/shm",
        "problem" if free < TINY_SHARED_BYTES else "warning",
        f"{told}: DataLoader's workers die of a bus error and NCCL of `unhandled system error` where it is full",
        "Start the container with more, or with the host's, or remove what finished jobs left there.",
        "docker run --shm-size=8g ...   # or --ipc=host",
    )


def locked(readings: MemoryReadings) -> Check:
    """Whether network cards may pin their buffers."""
    limit = readings.locked_limit_bytes
    if not readings.has_network_cards:
        return Check("locked memory", "not applicable", "no InfiniBand or RoCE card here")
    if limit is None:
        return Check("locked memory", "ok", "no limit")
    return Check(
        "locked memory",
        "warning",
        f"at most {gib(limit)}: NCCL may fail to register buffers with the network card",
        "Raise the limit (docker: --ulimit memlock=-1; a service: LimitMEMLOCK=infinity).",
        "ulimit -l unlimited",
    )
