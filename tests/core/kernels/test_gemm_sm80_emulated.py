"""gemm_sm80.cu's own text, run on the host against an emulation of its PTX: every index, copy, barrier and flag."""

import functools
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyperf_suite.kernels import gemm_sm80
from pyperf_suite.kernels.gemm_sm80 import Specialisation, default_set, in_layout, specialise
from pyperf_suite.kernels.schedule import Schedule
from pyperf_suite.workloads.operands import round_to, widen

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# The sanitizer sees misaligned and overflowing arithmetic that the emulation does not.
SANITIZERS = ("-fsanitize=undefined", "-fno-sanitize-recover=all")
ORDERS = {"forward": 0, "backward": 1, "random": 2}


# Largest relative norm of the error against float64. The operands are exact, so that rounding the result is most of it:
# half a unit of 8, 11 and 24 bits, and fp32 sums of up to 200 products.
TOLERANCE = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-22}
SCHEDULES = (("data_parallel", 1, 1, 2), ("persistent", 1, 3, 1), ("split_k", 3, 1, 1), ("stream_k", 1, 3, 1))
LAYOUTS = ("TN", "NN", "NT", "TT")


@pytest.fixture(scope="session")
def build(emulation: Callable[..., Path]) -> Callable[..., Path]:
    """The program that runs a specialisation; a `fault` is a text of the kernel and what to put instead."""
    source, headers = gemm_sm80.sources()
    texts = {gemm_sm80.SOURCE: source, **headers}
    emulated = {
        "ptx_sm80.cuh": (HERE / "emulated_ptx_sm80.cuh").read_text(),
        "emulated_kernel.h": (HERE.parent / "gpu_double" / "emulated_kernel.h").read_text(),
        "emulated_grid_sm80.h": (HERE / "emulated_grid_sm80.h").read_text(),
        "launch.cpp": (HERE / "emulated_launch_sm80.cpp").read_text(),
    }

    @functools.cache
    def program(specialisation: Specialisation, fault: tuple[str, str] = ("", "")) -> Path:
        right, wrong = fault
        assert any(right in text for text in texts.values()), f"the kernel has no {right!r} to put wrong"
        put_wrong = {name: text.replace(right, wrong) if right else text for name, text in texts.items()}
        put_wrong |= emulated
        macros = (option for option in specialisation.options() if option.startswith("-D"))
        return emulation("launch.cpp", put_wrong, *SANITIZERS, *macros)

    return program


@dataclass(frozen=True)
class Operands:
    """Logical A [M,K] and B [K,N] in float64, and how they lie: leading dimensions and byte offsets from a boundary."""

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    leading_dimensions: tuple[int, int, int]
    offsets: tuple[int, int, int] = (0, 0, 0)


def random_operands(
    specialisation: Specialisation,
    sizes: tuple[int, int, int],
    padding: tuple[int, int, int] = (0, 0, 0),
    offsets: tuple[int, int, int] = (0, 0, 0),
    seed: int = 0,
) -> Operands:
    """Standard normal operands rounded to the input type; their rows have `padding` elements to spare."""
    m, n, k = sizes
    generator = np.random.default_rng(seed)
    a, b = (
        decode(encode(generator.standard_normal(shape), specialisation.in_type), specialisation.in_type)
        for shape in ((m, k), (k, n))
    )
    rows = (m if specialisation.a_transposed else k, k if specialisation.b_transposed else n, n)
    lda, ldb, ldc = (row + more for row, more in zip(rows, padding, strict=True))
    return Operands(a, b, (lda, ldb, ldc), offsets)


def run(
    program: Path,
    specialisation: Specialisation,
    operands: Operands,
    schedule: Schedule,
    order: str = "random",
    copies_arrive_late: bool = True,
) -> NDArray[np.float64]:
    """C as the kernel leaves it. Raises AssertionError with what the emulation refused, or a write outside of C."""
    m, k = operands.a.shape
    n = operands.b.shape[1]
    lda, ldb, ldc = operands.leading_dimensions
    a = stored(operands.a.T if specialisation.a_transposed else operands.a, lda, specialisation.in_type)
    b = stored(operands.b.T if specialisation.b_transposed else operands.b, ldb, specialisation.in_type)
    c_type = np.dtype(np.uint32 if specialisation.out_type == "fp32" else np.uint16)
    poison = np.array([0xA5A5A5A5], np.uint32).view(c_type)[0]
    c = np.full((m - 1) * ldc + n, poison, c_type)
    arguments = [
        *(a.nbytes, b.nbytes, c.nbytes, *operands.offsets, lda, ldb, ldc, m, n, k),
        *np.frombuffer(schedule.packed(), np.int32),
        *(specialisation.smem_bytes, ORDERS[order], int(copies_arrive_late)),
    ]
    done = subprocess.run(
        [program, *map(str, arguments)], input=a.tobytes() + b.tobytes() + c.tobytes(), capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    left = np.frombuffer(done.stdout[: c.nbytes], c_type)
    flags = np.frombuffer(done.stdout[c.nbytes :], np.int32)
    assert len(flags) == schedule.shared_tiles
    assert not flags.any(), "a launch must leave its flags zero"
    rows = np.full(m * ldc, poison, c_type)
    rows[: left.size] = left
    rows = rows.reshape(m, ldc)
    assert (rows[:, n:] == poison).all(), "the padding between the rows of C was written to"
    return decode(rows[:, :n], specialisation.out_type)


def stored(matrix: NDArray[np.float64], leading_dimension: int, kind: str) -> NDArray[np.uint16]:
    """The matrix as 16-bit words in rows of the leading dimension, the padding not a number, the last row cut short."""
    rows, columns = matrix.shape
    words = np.full((rows, leading_dimension), 0xFFFF, np.uint16)
    words[:, :columns] = encode(matrix, kind)
    return words.reshape(-1)[: (rows - 1) * leading_dimension + columns]


def encode(values: NDArray[np.float64], kind: str) -> NDArray[np.uint16]:
    """Rounded to fp16 or bf16 (nearest, ties to even), as words."""
    if kind == "fp16":
        return values.astype(np.float16).view(np.uint16)
    return round_to(np.ascontiguousarray(values, np.float32), "bfloat16")


def decode(words: NDArray[np.generic], kind: str) -> NDArray[np.float64]:
    """Words of fp16, bf16 or fp32 as float64."""
    words = np.ascontiguousarray(words)
    if kind == "bf16":
        return widen(words, "bfloat16").astype(np.float64)
    return words.view(np.float16 if kind == "fp16" else np.float32).astype(np.float64)


def relative_error(result, operands):
    reference = operands.a @ operands.b
    return np.linalg.norm(result - reference) / np.linalg.norm(reference)


def aligned_to(access, specialisation, sizes):
    """Padding and offsets with which A, B and C can be accessed by `access` bytes and no more."""
    m, n, k = sizes
    rows = (m if specialisation.a_transposed else k, k if specialisation.b_transposed else n, n)
    bytes_of = (2, 2, specialisation.out_bytes)
    padding = tuple(-row % max(access // size, 1) for row, size in zip(rows, bytes_of, strict=True))
    offsets = tuple(max(access, size) % 16 for size in bytes_of)
    leading = tuple(row + more for row, more in zip(rows, padding, strict=True))
    return padding, offsets, leading


# Every pair of path and storage of A, and of path and storage of B; the other two layouts once each. Tiles alternate.
CASES = [
    (layout, access, *types, tile)
    for row, layout in enumerate(LAYOUTS)
    for (access, types), tile in zip(
        zip((16, 8, 4, 2), (("bf16", "fp32"), ("fp16", "bf16"), ("bf16", "fp16"), ("fp16", "fp32")), strict=True),
        ((64, 32, 32, 3), (32, 96, 64, 2)) * 2 if row % 2 else ((32, 96, 64, 2), (64, 32, 32, 3)) * 2,
        strict=True,
    )
    if layout in ("TN", "NT") or (layout, access) in (("NN", 8), ("TT", 2))
]


@pytest.mark.parametrize(("layout", "access", "in_type", "out_type", "tile"), CASES)
def test_every_layout_comes_out_right_on_every_path_under_every_schedule(
    build, layout, access, in_type, out_type, tile
):
    sizes = (130, 101, 147)
    a_transposed, b_transposed = layout[1] == "T", layout[0] == "T"
    plain = specialise(*tile, out_type=out_type, a_transposed=a_transposed, b_transposed=b_transposed)
    padding, offsets, leading = aligned_to(access, plain, sizes)
    instance = specialise(
        *tile,
        in_type=in_type,
        out_type=out_type,
        a_transposed=a_transposed,
        b_transposed=b_transposed,
        addresses=offsets,
        leading_dimensions=leading,
    )
    assert instance.path == {16: "16-byte", 8: "8-byte", 4: "4-byte", 2: "predicated"}[access]
    operands = random_operands(instance, sizes, padding, offsets)
    for number, (policy, splits, workers, group) in enumerate(SCHEDULES):
        schedule = instance.schedule(*sizes, policy, splits, workers, group)
        order = ("forward", "backward", "random")[number % 3]
        result = run(build(instance), instance, operands, schedule, order, number % 2 == 0)
        assert relative_error(result, operands) < TOLERANCE[out_type], policy


SMALL = specialise(64, 32, 32, 3, out_type="fp32")


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (1, 31, 8), (63, 1, 7), (64, 32, 32), (65, 33, 33), (127, 31, 97), (17, 67, 1)]
)
@pytest.mark.parametrize("late", [False, True], ids=["copies at once", "copies as late as may be"])
def test_shapes_that_break_things_come_out_right(build, sizes, late):
    padding, offsets, _ = aligned_to(16, SMALL, sizes)
    operands = random_operands(SMALL, sizes, padding, offsets)
    result = run(build(SMALL), SMALL, operands, SMALL.schedule(*sizes, "data_parallel"), "random", late)
    assert relative_error(result, operands) < TOLERANCE["fp32"]


@pytest.mark.parametrize(("policy", "splits", "workers"), [("split_k", 5, 1), ("stream_k", 1, 3), ("stream_k", 1, 8)])
def test_shared_tiles_come_out_with_the_same_bits_in_any_order_of_threads(build, policy, splits, workers):
    sizes = (100, 60, 168)
    padding, offsets, _ = aligned_to(16, SMALL, sizes)
    operands = random_operands(SMALL, sizes, padding, offsets)
    schedule = SMALL.schedule(*sizes, policy, splits, workers)
    assert schedule.shared_tiles > 0
    results = [run(build(SMALL), SMALL, operands, schedule, order, order == "random") for order in ORDERS]
    assert relative_error(results[0], operands) < TOLERANCE["fp32"]
    assert all((result == results[0]).all() for result in results)


@pytest.mark.parametrize("instance", [default_set()[2], in_layout(default_set()[5], "NT")], ids=lambda case: case.name)
def test_tiles_of_the_default_set_come_out_right(build, instance):
    sizes = (instance.m + 8, instance.n - 8, 3 * instance.k + 8)
    operands = random_operands(instance, sizes)
    result = run(build(instance), instance, operands, instance.schedule(*sizes, "data_parallel"))
    assert relative_error(result, operands) < TOLERANCE["bf16"]


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("__syncthreads();\n                reading =", "reading =", ""),
        ("cp_async_wait_group<spec.stages - 2>", "cp_async_wait_group<spec.stages - 1>", ""),
        ("row / rows_sharing % group", "0 * row / rows_sharing % group", "reads rows that share banks"),
        ("row < rows_left ? elements_left", "row <= rows_left ? elements_left", "outside"),
        (
            "source_ += tile.depth_contiguous ? tile.depth",
            "source_ += tile.depth_contiguous ? 2 * tile.depth",
            "outside",
        ),
        ("if (segment.k_begin > 0) shared_tile.reset();", "", "flags"),
        ("ld_acquire_gpu(flags_ + slot_) != k_begin", "ld_acquire_gpu(flags_ + slot_) <= k_begin", "has not started"),
    ],
)
def test_the_emulation_sees_a_fault_put_into_the_kernel(build, right, wrong, message):
    program = build(SMALL, (right, wrong))
    sizes = (100, 60, 168)
    operands = random_operands(SMALL, sizes, (0, 0, 4))
    schedule = SMALL.schedule(*sizes, "split_k", 3)
    if message:
        with pytest.raises(AssertionError, match=message):
            run(program, SMALL, operands, schedule)
    else:
        assert np.isnan(run(program, SMALL, operands, schedule)).any()
