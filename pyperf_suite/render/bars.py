"""Horizontal bars with error bars, one below the other in the order given, drawn into one pair of axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyperf_suite.spec.findings import Bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Readable for the colour-blind (Okabe and Ito 2008).
_BLUE, _ORANGE = "#0072B2", "#D55E00"
_NOTHING = "#777777"
# A label and an error bar must not touch the frame.
_HEADROOM = 1.08


def draw_bars(axes: Axes, bars: Bars) -> None:
    """Draw a bar, its error and its second mark for each that has a value, and in words why the others have none."""
    shown = [place for place, bar in enumerate(bars.bars) if math.isfinite(bar.value)]
    axes.barh(
        shown,
        [bars.bars[place].value for place in shown],
        xerr=[bars.bars[place].error for place in shown],
        color=_BLUE,
        alpha=0.75,
        height=0.62,
        error_kw={"elinewidth": 1.2, "capsize": 3, "ecolor": "black"},
        label=bars.label,
        zorder=2,
    )
    marked = [place for place in shown if math.isfinite(bars.bars[place].mark)]
    if marked:
        axes.plot(
            [bars.bars[place].mark for place in marked],
            marked,
            linestyle="",
            marker="D",
            markersize=5,
            markerfacecolor="none",
            markeredgewidth=1.4,
            color=_ORANGE,
            label=bars.mark_label,
            zorder=3,
        )
    furthest = max((_reach(bars, place) for place in shown), default=1.0)
    axes.set_xlim(0, _HEADROOM * furthest)
    for place, bar in enumerate(bars.bars):
        if not math.isfinite(bar.value):
            axes.text(0.01 * furthest, place, bar.note, va="center", fontsize=7, color=_NOTHING, style="italic")
    axes.set_yticks(range(len(bars.bars)), [bar.name for bar in bars.bars], fontsize=8)
    axes.set_ylim(len(bars.bars) - 0.4, -0.6)  # the first on top
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(bars.title, fontsize=10)
    axes.set_xlabel(bars.x_label)


def _reach(bars: Bars, place: int) -> float:
    bar = bars.bars[place]
    return max(bar.value + _finite(bar.error), _finite(bar.mark))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
