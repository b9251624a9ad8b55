"""Smooths what a law leaves unexplained over sites (n, k) and rows m, and tells it at sites that were not measured.

A site resembles those near it, and more so those of its own n, its own k or as large a weight matrix; so the residual
is the sum of a Gaussian process for each (kriging), and each for itself is smooth over m.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Variances relative to each other, and lengths in doublings of a size over which likeness decays: chosen for the least
# error on held-out sites of the five bf16 tables together, on two splits; on three others it fell as far.
SAME_N, SAME_N_LENGTH = 2.0, 0.15
SAME_K, SAME_K_LENGTH = 1.7, 2.3
NEAR, NEAR_N_LENGTH, NEAR_K_LENGTH = 23.0, 0.9, 2.4
SAME_WEIGHTS, SAME_WEIGHTS_LENGTH = 3.2, 2.0
ITS_OWN = 0.1
M_LENGTH, M_ITS_OWN = 4.0, 0.2

# Single measurements are up to twice too long where something else ran beside them: those off by more than the usual
# deviation at their m count as off by that (Huber, Annals of Mathematical Statistics 35, 1964), found in a few rounds.
ROUNDS = 4
# Times this the median absolute deviation of normal noise is its standard deviation.
SCATTER = 1.4826


@dataclass(frozen=True)
class SiteKriging:
    """The residual as fitted; `m` ascending, `sites` of shape [S, 2], (n, k), `weights` [S, M] over both."""

    sites: Floats
    m: Floats
    middle: Floats
    weights: Floats

    def at(self, sites: Floats) -> Floats:
        """The residual at other sites [T, 2] and every m: [T, M]."""
        return np.asarray(self.middle + _likeness_of_sites(sites, self.sites) @ self.weights @ _likeness_of_m(self.m))

    @classmethod
    def fit(cls, sites: Floats, m: Floats, residual: Floats, noise: float) -> SiteKriging:
        """Fit to residuals [S, M], NaN where not measured; `noise` is its variance relative to the constants above.

        With as many m for each site the likeness of two measurements is the product of their sites' and of their m's,
        which keeps the system to be solved small.
        """
        complete = _filled(residual)
        middle = np.median(complete, axis=0)
        site_values, site_vectors = np.linalg.eigh(_likeness_of_sites(sites, sites))
        m_values, m_vectors = np.linalg.eigh(_likeness_of_m(m))
        both = np.outer(site_values, m_values)
        told, explained = complete, complete
        for _ in range(ROUNDS):
            spectrum = site_vectors.T @ (told - middle) @ m_vectors / (both + noise)
            explained = middle + site_vectors @ (spectrum * both) @ m_vectors.T
            usual = SCATTER * np.median(np.abs(complete - explained), axis=0)
            told = explained + np.clip(complete - explained, -usual, usual)
        return cls(sites, m, middle, site_vectors @ spectrum @ m_vectors.T)


def _likeness_of_sites(these: Floats, those: Floats) -> Floats:
    apart = np.log2(these)[:, None, :] - np.log2(those)[None, :, :]
    n, k = np.abs(apart[..., 0]), np.abs(apart[..., 1])
    near = np.hypot(n / NEAR_N_LENGTH, k / NEAR_K_LENGTH)
    return np.asarray(
        SAME_N * np.exp(-n / SAME_N_LENGTH)
        + SAME_K * np.exp(-k / SAME_K_LENGTH)
        + NEAR * np.exp(-near)
        + SAME_WEIGHTS * np.exp(-np.abs(apart.sum(axis=-1)) / SAME_WEIGHTS_LENGTH)
        + ITS_OWN * ((n == 0) & (k == 0))
    )


def _likeness_of_m(m: Floats) -> Floats:
    apart = np.abs(np.log2(m)[:, None] - np.log2(m)[None, :])
    return np.asarray(np.exp(-apart / M_LENGTH) + M_ITS_OWN * (apart == 0))


def _filled(residual: Floats) -> Floats:
    """Few sites lack a few m: there the residual goes straight from one neighbouring m to the other."""
    filled = residual.copy()
    for row in filled:
        known = np.isfinite(row)
        row[~known] = np.interp(np.flatnonzero(~known), np.flatnonzero(known), row[known])
    return filled
