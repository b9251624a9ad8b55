"""gemm_sm90.cu's own text, run on the host against an emulation of its PTX: every index, barrier and flag, bit by bit.

Operands are small integers, so that sums are exact in fp32 and results must be equal, not close.
"""

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyperf_suite.kernels import gemm_sm90
from pyperf_suite.kernels.gemm_sm90 import Specialisation, specialise
from pyperf_suite.kernels.schedule import Schedule
from pyperf_suite.workloads.operands import round_to

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# All that a specialisation varies in, in tiles that are small enough to emulate.
SPECIALISATIONS = (
    specialise(64, 64, stages=3, store_buffers=2),
    specialise(64, 16, k=32, stages=2, a_transposed=True, b_transposed=False, out_type="fp32"),
    specialise(64, 72, stages=2, in_type="fp16", out_type="fp16", b_transposed=False),
    specialise(64, 96, stages=3, in_type="fp16", b_transposed=False, cluster_m=2, shared_tiles=True),
    specialise(64, 48, stages=2, in_type="e4m3", out_type="fp32", store_buffers=3, shared_tiles=True),
    specialise(64, 32, k=64, stages=4, in_type="e4m3", cluster_n=2, store_buffers=1),
    specialise(64, 48, stages=2, in_type="e4m3", cluster_m=2, shared_tiles=True),
    specialise(64, 72, stages=3, b_transposed=False, cluster_m=2),
    specialise(128, 64, stages=3, consumers=1, a_transposed=True, shared_tiles=True),
    specialise(128, 128, stages=2, cluster_m=2, store_buffers=2, shared_tiles=True),
    specialise(128, 40, stages=2, a_transposed=True, b_transposed=False, cluster_n=2, out_type="fp32"),
    specialise(192, 24, k=32, stages=2),
    specialise(256, 64, stages=2, a_transposed=True, cluster_n=2, shared_tiles=True),
)
# One element; tile edges: one row past tiles, a column short of them, one step of one element; long.
PROBLEMS = ((1, 1, 1), (129, 127, 193), (64, 64, 577))


@pytest.fixture(scope="module")
def program(emulation: Callable[..., Path]) -> Callable[[Specialisation], Path]:
    """The program that runs a specialisation."""
    source, headers = gemm_sm90.sources()
    texts = {gemm_sm90.SOURCE: source, **headers, "wgmma.cuh": "#pragma once\n"}
    texts["ptx.cuh"] = (HERE / "emulated_ptx_sm90.cuh").read_text()
    texts["emulated_kernel.h"] = (HERE.parent / "gpu_double" / "emulated_kernel.h").read_text()
    texts["emulated_grid_sm90.h"] = (HERE / "emulated_grid_sm90.h").read_text()
    texts["launch.cpp"] = (HERE / "emulated_launch_sm90.cpp").read_text()
    return functools.cache(
        lambda specialisation: emulation("launch.cpp", texts, *(o for o in specialisation.options() if o[:2] == "-D"))
    )


def encode(values: NDArray[np.float64], kind: str) -> NDArray[np.generic]:
    """The values, exact in `kind`, as its bits; results are rounded to nearest even."""
    if kind == "fp32":
        return values.astype(np.float32)
    if kind == "fp16":
        return values.astype(np.float16)
    single = np.ascontiguousarray(values, np.float32)
    if kind == "bf16":
        return round_to(single, "bfloat16")
    words = single.view(np.uint32)
    # e4m3 from fp32: 3 bits of the fraction stay, and the exponent's bias is 7 instead of 127.
    small = (words >> 20 & 0x7FF) - (120 << 3)
    return np.where(values == 0, 0, (words >> 24 & 0x80) | small & 0x7F).astype(np.uint8)


def stored(matrix: NDArray[np.generic], leading_dimension: int) -> NDArray[np.generic]:
    """The matrix in rows of the leading dimension, the padding all ones: not a number."""
    rows, columns = matrix.shape
    padded = np.empty((rows, leading_dimension), matrix.dtype)
    padded.view(np.uint8)[:] = 0xFF
    padded[:, :columns] = matrix
    return padded


def aligned(columns: int, element_bytes: int) -> int:
    """The smallest leading dimension that TMA takes."""
    step = 16 // element_bytes
    return -(-columns // step) * step


def check_product(
    launch: Path,
    specialisation: Specialisation,
    sizes: tuple[int, int, int],
    schedule: Schedule,
    resident: int,
    seed: int,
) -> None:
    """Launch twice; C must be exact, its padding untouched but for whole 16 bytes of a row, the flags zero."""
    m, n, k = sizes
    generator = np.random.default_rng(seed)
    a, b = (generator.integers(-4, 5, shape).astype(np.float64) for shape in ((m, k), (k, n)))
    c = a @ b
    kinds = (specialisation.in_type, specialisation.in_type, specialisation.out_type)
    logical = (a.T if specialisation.a_transposed else a, b.T if specialisation.b_transposed else b, c)
    words = [encode(matrix, kind) for matrix, kind in zip(logical, kinds, strict=True)]
    leading = [aligned(word.shape[1], word.itemsize) + 16 for word in words]
    buffers = [stored(word, ld) for word, ld in zip(words, leading, strict=True)]
    right = buffers[2].copy()
    right[:, n : aligned(n, right.itemsize)] = 0
    expected = right.tobytes()
    maps = specialisation.tensor_maps(0, 0, 0, (leading[0], leading[1], leading[2]), sizes)
    arguments = [buffer.nbytes for buffer in buffers]
    for word, a_map in zip(words, maps, strict=True):
        arguments += [word.itemsize, *a_map.shape, a_map.stride_bytes, *a_map.box, a_map.swizzle_bytes]
    arguments += [*np.frombuffer(schedule.packed(), np.int32), specialisation.smem_bytes, resident, 2, seed]
    buffers[2].view(np.uint8)[:] = 0xFF
    done = subprocess.run(
        [launch, *map(str, arguments)],
        input=b"".join(buffer.tobytes() for buffer in buffers),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    size = len(expected)
    for first in (0, size):
        left = np.frombuffer(done.stdout[first : first + size], buffers[2].dtype).reshape(buffers[2].shape)
        wanted = np.frombuffer(expected, buffers[2].dtype).reshape(buffers[2].shape)
        wrong = np.argwhere(left.view(f"u{left.itemsize}") != wanted.view(f"u{left.itemsize}"))
        assert len(wrong) == 0, f"{len(wrong)} elements differ, the first at {wrong[0]}"
    flags = np.frombuffer(done.stdout[2 * size :], np.int32)
    assert flags.nbytes == specialisation.flags_bytes(schedule)
    assert not flags.any()


def test_results_are_not_overwritten_by_the_next_tile_before_they_have_left(
    program,
):
    for specialisation in (SPECIALISATIONS[0], SPECIALISATIONS[2], SPECIALISATIONS[5]):  # 2, 4 and 1 store buffers
        sizes = (64, 64 * 12, 1)  # tiles so short that results of one are still on their way when the next is done
        schedule = specialisation.schedule(*sizes, "persistent", workers=1)
        check_product(program(specialisation), specialisation, sizes, schedule, resident=1, seed=4)


@pytest.mark.parametrize("specialisation", SPECIALISATIONS, ids=lambda one: one.name)
def test_products_of_odd_shapes_are_exact(program, specialisation):
    # Tile edges take 4 steps along K, which is more than two stages have.
    for problem in PROBLEMS if specialisation.stages > 2 else PROBLEMS[:2]:
        schedule = specialisation.schedule(*problem, "data_parallel", group=2)
        check_product(program(specialisation), specialisation, problem, schedule, resident=2, seed=1)


SCHEDULES = {
    "persistent": {"policy": "persistent", "workers": 3, "group": 2},
    "split in 3": {"policy": "split_k", "splits": 3},
    "streamed, less than a wave": {"policy": "stream_k", "workers": 7},
    "streamed, waves and a rest": {"policy": "stream_k", "workers": 2, "group": 3},
}


SHARED = [one for one in SPECIALISATIONS if one.shared_tiles]


# Each schedule three times; splits and streams go through the same sums, whatever the tile.
@pytest.mark.parametrize(
    ("specialisation", "schedule"),
    [(one, list(SCHEDULES)[(number + more) % 4]) for number, one in enumerate(SHARED) for more in (0, 2)],
)
def test_every_schedule_gives_the_same_product_and_leaves_its_flags_zero(program, specialisation, schedule):
    sizes = (2 * specialisation.m * specialisation.cluster_m - 5, specialisation.n * specialisation.cluster_n + 9, 262)
    chosen = specialisation.schedule(*sizes, **SCHEDULES[schedule])
    check_product(program(specialisation), specialisation, sizes, chosen, resident=3, seed=2)
