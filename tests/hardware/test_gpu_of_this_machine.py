"""The real driver, where this machine has a GPU."""

from __future__ import annotations

import json

import pytest

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.hardware.devices import Device, gpus, resolve
from pyperf_suite.hardware.machine import identity, installed_gpu, state

pytestmark = pytest.mark.gpu


def test_the_first_gpu_is_described_by_the_driver():
    first = gpus()[0]
    assert first.name
    assert first.uuid.startswith(("GPU-", "MIG-"))
    assert first.multiprocessors > 0
    assert first.memory_bytes > 1 << 30


def test_the_first_gpu_is_in_the_catalogue_and_as_the_driver_describes_it():
    first, spec = gpus()[0], installed_gpu()
    assert spec.compute_capability == first.compute_capability
    assert spec.sms == first.multiprocessors
    whole = spec.name.split(" MIG ")[0]
    assert first.memory_bytes < 1.01 * find_gpu(whole).memory_bytes


def test_a_run_on_the_gpu_has_identity_and_state_as_plain_json():
    device = resolve("cuda:0")
    assert device == Device("cuda", 0)
    assert identity(device).slug.startswith("cuda-")
    found = state(device)
    assert json.loads(json.dumps(found)) == found
    assert found["gpu"]["cuda"]
