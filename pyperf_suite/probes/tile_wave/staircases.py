"""Readings of the tile/wave probe put in order: sweeps, the cliffs in them, and the law fitted to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyperf_suite.laws.matmul.staircase import StaircaseLaw, relative_error
from pyperf_suite.laws.matmul.tiling import (
    CriticalPath,
    Schedule,
    Tile,
    ceil_div,
    critical_path,
    tile_count,
    wave_count,
)
from pyperf_suite.spec.rows import Reading

# The step over an edge is at most this part of a tile: one element on a CPU, 16 bytes where TMA must be able to follow.
WIDEST_STEP_SHARE = 8


@dataclass(frozen=True, order=True)
class Setting:
    """What stays fixed while sweeps vary in size and schedule; a law is fitted for each."""

    implementation: str
    dtype: str
    tile: Tile
    workers: int
    k: int
    mode: str = "burst"


@dataclass(frozen=True)
class Cliff:
    """What the step over the edge of a row (or column) of tiles costs: from `size` to `size_after`."""

    before: Reading
    after: Reading
    size: int
    size_after: int
    opens_wave: bool

    @property
    def extra_time(self) -> float:
        """Relative: 0.9 is 90 % more time for the step."""
        return self.after.seconds / self.before.seconds - 1


@dataclass(frozen=True)
class Sweep:
    """Readings of one schedule along one direction, by growing size; `fixed` is the other dimension."""

    setting: Setting
    schedule: Schedule
    along: str
    fixed: int
    readings: tuple[Reading, ...]

    def sizes(self) -> list[int]:
        """The varied dimension."""
        return [getattr(reading.case.parameters, self.along) for reading in self.readings]

    @property
    def width(self) -> int:
        """The tile's size in the varied dimension."""
        size: int = getattr(self.setting.tile, self.along)
        return size

    def ends_wave(self, size: int) -> bool:
        """Whether a product of this size, a multiple of the tile, fills its last wave."""
        across = int(ceil_div(self.fixed, getattr(self.setting.tile, "m" if self.along == "n" else "n")))
        return (size // self.width) * across % self.in_slots.workers == 0

    @property
    def in_slots(self) -> Schedule:
        """The schedule with the slots it really had as its workers."""
        return in_slots(self.schedule, self.readings[0])

    def cliffs(self) -> list[Cliff]:
        """Every tile edge that was measured on both sides, the far side within a small part of a tile."""
        sides = itertools.pairwise(zip(self.sizes(), self.readings, strict=True))
        return [
            Cliff(before, after, size, size_after, self.ends_wave(size))
            for (size, before), (size_after, after) in sides
            if size % self.width == 0 and size_after - size <= self.width // WIDEST_STEP_SHARE
        ]

    def beside(self, library: Iterable[Reading]) -> dict[int, Reading]:
        """The library's readings of the same products, by size."""
        shapes = {(reading.case.parameters.m, reading.case.parameters.n) for reading in self.readings}
        return {
            getattr(p, self.along): reading
            for reading in library
            if (p := reading.case.parameters).dtype == self.setting.dtype
            and reading.case.mode == self.setting.mode
            and p.k == self.setting.k
            and p.schedule.workers == self.setting.workers
            and (p.m, p.n) in shapes
        }


@dataclass(frozen=True)
class FittedLaw:
    """A law and its relative errors on the cases it was not fitted to."""

    law: StaircaseLaw
    fitted_on: int
    held_out: tuple[float, ...]


def settings_of(own: Iterable[Reading]) -> dict[Setting, list[Reading]]:
    """Readings of our own kernels by setting, in order."""
    by_setting: dict[Setting, list[Reading]] = {}
    for reading in own:
        p = reading.case.parameters
        case = reading.case
        setting = Setting(case.implementation, p.dtype, p.tile, p.schedule.workers, p.k, case.mode)
        by_setting.setdefault(setting, []).append(reading)
    return dict(sorted(by_setting.items()))


def sweeps_of(setting: Setting, found: Iterable[Reading]) -> list[Sweep]:
    """Readings that share all but one dimension; a corner belongs to the sweeps of both directions."""
    members: dict[tuple[str, Schedule, int], list[Reading]] = {}
    for reading in found:
        p = reading.case.parameters
        members.setdefault(("n", p.schedule, p.m), []).append(reading)
        members.setdefault(("m", p.schedule, p.n), []).append(reading)
    sweeps = []
    for (along, schedule, fixed), readings in sorted(members.items()):
        by_size = sorted(readings, key=lambda reading: getattr(reading.case.parameters, along))
        if len(by_size) > 2:
            sweeps.append(Sweep(setting, schedule, along, fixed, tuple(by_size)))
    return sweeps


def in_slots(schedule: Schedule, reading: Reading) -> Schedule:
    """The schedule with as many workers as run at once.

    Where units are handed out to whoever is free, a GPU has as many slots as multiprocessors times the blocks that fit
    on one, which the record tells; elsewhere they are the workers asked for, as far as there are slots for them.
    """
    slots = reading.kernel.get("details", {}).get("slots")
    if not slots:
        return schedule
    handed_out = schedule.policy in ("data_parallel", "split_k")
    return replace(schedule, workers=slots if handed_out else min(schedule.workers, slots))


def fit(setting: Setting, found: Sequence[Reading]) -> FittedLaw | None:
    """Fit on odd numbers of waves and judge on even ones, which the fit has never seen a neighbour of.

    None where either part is empty.
    """
    parts: dict[bool, list[tuple[CriticalPath, list[float]]]] = {True: [], False: []}
    for schedule in sorted({reading.case.parameters.schedule for reading in found}):
        of_schedule = [reading for reading in found if reading.case.parameters.schedule == schedule]
        for odd in (True, False):
            part = [reading for reading in of_schedule if _waves(setting, reading) % 2 == odd]
            if part:
                parts[odd].append((_path(setting, part, schedule), [reading.seconds for reading in part]))
    if not parts[True] or not parts[False]:
        return None
    path, seconds = _joined(parts[True])
    law = StaircaseLaw.fit(path, seconds)
    held_path, held_seconds = _joined(parts[False])
    return FittedLaw(law, len(seconds), tuple(relative_error(law.seconds(held_path), held_seconds).tolist()))


def _path(setting: Setting, readings: Sequence[Reading], schedule: Schedule) -> CriticalPath:
    m, n, k = ([getattr(reading.case.parameters, name) for reading in readings] for name in "mnk")
    return critical_path(m, n, k, setting.tile, in_slots(schedule, readings[0]))


def _waves(setting: Setting, reading: Reading) -> int:
    p = reading.case.parameters
    return int(wave_count(tile_count(p.m, p.n, setting.tile), setting.workers))


def _joined(parts: Sequence[tuple[CriticalPath, list[float]]]) -> tuple[CriticalPath, list[float]]:
    paths = [path for path, _ in parts]
    joined = CriticalPath(
        np.concatenate([path.k_extent for path in paths]),
        np.concatenate([path.tiles for path in paths]),
        np.concatenate([path.partials for path in paths]),
    )
    return joined, [second for _, seconds in parts for second in seconds]
