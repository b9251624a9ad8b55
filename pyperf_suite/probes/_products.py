"""What the probes of matrix products share: axes, the library's side of a product, sweeps along one of its sizes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pyperf_suite.errors import OneOf, Within
from pyperf_suite.hardware.cuda_driver import gpus
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.measure.estimates import Ratio
from pyperf_suite.spec.rows import Row, Rows
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.dtypes import ELEMENT_TYPES

Pairs = TypeVar("Pairs", bound="Pair")

# A tile that our kernel chooses for the product.
CHOSEN = "chosen"
IMPLEMENTATIONS = OneOf(find_workload("matmul").implementations)


@dataclass(frozen=True)
class ProductAxes:
    """What every probe of products varies."""

    workers: Annotated[tuple[int, ...], Within(1, 100_000)]
    implementation: Annotated[tuple[str, ...], IMPLEMENTATIONS] = ("native",)
    library: Annotated[tuple[str, ...], IMPLEMENTATIONS] = ("torch",)
    dtype: Annotated[tuple[str, ...], OneOf(ELEMENT_TYPES)] = ("float32",)
    mode: tuple[str, ...] = ("burst",)


def on_gpu(device: Device) -> tuple[str, dict[str, Any]]:
    """The kernel of ours that is written for a GPU, and the axes that a whole GPU sets."""
    gpu = gpus()[device.index]
    own = "cuda_sm90" if gpu.compute_capability == (9, 0) else "cuda_sm80"
    shared = {"implementation": (own,), "library": ("cublas",), "dtype": ("bfloat16",)}
    return own, shared | {"workers": (gpu.multiprocessors,)}


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
    def fastest(self) -> Row:
        """The one with the most FLOP a second."""
        return max(self.rows.values(), key=lambda row: row.flop_per_s)

    @property
    def setting(self) -> str:
        """Who multiplies and how, whatever the shape: `native data_parallel@2, float32, TN`."""
        row = self.base
        mode = "" if row.mode == "burst" else row.mode
        how = (mode, row.implementation, row.tile, "" if row.schedule.policy == "library" else row.schedule)
        return f"{' '.join(str(word) for word in how if word)}, {row.dtype}, {row.layout}"

    @property
    def name(self) -> str:
        """The varied dimension: M, N or K."""
        return self.along.upper()

    @property
    def shape(self) -> str:
        """`256 x N x 1024`."""
        return " x ".join(self.name if each == self.along else str(getattr(self.base, each)) for each in "mnk")


@dataclass(frozen=True)
class Pair:
    """Two sizes of a sweep; `gain` is the time of the first over that of the other."""

    sweep: Sweep
    size: int
    other: int
    gain: Ratio

    @property
    def row(self) -> Row:
        """Of the first size."""
        return self.sweep.rows[self.size]

    @property
    def beside(self) -> Row:
        """Of the other size."""
        return self.sweep.rows[self.other]

    @property
    def rate(self) -> Ratio:
        """Throughput at the size over that at the other."""
        return self.gain.inverse * (self.size / self.other)

    @classmethod
    def each(cls: type[Pairs], sweep: Sweep, sizes: Iterable[tuple[int, int]]) -> list[Pairs]:
        """Two sizes at a time, but for those that no process measured both of."""
        gains = [(size, other, sweep.rows[other].faster_than(sweep.rows[size])) for size, other in sizes]
        return [cls(sweep, size, other, gain) for size, other, gain in gains if gain is not None]


def sweeps_along(along: str, rows: Rows, fewest: int = 2) -> list[Sweep]:
    """Sweeps of at least so many sizes."""
    groups = (sorted(group, key=operator.attrgetter(along)) for group in rows.groups(along))
    return [Sweep(along, {getattr(row, along): row for row in group}) for group in groups if len(group) >= fewest]
