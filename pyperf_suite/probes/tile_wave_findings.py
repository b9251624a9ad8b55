"""What the tile/wave sweeps say: cliffs in words, the law with its held-out error, and the staircase picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pyperf_suite.laws.staircase import StaircaseLaw, relative_error
from pyperf_suite.laws.tiling import CriticalPath, Schedule, Tile, critical_path, tile_count, wave_count
from pyperf_suite.probes.findings import Figure, Findings, Panel, Series, Table
from pyperf_suite.probes.readings import Reading

# Later cliffs are smaller, and a sentence has an end.
CLIFFS_NAMED = 3


@dataclass(frozen=True, order=True)
class Setting:
    """What stays fixed while sweeps vary in size and schedule; a law is fitted for each."""

    dtype: str
    tile: Tile
    workers: int
    k: int


@dataclass(frozen=True)
class Sweep:
    """Readings of one schedule along one direction, by growing size."""

    setting: Setting
    schedule: Schedule
    along: str
    readings: tuple[Reading, ...]

    def sizes(self) -> list[int]:
        """The varied dimension."""
        return [getattr(reading.case.parameters, self.along) for reading in self.readings]

    @property
    def width(self) -> int:
        """The tile's size in the varied dimension."""
        size: int = getattr(self.setting.tile, self.along)
        return size


@dataclass(frozen=True)
class Cliff:
    """What one element more costs at a tile edge."""

    tiles: int
    before: Reading
    after: Reading
    size: int
    opens_wave: bool

    @property
    def extra_time(self) -> float:
        """Relative: 0.9 is 90 % more time for one element more."""
        return self.after.seconds / self.before.seconds - 1


@dataclass(frozen=True)
class FittedLaw:
    """A law and its relative errors on the cases it was not fitted to."""

    law: StaircaseLaw
    fitted_on: int
    held_out: tuple[float, ...]


def explain(found: Sequence[Reading]) -> Findings:
    """Sentences, a table and a figure for each setting."""
    native = [reading for reading in found if reading.case.implementation == "native"]
    library = [reading for reading in found if reading.case.implementation == "torch"]
    sentences: list[str] = []
    rows: list[tuple[str, ...]] = []
    figures: list[Figure] = []
    for setting in sorted({_setting(reading) for reading in native}):
        of_setting = [reading for reading in native if _setting(reading) == setting]
        sweeps = _sweeps(setting, of_setting)
        fitted = _fit(setting, of_setting)
        for sweep in sweeps:
            beside = _library_sweep(sweep, library)
            sentences.append(_sentence(sweep))
            rows.append(_row(sweep, beside))
        for along in sorted({sweep.along for sweep in sweeps}):
            beside_all = [_library_sweep(sweep, library) for sweep in sweeps if sweep.along == along]
            if beside_all and beside_all[0]:
                sentences.append(_library_sentence(setting, along, beside_all[0]))
            figures.append(_figure(setting, along, [s for s in sweeps if s.along == along], library, fitted))
        sentences.append(_law_sentence(setting, fitted))
    columns = (
        "schedule",
        "tile",
        "along",
        "best TFLOP/s",
        "of torch there",
        "largest cliff",
        "costs",
        "inside a wave",
    )
    return Findings(
        tuple(sentences),
        (Table("Tile and wave cliffs", columns, tuple(rows)),) if rows else (),
        tuple(figures),
    )


def cliffs(sweep: Sweep) -> list[Cliff]:
    """Every tile edge that was measured on both sides."""
    by_size = dict(zip(sweep.sizes(), sweep.readings, strict=True))
    return [
        Cliff(
            tiles=size // sweep.width,
            before=reading,
            after=by_size[size + 1],
            size=size,
            opens_wave=(size // sweep.width) % sweep.setting.workers == 0,
        )
        for size, reading in by_size.items()
        if size % sweep.width == 0 and size + 1 in by_size
    ]


def _setting(reading: Reading) -> Setting:
    p = reading.case.parameters
    return Setting(p.dtype, p.tile, p.schedule.workers, p.k)


def _sweeps(setting: Setting, found: Iterable[Reading]) -> list[Sweep]:
    """The corner that is one tile both ways belongs to the sweeps of both directions."""
    members: dict[tuple[str, Schedule], list[Reading]] = {}
    for reading in found:
        p = reading.case.parameters
        for along, fixed, size in (("n", p.m, setting.tile.m), ("m", p.n, setting.tile.n)):
            if fixed == size:
                members.setdefault((along, p.schedule), []).append(reading)
    sweeps = []
    for (along, schedule), readings in sorted(members.items()):
        by_size = sorted(readings, key=lambda reading: getattr(reading.case.parameters, along))
        if len(by_size) > 2:
            sweeps.append(Sweep(setting, schedule, along, tuple(by_size)))
    return sweeps


def _library_sweep(sweep: Sweep, library: Iterable[Reading]) -> dict[int, Reading]:
    """The library's readings of the same shapes, by size."""
    shapes = {(r.case.parameters.m, r.case.parameters.n) for r in sweep.readings}
    return {
        getattr(p, sweep.along): reading
        for reading in library
        if (p := reading.case.parameters).dtype == sweep.setting.dtype
        and p.k == sweep.setting.k
        and p.schedule.workers == sweep.setting.workers
        and (p.m, p.n) in shapes
    }


def _path(readings: Sequence[Reading], schedule: Schedule) -> CriticalPath:
    m, n, k = ([getattr(reading.case.parameters, name) for reading in readings] for name in "mnk")
    return critical_path(m, n, k, readings[0].case.parameters.tile, schedule)


def _fit(setting: Setting, found: Sequence[Reading]) -> FittedLaw | None:
    """Fit on odd numbers of waves and judge on even ones, which the fit has never seen a neighbour of."""
    parts: dict[bool, list[tuple[CriticalPath, list[float]]]] = {True: [], False: []}
    for schedule in sorted({reading.case.parameters.schedule for reading in found}):
        of_schedule = [reading for reading in found if reading.case.parameters.schedule == schedule]
        for odd in (True, False):
            part = [reading for reading in of_schedule if _waves(setting, reading) % 2 == odd]
            if part:
                parts[odd].append((_path(part, schedule), [reading.seconds for reading in part]))
    if not parts[True] or not parts[False]:
        return None
    path, seconds = _joined(parts[True])
    law = StaircaseLaw.fit(path, seconds)
    held_path, held_seconds = _joined(parts[False])
    return FittedLaw(law, len(seconds), tuple(relative_error(law.seconds(held_path), held_seconds).tolist()))


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


def _sentence(sweep: Sweep) -> str:
    found = cliffs(sweep)
    name = sweep.along.upper()
    head = f"{sweep.schedule}, tile {sweep.setting.tile}, {sweep.setting.dtype}, along {name}: "
    if not found:
        return head + "no tile edge was measured on both sides."
    waves = [cliff for cliff in found if cliff.opens_wave]
    inside = [cliff.extra_time for cliff in found if not cliff.opens_wave]
    parts = []
    if waves:
        first, *others = waves[:CLIFFS_NAMED]
        parts.append(
            f"opening a wave costs {first.extra_time:+.0%} time at {name} = {first.size} -> {first.size + 1} "
            f"({first.before.tflop_per_s:.3f} -> {first.after.tflop_per_s:.3f} TFLOP/s)"
            + "".join(f", {cliff.extra_time:+.0%} at {cliff.size} -> {cliff.size + 1}" for cliff in others)
        )
    if inside:
        parts.append(f"a tile edge inside a wave costs {statistics.median(inside):+.0%} (median of {len(inside)})")
    return head + "; ".join(parts) + "."


def _library_sentence(setting: Setting, along: str, beside: dict[int, Reading]) -> str:
    steps = {size: beside[size + 1].seconds / beside[size].seconds - 1 for size in beside if size + 1 in beside}
    if not steps:
        return f"torch was not measured on both sides of any edge along {along.upper()}."
    worst = max(steps, key=lambda size: steps[size])
    return (
        f"torch on the same shapes ({setting.dtype}, {setting.workers} workers): one element more costs at most "
        f"{steps[worst]:+.0%}, at {along.upper()} = {worst} -> {worst + 1}, "
        f"and {statistics.median(steps.values()):+.0%} at the median."
    )


def _law_sentence(setting: Setting, fitted: FittedLaw | None) -> str:
    head = f"Law for tile {setting.tile}, {setting.dtype}: "
    if fitted is None:
        return head + "too few waves were measured to fit it and to judge it."
    law = fitted.law
    return (
        head + f"time = {law.overhead_s * 1e6:.0f} us + waves x {law.tile_seconds(setting.k) * 1e6:.0f} us; fitted on "
        f"{fitted.fitted_on} cases with an odd number of waves, it misses the {len(fitted.held_out)} held-out ones by "
        f"{statistics.median(fitted.held_out):.1%} (median; worst {max(fitted.held_out):.0%})."
    )


def _row(sweep: Sweep, beside: dict[int, Reading]) -> tuple[str, ...]:
    best = max(sweep.readings, key=lambda reading: reading.tflop_per_s)
    library = beside.get(getattr(best.case.parameters, sweep.along))
    found = cliffs(sweep)
    worst = max(found, key=lambda cliff: cliff.extra_time, default=None)
    inside = [cliff.extra_time for cliff in found if not cliff.opens_wave]
    return (
        str(sweep.schedule),
        str(sweep.setting.tile),
        sweep.along.upper(),
        f"{best.tflop_per_s:.3f}",
        f"{best.tflop_per_s / library.tflop_per_s:.0%}" if library else "-",
        f"{worst.size} -> {worst.size + 1}" if worst else "-",
        f"{worst.extra_time:+.0%}" if worst else "-",
        f"{statistics.median(inside):+.0%}" if inside else "-",
    )


def _figure(
    setting: Setting,
    along: str,
    sweeps: Sequence[Sweep],
    library: Sequence[Reading],
    fitted: FittedLaw | None,
) -> Figure:
    times, rates = [], []
    for sweep in sweeps:
        times.append(_panel(sweep, library, fitted, rate=False))
        rates.append(_panel(sweep, library, fitted, rate=True))
    error = f"{statistics.median(fitted.held_out):.1%} median held-out error" if fitted else "not fitted"
    fixed = f"{'M' if along == 'n' else 'N'} = one tile, K = {setting.k}"
    return Figure(
        name=f"tile_wave_{setting.dtype}_{setting.tile}_{along}_k{setting.k}_w{setting.workers}".replace(":", "_"),
        title=f"Tile and wave quantization: {setting.dtype} matmul, tile {setting.tile}, {setting.workers} workers",
        caption=f"{fixed}. Points: measured; line: wave law ({error}); dashed: torch. "
        "Solid verticals open a wave, dotted ones a tile.",
        rows=(tuple(times), tuple(rates)),
    )


def _panel(sweep: Sweep, library: Sequence[Reading], fitted: FittedLaw | None, rate: bool) -> Panel:
    def scaled(readings_or_seconds: Sequence[float], flops: Sequence[float]) -> list[float]:
        pairs = zip(readings_or_seconds, flops, strict=True)
        return [flop / seconds / 1e12 if rate else seconds * 1e6 for seconds, flop in pairs]

    sizes = sweep.sizes()
    flops = [float(reading.flop) for reading in sweep.readings]
    series = [
        Series(
            "measured",
            sizes,
            scaled([reading.seconds for reading in sweep.readings], flops),
            "points",
            # A faster time is a higher rate, so the ends of the interval change places.
            scaled([reading.high if rate else reading.low for reading in sweep.readings], flops),
            scaled([reading.low if rate else reading.high for reading in sweep.readings], flops),
        )
    ]
    if fitted is not None:
        every = np.arange(sizes[0], sizes[-1] + 1)
        p = sweep.readings[0].case.parameters
        m, n = (p.m, every) if sweep.along == "n" else (every, p.n)
        predicted = fitted.law.seconds(critical_path(m, n, p.k, sweep.setting.tile, sweep.schedule))
        series.append(
            Series("wave law", every.tolist(), scaled(predicted.tolist(), (2.0 * m * n * p.k).tolist()), "line")
        )
    beside = sorted(_library_sweep(sweep, library).items())
    if beside:
        series.append(
            Series(
                "torch",
                [size for size, _ in beside],
                scaled([reading.seconds for _, reading in beside], [float(reading.flop) for _, reading in beside]),
                "beside",
            )
        )
    edges = range(sweep.width, sizes[-1] + 1, sweep.width)
    return Panel(
        title=str(sweep.schedule),
        x_label=sweep.along.upper(),
        y_label="TFLOP/s" if rate else "time, us",
        series=tuple(series),
        strong_edges=tuple(float(e) for e in edges if (e // sweep.width) % sweep.setting.workers == 0),
        weak_edges=tuple(float(e) for e in edges if (e // sweep.width) % sweep.setting.workers),
    )
