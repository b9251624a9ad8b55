"""The error of a law on what its fit did not see, held out by site: all rows of a site together.

Rows of one site (one weight matrix, one model's heads) resemble each other, so rows held out at random would flatter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FOLDS = 5
SEED = 0

# From the rows to fit, a function that gives the seconds of other rows.
Fit = Callable[[NDArray[np.intp]], Callable[[NDArray[np.intp]], NDArray[np.float64]]]


@dataclass(frozen=True)
class HeldOutError:
    """How far predictions lie from measurements: |predicted / measured − 1| in %, its mean and its median."""

    mape: float
    median: float
    rows: int
    sites: int
    how: str

    def to_json(self) -> dict[str, float | int | str]:
        """The form that a block of a calibration keeps."""
        return {
            "mape": round(self.mape, 3),
            "median": round(self.median, 3),
            "rows": self.rows,
            "sites": self.sites,
            "how": self.how,
        }


def site_numbers(*sizes: ArrayLike) -> NDArray[np.intp]:
    """A number for each row, equal where all of these sizes are; numbered in the order of the sorted sizes.

    The sizes are arrays of one length, as n and k of products. Raises ValueError for none.
    """
    if not sizes:
        raise ValueError("a site is made of at least one size")
    columns = np.stack([np.asarray(size) for size in sizes], axis=1)
    numbers: NDArray[np.intp] = np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)
    return numbers


def folds(sites: ArrayLike, count: int = FOLDS, seed: int = SEED) -> Iterator[NDArray[np.bool_]]:
    """Masks of the rows that are held out, one a fold; each site is held out in exactly one.

    Fewer sites than `count` make as many folds as there are sites, so that each is predicted from the others.
    Raises ValueError for a single site, which leaves nothing to predict it from.
    """
    numbers = np.asarray(sites)
    there = np.unique(numbers)
    if there.size < 2:
        raise ValueError("holding out takes at least two sites")
    for held_out in np.array_split(np.random.default_rng(seed).permutation(there), min(count, there.size)):
        yield np.isin(numbers, held_out)


def error_percent(predicted: ArrayLike, measured: ArrayLike) -> NDArray[np.float64]:
    """|predicted / measured − 1| of each row in %."""
    return np.abs(np.asarray(predicted, dtype=np.float64) / np.asarray(measured, dtype=np.float64) - 1) * 100


def cross_validate(
    fit: Fit, measured: ArrayLike, sites: ArrayLike, count: int = FOLDS, seed: int = SEED
) -> HeldOutError:
    """Fit on all folds but one, predict that one, for each: the error over all rows, each predicted unseen.

    `fit(rows)` is given the numbers of the rows it may see and returns `predict(rows)` in seconds; `measured` are the
    seconds of every row. Raises ValueError for a single site.
    """
    seconds = np.asarray(measured, dtype=np.float64)
    predicted = np.empty_like(seconds)
    for held_out in folds(sites, count, seed):
        predicted[held_out] = fit(np.flatnonzero(~held_out))(np.flatnonzero(held_out))
    there = np.unique(np.asarray(sites)).size
    return summary(predicted, seconds, there, f"{min(count, there)}-fold, whole sites held out")


def summary(predicted: ArrayLike, measured: ArrayLike, sites: int, how: str) -> HeldOutError:
    """The errors of rows that were predicted unseen, told as a block keeps them."""
    errors = error_percent(predicted, measured)
    return HeldOutError(float(errors.mean()), float(np.median(errors)), errors.size, sites, how)


def described(held_out: Mapping[str, float | int | str]) -> str:
    """A block's held-out error in words, as in `4.3 % (median 2.7 %) on 180 sites, 5-fold, whole sites held out`."""
    if "mape" not in held_out:
        return "not held out"
    median = f" (median {float(held_out['median']):.1f} %)" if "median" in held_out else ""
    sites = f" on {held_out['sites']} sites" if "sites" in held_out else ""
    how = f", {held_out['how']}" if held_out.get("how") else ""
    return f"{float(held_out['mape']):.1f} %{median}{sites}{how}"
