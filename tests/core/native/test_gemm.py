import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pyperf_suite.workloads.operands import element_type, not_a_number, round_to, widen

RESULTS = {"float32": ("float32", "bfloat16"), "bfloat16": ("float32", "bfloat16")}
SCHEDULES = ("data_parallel", "persistent", "split_k", "stream_k")
CANARY = np.uint16(0x4321)

# Per element: |out − ref| ≤ limit · (|A|·|B|). fp32 sums of the few hundred terms here stay far below 1e-5
# (γ_k ≈ k · 2⁻²⁴, and rounding errors do not all add up); a bfloat16 result is rounded once more, to 8 bits.
LIMIT = {"float32": 1e-5, "bfloat16": 2.0**-8}


@dataclass
class Product:
    """One product: operands stored with padded rows, and C poisoned with NaN inside a frame of canaries."""

    m: int
    n: int
    k: int
    dtype: str = "float32"
    out_dtype: str = "float32"
    a_transposed: bool = False
    b_transposed: bool = False
    padding: int = 0
    seed: int = 0
    options: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.a, self.a_values = self._operand(random, self.m, self.k, self.a_transposed)
        self.b, self.b_values = self._operand(random, self.k, self.n, self.b_transposed)
        self.c = np.empty((self.m + 2, self.n + self.padding), element_type(self.out_dtype).storage)

    def _operand(self, random: np.random.Generator, rows: int, columns: int, transposed: bool) -> tuple:
        shape = (columns, rows) if transposed else (rows, columns)
        stored = random.standard_normal((shape[0], shape[1] + self.padding)).astype(np.float32)
        stored = round_to(stored, self.dtype)
        values = widen(stored, self.dtype)
        values = values[:, : shape[1]].astype(np.float64)
        # The padding's values must never be read into a sum.
        stored[:, shape[1] :] = not_a_number(self.dtype)
        return stored, values.T if transposed else values

    def gemm(self, native: ModuleType) -> Any:
        return native.Gemm(
            self.m, self.n, self.k, self.dtype, self.out_dtype, self.a_transposed, self.b_transposed, **self.options
        )

    def run(self, gemm: Any) -> np.ndarray:
        """The result as stored; checks that nothing outside of C was touched."""
        self.c.view(np.uint16)[:] = CANARY
        inside = self.c[1:-1, : self.n]
        inside[:] = not_a_number(self.out_dtype)
        first = self.c[1:].ctypes.data
        lda, ldb, ldc = self.a.shape[1], self.b.shape[1], self.c.shape[1]
        gemm.run(self.a.ctypes.data, lda, self.b.ctypes.data, ldb, first, ldc)
        frame = np.ones(self.c.shape, bool)
        frame[1:-1, : self.n] = False
        outside = np.ascontiguousarray(self.c[frame]).view(np.uint16)
        assert (outside == CANARY).all(), "memory outside of C was written"
        return inside.copy()

    def assert_right(self, result: np.ndarray) -> None:
        values = widen(result, self.out_dtype)
        reference = self.a_values @ self.b_values
        limit = LIMIT[self.out_dtype] * (np.abs(self.a_values) @ np.abs(self.b_values))
        error = np.abs(values - reference)
        assert np.isfinite(values).all()
        assert (error <= limit).all(), f"worst at {np.unravel_index((error - limit).argmax(), error.shape)}"

    def check(self, native: ModuleType) -> None:
        self.assert_right(self.run(self.gemm(native)))


def workers_here(native: ModuleType) -> int:
    try:
        native.Gemm(1, 1, 1, tile=(1, native.micro_tile(native.isas()[0])[1], 1), workers=2)
    except ValueError:
        return 1
    return 2


def at_once(*jobs: Callable[[], None]) -> None:
    """Does all of them at once, each in a thread. Raises what one of them raises."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        for done in [threads.submit(job) for job in jobs]:
            done.result()


@pytest.mark.parametrize("layout", ["NN", "TN", "NT", "TT"])
@pytest.mark.parametrize("dtype", RESULTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_product_with_edges_on_every_side_is_right(native, isa, layout, dtype, schedule):
    columns = native.micro_tile(isa)[1]
    options: dict[str, Any] = {"isa": isa, "tile": (24, 2 * columns, 20), "schedule": schedule}
    options |= {"workers": workers_here(native), "splits": 3 if schedule == "split_k" else 1}
    for out_dtype in RESULTS[dtype]:
        Product(
            m=61,
            n=4 * columns + 7,
            k=97,
            dtype=dtype,
            out_dtype=out_dtype,
            a_transposed=layout[1] == "T",
            b_transposed=layout[0] == "T",
            padding=3,
            options=options,
        ).check(native)


@pytest.mark.parametrize("dtype", RESULTS)
@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
def test_sizes_around_the_tile_one_and_primes_are_right(native, isa, dtype, a_transposed, b_transposed):
    columns = native.micro_tile(isa)[1]
    tile = (16, columns, 16)
    how = {"dtype": dtype, "out_dtype": RESULTS[dtype][0], "a_transposed": a_transposed, "b_transposed": b_transposed}
    for m in (1, 15, 16, 17):
        for n in (1, columns - 1, columns, columns + 1):
            for k in (1, 13, 16, 17):
                Product(m, n, k, **how, options={"isa": isa, "tile": tile}).check(native)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16"])
def test_repeated_runs_agree_to_the_last_bit(native, schedule, out_dtype):
    columns = native.micro_tile(native.isas()[0])[1]
    options = {"tile": (16, columns, 8), "schedule": schedule, "workers": workers_here(native)}
    options["splits"] = 5 if schedule == "split_k" else 1
    product = Product(100, 3 * columns, 203, out_dtype=out_dtype, options=options)
    gemm = product.gemm(native)
    first = product.run(gemm)
    for _ in range(30):
        assert (product.run(gemm) == first).all()


def test_a_bfloat16_result_is_rounded_to_nearest_even_and_keeps_nan_and_infinity(native, isa):
    columns = native.micro_tile(isa)[1]
    special = [1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, np.inf, -np.inf, np.nan, 3.3e38, 1e-40]
    values = np.array(special, np.float32)
    one = np.ones((1, 1), np.float32)
    out = np.zeros((1, values.size), np.uint16)
    gemm = native.Gemm(1, values.size, 1, "float32", "bfloat16", tile=(1, columns, 1), isa=isa)
    gemm.run(one.ctypes.data, 1, values.ctypes.data, values.size, out.ctypes.data, values.size)
    rounded = widen(out, "bfloat16")[0]
    assert rounded[:4].tolist() == [1.0, 1.0, 1 + 2**-6, -1.0]
    assert rounded[4:6].tolist() == [np.inf, -np.inf]
    assert np.isnan(rounded[6])
    assert (out[0, 7:] == round_to(values[7:], "bfloat16")).all()


@pytest.mark.slow
def test_two_python_threads_may_multiply_at_once_on_one_object_and_on_two(native):
    columns = native.micro_tile(native.isas()[0])[1]
    workers = workers_here(native)
    options = {"tile": (32, columns, 32), "schedule": "stream_k", "workers": workers}
    products = [Product(97, 3 * columns, 130, seed=seed, options=options) for seed in range(4)]
    shared = products[0].gemm(native)
    gemms = [shared, shared, products[2].gemm(native), products[3].gemm(native)]

    def multiply(product, gemm):
        for _ in range(25):
            product.assert_right(product.run(gemm))

    at_once(*(partial(multiply, *pair) for pair in zip(products, gemms, strict=True)))


def test_the_default_tile_can_be_computed_and_gives_every_worker_a_tile(native, isa):
    shapes = [(1, 1, 1), (7, 5000, 3), (256, 256, 256), (4096, 1024, 512), (3, 3, 100000), (50257, 768, 64)]
    for m, n, k in shapes:
        for workers in (1, 2, 3, 8):
            tile = native.default_tile(m, n, k, "float32", workers, isa)
            native.check_tile(*tile, isa=isa)
            if m * n >= 128 * 128 * workers:
                assert -(-m // tile[0]) * -(-n // tile[1]) >= workers


def arguments(native: ModuleType, **changes: object) -> dict:
    columns = native.micro_tile(native.isas()[0])[1]
    return {"m": 64, "n": 64, "k": 64, "tile": (32, columns, 32), "workers": 1, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"m": 0}, "m = 0"),
        ({"n": -1}, "n = -1"),
        ({"k": 2**33}, "k = 8589934592"),
        ({"tile": (0, 64, 64)}, "Tile 0x64x64 cannot be computed"),
        ({"tile": (64, 33, 64)}, "n a multiple of"),
        ({"tile": (64, 64, 10**12)}, "the nearest tile that can is 64x64x"),
        ({"dtype": "int8"}, "'int8' is unknown: choose float32 or bfloat16"),
        ({"out_dtype": "int8"}, "out_dtype 'int8'"),
        ({"schedule": "magic"}, "Schedule 'magic'"),
        ({"schedule": "split_k", "splits": 3}, "between 1 and 2"),
        ({"splits": 2}, "split_k alone"),
        ({"workers": 0}, "workers = 0"),
        ({"workers": 4096}, "workers = 4096 is more than the cores"),
        ({"isa": "sse9"}, "'sse9' cannot be used here"),
        ({"m": 2**31 - 1, "n": 2**31 - 1, "out_dtype": "bfloat16", "schedule": "split_k"}, "GB"),
    ],
)
def test_a_product_that_cannot_be_computed_is_refused_in_one_sentence(native, changes, words):
    if changes.get("schedule") == "split_k" and "splits" not in changes:
        changes = {**changes, "splits": 2}
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        native.Gemm(**arguments(native, **changes))
    assert str(refusal.value).find(". ") == -1
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize(
    ("transposed", "changes", "words"),
    [
        ((False, False), {"lda": 29}, "lda = 29 is less than the row length of A as stored, 30"),
        ((True, False), {"lda": 9}, "lda = 9 is less than the row length of A as stored, 10"),
        ((False, False), {"ldb": 19}, "ldb = 19 is less than the row length of B as stored, 20"),
        ((False, True), {"ldb": 29}, "ldb = 29 is less than the row length of B as stored, 30"),
        ((False, False), {"ldc": 0}, "ldc = 0 is less than the row length of C as stored, 20"),
        ((False, False), {"lda": 2**62}, "lda = 4611686018427387904 is too large for 10 rows"),
        ((False, False), {"c": 0}, "C has address 0"),
    ],
)
def test_operands_that_do_not_fit_are_refused_before_anything_is_written(native, transposed, changes, words):
    memory = np.zeros(1000, np.float32)
    options = arguments(native, m=10, n=20, k=30, a_transposed=transposed[0], b_transposed=transposed[1])
    address = memory.ctypes.data
    call = {"a": address, "lda": 30, "b": address, "ldb": 30, "c": address, "ldc": 20}
    with pytest.raises(ValueError, match=words):
        native.Gemm(**options).run(**{**call, **changes})
    assert (memory == 0).all()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no processor affinity")
def test_the_callers_affinity_is_the_same_after_a_run(native):
    before = os.sched_getaffinity(0)
    memory = np.zeros((64, 64), np.float32)
    gemm = native.Gemm(**arguments(native))
    gemm.run(memory.ctypes.data, 64, memory.ctypes.data, 64, memory.ctypes.data, 64)
    assert gemm.pinned
    assert os.sched_getaffinity(0) == before


def test_a_process_that_used_the_threads_exits_cleanly_and_its_forked_child_can_multiply(native):
    program = """
import os, sys
import numpy as np
from pyperf_suite import _native as native
columns = native.micro_tile(native.isas()[0])[1]
ones = np.ones((64, 64), np.float32)
out = np.zeros((64, 64), np.float32)
try:
    gemm = native.Gemm(64, 64, 64, tile=(16, columns, 16), workers=2)
except ValueError:
    gemm = native.Gemm(64, 64, 64, tile=(16, columns, 16), workers=1)
def multiply():
    out[:] = 0
    gemm.run(ones.ctypes.data, 64, ones.ctypes.data, 64, out.ctypes.data, 64)
    return bool((out == 64).all())
assert multiply()
if hasattr(os, "fork"):
    child = os.fork()
    if child == 0:
        os._exit(0 if multiply() else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert multiply()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
