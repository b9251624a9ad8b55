"""Inputs are normal, the same bit for bit from numpy and from the kernel that fills a GPU's memory."""

from __future__ import annotations

import itertools
import math
import os
import shlex
import shutil
import statistics
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pyperf_suite.kernels import nvrtc
from pyperf_suite.workloads.operands import (
    INT8_DEVIATION,
    Operand,
    Operands,
    aligned_empty,
    element_type,
    fill,
    values_of,
    widen,
)

CUDA = Path(nvrtc.__file__).parent / "cuda"
DTYPES = ("float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "int8")

# A host program of fill.cu, a part at a time: fill.cuh is its arithmetic.
PROGRAM = """
#include "fill.cuh"
#include <cstdint>
template <class Element> void fill(void* out, const void* table, unsigned long long count,
                                   unsigned long long low, unsigned long long high) {
    for (unsigned long long part = (count + 15) / 16; part-- > 0;)
        pyperf::fill_part(static_cast<Element*>(out), static_cast<const Element*>(table), count, low, high, part);
}
extern "C" void fill_8(void* o, const void* t, unsigned long long c, unsigned long long l, unsigned long long h) {
    fill<std::uint8_t>(o, t, c, l, h);
}
extern "C" void fill_16(void* o, const void* t, unsigned long long c, unsigned long long l, unsigned long long h) {
    fill<std::uint16_t>(o, t, c, l, h);
}
extern "C" void fill_32(void* o, const void* t, unsigned long long c, unsigned long long l, unsigned long long h) {
    fill<std::uint32_t>(o, t, c, l, h);
}
"""


@pytest.fixture(scope="module")
def kernel_on_host(tmp_path_factory: pytest.TempPathFactory):
    """fill.cuh as a library of the host."""
    import ctypes

    command = next(
        (c for c in (os.environ.get("CXX"), "c++", "g++", "clang++") if c and shutil.which(c.split()[0])), ""
    )
    if not command:
        pytest.skip("a C++ compiler is needed to run the kernel on the host: install g++ or name one in CXX")
    folder = tmp_path_factory.mktemp("fill")
    (folder / "fill.cpp").write_text(PROGRAM)
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", str(CUDA)]
    subprocess.run([*shlex.split(command), *flags, "fill.cpp", "-o", "fill.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "fill.so"))

    def filled(operand: Operand, seed: int) -> np.ndarray:
        out, table = aligned_empty(operand.shape, operand.dtype), values_of(operand.dtype)
        function = getattr(library, f"fill_{8 * element_type(operand.dtype).size_bytes}")
        values = (operand.count, seed % 2**64, operand.stream)
        function(ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(table.ctypes.data), *map(ctypes.c_ulonglong, values))
        return out

    return filled


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "seed"), [(1, 0), (15, 1), (16, 2**64 - 1), (17, 3), (70_001, 12345)])
def test_the_kernels_arithmetic_gives_the_values_of_numpy_bit_for_bit(kernel_on_host, dtype, count, seed):
    operand = Operand((count,), dtype, stream=count % 3)
    on_host = Operands({"a": operand}, seed)["a"]
    assert on_host.tobytes() == kernel_on_host(operand, seed).tobytes()


def test_the_fill_kernel_compiles_for_every_architecture_without_spills():
    source, header = ((CUDA / name).read_text() for name in ("fill.cu", "fill.cuh"))
    for architecture in ("sm_80", "sm_90a"):
        try:
            compiled = nvrtc.compile_cubin(
                "fill.cu", source, {"fill.cuh": header}, architecture, ["--std=c++17", "--ptxas-options=-v"]
            )
        except nvrtc.NoCompiler as reason:
            pytest.skip(str(reason))
        assert compiled.cubin
        assert compiled.log.count("0 bytes spill stores, 0 bytes spill loads") == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_normal(dtype):
    array = aligned_empty((1 << 20,), dtype)
    fill(array, dtype, seed=5, stream=0)
    values = widen(array, dtype).astype(np.float64) / (INT8_DEVIATION if dtype == "int8" else 1)
    error = 1 / math.sqrt(values.size)
    assert abs(values.mean()) < 5 * error
    # Rounding to a grid of spacing h adds h²/12: e4m3's is an eighth of the value, int8's a deviation / 32.
    assert values.var() == pytest.approx(1, abs=5 * math.sqrt(2) * error + 2e-3)
    if dtype == "float32":
        assert (values**3).mean() == pytest.approx(0, abs=5 * math.sqrt(15) * error)
        assert (values**4).mean() == pytest.approx(3, abs=5 * math.sqrt(96) * error + 1e-2)
        found = np.sort(values)
        expected = np.array([statistics.NormalDist().cdf(value) for value in found[:: 1 << 10]])
        ranks = np.arange(0, found.size, 1 << 10) / found.size
        assert np.abs(expected - ranks).max() < 1.63 * error  # Kolmogorov-Smirnov at 1 %


def test_neighbours_streams_and_seeds_are_uncorrelated():
    size = 1 << 18
    drawn = []
    for seed, stream in itertools.product((0, 1), (0, 1)):
        array = aligned_empty((size,), "float32")
        fill(array, "float32", seed, stream)
        drawn.append(array.astype(np.float64))
    for left, right in itertools.combinations(drawn, 2):
        assert abs(left @ right) / size < 5 / math.sqrt(size)
    for lag in (1, 2, 3, 4, 16, 4096):
        assert abs(drawn[0][lag:] @ drawn[0][:-lag]) / size < 5 / math.sqrt(size)
