"""The element types that operators speak, and how values of each are held in numpy arrays.

numpy has no bfloat16 and no float8, so they are stored as their bits: the same bytes torch and our kernels read.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError

# No sum of products of int8 is the least int32 unless it overflowed.
NEVER_A_SUM = -(1 << 31)

CACHE_LINE_BYTES = 64


@dataclass(frozen=True)
class ElementType:
    """One element type: its name, its size, the numpy type that holds its bytes, and what no correct output holds.

    The last is NaN, and of integers the least one.
    """

    name: str
    size_bytes: int
    storage: type[np.generic]
    not_a_number: Any


ELEMENT_TYPES = {
    element.name: element
    for element in (
        ElementType("float32", 4, np.float32, np.float32(np.nan)),
        ElementType("float16", 2, np.float16, np.float16(np.nan)),
        ElementType("bfloat16", 2, np.uint16, np.uint16(0x7FC0)),
        ElementType("tfloat32", 4, np.float32, np.float32(np.nan)),
        ElementType("float8_e4m3fn", 1, np.uint8, np.uint8(0x7F)),
        ElementType("int8", 1, np.int8, np.int8(-128)),
        ElementType("int32", 4, np.int32, np.int32(NEVER_A_SUM)),
    )
}


def element_type(name: str) -> ElementType:
    """The element type of that name. Raises UserError that names those there are."""
    if name not in ELEMENT_TYPES:
        raise UserError(f"Unknown dtype {name!r}: choose from {', '.join(ELEMENT_TYPES)}.")
    return ELEMENT_TYPES[name]


def round_to(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """float32 values rounded to nearest even in `dtype`, in its storage; NaN stays NaN, e4m3 and integers saturate."""
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        rounded = np.where(np.isnan(values), bits | np.uint32(0x00400000), rounded)
        return (rounded >> np.uint32(16)).astype(np.uint16)
    if dtype == "tfloat32":
        return _round_to_tfloat32(values)
    if dtype == "float8_e4m3fn":
        return _round_to_e4m3(values)
    if dtype == "int8":
        return np.clip(np.rint(values), -127, 127).astype(np.int8)
    return values.astype(element_type(dtype).storage, copy=False)


def widen(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The values held in `dtype`'s storage, exactly: as float32, and those of int32 as float64."""
    if dtype == "int32":
        return stored.astype(np.float64)
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "float8_e4m3fn":
        return _e4m3_values()[stored]
    return stored.astype(np.float32, copy=False)


def not_a_number(dtype: str) -> Any:
    """What poisons outputs before a launch, in `dtype`'s storage: NaN, and of integers the least one."""
    return element_type(dtype).not_a_number


def torch_name(dtype: str) -> str:
    """What torch calls the type that holds `dtype`: tfloat32 is an arithmetic, whose values are float32."""
    return "float32" if dtype == "tfloat32" else dtype


def poison_array(array: NDArray[Any]) -> None:
    """Fill an array in storage form with what no correct output of its type holds."""
    array.fill(next(each.not_a_number for each in ELEMENT_TYPES.values() if each.storage == array.dtype))


def poison_tensor(tensor: Any) -> None:
    """The same for a torch tensor."""
    tensor.fill_(float("nan") if tensor.is_floating_point() else NEVER_A_SUM)


def aligned_empty(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An uninitialised array that starts on a cache line: placement must not differ from process to process."""
    size_bytes = math.prod(shape) * element_type(dtype).size_bytes
    raw = np.empty(size_bytes + CACHE_LINE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % CACHE_LINE_BYTES
    return raw[start : start + size_bytes].view(element_type(dtype).storage).reshape(shape)


@functools.cache
def _e4m3_values() -> NDArray[np.float32]:
    """The value of each of the 256 codes: sign, 4 bits of exponent with bias 7, 3 of mantissa; all ones is NaN.

    Source: Micikevicius et al., FP8 Formats for Deep Learning, 2022 (E4M3 has no infinity).
    """
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    values = np.where(codes & 128, -magnitude, magnitude)
    return np.where((codes & 127) == 127, np.nan, values).astype(np.float32)


def _round_to_tfloat32(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 with the 10 bits of fraction that tensor cores multiply, so that nothing is rounded when they do."""
    bits = values.view(np.uint32)
    kept = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(values), values, kept.view(np.float32))


def _round_to_e4m3(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """To the nearest of the 127 magnitudes, ties to the even code."""
    magnitudes = _e4m3_values()[:127].astype(np.float64)
    wanted = np.abs(values.astype(np.float64))
    above = np.clip(np.searchsorted(magnitudes, wanted), 1, 126)
    below = above - 1
    to_above, to_below = magnitudes[above] - wanted, wanted - magnitudes[below]
    nearer_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    code = np.where(nearer_above, above, below) | np.where(np.signbit(values), 128, 0)
    return np.where(np.isnan(values), 127, code).astype(np.uint8)
