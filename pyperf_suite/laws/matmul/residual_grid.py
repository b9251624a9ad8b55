"""What a law leaves unexplained, kept coarsely: the logarithm of a factor, smooth over the logarithms of sizes.

Between its nodes it is interpolated along straight lines, beyond them it stays as at the edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

# In how many steps of one byte the largest factor is told: about a third of a percent each.
STEPS = 127
# Sizes are looked up in pieces that stay in a core's cache.
PIECE = 16384


@dataclass(frozen=True)
class ResidualGrid:
    """`axes` are the ascending sizes at the nodes, `values` natural logarithms of factors, one dimension per axis."""

    axes: tuple[NDArray[np.float64], ...]
    values: NDArray[np.float64]

    def __call__(self, *sizes: ArrayLike) -> NDArray[np.float64]:
        """The logarithm of the factor at sizes of at least 1, one array per axis, broadcast against each other."""
        asked = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in sizes))
        flat, logarithms = [np.ravel(size) for size in asked], np.empty(asked[0].size)
        for start in range(0, logarithms.size, PIECE):
            piece = slice(start, start + PIECE)
            logarithms[piece] = self._interpolated([size[piece] for size in flat])
        return logarithms.reshape(asked[0].shape)

    def as_arrays(self) -> dict[str, NDArray[np.generic]]:
        """As a calibration's block keeps it: axes, and values in steps of one byte."""
        step = max(float(np.abs(self.values).max()) / STEPS, 1e-9)
        axes: dict[str, NDArray[np.generic]] = {f"residual_axis_{i}": axis for i, axis in enumerate(self.axes)}
        return axes | {"residual_step": np.array(step), "residual": np.round(self.values / step).astype(np.int8)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> ResidualGrid:
        """The inverse of `as_arrays`, within a step. Raises KeyError where there is no residual."""
        values = np.asarray(arrays["residual"], dtype=np.float64) * float(arrays["residual_step"])
        axes = tuple(np.asarray(arrays[f"residual_axis_{i}"], dtype=np.float64) for i in range(values.ndim))
        return cls(axes, values)

    def _interpolated(self, sizes: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The sum over the corners of each size's cell, weighted by how near they are."""
        places = [self._place(axis, size) for axis, size in zip(self.axes, sizes, strict=True)]
        strides = [int(np.prod(self.values.shape[axis + 1 :])) for axis in range(self.values.ndim)]
        values, total = self.values.ravel(), np.zeros(sizes[0].shape)
        origin = sum(below * stride for (below, _), stride in zip(places, strides, strict=True))
        for corner in product((0, 1), repeat=len(self.axes)):
            weight = np.ones(())
            for (_, share), side in zip(places, corner, strict=True):
                weight = weight * (share if side else 1.0 - share)
            total += weight * values[origin + sum(side * stride for side, stride in zip(corner, strides, strict=True))]
        return total

    @staticmethod
    def _place(axis: NDArray[np.float64], size: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The node below each size and how far it lies towards the next, by the logarithm."""
        logs, asked = np.log2(axis), np.log2(size)
        below = np.clip(np.searchsorted(logs, asked, side="right") - 1, 0, len(axis) - 2)
        return below, np.clip((asked - logs[below]) / (logs[below + 1] - logs[below]), 0.0, 1.0)
