"""Torch's products on a GPU, run with tensors of the host in the place of the device's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.workloads import matmul as libraries
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.matmul.matmul import MATMUL
from pyperf_suite.workloads.operator import Launches, TorchTensors
from pyperf_suite.workloads.workload import ExecutionContext

TWO_ON_A_GPU = ExecutionContext(Device("cuda"), sets=2)

PAD = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>>"
GEMM = "void ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"


class HostTensors(TorchTensors):
    """The operands in the host's memory, of a GPU whose profiler sees PAD, GEMM, PAD."""

    def __init__(self, operands: Any, place: ExecutionContext, *_: Any) -> None:
        super().__init__(operands, replace(place, device=Device("cpu")))

    def launched_kernels(self, launch: Callable[[int], object]) -> list[str]:
        launch(0)
        return [PAD, GEMM, PAD]


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Callable[[MatmulParameters], Launches]:
    """Prepares a case with the host in the GPU's place."""
    pytest.importorskip("torch")
    monkeypatch.setattr(libraries, "TorchTensors", HostTensors)

    def prepared(parameters: MatmulParameters) -> Launches:
        matmul = MATMUL
        implementation = matmul.implementation("cublas" if parameters.pad_to == 1 else "cublas_padded")
        implementation.validate(parameters)
        return implementation.prepare(parameters, matmul.operands(parameters, seed=1), TWO_ON_A_GPU)

    return prepared


def of(dtype: str, m: int, n: int, k: int, pad_to: int = 1) -> MatmulParameters:
    return MatmulParameters(m, n, k, Schedule("library", 1), dtype=dtype, layout="TN", pad_to=pad_to)


def test_the_kernel_that_multiplies_is_named_and_not_those_that_pad(prepare) -> None:
    kernel = prepare(of("bfloat16", 33, 47, 64, pad_to=8)).kernel
    assert kernel.name == GEMM
    assert kernel.details["tile"] == (128, 256)
    assert kernel.details["launched"] == [PAD, GEMM, PAD]
    assert kernel.details["multiplied"] == "40x48x64"
    assert "multiplied" not in prepare(of("bfloat16", 32, 48, 64)).kernel.details
