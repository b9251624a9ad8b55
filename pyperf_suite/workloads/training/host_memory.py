"""Memory of the host for copies: at a page's begin, filled by a seed, on a NUMA node of the user's choice.

The kernel places a page where the thread runs that writes it first.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.kernel_files import KernelFiles, parse_cpu_list

Bytes = NDArray[np.uint8]

# The kernel backs memory of this size with large pages where it is asked to, as NumPy asks.
WORTH_LARGE_PAGES = 1 << 22

# Wherever the kernel puts it.
ANY_NODE = -1


def page_aligned(size_bytes: int) -> Bytes:
    """Fresh memory of the host at a page's begin, in large pages where it is large; no page of it is placed yet."""
    memory = mmap.mmap(-1, size_bytes)
    if size_bytes >= WORTH_LARGE_PAGES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


def fill(buffer: Bytes, seed: int) -> None:
    """Seeded bytes without a period, so that none that came from elsewhere passes for right."""
    buffer[:] = np.random.default_rng(seed).integers(0, 256, buffer.size, dtype=np.uint8)


def nodes(files: KernelFiles | None = None) -> tuple[int, ...]:
    """The numbers of the machine's NUMA nodes; none where the system does not tell."""
    return tuple(sorted(parse_cpu_list((files or KernelFiles()).text("sys/devices/system/node/online"))))


def require_node(node: int, files: KernelFiles | None = None) -> None:
    """Raise UserError for a node that there is not; ANY_NODE is always there."""
    there = nodes(files)
    if node != ANY_NODE and node not in there:
        named = ", ".join(map(str, there)) or "none that the system tells of"
        raise UserError(
            f"NUMA node {node} was asked for, but this machine has {named}: leave it at {ANY_NODE} for wherever it is."
        )


@contextmanager
def running_on(node: int, files: KernelFiles | None = None) -> Iterator[None]:
    """Keep this thread on the node's CPUs for as long as the block lasts; anywhere for ANY_NODE.

    Raises Unsupported where this process may use none of the node's CPUs.
    """
    if node == ANY_NODE:
        yield
        return
    listed = (files or KernelFiles()).text(f"sys/devices/system/node/node{node}/cpulist")
    allowed = os.sched_getaffinity(0)
    chosen = allowed & parse_cpu_list(listed)
    if not chosen:
        raise Unsupported(f"This process may use no CPU of NUMA node {node}, so it cannot place memory there.")
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
