"""Compiled kernels are cases like others: known by name, read without a GPU, refused or unsupported in one sentence."""

from __future__ import annotations

import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.kernels.static import triton_kernels
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.workloads.exact import CompiledKernelParameters


@pytest.mark.slow
def test_an_attention_kernel_becomes_exact_figures_of_its_own_source() -> None:
    pytest.importorskip("triton")
    kernel = next(name for name in triton_kernels("sm_80") if name.startswith("triton_attention") and "_dq" in name)
    case = Case("compiled_kernel", CompiledKernelParameters(kernel, "sm_80"), "triton")
    answer = measure_case(case, None, resolve("cpu"))
    if answer["outcome"] == "unsupported":
        pytest.skip(answer["reason"])
    assert answer["kernel"]["name"] == kernel
    assert answer["metrics"]["instructions_HMMA"]["value"] > 0
