"""Operands of a case: described first, and made where they are needed, in the host's memory or in a device's.

Values come from one counter-based generator, Philox4x64-10, which numpy and `kernels/cuda/fill.cu` compute bit for bit
alike: each of its words gives four indices of 16 bits into a table of normal quantiles, rounded to the dtype.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.workloads.backends import CudaDevice
from pyperf_suite.workloads.dtypes import aligned_empty, element_type, round_to

Array = NDArray[Any]

# Four deviations then reach the ends of the range, where what lies beyond is cut off.
INT8_DEVIATION = 32

_INDEX_BITS = 16
_INDICES_IN_A_WORD = 4
_WORD_BITS = 64

# Indices looked up at a time: they and what they find stay in a core's cache.
_BLOCK = 1 << 16

_THREADS = 256
_MOST_BLOCKS = 1 << 16


@dataclass(frozen=True)
class Operand:
    """One operand: its shape as stored, its element type, and the stream of its values; None for an output."""

    shape: tuple[int, ...]
    dtype: str
    stream: int | None = None

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes as stored."""
        return self.count * element_type(self.dtype).size_bytes


class Operands(Mapping[str, Array]):
    """Operands by name, in storage form (see dtypes), each made in the host's memory when it is first asked for.

    Whoever computes on a GPU asks `described` and fills the device's memory by `fill_on_device` instead.
    """

    def __init__(self, described: Mapping[str, Operand], seed: int) -> None:
        self.described = dict(described)
        self.seed = seed
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._made:
            operand = self.described[name]
            array = aligned_empty(operand.shape, operand.dtype)
            if operand.stream is not None:
                fill(array, operand.dtype, self.seed, operand.stream)
            self._made[name] = array
        return self._made[name]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of those that launches read."""
        return tuple(name for name, operand in self.described.items() if operand.stream is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.described)

    def __len__(self) -> int:
        return len(self.described)


def fill(array: Array, dtype: str, seed: int, stream: int) -> None:
    """Fill a contiguous array in `dtype`'s storage with normal values, of deviation 1, and of int8 `INT8_DEVIATION`.

    So are values of quantised weights, which use the range of int8.
    """
    flat = array.reshape(-1)
    generator = np.random.Philox(key=_key(seed, stream))
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
    key = _key(seed, operand.stream)
    blocks = min(_MOST_BLOCKS, -(-operand.count // (_THREADS * _INDICES_IN_A_WORD**2)))
    low, high = key & ((1 << _WORD_BITS) - 1), key >> _WORD_BITS
    arguments = [np.uint64(each) for each in (address, table.address, operand.count, low, high)]
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
    quantile = statistics.NormalDist().inv_cdf
    upper = np.array([quantile(0.5 + (at + 0.5) / (2 * half)) for at in range(half)], dtype=np.float32)
    return np.concatenate((-upper[::-1], upper))


def _key(seed: int, stream: int) -> int:
    """Philox's key of 128 bits: the seed's 64, and the operand's stream."""
    return (seed & ((1 << _WORD_BITS) - 1)) | (stream << _WORD_BITS)


# The kernel that fills elements of a dtype, and its table in the device's memory, as long as the device is held.
_fillers: WeakKeyDictionary[CudaDevice, dict[str, tuple[Any, Any]]] = WeakKeyDictionary()


def _device_filler(gpu: CudaDevice, dtype: str) -> tuple[Any, Any]:
    fillers = _fillers.setdefault(gpu, {})
    if dtype not in fillers:
        folder = files("pyperf_suite.kernels") / "cuda"
        source, header = ((folder / name).read_text("utf-8") for name in ("fill.cu", "fill.cuh"))
        cubin = gpu.compile("fill.cu", source, {"fill.cuh": header}, ("--std=c++17",))
        values = values_of(dtype)
        table = gpu.native.DeviceMemory(gpu.context, values.nbytes)
        table.write(values)
        fillers[dtype] = gpu.kernel(cubin, f"pyperf_fill_{8 * values.itemsize}"), table
    return fillers[dtype]
