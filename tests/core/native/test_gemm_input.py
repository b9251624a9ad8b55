"""What the CPU GEMM refuses: each refusal is one sentence that names the value and says what can be had."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest


def arguments(native: ModuleType, **changes: object) -> dict:
    """A valid set of constructor arguments, with some of them changed."""
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
def test_a_product_that_cannot_be_computed_is_refused_in_one_sentence(
    native: ModuleType, changes: dict, words: str
) -> None:
    if changes.get("schedule") == "split_k" and "splits" not in changes:
        changes = {**changes, "splits": 2}
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        native.Gemm(**arguments(native, **changes))
    assert str(refusal.value).find(". ") == -1
    assert str(refusal.value).endswith(".")


def test_check_tile_names_a_tile_that_can_be_computed(native: ModuleType) -> None:
    for isa in native.isas():
        columns = native.micro_tile(isa)[1]
        with pytest.raises(ValueError, match="the nearest tile that can is") as refusal:
            native.check_tile(128, 3 * columns + 1, 0, isa=isa)
        nearest = str(refusal.value).rsplit(" ", 1)[1].rstrip(".")
        assert nearest == f"128x{3 * columns}x1"
        native.check_tile(*(int(side) for side in nearest.split("x")), isa=isa)


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
def test_operands_that_do_not_fit_are_refused_before_anything_is_written(
    native: ModuleType, transposed: tuple[bool, bool], changes: dict, words: str
) -> None:
    memory = np.zeros(1000, np.float32)
    options = arguments(native, m=10, n=20, k=30, a_transposed=transposed[0], b_transposed=transposed[1])
    address = memory.ctypes.data
    call = {"a": address, "lda": 30, "b": address, "ldb": 30, "c": address, "ldc": 20}
    with pytest.raises(ValueError, match=words):
        native.Gemm(**options).run(**{**call, **changes})
    assert (memory == 0).all()


def test_a_gemm_reports_what_it_uses(native: ModuleType) -> None:
    for isa in native.isas():
        gemm = native.Gemm(**arguments(native, isa=isa, tile=(64, native.micro_tile(isa)[1], 64), pin=False))
        assert (gemm.isa, gemm.micro_tile, gemm.workers) == (isa, native.micro_tile(isa), 1)
        assert gemm.workspace_bytes > 0
        assert gemm.pinned is False


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no processor affinity")
def test_the_callers_affinity_is_the_same_after_a_run(native: ModuleType) -> None:
    before = os.sched_getaffinity(0)
    memory = np.zeros((64, 64), np.float32)
    gemm = native.Gemm(**arguments(native))
    gemm.run(memory.ctypes.data, 64, memory.ctypes.data, 64, memory.ctypes.data, 64)
    assert gemm.pinned
    assert os.sched_getaffinity(0) == before


def test_a_process_that_used_the_threads_exits_cleanly_and_its_forked_child_can_multiply(
    native: ModuleType,
) -> None:
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
