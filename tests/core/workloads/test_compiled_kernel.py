"""Compiled kernels are cases like others: known by name, read without a GPU, refused or unsupported in one sentence."""

from __future__ import annotations

import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.kernels.static import triton_kernels
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.workloads.exact import CompiledKernelParameters

KERNEL = "sm80_bf16_bf16_tn_64x64x64_s4_w2x2"
PARAMETERS = CompiledKernelParameters(KERNEL, "sm_80")


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


def test_a_case_becomes_a_static_record_with_exact_figures() -> None:
    answer = measure_case(Case("compiled_kernel", PARAMETERS, "nvrtc"), None, resolve("cpu"))
    if answer["outcome"] == "unsupported":
        pytest.skip(answer["reason"])
    assert answer["kind"] == "static"
    assert answer["kernel"]["path"] == "sm_80"
    assert answer["kernel"]["details"]["compiler"].startswith("NVRTC ")
    registers = answer["metrics"]["registers"]
    assert registers["value"] == registers["low"] == registers["high"] == registers["samples"][0]
    assert answer["metrics"]["instructions_HMMA"]["value"] > 0
    assert answer["metrics"]["instructions_LDL"]["value"] == 0
