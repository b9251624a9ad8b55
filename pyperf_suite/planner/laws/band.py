"""Where measured times lie around a law's: the 90 % interval that goes with every time, as held-out errors show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

COVERED = 0.9
# A percentile in the tail needs some rows; a band has no more knots than follow a course.
ROWS_A_KNOT = 150
MOST_KNOTS = 10
# Of a normal distribution, 90 % lie within so many standard deviations of the mean.
DEVIATIONS = 1.645
# And the mean error is so much of what 90 % lie within.
MEAN_OF_HALF_WIDTH = 0.8 / DEVIATIONS
NAMES = ("band_at", "band_low", "band_high")


@dataclass(frozen=True)
class Band:
    """The 5th and 95th percentile of log(measured / predicted) along one figure of a call, straight between knots.

    `at` are ascending values of the figure, for example the predicted seconds; beyond its ends the band stays as wide
    as there.
    """

    at: Floats
    low: Floats
    high: Floats

    def around(self, seconds: ArrayLike, figure: ArrayLike | None = None) -> tuple[Floats, Floats]:
        """The seconds between which nine of ten measurements lie; the figure is the seconds themselves by default."""
        middle = np.asarray(seconds, dtype=np.float64)
        requested = np.log(np.maximum(middle if figure is None else np.asarray(figure, dtype=np.float64), 1e-300))
        low, high = (np.interp(requested, np.log(self.at), side) for side in (self.low, self.high))
        return middle * np.exp(low), middle * np.exp(high)

    def as_arrays(self) -> dict[str, Floats]:
        """As a calibration's block keeps it."""
        return dict(zip(NAMES, (self.at, self.low, self.high), strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Band | None:
        """The inverse of `as_arrays`; None where the arrays hold no band."""
        if NAMES[0] not in arrays:
            return None
        return cls(*(np.asarray(arrays[name], dtype=np.float64) for name in NAMES))

    @classmethod
    def fit(cls, missed: ArrayLike, figure: ArrayLike, knots: int = MOST_KNOTS) -> Band:
        """The band of errors on rows that the law did not see.

        Args:
            missed: log(measured / predicted) of each row.
            figure: what the width may depend on, above 0, one value a row.
            knots: at most so many.

        Raises:
            ValueError: for no rows.
        """
        errors, along = np.asarray(missed, dtype=np.float64), np.asarray(figure, dtype=np.float64)
        if errors.size == 0:
            raise ValueError("a band needs errors on held-out rows")
        groups = max(1, min(knots, errors.size // ROWS_A_KNOT))
        at, sides = [], []
        for rows in np.array_split(np.argsort(along, kind="stable"), groups):
            at.append(float(np.exp(np.mean(np.log(along[rows])))))
            sides.append(_percentiles(errors[rows]))
        places, first = np.unique(at, return_index=True)
        low, high = np.array(sides)[first].T
        return cls(places, low, high)


def _percentiles(errors: Floats) -> tuple[float, float]:
    """The ends that 90 % of further rows lie between: with few rows a little wider than those seen."""
    tail = (1 - COVERED) / 2
    beyond = max(0.0, (tail * (errors.size + 1) - 1) / max(errors.size - 1, 1))
    low, high = np.quantile(errors, [beyond, 1 - beyond])
    return float(low), float(high)
