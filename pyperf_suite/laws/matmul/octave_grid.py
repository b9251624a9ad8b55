"""A function of several sizes kept at their powers of two, and read straight between them.

What a law of tiles and bytes leaves over is smooth over the logarithms of sizes; such a grid keeps it in kilobytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.laws.network.alpha_beta import HUBER, LEAST_SCATTER

if TYPE_CHECKING:
    from scipy import sparse

Array = NDArray[np.float64]

REWEIGHTINGS = 3
# Held against the level, so that what no row tells of is determined: it follows its neighbours.
LEVEL = 1e-4


def read_grid(grid: Array, sizes: Sequence[Array]) -> Array:
    """The grid's value at each row of `sizes`, one array per axis of the grid; beyond its edge, that at the edge.

    Axis a of the grid has its values at sizes 1, 2, 4, …
    """
    flat = grid.ravel()
    value = np.zeros(sizes[0].shape)
    for corner, weight in _corners(grid.shape, sizes):
        value += weight * flat[corner]
    return value


def fit_grid(values: Array, sizes: Sequence[Array], shape: tuple[int, ...], smoothness: float) -> Array:
    """The grid of that shape that reads `values` at `sizes`, with least squared steps between neighbours.

    `smoothness` is what a squared step costs beside a row's squared residual. Rows that nothing near agrees with are
    held to less and less (Huber's weights). Raises ValueError for no rows.
    """
    from scipy import sparse
    from scipy.sparse.linalg import spsolve

    if values.size == 0:
        raise ValueError("a grid cannot be fitted to no rows")
    rows = np.arange(values.size)
    reading = sum(
        sparse.csr_matrix((weight, (rows, corner)), shape=(values.size, int(np.prod(shape))))
        for corner, weight in _corners(shape, sizes)
    )
    penalty = smoothness * _roughness(shape) + LEVEL * sparse.identity(int(np.prod(shape)))
    weights = np.ones(values.size)
    for _ in range(REWEIGHTINGS):
        weighted = reading.T @ sparse.diags_array(weights)
        grid = spsolve((weighted @ reading + penalty).tocsc(), weighted @ values)
        residuals = np.abs(reading @ grid - values)
        scatter = HUBER * max(1.4826 * float(np.median(residuals)), LEAST_SCATTER)
        weights = np.minimum(1.0, scatter / np.maximum(residuals, scatter))
    fitted: Array = grid.reshape(shape)
    return fitted


def _corners(shape: tuple[int, ...], sizes: Sequence[Array]) -> Iterator[tuple[NDArray[np.intp], Array]]:
    """Of each row the nodes around it and the share of each, one corner of the cell at a time."""
    axes = []
    for count, size in zip(shape, sizes, strict=True):
        position = np.clip(np.log2(size), 0, count - 1)
        low = np.minimum(position.astype(np.intp), max(count - 2, 0))
        axes.append((low, position - low, min(1, count - 1)))
    for corner in itertools.product((0, 1), repeat=len(shape)):
        node, weight = np.zeros(sizes[0].shape, dtype=np.intp), np.ones(sizes[0].shape)
        for upper, count, (low, above, step) in zip(corner, shape, axes, strict=True):
            node = node * count + low + upper * step
            weight = weight * (above if upper else 1 - above)
        yield node, weight


def _roughness(shape: tuple[int, ...]) -> sparse.csr_matrix:
    """The quadratic form of squared steps along every axis."""
    from scipy import sparse

    form = sparse.csr_matrix((int(np.prod(shape)),) * 2)
    for axis, count in enumerate(shape):
        step = np.diff(np.eye(count), axis=0)
        outer, inner = (sparse.identity(int(np.prod(part))) for part in (shape[:axis], shape[axis + 1 :]))
        form += sparse.kron(sparse.kron(outer, step.T @ step), inner)
    return form
