"""Results of every law, seconds split into causes with the law's stated error, and answers of a price list."""

from __future__ import annotations

import functools
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError

IDEAL = "ideal"
# Explanations of the laws' causes, for those who read them for the first time.
MEANINGS = {
    "tile": "tiles that reach over the edge",
    "wave": "multiprocessors without work in the last wave",
    "kernel": "what the library's kernels fall short of the peak in whole tiles",
    "rate": "what attention's kernels fall short of the peak",
    "bandwidth": "waiting for memory, or for the links between GPUs",
    "network": "waiting for the network between nodes",
    "split": "adding up the slices of K",
    "routing": "ordering tokens by expert and adding up what their experts return",
    "launch": "starting kernels",
    "alignment": "sizes that tensor cores, TMA or attention's kernels do not take whole",
    "library": "what was measured beyond the law of tiles, so the library's choices",
    "sustained": "clocks held down under lasting load",
    "this machine": "what the calibration of one's own found",
}

# A law that was compared with no measurement is trusted this far, in %: the error on a GPU that was left out whole.
UNTESTED_ERROR_PERCENT = 15.0
# The standard deviation of a normal error over its mean absolute value.
DEVIATION_OVER_MEAN = (np.pi / 2) ** 0.5
# Nine in ten: the interval given with each gain.
NORMAL_QUANTILE = 1.645


@dataclass(frozen=True)
class Explained:
    """Seconds and their causes: plain numbers, or arrays of one shape.

    `parts` are seconds by cause and add up to `seconds`; one can be negative where it saves time. `extrapolated` says
    where the law was evaluated beyond the range it was fitted in. `error_percent` is the mean error that the law made
    on held-out measurements, None if none were held out; `low` and `high` are the seconds between which nine of ten
    measurements lie, None where that is unknown. Of that interval `common` is what all sizes of one law share, as half
    the width of a logarithm: a level that was not measured, as the ratio of backward to forward. `origin` names the
    measurements behind the law, `library` whose kernels they are of.
    """

    seconds: Any
    parts: Mapping[str, Any] = field(default_factory=dict)
    extrapolated: NDArray[np.bool_] | np.bool_ | bool = False
    error_percent: float | None = None
    origin: str = ""
    low: Any = None
    high: Any = None
    library: str = ""
    common: Any = 0.0

    @property
    def margins(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Logarithms below and above the law's time within which nine of ten measurements lie; broadcast to the times.

        Without what is common to all sizes of the law.
        """
        if self.low is not None and self.high is not None:
            seconds = np.asarray(self.seconds)
            below, above = (
                # A biased law's time can lie outside of its own interval.
                np.sqrt(np.maximum(np.maximum(np.log(ratio), 0.0) ** 2 - np.square(self.common), 0.0))
                for ratio in (seconds / self.low, self.high / seconds)
            )
            return below, above
        error = UNTESTED_ERROR_PERCENT if self.error_percent is None else self.error_percent
        usual = np.asarray(NORMAL_QUANTILE * DEVIATION_OVER_MEAN * error / 100)
        return usual, usual


class Causes(UserDict[str, Any]):
    """Causes that are computed when the first of them is read: a search over a million sizes reads seconds alone."""

    def __init__(self, compute: Callable[[], dict[str, Any]]) -> None:
        self._compute = compute

    @functools.cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        return self._compute()


# Larger sizes are nobody's: beyond them FLOP would no longer be counted exactly.
LARGEST_SIZE = 2**31


def validated_sizes(of: str, may_be_0: str = "", **sizes: ArrayLike) -> list[NDArray[np.float64]]:
    """The sizes that a law is called with, as arrays of one shape.

    Raises UserError for what is no number, does not broadcast, or is not within 1 (`may_be_0`: 0) and `LARGEST_SIZE`.
    """
    try:
        arrays = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in sizes.values()))
    except (TypeError, ValueError):
        raise UserError(f"Sizes of {of} have to be numbers, or arrays of shapes that broadcast together.") from None
    for name, array in zip(sizes, arrays, strict=True):
        least = 0 if name == may_be_0 else 1
        wrong = ~((array >= least) & (array <= LARGEST_SIZE))
        if wrong.any():
            found = array[wrong].flat[0]
            raise UserError(f"No {of} has {name} = {found:g}: give a size of {least} to {LARGEST_SIZE}.")
    return list(arrays)


# One size, or an array of them.
Count = int | NDArray[np.int64]
Bytes = float | NDArray[np.float64] | NDArray[np.int64]


def legend(causes: Iterable[str]) -> str:
    """A sentence that says what each of the causes is, in the order of `MEANINGS`."""
    requested = set(causes)
    return f"Causes: {'; '.join(f'{cause}, {meaning}' for cause, meaning in MEANINGS.items() if cause in requested)}."


def counted(count: int, name: str) -> str:
    """Things and their number in a sentence.

    >>> counted(1, "tile"), counted(2, "tile")
    ('1 tile', '2 tiles')
    """
    return f"{count} {name}{'' if count == 1 else 's'}"
