"""What the fits have in common: costs in logarithms, smooth grids, and bands judged on sites that were left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.advise.calibrate_laws import folds
from pyperf_suite.errors import UserError
from pyperf_suite.laws.alpha_beta import HUBER, LEAST_SCATTER
from pyperf_suite.laws.band import COVERED, MOST_KNOTS, Band
from pyperf_suite.laws.calibration import CalibrationBlock, ResidualGrid
from pyperf_suite.laws.gemm import MenuCoefficients
from pyperf_suite.laws.grouped_gemm import ExpertCosts

if TYPE_CHECKING:
    from scipy import sparse

Floats = NDArray[np.float64]
Blocks = dict[str, dict[str, CalibrationBlock]]
Constants = TypeVar("Constants", MenuCoefficients, ExpertCosts)

SEED = 0
# Errors in log seconds beyond this count linearly.
USUAL_ERROR = 0.1
# Held against a grid's level, so that nodes without rows are determined: they follow their neighbours.
LEVEL = 1e-4


def by_gpu(found: Iterable[tuple[str, str, CalibrationBlock]], folder: Path, table: str) -> Blocks:
    """Blocks by GPU and name. Raises UserError if there are none; `table` says of which table."""
    blocks: Blocks = {}
    for gpu, name, block in found:
        blocks.setdefault(gpu, {})[name] = block
    if not blocks:
        raise UserError(f"{folder} has no {table}: name the folder of the published tables.")
    return blocks


def limits_of(sizes: Mapping[str, NDArray[np.generic]]) -> dict[str, tuple[float, float]]:
    """The least and the largest of each size, as a block states its range."""
    return {name: (float(size.min()), float(size.max())) for name, size in sizes.items()}


def in_band_of_others(
    missed: Floats, figure: Floats, sites: NDArray[np.intp], knots: int = MOST_KNOTS
) -> NDArray[np.bool_]:
    """Which errors, log(measured / predicted), lie in the band of other sites' errors."""
    inside = np.zeros(missed.size, dtype=bool)
    for out in folds(sites, seed=SEED + 1):
        low, high = Band.fit(missed[~out], figure[~out], knots).around(1.0, figure[out])
        inside[out] = (np.log(low) <= missed[out]) & (missed[out] <= np.log(high))
    return inside


def in_words(missed: Floats) -> str:
    """What errors, log(measured / predicted), come to."""
    errors = 100 * np.abs(np.expm1(-missed))
    tail = (1 - COVERED) / 2
    low, high = np.quantile(missed, [tail, 1 - tail])
    return (
        f"{missed.size} rows, mape {errors.mean():.1f}, median {np.median(errors):.1f}, bias {np.median(missed):+.2f}, "
        f"nine of ten {low:+.2f} to {high:+.2f} or within {np.quantile(np.abs(missed), COVERED):.2f}"
    )


def fit_constants(start: Constants, missed: Callable[[Constants], Floats], hold: float, evaluations: int) -> Constants:
    """The constants with the least errors in log seconds, far rows counting less.

    `hold` is how firmly they stay near where they start, in log seconds per factor of e: what the rows cannot separate
    must not run away.
    """
    from scipy.optimize import least_squares

    origin = _to_vector(start)

    def residuals(vector: Floats) -> Floats:
        return np.concatenate([missed(_from_vector(vector, start)), hold * (vector - origin)])

    found = least_squares(residuals, origin, loss="soft_l1", f_scale=USUAL_ERROR, max_nfev=evaluations)
    return _from_vector(found.x, start)


def _to_vector(constants: Constants) -> Floats:
    """Numbers without bounds: logarithms; of the softness its odds, of the overlap what exceeds 1."""
    odds = constants.softness / (1 - constants.softness)
    free = replace(constants, softness=odds, overlap=constants.overlap - 1)
    return np.log(np.concatenate([np.ravel(array) for array in free.as_arrays().values()]))


def _from_vector(vector: Floats, like: Constants) -> Constants:
    arrays = like.as_arrays()
    parts = np.split(np.exp(vector), np.cumsum([array.size for array in arrays.values()])[:-1])
    shaped = [part.reshape(array.shape) for part, array in zip(parts, arrays.values(), strict=True)]
    free = like.from_arrays(dict(zip(arrays, shaped, strict=True)))
    return replace(free, softness=free.softness / (1 + free.softness), overlap=free.overlap + 1)


def fit_costs(
    work: Floats, seconds: Floats, start: Floats, bounds: tuple[ArrayLike, ArrayLike], usual_error: float = USUAL_ERROR
) -> Floats:
    """Costs of counted work [rows, kinds] that make log(counted / measured) small, far rows counting less."""
    from scipy.optimize import least_squares

    def missed(log_costs: Floats) -> Floats:
        return np.asarray(np.log(work @ np.exp(log_costs) / seconds))

    def slope(log_costs: Floats) -> Floats:
        shares = work * np.exp(log_costs)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    limits = [np.log(end) for end in bounds]
    found = least_squares(missed, np.log(start), slope, loss="soft_l1", f_scale=usual_error, bounds=limits)
    return np.asarray(np.exp(found.x))


def reading(axes: Sequence[Floats], sizes: Sequence[NDArray[np.generic]], counts: ArrayLike = 1.0) -> sparse.csr_matrix:
    """What reads a grid's nodes at the sizes, one row each; `counts` is 0 for rows that read nothing."""
    from scipy import sparse

    grid, rows = ResidualGrid(tuple(axes), np.empty([axis.size for axis in axes])), np.arange(np.size(sizes[0]))
    return sum(
        sparse.csr_matrix((weight * counts, (rows, node)), shape=(rows.size, grid.values.size))
        for node, weight in grid.corners(sizes)
    )


def roughness(shape: Sequence[int], steps: Sequence[float], level: float = LEVEL) -> sparse.csr_matrix:
    """The quadratic form of a grid's squared steps along each axis, each at its price, and of its squared nodes."""
    from scipy import sparse

    form = level * sparse.identity(int(np.prod(shape)), format="csr")
    for axis, (nodes, price) in enumerate(zip(shape, steps, strict=True)):
        step = sparse.diags([-np.ones(nodes - 1), np.ones(nodes - 1)], [0, 1], shape=(nodes - 1, nodes))
        outer, inner = (sparse.identity(int(np.prod(part))) for part in (shape[:axis], shape[axis + 1 :]))
        form = form + price * sparse.kron(sparse.kron(outer, step.T @ step), inner)
    return form


def huber_weights(residuals: Floats) -> Floats:
    """Rows that nothing near agrees with are held to less."""
    off = np.abs(residuals)
    scatter = HUBER * max(1.4826 * float(np.median(off)), LEAST_SCATTER)
    return np.minimum(1.0, scatter / np.maximum(off, scatter))
