"""Series drawn as a PNG: a panel each, a mark for each unit of the machine, breaks where its state changed.

matplotlib is imported only here and only when drawing.
"""

from __future__ import annotations

import io
import itertools
import statistics
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.files import write_for_user
from pyperf_suite.history.shown.listing import LEAST_SPREAD, scale_for, short_commit, unit_name
from pyperf_suite.history.stored.series import BenchmarkSeries, SeriesPoint
from pyperf_suite.history.tracking import Step

MOST_PANELS = 12
_WIDTH_IN, _PANEL_HEIGHT_IN = 9.0, 3.0
_TICKS = 7
# Lines of words about breaks that have room below each other; more are written upright.
_LYING_BREAKS = 4
# Units that the legend names one by one; of a fleet it names the first and leaves the rest to their colours.
_NAMED_UNITS = 8

# Readable for the colour-blind (Okabe and Ito 2008), and distinct by shape as well.
_MARKS = tuple(zip(("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"), "osD^vP", strict=True))
_CAPTION = (
    "A point is the median over the processes of one run, with its interval; lines are the medians between changes. "
    "Dashed: the machine's state changed there. The axis need not begin at zero."
)
_ORANGE, _GREY = "#D55E00", "#777777"


def draw_series(drawn: Sequence[BenchmarkSeries], path: Path, steps: Sequence[Sequence[Step]] = ()) -> None:
    """Draw one panel for each series, in that order, into the PNG file `path`.

    The x axis counts runs and is labelled with their dates and commits; the y axis need not begin at zero. `steps` are
    the steps of each series.

    Raises:
        UserError: no series has a point, there are more than `MOST_PANELS`, or the file cannot be written.
    """
    panels = [
        (series, changed) for series, changed in zip(drawn, steps or [()] * len(drawn), strict=True) if series.points
    ]
    if not panels:
        raise UserError("There is nothing to draw: no run holds a value of that benchmark.")
    if len(panels) > MOST_PANELS:
        raise UserError(f"A picture takes {MOST_PANELS} series, but {len(panels)} match: name fewer benchmarks.")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture = io.BytesIO()
    canvas, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(_WIDTH_IN, len(panels) * _PANEL_HEIGHT_IN + 0.9),
        squeeze=False,
        layout="constrained",
    )
    try:
        for axis, (series, changed) in zip(axes[:, 0], panels, strict=True):
            _draw(axis, series, changed)
        canvas.supxlabel(textwrap.fill(_CAPTION, 130), fontsize=8, color="#444444")
        with warnings.catch_warnings():
            # Other projects name their benchmarks in any script: what the font has not is drawn as a box.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            canvas.savefig(picture, dpi=120, format="png")
    finally:
        pyplot.close(canvas)
    write_for_user(path, picture.getvalue())


def _draw(axis: Any, series: BenchmarkSeries, steps: Sequence[Step]) -> None:
    points = series.points
    scale = scale_for(series.values, series.unit_of_measure)
    _draw_points(axis, points, scale.factor)
    _draw_levels(axis, series, scale.factor, steps)
    _keep_noise_small(axis, legend=len({point.unit for point in points}) > 1)
    _draw_breaks(axis, series)
    every = max(1, -(-len(points) // _TICKS))
    ticks = range(0, len(points), every)
    axis.set_xticks(list(ticks), _tick_labels([points[index] for index in ticks]), fontsize=8)
    axis.set_xlim(-0.6, len(points) - 0.4)
    axis.set_ylabel(scale.unit)
    title = [*textwrap.wrap(f"{series.probe}: {series.title}", 105), f"on {series.machine}"]
    axis.set_title("\n".join(title), fontsize=9, loc="left", parse_math=False)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_points(axis: Any, points: Sequence[SeriesPoint], factor: float) -> None:
    """Each unit in its own colour and shape; a legend only where there is more than one."""
    units = list(dict.fromkeys(point.unit for point in points))
    for number, unit in enumerate(units):
        colour, mark = _MARKS[number % len(_MARKS)]
        own = [(index, point) for index, point in enumerate(points) if point.unit == unit]
        axis.errorbar(
            [index for index, _ in own],
            [point.value * factor for _, point in own],
            yerr=(
                [max(0.0, point.value - point.low) * factor for _, point in own],
                [max(0.0, point.high - point.value) * factor for _, point in own],
            ),
            fmt=mark,
            markersize=4,
            color=colour,
            elinewidth=0.9,
            label=unit_name(unit) if number < _NAMED_UNITS else None,
            zorder=3,
        )
    if len(units) > 1:
        axis.legend(fontsize=7, frameon=False, loc="lower left", ncols=4)


def _draw_levels(axis: Any, series: BenchmarkSeries, factor: float, steps: Sequence[Step]) -> None:
    """For each unit the median of every stretch without a break or step of its own, and at a step how far it moved."""
    points = series.points
    units = list(dict.fromkeys(point.unit for point in points))
    for number, unit in enumerate(units):
        own = [index for index, point in enumerate(points) if point.unit == unit]
        colour = _ORANGE if len(units) == 1 else _MARKS[number % len(_MARKS)][0]
        stepped = {step.index: step for step in steps if points[step.index].unit == unit}
        edges = sorted({0, len(points), *stepped, *(each.index for each in series.breaks)})
        before: float | None = None
        for start, end in itertools.pairwise(edges):
            stretch = [index for index in own if start <= index < end]
            if len(points) < 2 or not stretch:
                continue
            level = statistics.median(points[index].value for index in stretch) * factor
            ends = (stretch[0] - 0.5, (end if end in stepped else stretch[-1] + 1) - 0.5)
            axis.plot(ends, (level, level), color=colour, linewidth=1.6, zorder=2)
            if start in stepped and before is not None:
                axis.plot((start - 0.5, start - 0.5), (before, level), color=colour, linewidth=1.6, zorder=2)
                _draw_effect(axis, stepped[start], max(before, level), colour)
            before = level


def _draw_effect(axis: Any, step: Step, top: float, colour: str) -> None:
    axis.annotate(
        step.effect,
        (step.index - 0.5, top),
        xytext=(-4, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color=colour,
        zorder=4,
    )


def _draw_breaks(axis: Any, series: BenchmarkSeries) -> None:
    """A dashed line and the words of each break: each below those before it, upright where they are many."""
    texts: dict[int, list[str]] = {}
    for each in series.breaks:
        texts.setdefault(each.index, []).extend(textwrap.wrap(each.what, 48, max_lines=3, placeholder=" ..."))
    upright = sum(map(len, texts.values())) > _LYING_BREAKS
    lines_above = 0
    for index, words in sorted(texts.items()):
        axis.axvline(index - 0.5, color=_GREY, linewidth=1, linestyle="--", zorder=1)
        # Towards the right edge there is room at the left alone.
        to_the_left = index > 0.6 * len(series.points) and not upright
        axis.annotate(
            "\n".join(words),
            (index - 0.5, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-3 if to_the_left else 3, -2 - 10 * lines_above),
            textcoords="offset points",
            fontsize=7,
            color="#444444",
            rotation=90 if upright else 0,
            va="top",
            parse_math=False,
            ha="right" if to_the_left else "left",
        )
        lines_above += 0 if upright else len(words)


def _keep_noise_small(axis: Any, legend: bool) -> None:
    """A spread of next to nothing is drawn small, and the words at the top and the legend at the bottom get room."""
    low, high = axis.get_ylim()
    middle = (low + high) / 2
    half = max((high - low) / 2, abs(middle) * LEAST_SPREAD / 2) or 0.5
    axis.set_ylim(middle - half * (1.25 if legend else 1.0), middle + half * 1.35)


def _tick_labels(points: Sequence[SeriesPoint]) -> list[str]:
    """The day of each run, or its time where several share a day, and below it the commit where it is known."""
    days = [point.started_at[:10] for point in points]
    if len(set(days)) < len(days):
        days = [point.started_at[5:16].replace("T", " ") for point in points]
    commits = [short_commit(point).replace("$", r"\$") for point in points]
    return [f"{day}\n{commit}".rstrip() for day, commit in zip(days, commits, strict=True)]
