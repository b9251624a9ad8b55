"""Element types and operands: described first, and made where they are needed, in the host's memory or in a device's.

numpy has no bfloat16 and no float8, so they are stored as their bits: the same bytes torch and our kernels read. Values
come from one counter-based generator, Philox4x64-10, which numpy and `kernels/cuda/fill.cu` compute with the same bits:
each of its words gives four indices of 16 bits into a table of normal quantiles, rounded to the dtype.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.kernels.nvrtc import sources
from pyperf_suite.workloads.backends import CudaDevice

NEVER_A_SUM = -(1 << 31)  # no sum of products of int8 is the least int32 unless it overflowed
CACHE_LINE_BYTES = 64

Array = NDArray[Any]

# Four deviations then reach the ends of the range, beyond which all is cut off; quantised weights use it as well.
INT8_DEVIATION = 32
_INDEX_BITS = 16
_INDICES_IN_A_WORD = 4
_LOW_WORD = (1 << 64) - 1
_BLOCK = 1 << 16  # indices looked up at a time: they and what they find stay in a core's cache
_THREADS = 256
_MOST_BLOCKS = 1 << 16

# The kernel that fills elements of a dtype, and its table in the device's memory, as long as the device is held.
_fillers: WeakKeyDictionary[CudaDevice, dict[str, tuple[Any, Any]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class ElementType:
    """One element type: name, size, the numpy type of its bytes, and a value no output has: NaN, the least integer."""

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
        # The 10 bits of fraction that tensor cores multiply, so that nothing is rounded when they do.
        bits = values.view(np.uint32)
        kept = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
        return np.where(np.isnan(values), values, kept.view(np.float32))
    if dtype == "float8_e4m3fn":
        # To the nearest of the 127 magnitudes, ties to the even code.
        magnitudes = _e4m3_values()[:127].astype(np.float64)
        wanted = np.abs(values.astype(np.float64))
        above = np.clip(np.searchsorted(magnitudes, wanted), 1, 126)
        below = above - 1
        to_above, to_below = magnitudes[above] - wanted, wanted - magnitudes[below]
        nearer_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
        code = np.where(nearer_above, above, below) | np.where(np.signbit(values), 128, 0)
        return np.where(np.isnan(values), 127, code).astype(np.uint8)
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
    """Return the value that poisons outputs before a launch, in `dtype`'s storage: NaN, or the least integer."""
    return element_type(dtype).not_a_number


def torch_name(dtype: str) -> str:
    """Return torch's name of the type that holds `dtype`: tfloat32 is an arithmetic, whose values are float32."""
    return "float32" if dtype == "tfloat32" else dtype


def poison_tensor(tensor: Any) -> None:
    """Fill a torch tensor with what no correct output of its type holds."""
    tensor.fill_(float("nan") if tensor.is_floating_point() else NEVER_A_SUM)


def aligned_empty(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An uninitialised array that starts on a cache line: placement must not differ from process to process."""
    size_bytes = math.prod(shape) * element_type(dtype).size_bytes
    raw = np.empty(size_bytes + CACHE_LINE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % CACHE_LINE_BYTES
    return raw[start : start + size_bytes].view(element_type(dtype).storage).reshape(shape)


@functools.cache
def _e4m3_values() -> NDArray[np.float32]:
    """The value of each of the 256 codes of E4M3, which has no infinity (Micikevicius et al., FP8 Formats, 2022)."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    values = np.where(codes & 128, -magnitude, magnitude)
    return np.where((codes & 127) == 127, np.nan, values).astype(np.float32)


@dataclass(frozen=True)
class Operand:
    """One operand: its shape as stored, its element type, and the stream of its values; None for an output."""

    shape: tuple[int, ...]
    dtype: str
    stream: int | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * element_type(self.dtype).size_bytes


class Operands(Mapping[str, Array]):
    """Operands by name, each made in the host's memory at first use; for a GPU see `described`, `fill_on_device`."""

    def __init__(self, described: Mapping[str, Operand], seed: int) -> None:
        self.described = dict(described)
        self.inputs = tuple(name for name, operand in described.items() if operand.stream is not None)
        self.seed = seed
        self._arrays: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            operand = self.described[name]
            array = aligned_empty(operand.shape, operand.dtype)
            if operand.stream is not None:
                fill(array, operand.dtype, self.seed, operand.stream)
            self._arrays[name] = array
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.described)

    def __len__(self) -> int:
        return len(self.described)


def fill(array: Array, dtype: str, seed: int, stream: int) -> None:
    """Fill a contiguous array in `dtype`'s storage with normal values of deviation 1, int8's `INT8_DEVIATION`."""
    flat = array.reshape(-1)
    generator = np.random.Philox(key=(seed & _LOW_WORD) | (stream << 64))
    table = values_of(dtype)
    for begin in range(0, flat.size, _BLOCK):
        part = flat[begin : begin + _BLOCK]
        words = generator.random_raw(-(-part.size // _INDICES_IN_A_WORD))
        indices = words.astype("<u8", copy=False).view("<u2")[: part.size]
        # An index of 16 bits never leaves the table: "wrap" spares the check and a copy that "raise" makes.
        np.take(table, indices, out=part, mode="wrap")


def fill_on_device(gpu: CudaDevice, address: int, operand: Operand, seed: int) -> None:
    """Fill an operand in a device's memory as `fill` does in the host's; returns when the device is done."""
    assert operand.stream is not None
    kernel, table = _device_filler(gpu, operand.dtype)
    blocks = min(_MOST_BLOCKS, -(-operand.count // (_THREADS * _INDICES_IN_A_WORD**2)))
    numbers = (address, table.address, operand.count, seed & _LOW_WORD, operand.stream)
    arguments = [np.uint64(each) for each in numbers]
    gpu.native.Launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), arguments).run()
    gpu.context.synchronize()


@functools.cache
def values_of(dtype: str) -> Array:
    """The 65,536 values that inputs of a dtype have, in its storage: quantiles of the normal distribution, rounded."""
    values = _quantiles() * np.float32(INT8_DEVIATION if dtype == "int8" else 1)
    return round_to(values, dtype)


@functools.cache
def _quantiles() -> NDArray[np.float32]:
    """Quantiles at the middles of 65,536 equal parts, in ascending order; those of the lower half mirrored."""
    half = 1 << (_INDEX_BITS - 1)
    places = 0.5 + (np.arange(half) + 0.5) / (2 * half)
    upper = np.array([*map(statistics.NormalDist().inv_cdf, places.tolist())], dtype=np.float32)
    return np.concatenate((-upper[::-1], upper))


def _device_filler(gpu: CudaDevice, dtype: str) -> tuple[Any, Any]:
    fillers = _fillers.setdefault(gpu, {})
    if dtype not in fillers:
        source, headers = sources("fill.cu", ("fill.cuh",))
        cubin = gpu.compile("fill.cu", source, headers, ("--std=c++17",))
        values = values_of(dtype)
        table = gpu.native.DeviceMemory(gpu.context, values.nbytes)
        table.write(values)
        fillers[dtype] = gpu.kernel(cubin, f"pyperf_fill_{8 * values.itemsize}"), table
    return fillers[dtype]
