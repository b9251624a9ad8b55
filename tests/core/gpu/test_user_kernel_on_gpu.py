import shutil
from pathlib import Path

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import QUICK
from pyperf_suite.user_kernels import declared, workload
from pyperf_suite.user_kernels.declared import parameters_of

pytestmark = pytest.mark.gpu

EXAMPLE = Path(__file__).parents[3] / "examples" / "your_kernel" / "bench_vector_add.py"

BENCH = """
import pyperf_suite as suite
import torch
import triton
import triton.language as tl

@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


def by_triton(x, y):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), 1024)
    return out


@suite.kernel(n=1 << 20)
def against_torch(n):
    return suite.launch({"triton": by_triton, "torch": torch.add}, suite.randn(n), suite.randn(n),
                        reference=lambda x, y: x.double() + y, bytes=12 * n)


@suite.kernel(n=1 << 16)
def in_place(n):
    return suite.launch(torch.relu_, suite.randn(n), modifies=0, reference=torch.relu)


side = None


def hidden(x, y):
    global side
    side = side or torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(20):
            out = x @ y
    return out


@suite.kernel(n=2048)
def on_another_stream(n):
    return suite.launch(hidden, suite.randn(n, n), suite.randn(n, n), reference=lambda x, y: x.double() @ y.double())
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(declared.ROOT_VARIABLE, str(tmp_path))
    (tmp_path / "bench.py").write_text(BENCH)
    shutil.copy(EXAMPLE, tmp_path)
    yield
    workload.forget_reference()


def measured(kernel: str, implementation: str, **axes):
    case = Case(kernel, parameters_of(tuple(axes))(**axes), implementation)
    return measure_case(case, QUICK.effort, Device("cuda"))


@pytest.mark.parametrize(
    ("kernel", "implementation", "n"),
    [
        ("bench_vector_add.py:vector_add", "add", 1 << 20),
        ("bench.py:against_torch", "triton", 1 << 20),
        ("bench.py:against_torch", "torch", 1 << 20),
        ("bench.py:in_place", "relu_", 1 << 16),
    ],
)
def test_a_right_kernel_is_timed_by_events_over_cold_caches(bench, kernel, implementation, n):
    result = measured(kernel, implementation, n=n)
    assert result["outcome"] == "ok", result["reason"]
    assert "cuda events" in result["sampling"]["stopwatch"]
    assert result["kernel"]["path"] == "gpu"
    assert result["sampling"]["operand_sets"] > 1
    # No GPU moves 12 MB in a microsecond.
    assert kernel == "bench.py:in_place" or result["metrics"]["time"]["value"] > 1e-6


def test_work_on_a_stream_that_events_do_not_see_is_found(bench):
    result = measured("bench.py:on_another_stream", "hidden", n=2048)
    assert result["outcome"] == "failed"
    assert result["verification"]["reason"] in ("late work", "wrong values", "not finite")
