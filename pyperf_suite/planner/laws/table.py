"""A law read off a table: costs of counted work, times a grid of what they miss at the measured sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.planner.laws.calibration import BAND_NAMES, STEPS, Band, CalibrationBlock, ResidualGrid

Floats = NDArray[np.float64]
# A kernel by two whole numbers, of attention its head_dim and its window.
Kind = tuple[int, int]
# Grids are kept in steps of one byte of at least this logarithm: finer ones would only not compress.
LEAST_STEP = 0.005


@dataclass(frozen=True)
class TableLaw:
    """seconds = (work · costs) · exp(grid(sizes)).

    `work` has the shape [calls, works], `costs` [works]; `grid` is log(measured / counted) at powers of two of each
    size; `band` is log(measured / predicted) of sites that the fit did not see.
    """

    costs: Floats
    grid: ResidualGrid
    band: Band

    def seconds(self, work: Floats, sizes: tuple[Floats, ...]) -> Floats:
        return np.asarray((work @ self.costs) * np.exp(self.grid(*sizes)))


def pack_tables(laws: Mapping[Kind, TableLaw]) -> dict[str, NDArray[Any]]:
    """Arrays of a block, one row a kind; all grids have the same shape, bands as many knots as the longest."""
    values = np.array([law.grid.values for law in laws.values()])
    steps = np.maximum(np.abs(values).max(axis=(1, 2, 3)) / STEPS, LEAST_STEP)
    knots = max(law.band.at.size for law in laws.values())
    bands = [
        {name: np.pad(side, (0, knots - side.size), mode="edge") for name, side in law.band.as_arrays().items()}
        for law in laws.values()
    ]
    return {
        "kinds": np.array(list(laws)),
        "costs": np.array([law.costs for law in laws.values()]),
        "grid": np.round(values / steps[:, None, None, None]).astype(np.int8),
        "grid_step": steps,
    } | {name: np.array([band[name] for band in bands]) for name in BAND_NAMES}


def unpack_tables(block: CalibrationBlock) -> dict[Kind, TableLaw]:
    """The inverse of `pack_tables`, within a step of the grid."""
    rows = (block.arrays[name] for name in ("kinds", "costs", "grid", "grid_step", *BAND_NAMES))
    return {
        tuple(kind.tolist()): TableLaw(costs, ResidualGrid.octaves(grid * step), Band(*band))
        for kind, costs, grid, step, *band in zip(*rows, strict=True)
    }
