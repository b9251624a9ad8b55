"""How much memory this process can still take: what the machine has free, or its control group leaves."""

from __future__ import annotations

import psutil

from pyperf_suite.hardware import cgroup
from pyperf_suite.hardware.kernel_files import KernelFiles


def available_bytes(files: KernelFiles | None = None) -> int:
    """Bytes that can be allocated without swapping and without breaking a control group's limit."""
    free = int(psutil.virtual_memory().available)
    granted = cgroup.memory_available_bytes(files or KernelFiles())
    return free if granted is None else min(free, granted)
