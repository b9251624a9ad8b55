"""What a law misses on one machine: a smooth factor over the logarithms of its sizes, fitted to a short run there.

The law keeps its structure of tiles and waves from a large table; the factor moves it to a machine's own clocks, memory
and library. Beyond the sizes it was fitted on it stays at what it was at their edge.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.laws.calibration import Block, Calibration

# Terms of each degree: a level; a slope in each size; what bends, and what two sizes do together.
DEGREES = (0, 1, 2)


def correction_name(law: str) -> str:
    """The name of the block that corrects the block of that law."""
    return f"{law}_here"


def correction_of(calibration: Calibration, law: str, sizes: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
    """By what to multiply the seconds of a law on this machine; 1 where nothing was measured on it.

    `sizes` are arrays that broadcast together, under the names that the block was fitted with.
    """
    block = calibration.blocks.get(correction_name(law))
    if block is None:
        return np.ones(np.broadcast_shapes(*(np.shape(size) for size in sizes.values())))
    return correction(block, sizes)


def stated(calibration: Calibration, law: str, error_percent: float, origin: str) -> tuple[float, str]:
    """The mean error in % to state for a law, and its origin: the correction's own held-out one where there is one."""
    block = calibration.blocks.get(correction_name(law))
    if block is None:
        return error_percent, origin
    return float(block.held_out["mape"]), f"{origin}; corrected by {block.origin or 'measurements of one machine'}"


def correction(block: Block, sizes: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
    """The factor of a block. Raises KeyError where a size that it was fitted with is not given."""
    inside = [
        np.clip(np.asarray(sizes[name], dtype=np.float64), *block.fitted_range[name]) for name in block.fitted_range
    ]
    coefficients = block.arrays["coefficients"]
    scaled = [
        (np.log(size) - centre) / spread
        for size, centre, spread in zip(inside, block.arrays["centre"], block.arrays["spread"], strict=True)
    ]
    log_factor = np.zeros(np.broadcast_shapes(*(size.shape for size in scaled)))
    for coefficient, exponents in zip(coefficients, _exponents(len(scaled)), strict=False):
        if coefficient:
            log_factor += coefficient * _product(scaled, exponents)
    return np.exp(log_factor)


def fit_correction(
    log_ratio: ArrayLike, sizes: Mapping[str, ArrayLike], degree: int
) -> tuple[Mapping[str, NDArray[np.float64]], Mapping[str, tuple[float, float]]]:
    """Arrays and range of a block whose factor follows log(measured / predicted) in the least squares.

    `log_ratio` and every size are arrays of one length. Half of a unit of noise is held against each coefficient but
    the level, so that few points make no steep slope (ridge regression: Hoerl & Kennard, Technometrics 12, 1970).

    Raises ValueError for no rows or a degree there is not.
    """
    wanted = np.asarray(log_ratio, dtype=np.float64)
    if degree not in DEGREES or wanted.size == 0:
        raise ValueError(f"a correction of degree {degree} cannot be fitted to {wanted.size} rows")
    logs = [np.log(np.asarray(size, dtype=np.float64)) for size in sizes.values()]
    centre = np.array([size.mean() for size in logs])
    spread = np.array([size.std() or 1.0 for size in logs])
    scaled = [(size - middle) / width for size, middle, width in zip(logs, centre, spread, strict=True)]
    terms = [exponents for exponents in _exponents(len(scaled)) if sum(exponents) <= degree]
    design = np.stack([_product(scaled, exponents) * np.ones_like(wanted) for exponents in terms], axis=1)
    penalty = np.diag([0.0] + [0.5] * (len(terms) - 1))
    coefficients = np.linalg.solve(design.T @ design + penalty, design.T @ wanted)
    limits = {name: (float(np.min(size)), float(np.max(size))) for name, size in sizes.items()}
    return {"centre": centre, "spread": spread, "coefficients": coefficients}, limits


def _exponents(count: int) -> list[tuple[int, ...]]:
    """Of each term the power of each size: the level, the slopes, then squares and pairs."""
    unit = np.eye(count, dtype=int)
    pairs = [unit[i] + unit[j] for i in range(count) for j in range(i, count)]
    return [(0,) * count, *(tuple(row) for row in unit), *(tuple(row) for row in pairs)]


def _product(scaled: list[NDArray[np.float64]], exponents: tuple[int, ...]) -> NDArray[np.float64]:
    """The term of these powers."""
    term: NDArray[np.float64] = np.ones(())
    for size, exponent in zip(scaled, exponents, strict=True):
        if exponent:
            term = term * size**exponent
    return term
