"""Common parts of the fits: costs in logarithms, smooth grids, and bands judged on sites that were left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.laws.tiling import MAD_OF_NORMAL
from pyperf_suite.planner.laws.calibration import COVERED, Band, CalibrationBlock, ResidualGrid

if TYPE_CHECKING:
    from scipy import sparse


Floats = NDArray[np.float64]
Blocks = dict[str, dict[str, CalibrationBlock]]

SEED = 0
# A percentile in the tail needs some rows.
ROWS_A_KNOT = 150
# Errors in log seconds beyond this count linearly.
USUAL_ERROR = 0.1


def fit_band(log_residual: Floats, figure: Floats, knots: int) -> Band:
    """The band of errors, log(measured / predicted), on rows that the law did not see.

    The width may depend on `figure`, above 0, one value a row; there are at most `knots` knots. With few rows the ends
    that 90 % of further rows lie between are a little wider than those seen. Raises ValueError for no rows.
    """
    if log_residual.size == 0:
        raise ValueError("a band needs errors on held-out rows")
    groups = max(1, min(knots, log_residual.size // ROWS_A_KNOT))
    at, sides = [], []
    for rows in np.array_split(np.argsort(figure, kind="stable"), groups):
        at.append(float(np.exp(np.mean(np.log(figure[rows])))))
        tail = (1 - COVERED) / 2
        beyond = max(0.0, (tail * (rows.size + 1) - 1) / max(rows.size - 1, 1))
        sides.append(np.quantile(log_residual[rows], [beyond, 1 - beyond]))
    places, first = np.unique(at, return_index=True)
    low, high = np.array(sides)[first].T
    return Band(places, low, high)


def in_words(missed: Floats) -> str:
    """Describe errors, log(measured / predicted), in words."""
    errors = 100 * np.abs(np.expm1(-missed))
    tail = (1 - COVERED) / 2
    low, high = np.quantile(missed, [tail, 1 - tail])
    return (
        f"{missed.size} rows, mape {errors.mean():.1f}, median {np.median(errors):.1f}, bias {np.median(missed):+.2f}, "
        f"nine of ten {low:+.2f} to {high:+.2f} or within {np.quantile(np.abs(missed), COVERED):.2f}"
    )


def reading(axes: Sequence[Floats], sizes: Sequence[NDArray[np.generic]]) -> sparse.csr_matrix:
    """Return the matrix that reads a grid's nodes at the sizes, one row each."""
    from scipy import sparse

    grid, rows = ResidualGrid(tuple(axes), np.empty([axis.size for axis in axes])), np.arange(np.size(sizes[0]))
    return sum(
        sparse.csr_matrix((weight, (rows, node)), shape=(rows.size, grid.values.size))
        for node, weight in grid.corners(sizes)
    )


# Single measurements are up to twice too long where something else ran too: those off by more than the usual
# deviation at their m count as off by that (Huber, Annals of Mathematical Statistics 35, 1964), found in a few rounds.
ROUNDS = 4
# A system is solved when its residual is this part of the wanted vector's norm, or after STEPS steps.
ENOUGH, STEPS = 1e-4, 200


@dataclass(frozen=True)
class SimilarProducts:
    """Products that are similar by two logarithms: of tiles of `tile`, None: of bytes; and of `other_size`, k or m.

    With `cycled`, the bytes of an L2 in elements, it is of as many copies of the operands as fill it: measurements that
    cycle through copies, to read them from memory, find those in L2 that just fill it.

    `variance` is relative to a `Likeness`'s others; lengths are doublings over which likeness decays. It is kept at
    nodes `steps` doublings apart and goes straight between them.
    """

    variance: float
    tile: tuple[int, int] | None
    other_size: str
    lengths: tuple[float, float]
    steps: tuple[float, float]
    cycled: float = 0.0

    def likeness(self, these: Sequence[Floats], others: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Likeness of nodes of each axis with nodes of each axis; the first holds the variance too."""
        first, second = (
            np.exp(-np.abs(here[:, None] - there[None, :]) / length)
            for here, there, length in zip(these, others, self.lengths, strict=True)
        )
        return self.variance * first, second

    def read(self, sites: Floats, m: Floats) -> tuple[list[Floats], sparse.csr_matrix]:
        """The nodes of both axes, and what reads each site's and m's value off the nodes."""
        n, k, rows = sites[:, 0][:, None], sites[:, 1][:, None], m[None, :]
        if self.tile is None:
            size = rows * n + rows * k + n * k
            if self.cycled:
                size = np.clip(size * np.ceil(self.cycled / size) / self.cycled, 1.0, 2.0)
        else:
            size = np.ceil(rows / self.tile[0]) * np.ceil(n / self.tile[1])
        other = k if self.other_size == "k" else rows
        sizes = [np.broadcast_to(each, (len(sites), len(m))).ravel() for each in (size, other)]
        nodes = []
        for each, step in zip(sizes, self.steps, strict=True):
            place = np.log2(each) / step
            nodes.append(np.arange(np.floor(place.min()), np.floor(place.max()) + 2) * step)
        return nodes, reading([2.0**axis for axis in nodes], sizes)


@dataclass(frozen=True)
class Likeness:
    """How far residuals of two products resemble: variances relative to each other, lengths in doublings of a size.

    Of a site with those of its own n, its own k, near it, or of as large a weight matrix, times that of their m, of
    which `m_its_own` is each m's own; and of `similar` products wherever they are.
    """

    same_n: tuple[float, float]
    same_k: tuple[float, float]
    near: tuple[float, float, float]
    same_weights: tuple[float, float]
    m_length: float
    m_its_own: float
    similar: tuple[SimilarProducts, ...] = ()

    def of_sites(self, these: Floats, others: Floats) -> Floats:
        distances = np.log2(these)[:, None, :] - np.log2(others)[None, :, :]
        n, k = np.abs(distances[..., 0]), np.abs(distances[..., 1])
        nearness, near_n, near_k = self.near
        return np.asarray(
            self.same_n[0] * np.exp(-n / self.same_n[1])
            + self.same_k[0] * np.exp(-k / self.same_k[1])
            + nearness * np.exp(-np.hypot(n / near_n, k / near_k))
            + self.same_weights[0] * np.exp(-np.abs(distances.sum(axis=-1)) / self.same_weights[1])
        )

    def of_m(self, m: Floats) -> Floats:
        apart = np.abs(np.log2(m)[:, None] - np.log2(m)[None, :])
        return np.asarray(np.exp(-apart / self.m_length) + self.m_its_own * (apart == 0))


@dataclass(frozen=True)
class SiteKriging:
    """The residual as fitted; `m` ascending, `sites` of shape [S, 2], (n, k), `weights` [S, M] over both."""

    likeness: Likeness
    sites: Floats
    m: Floats
    middle: Floats
    weights: Floats

    def at(self, sites: Floats) -> Floats:
        """The residual at other sites [T, 2] and every m: [T, M]."""
        reported = self.middle + self.likeness.of_sites(sites, self.sites) @ self.weights @ self.likeness.of_m(self.m)
        for similar in self.likeness.similar:
            nodes, read = similar.read(self.sites, self.m)
            others, read_others = similar.read(sites, self.m)
            reported = reported + _passed(similar.likeness(others, nodes), read_others, read, self.weights)
        return np.asarray(reported)

    @classmethod
    def fit(cls, sites: Floats, m: Floats, residual: Floats, likeness: Likeness, noise: float) -> SiteKriging:
        """Fit to residuals [S, M], NaN where not measured; `noise` is its variance relative to the likeness.

        With as many m for each site the likeness of two measurements by their sites is the product of their sites' and
        of their m's, which is solved by factors; with similar products it is solved by conjugate gradients that
        start from there.
        """
        from scipy.sparse.linalg import LinearOperator, cg

        complete = _filled(residual)
        middle = np.median(complete, axis=0)
        by_site, by_m = likeness.of_sites(sites, sites), likeness.of_m(m)
        site_values, site_vectors = np.linalg.eigh(by_site)
        m_values, m_vectors = np.linalg.eigh(by_m)
        both = np.outer(site_values, m_values) + noise
        reads = [(similar, *similar.read(sites, m)) for similar in likeness.similar]
        passes = [(similar.likeness(nodes, nodes), read) for similar, nodes, read in reads]

        def system(weights: Floats) -> Floats:
            reported = by_site @ weights @ by_m + noise * weights
            return sum((_passed(between, read, read, weights) for between, read in passes), start=reported)

        def by_factors(reported: Floats) -> Floats:
            return np.asarray(site_vectors @ (site_vectors.T @ reported @ m_vectors / both) @ m_vectors.T)

        def operator(of: Callable[[Floats], Floats]) -> LinearOperator:
            flat = (complete.size, complete.size)
            return LinearOperator(flat, lambda course: of(course.reshape(complete.shape)).ravel(), dtype=complete.dtype)

        reported, weights = complete, np.zeros_like(complete)
        for _ in range(ROUNDS):
            wanted = reported - middle
            start = weights if weights.any() else by_factors(wanted)
            found, _ = cg(
                operator(system), wanted.ravel(), start.ravel(), rtol=ENOUGH, maxiter=STEPS, M=operator(by_factors)
            )
            weights = found.reshape(wanted.shape)
            off = complete - reported + noise * weights
            usual = np.median(np.abs(off), axis=0) / MAD_OF_NORMAL
            reported = complete - off + np.clip(off, -usual, usual)
        return cls(likeness, sites, m, middle, weights)


def _passed(
    between: tuple[Floats, Floats], read: sparse.csr_matrix, read_from: sparse.csr_matrix, weights: Floats
) -> Floats:
    """Pass weights of some products on to others, by way of the nodes that they share."""
    first, second = between
    heaped = (read_from.T @ weights.ravel()).reshape(first.shape[1], second.shape[1])
    return np.asarray((read @ (first @ heaped @ second.T).ravel()).reshape(-1, weights.shape[1]))


def _filled(residual: Floats) -> Floats:
    """Few sites lack a few m: there the residual goes straight from one neighbouring m to the other."""
    filled = residual.copy()
    for row in filled:
        known = np.isfinite(row)
        row[~known] = np.interp(np.flatnonzero(~known), np.flatnonzero(known), row[known])
    return filled
