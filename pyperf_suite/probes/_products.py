"""What the probes of matrix products share: the library's side of a product, and sweeps along one of its sizes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

from pyperf_suite.hardware.cuda_driver import Gpu, gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.spec.findings import Series
from pyperf_suite.spec.rows import Row, Rows

# A tile that our kernel chooses for the product.
CHOSEN = "chosen"


def own_kernel(device: Device) -> tuple[Gpu, str]:
    """The GPU, and the kernel of ours that is written for it."""
    gpu = gpus()[device.index]
    return gpu, "cuda_sm90" if gpu.compute_capability == (9, 0) else "cuda_sm80"


def library_of(row: Row) -> Row | None:
    """The library's row of the same product on as many workers."""
    theirs = Schedule("library", row.schedule.workers)
    alike = row.rows.alike(row, "implementation", "schedule", "tile")
    return next((other for other in alike if other.schedule == theirs), None)


def relative_rate(row: Row) -> float | None:
    """Its rate over the library's."""
    library = library_of(row)
    return library.seconds / row.seconds if library else None


@dataclass(frozen=True)
class Sweep:
    """Rows that differ in the size `along` alone, by that size, ascending."""

    along: str
    rows: Mapping[int, Row]

    @property
    def base(self) -> Row:
        """The smallest: what all of them have in common is asked of it."""
        return next(iter(self.rows.values()))

    @property
    def name(self) -> str:
        """The varied dimension: M, N or K."""
        return self.along.upper()

    @property
    def shape(self) -> str:
        """`256 x N x 1024`."""
        return " x ".join(self.name if each == self.along else str(getattr(self.base, each)) for each in "mnk")


def sweeps_along(along: str, rows: Rows, fewest: int = 2) -> list[Sweep]:
    """Sweeps of at least so many sizes."""
    groups = (sorted(group, key=operator.attrgetter(along)) for group in rows.groups(along))
    return [Sweep(along, {getattr(row, along): row for row in group}) for group in groups if len(group) >= fewest]


def series(label: str, rows: Mapping[int, Row], style: str = "points", as_rate: bool = True) -> Series:
    """FLOP/s, or seconds, over size; points have their intervals."""
    if as_rate:
        y, low, high = ([row.flop / getattr(row, name) for row in rows.values()] for name in ("seconds", "high", "low"))
    else:
        y, low, high = ([getattr(row, name) for row in rows.values()] for name in ("seconds", "low", "high"))
    return Series(label, list(rows), y, style, *((low, high) if style == "points" else ()))
