"""The GPU of a machine in the catalogue: by the driver's name, by NVML's, as a slice, with its active links."""

from __future__ import annotations

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import machine
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.hardware.devices import CudaDriver, Gpu, Unavailable
from pyperf_suite.hardware.machine import described, installed_gpu
from pyperf_suite.hardware.nvml import Nvml

ABSENT = Unavailable("there is no libnvidia-ml")
H200 = find_gpu("H200")


def gpu(name="NVIDIA H200", capability=(9, 0), sms=132, memory_bytes=150_110_011_392):
    return Gpu(0, name, "GPU-0", capability, sms, memory_bytes)


def test_what_the_device_tells_is_believed_before_the_data_sheet():
    spec = described(gpu(sms=130), 1, ABSENT)
    assert (spec.name, spec.sms, spec.memory_bytes) == ("H200 SXM", 130, 150_110_011_392)
    assert spec.sources["sms"] == spec.sources["memory_bytes"] == "the CUDA driver"
    assert spec.peak_flop_per_s == H200.peak_flop_per_s
    assert spec.sources["peak_flop_per_s"] == H200.sources["peak_flop_per_s"]


def test_a_name_that_only_nvml_knows_is_looked_up_by_uuid(fake_nvml):
    assert described(gpu("Graphics Device"), 1, Nvml(fake_nvml())).name == "H200 SXM"


def test_links_are_those_that_are_active(fake_nvml):
    all_links, few_links, none = (described(gpu(), 8, Nvml(fake_nvml(links=links))) for links in (18, 8, 0))
    assert all_links.link_bytes_per_s == H200.link_bytes_per_s
    assert few_links.link_bytes_per_s == 200e9
    assert none.link_bytes_per_s == 63e9
    assert none.sources["link_bytes_per_s"] == "NVML: PCIe 5 x16"


def test_a_gpu_alone_keeps_the_link_that_it_could_have(fake_nvml):
    assert described(gpu(), 1, Nvml(fake_nvml(links=0))).link_bytes_per_s == H200.link_bytes_per_s


def test_a_slice_has_its_share_of_its_gpu():
    spec = described(gpu("NVIDIA H200 MIG 3g.71gb", sms=66, memory_bytes=H200.memory_bytes // 2), 1, ABSENT)
    assert spec.name == "H200 SXM MIG 3g.71gb"
    assert spec.peak("bf16") == pytest.approx(H200.peak("bf16") / 2)
    assert spec.memory_bytes_per_s == pytest.approx(H200.memory_bytes_per_s / 2)
    assert spec.l2_bytes == H200.l2_bytes // 2
    assert spec.link_bytes_per_s is None
    assert "a slice's share" in spec.sources["l2_bytes"]


@pytest.mark.parametrize(("name", "capability"), [("NVIDIA H900", (9, 0)), ("NVIDIA H200", (8, 0))])
def test_a_gpu_that_is_not_in_the_catalogue_is_named_with_what_to_do(name, capability):
    with pytest.raises(UserError, match=f"{name}.*--gpu"):
        described(gpu(name, capability), 1, ABSENT)


def test_the_machines_gpus_are_asked_for_by_index(monkeypatch, fake_cuda):
    cuda = CudaDriver(fake_cuda(["NVIDIA H200"]))
    monkeypatch.setattr(machine, "driver", lambda: cuda)
    monkeypatch.setattr(machine, "gpus", lambda: [cuda.gpu(0)])
    monkeypatch.setattr(machine, "nvml", lambda: ABSENT)
    assert installed_gpu().name == "H200 SXM"
    with pytest.raises(UserError, match="no GPU 3 in this machine, which has 1"):
        installed_gpu(3)


def test_a_driver_that_refuses_to_describe_its_gpus_is_quoted(monkeypatch, fake_cuda):
    def refuse():
        raise Unavailable("cuDeviceGet failed")

    monkeypatch.setattr(machine, "driver", lambda: CudaDriver(fake_cuda(["NVIDIA H200"])))
    monkeypatch.setattr(machine, "gpus", refuse)
    with pytest.raises(UserError, match="cuDeviceGet failed: name one with --gpu"):
        installed_gpu()


def test_a_machine_without_a_gpu_says_what_to_name_instead(monkeypatch):
    monkeypatch.setattr(machine, "driver", lambda: Unavailable("there is no libcuda"))
    with pytest.raises(UserError, match=r"there is no libcuda: name one with --gpu"):
        installed_gpu()
