"""Naming a device, and what is said where it does not exist."""

from __future__ import annotations

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import devices
from pyperf_suite.hardware.devices import CudaDriver, Device, Unavailable, resolve


@pytest.fixture
def two_gpus(monkeypatch, fake_cuda):
    """A machine with two GPUs."""
    monkeypatch.setattr(devices, "driver", lambda: CudaDriver(fake_cuda(["NVIDIA H200"] * 2)))


@pytest.fixture
def no_driver(monkeypatch):
    """A machine without an NVIDIA driver."""
    monkeypatch.setattr(devices, "driver", lambda: Unavailable("there is no NVIDIA driver here"))


@pytest.mark.parametrize("requested", ["cpu", "auto", " CPU "])
def test_the_cpu_is_always_there(requested, no_driver):
    assert resolve(requested) == Device("cpu")


def test_auto_is_the_first_gpu_where_there_is_one(two_gpus):
    assert resolve("auto") == Device("cuda", 0)


def test_a_gpu_is_found_by_its_index(two_gpus):
    assert resolve("cuda:1") == Device("cuda", 1)
    assert resolve("cuda") == Device("cuda", 0)


@pytest.mark.parametrize("device", [Device("cpu"), Device("cuda", 1)])
def test_a_devices_name_resolves_to_that_device(device, two_gpus):
    assert resolve(str(device)) == device


@pytest.mark.parametrize("requested", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "tpu"])
def test_a_name_that_is_none_is_refused_with_those_that_are(requested):
    with pytest.raises(UserError, match=rf"'{requested}': ask for auto, cpu, cuda or cuda:N"):
        resolve(requested)


def test_a_gpu_beyond_those_there_is_refused_with_the_last_that_is(two_gpus):
    with pytest.raises(UserError, match=r"'cuda:2' was requested, but there is no CUDA device beyond cuda:1"):
        resolve("cuda:2")


def test_a_driver_without_devices_is_said_to_have_none(monkeypatch, fake_cuda):
    monkeypatch.setattr(devices, "driver", lambda: CudaDriver(fake_cuda([])))
    with pytest.raises(UserError, match="there is no CUDA device: ask for"):
        resolve("cuda:0")


def test_cuda_without_a_driver_is_refused_with_the_reason(no_driver):
    with pytest.raises(UserError, match=r"'cuda:0' was requested, but there is no NVIDIA driver here: ask for cpu"):
        resolve("cuda:0")
