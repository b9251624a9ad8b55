"""Naming a device, and what is said where it does not exist."""

from __future__ import annotations

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import devices
from pyperf_suite.hardware.devices import CudaDriver, Device, Unavailable, resolve


@pytest.fixture
def with_gpus(monkeypatch, fake_cuda):
    """with_gpus(2): a machine of two GPUs; with_gpus(None): one without an NVIDIA driver."""

    def there_are(count):
        found = Unavailable("there is no NVIDIA driver here") if count is None else CudaDriver(fake_cuda(["H"] * count))
        monkeypatch.setattr(devices, "driver", lambda: found)

    return there_are


@pytest.mark.parametrize(
    ("gpus", "requested", "device"),
    [
        *((None, name, Device("cpu")) for name in ("cpu", "auto", " CPU ")),
        *((2, name, Device("cuda", 0)) for name in ("auto", "cuda", "cuda:0")),
        *((2, str(device), device) for device in (Device("cpu"), Device("cuda", 1))),
    ],
)
def test_a_device_is_found_by_its_name_and_auto_is_the_first_gpu_or_the_cpu(with_gpus, gpus, requested, device):
    with_gpus(gpus)
    assert resolve(requested) == device


@pytest.mark.parametrize(
    ("gpus", "requested", "words"),
    [
        *((2, name, f"'{name}': .*auto, cpu, cuda or cuda:N") for name in ("", "gpu", "cuda:", "cuda:-1", "cuda:x")),
        *((2, name, f"'{name}': .*auto, cpu, cuda or cuda:N") for name in ("cpu:0", "tpu")),
        (2, "cuda:2", "'cuda:2'.* no CUDA device beyond cuda:1"),
        (0, "cuda:0", "there is no CUDA device: "),
        (None, "cuda:0", "'cuda:0'.* there is no NVIDIA driver here: .*cpu"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(with_gpus, gpus, requested, words):
    with_gpus(gpus)
    with pytest.raises(UserError, match=words):
        resolve(requested)
