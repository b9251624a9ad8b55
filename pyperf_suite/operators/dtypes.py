"""The element types that operators speak, and how values of each are held in numpy arrays.

numpy has no bfloat16, so it is stored as its upper 16 bits in uint16: the same bytes torch and our kernels read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError


@dataclass(frozen=True)
class ElementType:
    """One element type: its name as torch writes it, its size, and the numpy type that holds its bytes."""

    name: str
    size_bytes: int
    storage: type[np.generic]


ELEMENT_TYPES = {
    element.name: element
    for element in (
        ElementType("float32", 4, np.float32),
        ElementType("bfloat16", 2, np.uint16),
    )
}


def element_type(name: str) -> ElementType:
    """The element type of that name. Raises UserError that names those there are."""
    if name not in ELEMENT_TYPES:
        raise UserError(f"Unknown dtype {name!r}: choose from {', '.join(ELEMENT_TYPES)}.")
    return ELEMENT_TYPES[name]


def round_to(values: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    """float32 values rounded to nearest even in `dtype`, in its storage; NaN stays NaN."""
    if dtype == "float32":
        return values
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.where(np.isnan(values), bits | np.uint32(0x00400000), rounded)
    return (rounded >> np.uint32(16)).astype(np.uint16)


def widen(stored: NDArray[np.generic], dtype: str) -> NDArray[np.float32]:
    """The values held in `dtype`'s storage as float32, exactly."""
    if dtype == "float32":
        return stored.astype(np.float32, copy=False)
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


def not_a_number(dtype: str) -> np.generic:
    """The NaN that poisons outputs before a launch, in `dtype`'s storage."""
    return np.float32(np.nan) if dtype == "float32" else np.uint16(0x7FC0)


def aligned_empty(shape: tuple[int, ...], dtype: str, alignment_bytes: int = 64) -> NDArray[np.generic]:
    """An uninitialised array that starts on a cache line, so that placement does not differ from process to process."""
    element = element_type(dtype)
    size_bytes = int(np.prod(shape)) * element.size_bytes
    raw = np.empty(size_bytes + alignment_bytes, dtype=np.uint8)
    start = -raw.ctypes.data % alignment_bytes
    return raw[start : start + size_bytes].view(element.storage).reshape(shape)
