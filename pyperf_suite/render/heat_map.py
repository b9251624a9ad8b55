"""A heat map drawn into one pair of axes: what each cell is over the one it is compared with, as colour and number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pyperf_suite.spec.findings import HeatMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Blue and orange stay apart for the colour-blind; white is "as now".
_COLOURS = "PuOr"
# Where there is nothing: darker than the white of "as now", which it must not be taken for.
_NOTHING = "#c8c8c8"
# Cells of more than this many have no room for a number.
_MOST_NUMBERS = 220
# A map in which nothing differs must not paint rounding in full colour.
_LEAST_SPREAD = 0.02


def draw_heat_map(axes: Axes, heat_map: HeatMap) -> None:
    """Draw the cells, their numbers where they have room, a frame around `here` and the bar that reads the colours."""
    values = np.array(heat_map.values, dtype=float)
    spread = max(_LEAST_SPREAD, float(np.nanmax(np.abs(values - 1), initial=0.0)))
    image = axes.imshow(
        values, cmap=_COLOURS, vmin=1 - spread, vmax=1 + spread, origin="lower", aspect="auto", interpolation="nearest"
    )
    axes.set_facecolor(_NOTHING)
    _name_places(axes, heat_map)
    if np.isfinite(values).sum() <= _MOST_NUMBERS:
        _write_numbers(axes, values, spread)
    if heat_map.here is not None:
        row, column = heat_map.here
        axes.plot(
            [column - 0.5, column + 0.5, column + 0.5, column - 0.5, column - 0.5],
            [row - 0.5, row - 0.5, row + 0.5, row + 0.5, row - 0.5],
            color="black",
            linewidth=2,
            label="as asked",
            clip_on=False,
        )
    axes.set_title(heat_map.title, fontsize=10)
    axes.set_xlabel(heat_map.x_label)
    axes.set_ylabel(heat_map.y_label)
    axes.figure.colorbar(image, ax=axes, label=heat_map.value_label)


def _name_places(axes: Axes, heat_map: HeatMap) -> None:
    """As many names as can stand beside each other, evenly."""
    for axis, sizes, most in ((axes.xaxis, heat_map.x, 18), (axes.yaxis, heat_map.y, 24)):
        places = range(0, len(sizes), max(1, math.ceil(len(sizes) / most)))
        axis.set_ticks(list(places), [str(sizes[place]) for place in places])
    axes.tick_params(axis="x", rotation=45 if len(heat_map.x) > 6 else 0, labelsize=8)
    axes.tick_params(axis="y", labelsize=8)


def _write_numbers(axes: Axes, values: np.ndarray, spread: float) -> None:
    for row, column in np.argwhere(np.isfinite(values)):
        value = values[row, column]
        colour = "white" if abs(value - 1) > 0.65 * spread else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
