"""What numpy arrays and torch tensors are asked in common, so that one reference serves the host and a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Or a torch tensor, on any device, of any element type that torch converts."""

Keep = Callable[[str, Callable[[], Mapping[str, Array]]], Mapping[str, Array]]
"""`keep(name, compute)` is what `compute()` returned here, or under the same name in another process."""


def computed_anew(_name: str, compute: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
    """Keeps nothing."""
    return compute()


def module_of(values: Array) -> Any:
    """Where functions of these values are: numpy or torch."""
    return np if isinstance(values, np.ndarray) else sys.modules["torch"]


def like(values: NDArray[Any], other: Array) -> Array:
    """A numpy array as `other` is: itself, or a tensor on the same device."""
    return values if isinstance(other, np.ndarray) else sys.modules["torch"].as_tensor(values, device=other.device)


def as_float64(values: Array) -> Array:
    """The values in float64, exactly."""
    return values.astype(np.float64) if isinstance(values, np.ndarray) else values.double()


def as_float32(values: Array) -> Array:
    """The values rounded to float32."""
    return values.astype(np.float32) if isinstance(values, np.ndarray) else values.float()


def magnitudes(values: Array) -> Array:
    """|values| in float32, exact for all narrower types; those of float64 stay in float64."""
    is_double = str(values.dtype).endswith("float64")
    return abs(values if is_double else as_float32(values))


def inner_product(left: Array, right: Array) -> float:
    """The sum of the products of all elements."""
    return float(module_of(left).dot(left.reshape(-1), right.reshape(-1)))


def largest(values: Array) -> tuple[int, int]:
    """Row and column of the largest element of a matrix; of a NaN where there is one."""
    row, column = divmod(int(values.argmax()), values.shape[1])
    return row, column


def first_not_finite(values: Array, most_elements: int = 1 << 22) -> tuple[int, ...] | None:
    """Where the first NaN or infinity stands; None where there is none."""
    module, lead = module_of(values), values.shape[:-2]
    for head in np.ndindex(*lead):
        matrix = values[head]
        step = max(1, most_elements // max(1, matrix.shape[1]))
        for begin in range(0, matrix.shape[0], step):
            panel = matrix[begin : begin + step]
            finite = module.isfinite(panel if module is np else as_float32(panel))
            if not bool(finite.all()):
                row, column = divmod(int((~finite).reshape(-1).nonzero()[0][0]), panel.shape[1])
                return (*head, begin + row, column)
    return None
