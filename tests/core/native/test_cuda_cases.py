"""Leftovers of a case on a GPU, and errors that cost the worker; the device is a double of libcuda."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.runner import measuring
from pyperf_suite.runner.session import SENTINELS
from pyperf_suite.workloads.backends import CudaDevice, cuda_device

pytestmark = pytest.mark.slow

GPU = Device("cuda")
ELF = b"\x7fELF"


@pytest.fixture
def device(fake, nvrtc, tmp_path, monkeypatch) -> Iterator[CudaDevice]:
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(tmp_path))
    cuda_device.cache_clear()
    yield cuda_device(0)
    cuda_device.cache_clear()


@pytest.fixture
def answer(monkeypatch) -> Callable[[Callable[[], Any]], dict[str, Any]]:
    """A worker's answer to a case that does this."""

    def to(doing: Callable[[], Any]) -> dict[str, Any]:
        def measure(*_: Any) -> Iterator[None]:
            yield from ()
            return doing()

        monkeypatch.setattr(measuring, "_measure", measure)
        return measuring.measure_case(SENTINELS["cuda"], None, GPU)

    return to


def crash(device: CudaDevice) -> None:
    kernel = device.native.Kernel(device.native.Module(device.context, ELF), "crashes")
    device.native.Launch(kernel, (1, 1, 1), (1, 1, 1), []).run()


def raising(error: Exception) -> Callable[[], Any]:
    def doing() -> Any:
        raise error

    return doing


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED"), KeyError("o"), MemoryError(), Unsupported("no such tile")],
)
def test_an_error_that_the_context_survives_does_not_cost_the_worker(device, answer, error):
    assert not answer(raising(error)).get("fatal", False)
    assert not device.is_lost()


def test_device_memory_that_is_used_up_does_not_cost_the_worker(device, answer):
    answered = answer(lambda: device.native.DeviceMemory(device.context, 1 << 40))
    assert answered["outcome"] == "failed"
    assert not answered.get("fatal", False)


@pytest.mark.parametrize("message", [True, False])
def test_a_lost_context_costs_the_worker_whoever_was_told_of_it(device, answer, message):
    def doing():
        crash(device)
        if message:
            device.context.synchronize()
        raise ValueError("something else")

    answered = answer(doing)
    assert answered["outcome"] == "failed"
    assert answered["fatal"] is True


def test_a_context_lost_behind_a_right_answer_costs_the_worker_and_not_the_answer(device, answer):
    answered = answer(lambda: crash(device) or {"outcome": "ok"})
    assert answered["outcome"] == "ok"
    assert answered["fatal"] is True
