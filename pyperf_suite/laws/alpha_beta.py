"""Seconds of a message over its bytes: straight lines, joined, each with its alpha and beta."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.laws.tiling import nonnegative_fit, relative_error

MOST_SEGMENTS = 8
FOLDS = 5
# Huber's constant: a residual beyond 1.345 σ counts by its size, not its square; 95 % efficient on normal noise.
HUBER = 1.345
# σ over the median of |residuals|. Kept to these digits: more of them move every fitted curve by up to 6e-8.
SCATTER_OF_MEDIAN = 1.4826
REWEIGHTINGS = 4
# Below this relative scatter every point is trusted: a clean curve must not call its own bends outliers.
LEAST_SCATTER = 0.02
# Times scatter: another segment has to lower the held-out error by more than this share of it, and of the time.
WORTH_A_SEGMENT = 0.05
LEAST_GAIN = 0.001


@dataclass(frozen=True)
class PiecewiseAlphaBeta:
    """seconds(S) = start + Σ βᵢ · (what of S lies in segment i): continuous, and never less for more bytes.

    `bends_bytes` are the sizes between segments, ascending; there is one more of `betas_s_per_byte`. The first segment
    begins at no bytes, where the time is `start_s`; the last one goes on without end. `held_out_error` is the median
    relative error on sizes that were left out of the fit, None where too few sizes were measured to leave any out.
    """

    start_s: float
    bends_bytes: tuple[float, ...]
    betas_s_per_byte: tuple[float, ...]
    held_out_error: float | None = None

    def seconds(self, size_bytes: ArrayLike) -> NDArray[np.float64]:
        """Predicted seconds of messages of `size_bytes`, the S of `traffic.message_bytes`."""
        size = np.asarray(size_bytes, dtype=np.float64)
        knots = np.array([0.0, *self.bends_bytes])
        at_knots = self.start_s + _lengths(knots, self.bends_bytes) @ np.array(self.betas_s_per_byte)
        beyond = np.maximum(size - knots[-1], 0.0) * self.betas_s_per_byte[-1]
        return np.asarray(np.interp(size, knots, at_knots) + beyond)

    @classmethod
    def fit(cls, size_bytes: ArrayLike, seconds: ArrayLike, most_segments: int = MOST_SEGMENTS) -> PiecewiseAlphaBeta:
        """Fit to measured times, one per size or several.

        Bends are log-spaced; as many as pay on sizes left out. The fit is non-negative least squares on relative
        residuals, reweighted after Huber, so that 5 us counts as much as 50 ms and one outlier bends nothing.

        Raises:
            ValueError: no measurements, a size below 0 or a time that is not positive.
        """
        size, time = _checked_times(size_bytes, seconds)
        errors = held_out_errors(size, time, most_segments)
        stated = float(np.median(errors)) if errors.size else None
        return cls(*_fit_segments(size, time, _choose_segments(size, time, most_segments)), stated)


def held_out_errors(
    size_bytes: ArrayLike, seconds: ArrayLike, most_segments: int = MOST_SEGMENTS
) -> NDArray[np.float64]:
    """|predicted − measured| / measured at every measured point, each by a law that never saw its size.

    The sizes are dealt out in order to five folds; for each fold a law is fitted to the others' sizes, which choose its
    segments among themselves too. The smallest and the largest size are extrapolated to. Empty below five sizes.
    Raises ValueError as `PiecewiseAlphaBeta.fit` does.
    """
    size, time = _checked_times(size_bytes, seconds)
    errors = np.full(size.shape, np.nan)
    for held_out in _folds(size):
        seen_size, seen_time = size[~held_out], time[~held_out]
        chosen = _choose_segments(seen_size, seen_time, most_segments)
        law = PiecewiseAlphaBeta(*_fit_segments(seen_size, seen_time, chosen))
        errors[held_out] = np.abs(law.seconds(size[held_out]) / time[held_out] - 1)
    return errors[~np.isnan(errors)]


def _choose_segments(size: NDArray[np.float64], time: NDArray[np.float64], max_segments: int) -> int:
    folds = list(_folds(size))
    if not folds:
        return 1
    chosen, least_error = 1, 1.0
    # At least two sizes a segment: one that no size lies in would say nothing.
    for segments in range(1, min(max_segments, np.unique(size).size // 2) + 1):
        errors = []
        for held_out in folds:
            law = PiecewiseAlphaBeta(*_fit_segments(size[~held_out], time[~held_out], segments))
            predicted, measured = law.seconds(size[held_out]), time[held_out]
            # Relative to the larger of the two: no single size can outweigh the others, however far off.
            errors.append(np.abs(predicted - measured) / np.maximum(predicted, measured))
        error = float(np.mean(np.concatenate(errors)))
        if error < least_error - max(WORTH_A_SEGMENT * least_error, LEAST_GAIN):
            chosen, least_error = segments, error
    return chosen


def _fit_segments(
    size: NDArray[np.float64], time: NDArray[np.float64], segments: int
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    smallest = max(float(size.min()), 1.0)
    bends = tuple(np.geomspace(smallest, max(float(size.max()), smallest), segments + 1)[1:-1].tolist())
    features = np.column_stack([np.ones_like(size), _lengths(size, bends)])
    weights = np.ones_like(time)
    for _ in range(REWEIGHTINGS):
        constants = nonnegative_fit(features, time, 1 / np.sqrt(weights))
        residuals = relative_error(features @ constants, time)
        scatter = max(SCATTER_OF_MEDIAN * float(np.median(residuals)), LEAST_SCATTER)
        before, weights = weights, np.minimum(1.0, HUBER * scatter / np.maximum(residuals, HUBER * scatter))
        if np.array_equal(before, weights):
            break
    start, *betas = constants
    return start, bends, tuple(betas)


def _lengths(size: NDArray[np.float64], bends: tuple[float, ...]) -> NDArray[np.float64]:
    """How many bytes of each size lie in each segment: one more dimension than `size`, along the segments."""
    low = np.array([0.0, *bends])
    high = np.array([*bends, np.inf])
    return np.clip(size[..., None] - low, 0.0, high - low)


def _folds(size: NDArray[np.float64]) -> Iterator[NDArray[np.bool_]]:
    """Yield the points to leave out in turn: whole sizes, dealt out in order; nothing where there are too few."""
    distinct, position = np.unique(size, return_inverse=True)
    if distinct.size >= FOLDS:
        yield from (position % FOLDS == fold for fold in range(FOLDS))


def _checked_times(size_bytes: ArrayLike, seconds: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    size, time = (np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in (size_bytes, seconds))
    if size.size == 0:
        raise ValueError("A law cannot be fitted to no measurements.")
    if not (np.all(size >= 0) and np.all(time > 0) and np.all(np.isfinite(time))):
        raise ValueError("A law of time over size needs sizes of at least 0 bytes and times above 0 seconds.")
    return size, time
