"""The name a machine's results are kept under."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.hardware import cpu, machine
from pyperf_suite.hardware.devices import CudaDriver, Device, Unavailable
from pyperf_suite.hardware.nvml import Nvml


def gpus(fake_cuda, names):
    """The GPUs of a machine that has those names."""
    driver = CudaDriver(fake_cuda(names))
    return [driver.gpu(index) for index in range(driver.device_count())]


def test_a_cpus_identity_is_model_and_cores():
    found = machine.identity(Device("cpu"))
    assert found.kind == "cpu"
    assert found.fields == {"model": cpu.detect().model, "cores": cpu.detect().usable_cores}
    assert found.slug.endswith(f"-{cpu.detect().usable_cores}c")


def test_identity_is_the_same_each_time_and_plain_json():
    first, second = machine.identity(Device("cpu")), machine.identity(Device("cpu"))
    assert first == second
    assert json.loads(json.dumps(first.fields)) == first.fields


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Intel(R) Xeon(R) Processor", "cpu-intel-xeon-processor-2c"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "cpu-intel-xeon-2.20ghz-2c"),
        ("AMD EPYC 7R13 Processor", "cpu-amd-epyc-7r13-processor-2c"),
        ("Arm Neoverse-V2", "cpu-arm-neoverse-v2-2c"),
        ("Apple M3 Pro", "cpu-apple-m3-pro-2c"),
    ],
)
def test_slugs_read_as_the_machines_they_name(model, name):
    assert machine.slug("cpu", model, "2c") == name


@given(st.text(max_size=300), st.integers(1, 4096))
def test_every_model_makes_a_folders_name_that_keeps_its_cores(model, cores):
    made = machine.slug("cpu", model, f"{cores}c")
    assert re.fullmatch(r"cpu-([a-z0-9.-]*[a-z0-9]-)?[0-9]+c", made)
    assert made.endswith(f"-{cores}c")
    assert len(made) <= machine.LONGEST_SLUG


def test_a_single_gpus_identity_has_no_link(fake_cuda, fake_nvml):
    found = machine.gpu_identity(gpus(fake_cuda, ["NVIDIA H200"]), 0, Nvml(fake_nvml()))
    assert found.slug == "cuda-nvidia-h200-132sm-140gib"
    assert found.fields == {
        "model": "NVIDIA H200",
        "multiprocessors": 132,
        "memory_gib": 140,
        "mig_profile": None,
        "count": 1,
        "link": "none",
    }


def test_several_gpus_are_told_apart_by_their_link(fake_cuda, fake_nvml):
    present = gpus(fake_cuda, ["NVIDIA H200"] * 8)
    slugs = [
        machine.gpu_identity(present, 0, manager).slug
        for manager in (Nvml(fake_nvml(18)), Nvml(fake_nvml(0)), Unavailable("no NVML"))
    ]
    assert [slug.removeprefix("cuda-nvidia-h200-132sm-140gib-") for slug in slugs] == [
        "x8-nvlink4x18",
        "x8-pcie",
        "x8-unknown",
    ]


def test_a_slice_of_a_gpu_is_another_machine_than_the_whole(fake_cuda, fake_nvml):
    found = machine.gpu_identity(gpus(fake_cuda, ["NVIDIA H200 MIG 1g.18gb"]), 0, Nvml(fake_nvml()))
    assert found.fields["model"] == "NVIDIA H200"
    assert found.fields["mig_profile"] == "1g.18gb"
    assert found.slug.endswith("-1g.18gb")
