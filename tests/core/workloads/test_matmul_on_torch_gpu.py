"""Torch's products on a GPU, run with tensors of the host in the place of the device's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels import matmul as triton_matmul
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.workloads import matmul as libraries
from pyperf_suite.workloads.matmul import MatmulParameters, matmul
from pyperf_suite.workloads.matmul.matmul import MATMUL
from pyperf_suite.workloads.operator import Launches, TorchTensors, judged
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


@pytest.mark.parametrize("dtype", ["float32", "tfloat32", "bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(33, 48, 64), (32, 47, 64), (31, 49, 63)], ids=str)
def test_a_padded_product_is_read_back_from_where_it_stands(prepare, shape: tuple[int, int, int], dtype: str) -> None:
    parameters = of(dtype, *shape, pad_to=16)
    operands = MATMUL.operands(parameters, seed=1)
    launches = prepare(parameters)
    for index in (0, 1):
        launches.poison()
        assert not judged(MATMUL.launched(parameters).check, operands, launches.outputs(index)).passed
        launches.launch(index)
        verification = judged(MATMUL.launched(parameters).check, operands, launches.outputs(index))
        assert verification.passed, verification.message


def test_the_kernel_that_multiplies_is_named_and_not_those_that_pad(prepare) -> None:
    kernel = prepare(of("bfloat16", 33, 47, 64, pad_to=8)).kernel
    assert kernel.name == GEMM
    assert kernel.details["tile"] == (128, 256)
    assert kernel.details["launched"] == [PAD, GEMM, PAD]
    assert kernel.details["multiplied"] == "40x48x64"
    assert "multiplied" not in prepare(of("bfloat16", 32, 48, 64)).kernel.details


def test_where_no_name_is_known_the_first_kernel_stands(prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostTensors, "launched_kernels", lambda self, launch: ["gemvx", "another"])
    assert prepare(of("bfloat16", 1, 48, 64)).kernel.name == "gemvx"
    monkeypatch.setattr(HostTensors, "launched_kernels", lambda self, launch: [])
    assert prepare(of("int8", 32, 48, 64)).kernel.name == "torch._int_mm"


def test_a_shape_that_torch_refuses_on_the_device_is_unsupported(prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> list[str]:
        raise RuntimeError("self.size(0) needs to be greater than 16, but got 7")

    monkeypatch.setattr(HostTensors, "launched_kernels", refused)
    with pytest.raises(Unsupported, match=r"refuses 7x8x8 of int8 in layout TN: .*greater than 16, but got 7\.$"):
        prepare(of("int8", 7, 8, 8))


def test_sets_do_not_share_their_results(prepare) -> None:
    launches = prepare(of("float32", 33, 48, 64, pad_to=16))
    launches.poison()
    launches.launch(0)
    assert np.isfinite(launches.outputs(0)["c"]).all()
    assert np.isnan(launches.outputs(1)["c"]).all()


@pytest.fixture
def prepare_triton(monkeypatch: pytest.MonkeyPatch):
    """Prepares a case of Triton on a Hopper whose shared memory holds the given (path, stages) only."""

    def prepared(parameters: MatmulParameters, fitting: set[tuple[str, int]]) -> Launches:
        class Product:
            def __init__(self, configuration: triton_matmul.Configuration, *_: object) -> None:
                self.requested = configuration

            def bind(self, *_: object) -> Callable[[], object]:
                def launch() -> object:
                    if (self.requested.operands, self.requested.stages) not in fitting:
                        raise ValueError(
                            f"{self.requested.stages} stages through {self.requested.operands} need too much."
                        )
                    return SimpleNamespace(name="matmul", n_regs=128, n_spills=0)

                return launch

        torch = pytest.importorskip("torch")
        pytest.importorskip("triton")
        monkeypatch.setattr(triton_matmul, "Product", Product)
        monkeypatch.setattr(matmul, "TorchTensors", HostTensors)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
        product = MATMUL
        return product.implementation("triton").prepare(parameters, product.operands(parameters, 1), TWO_ON_A_GPU)

    return prepared


def tiled(tile: str) -> MatmulParameters:
    return MatmulParameters(64, 64, 64, Schedule("persistent", 4), Tile.parse(tile), "tfloat32", layout="TN")


@pytest.mark.parametrize(
    ("tile", "fitting", "ran"),
    [
        ("128x128x64", {("descriptors", 4), ("addresses", 4)}, ("descriptors", 4)),
        ("128x128x64", {("addresses", 4), ("descriptors", 3)}, ("addresses", 4)),
        ("128x128x64", {("descriptors", 2), ("addresses", 2)}, ("descriptors", 2)),
        ("128x128x64:s4", {("addresses", 4), ("descriptors", 3)}, ("addresses", 4)),
    ],
    ids=["all stages", "addresses before fewer stages", "fewer stages", "named stages stay"],
)
def test_a_kernel_too_large_for_shared_memory_at_launch_gives_way_and_the_record_names_the_one_that_ran(
    prepare_triton, tile: str, fitting: set[tuple[str, int]], ran: tuple[str, int]
) -> None:
    kernel = prepare_triton(tiled(tile), fitting).kernel
    assert (kernel.path, kernel.details["stages"]) == ran


def test_stages_that_were_asked_for_are_not_lowered(prepare_triton) -> None:
    with pytest.raises(Unsupported, match="4 stages through addresses"):
        prepare_triton(tiled("128x128x64:s4"), {("addresses", 3), ("descriptors", 3)})
