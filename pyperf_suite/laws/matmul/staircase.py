"""The wave law with its constants: time of a product = overhead + what the busiest worker does.

The constants are fitted by non-negative least squares on relative residuals, so that a 20 us product counts as much
as a 20 ms one, and none of the costs can come out negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.laws.matmul.tiling import CriticalPath


@dataclass(frozen=True)
class StaircaseLaw:
    """seconds = overhead + per_k·k_extent + per_tile·tiles + per_partial·partials, for one tile on one machine.

    With data_parallel this is waves × (per_k·K + per_tile) + overhead: time = waves × tile time + overhead.
    """

    overhead_s: float
    per_k_s: float
    per_tile_s: float
    per_partial_s: float

    def seconds(self, path: CriticalPath) -> NDArray[np.float64]:
        """Predicted seconds for each critical path."""
        return _features(path) @ np.array([self.overhead_s, self.per_k_s, self.per_tile_s, self.per_partial_s])

    def tile_seconds(self, k: float) -> float:
        """Predicted seconds of one whole tile of depth `k`: the height of one step of the staircase."""
        return self.per_k_s * k + self.per_tile_s

    @classmethod
    def fit(cls, path: CriticalPath, seconds: ArrayLike) -> StaircaseLaw:
        """Fit to measured seconds, one per critical path. Raises ValueError where there are none."""
        return cls(*nonnegative_fit(_features(path), seconds))


@dataclass(frozen=True)
class JudgedLaw:
    """A law, on how many cases it was fitted, and its relative errors on the others."""

    law: StaircaseLaw
    fitted_on: int
    held_out: tuple[float, ...]


def judged_by_waves(paths: Sequence[CriticalPath], seconds: ArrayLike, waves: ArrayLike) -> JudgedLaw | None:
    """Fit on odd numbers of waves and judge on even ones, which the fit has never seen a neighbour of.

    One path, time and number of waves for each case. None where either part is empty.
    """
    measured, odd = np.asarray(seconds, dtype=np.float64), np.asarray(waves, dtype=np.int64) % 2 == 1
    if odd.all() or not odd.any():
        return None
    features = np.stack([_features(path) for path in paths])
    law = StaircaseLaw(*nonnegative_fit(features[odd], measured[odd]))
    predicted = np.array([law.seconds(path) for path in paths])
    return JudgedLaw(law, int(odd.sum()), tuple(relative_error(predicted[~odd], measured[~odd]).tolist()))


def nonnegative_fit(features: NDArray[np.float64], seconds: ArrayLike) -> list[float]:
    """The cost of each feature, none negative, with the least squares of relative residuals.

    `features` has a row for each measurement and a column for each cost. Raises ValueError for no measurements.
    """
    from scipy.optimize import nnls

    measured = np.asarray(seconds, dtype=np.float64)
    if measured.size == 0:
        raise ValueError("A law cannot be fitted to no measurements.")
    relative = features / measured[:, None]
    # Columns differ by ten orders of magnitude; scaled ones keep the solver's tolerance meaningful.
    scale = np.maximum(np.abs(relative).max(axis=0), np.finfo(np.float64).tiny)
    solution, _ = nnls(relative / scale, np.ones(measured.size))
    return [float(constant) for constant in solution / scale]


def relative_error(predicted: ArrayLike, measured: ArrayLike) -> NDArray[np.float64]:
    """|predicted − measured| / measured, element by element."""
    measured = np.asarray(measured, dtype=np.float64)
    return np.abs(np.asarray(predicted, dtype=np.float64) - measured) / measured


def _features(path: CriticalPath) -> NDArray[np.float64]:
    return np.stack([np.ones_like(path.k_extent), path.k_extent, path.tiles, path.partials], axis=-1)
