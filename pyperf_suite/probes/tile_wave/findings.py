"""What the tile/wave sweeps say: cliffs in words, the law with its held-out error, and the staircase picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from pyperf_suite.laws.matmul.tiling import critical_path
from pyperf_suite.probes.tile_wave.staircases import FittedLaw, Setting, Sweep, fit, settings_of, sweeps_of
from pyperf_suite.spec.findings import Figure, Findings, Panel, Series, Table
from pyperf_suite.spec.rows import Reading

# Later cliffs are smaller, and a sentence has an end.
CLIFFS_NAMED = 3

COLUMNS = (
    "schedule",
    "tile",
    "along",
    "best TFLOP/s",
    "of library there",
    "largest cliff",
    "costs",
    "inside a wave",
)


def explain(found: Sequence[Reading]) -> Findings:
    """Sentences, a table and a figure for each setting; readings without a tile of ours are the library's."""
    library = [reading for reading in found if reading.case.parameters.tile is None]
    own = settings_of(reading for reading in found if reading.case.parameters.tile is not None)
    sentences: list[str] = []
    rows: list[tuple[str, ...]] = []
    figures: list[Figure] = []
    for setting, readings in own.items():
        sweeps = sweeps_of(setting, readings)
        fitted = fit(setting, readings)
        sentences += [_sentence(sweep) for sweep in sweeps]
        rows += [_row(sweep, sweep.beside(library)) for sweep in sweeps]
        for along in sorted({sweep.along for sweep in sweeps}):
            in_direction = [sweep for sweep in sweeps if sweep.along == along]
            beside = in_direction[0].beside(library)
            if beside:
                sentences.append(_library_sentence(in_direction[0], beside))
            figures.append(_figure(setting, along, in_direction, library, fitted))
        sentences.append(_law_sentence(setting, fitted))
    tables = (Table("Tile and wave cliffs", COLUMNS, tuple(rows)),) if rows else ()
    return Findings(tuple(sentences), tables, tuple(figures))


def _name_of(library: dict[int, Reading]) -> str:
    """What the library's implementation is called on this device."""
    return next(iter(library.values())).case.implementation


def _who(setting: Setting) -> str:
    """The kernel's name in front of its schedule, and its mode; on a CPU there is one of ours, and it needs none."""
    kernel = "" if setting.implementation == "native" else f"{setting.implementation} "
    return kernel if setting.mode == "burst" else f"{setting.mode} {kernel}"


def _sentence(sweep: Sweep) -> str:
    found = sweep.cliffs()
    name = sweep.along.upper()
    head = f"{_who(sweep.setting)}{sweep.schedule}, tile {sweep.setting.tile}, {sweep.setting.dtype}, along {name}: "
    if not found:
        return head + "no tile edge was measured on both sides."
    waves = [cliff for cliff in found if cliff.opens_wave]
    inside = [cliff.extra_time for cliff in found if not cliff.opens_wave]
    parts = []
    if waves:
        first, *others = waves[:CLIFFS_NAMED]
        parts.append(
            f"opening a wave costs {first.extra_time:+.0%} time at {name} = {first.size} -> {first.size_after} "
            f"({first.before.tflop_per_s:.3f} -> {first.after.tflop_per_s:.3f} TFLOP/s)"
            + "".join(f", {cliff.extra_time:+.0%} at {cliff.size} -> {cliff.size_after}" for cliff in others)
        )
    if inside:
        parts.append(f"a tile edge inside a wave costs {statistics.median(inside):+.0%} (median of {len(inside)})")
    return head + "; ".join(parts) + "."


def _library_sentence(sweep: Sweep, beside: dict[int, Reading]) -> str:
    name, setting = sweep.along.upper(), sweep.setting
    steps = {
        (cliff.size, cliff.size_after): beside[cliff.size_after].seconds / beside[cliff.size].seconds - 1
        for cliff in sweep.cliffs()
        if {cliff.size, cliff.size_after} <= beside.keys()
    }
    if not steps:
        return f"The library was not measured on both sides of any edge along {name}."
    before, after = max(steps, key=lambda sizes: steps[sizes])
    return (
        f"{_name_of(beside)} on the same shapes ({setting.dtype}, {setting.workers} workers): a step over those edges "
        f"costs at most {steps[before, after]:+.0%}, at {name} = {before} -> {after}, "
        f"and {statistics.median(steps.values()):+.0%} at the median." + _tiles_chosen(beside)
    )


def _tiles_chosen(library: dict[int, Reading]) -> str:
    """The tiles that the library's kernels name, with the first size each was chosen for: there its time may step."""
    chosen: dict[str, int] = {}
    for size, reading in sorted(library.items()):
        tile = reading.kernel.get("details", {}).get("tile")
        if tile:
            chosen.setdefault("x".join(map(str, tile)), size)
    told = ", ".join(f"{tile} from {size}" for tile, size in chosen.items())
    return f" Tiles it chose, as its kernels' names tell: {told}." if told else ""


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
    found = sweep.cliffs()
    worst = max(found, key=lambda cliff: cliff.extra_time, default=None)
    inside = [cliff.extra_time for cliff in found if not cliff.opens_wave]
    return (
        str(sweep.schedule),
        str(sweep.setting.tile),
        sweep.along.upper(),
        f"{best.tflop_per_s:.3f}",
        f"{best.tflop_per_s / library.tflop_per_s:.0%}" if library else "-",
        f"{worst.size} -> {worst.size_after}" if worst else "-",
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
    fixed = f"{'M' if along == 'n' else 'N'} = {sweeps[0].fixed}, K = {setting.k}"
    what = f"{setting.mode}_{setting.implementation}_{setting.dtype}_{setting.tile}"
    what += f"_{along}_k{setting.k}_w{setting.workers}"
    return Figure(
        name=f"tile_wave_{what}".replace(":", "_"),
        title=f"Tile and wave quantization: {_who(setting)}{setting.dtype} matmul, tile {setting.tile}, "
        f"{setting.workers} workers",
        caption=f"{fixed}. Points: measured; line: wave law ({error}); dashed: the library. "
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
        predicted = fitted.law.seconds(critical_path(m, n, p.k, sweep.setting.tile, sweep.in_slots))
        series.append(
            Series("wave law", every.tolist(), scaled(predicted.tolist(), (2.0 * m * n * p.k).tolist()), "line")
        )
    beside = sorted(sweep.beside(library).items())
    if beside:
        series.append(
            Series(
                _name_of(dict(beside)),
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
        strong_edges=tuple(float(e) for e in edges if sweep.ends_wave(e)),
        weak_edges=tuple(float(e) for e in edges if not sweep.ends_wave(e)),
    )
