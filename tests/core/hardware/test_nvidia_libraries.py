"""What is asked of libcuda and libnvidia-ml, through stand-ins that answer as an H200's would."""

from __future__ import annotations

import pytest

from pyperf_suite.hardware import devices, nvml
from pyperf_suite.hardware.devices import CudaDriver, Unavailable, open_library
from pyperf_suite.hardware.nvml import Nvml

UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_a_gpu_is_described_without_a_context(fake_cuda):
    driver = CudaDriver(fake_cuda(["NVIDIA H200"]))
    gpu = driver.gpu(0)
    assert driver.device_count() == 1
    assert driver.version() == "13.1"
    assert (gpu.name, gpu.uuid, gpu.compute_capability) == ("NVIDIA H200", UUID, (9, 0))
    assert (gpu.multiprocessors, gpu.memory_bytes) == (132, 150_110_011_392)


def test_a_slice_of_a_gpu_has_a_slices_uuid(fake_cuda):
    assert CudaDriver(fake_cuda(["NVIDIA H200 MIG 1g.18gb"])).gpu(0).uuid.startswith("MIG-0001")


@pytest.mark.parametrize(("code", "words"), [(100, "finds no CUDA device"), (999, r"driver words \(CUresult 999\)")])
def test_a_driver_that_does_not_start_says_why(fake_cuda, code, words):
    with pytest.raises(Unavailable, match=words):
        CudaDriver(fake_cuda([], initialises=code))


def test_an_index_beyond_the_devices_is_refused_in_the_drivers_words(fake_cuda):
    with pytest.raises(Unavailable, match=r"cuDeviceGet failed: driver words \(CUresult 101\)"):
        CudaDriver(fake_cuda(["NVIDIA H200"])).gpu(3)


def test_settings_a_gpu_does_not_tell_are_none(fake_nvml):
    assert Nvml(fake_nvml()).settings(UUID) == {
        "power_limit_w": 700.0,
        "ecc": True,
        "persistence_mode": None,  # answered "not supported"
        "application_sm_clock_mhz": None,  # not in this library at all
        "maximum_sm_clock_mhz": 1980,
    }


def test_energy_and_memory_are_those_of_the_board(fake_nvml):
    manager = Nvml(fake_nvml())
    assert (manager.energy_j(UUID), manager.used_bytes(UUID)) == (1234.5, 41 << 30)
    assert (manager.energy_j("unknown"), manager.used_bytes("unknown")) == (None, None)


def test_a_slices_settings_are_its_gpus(fake_nvml):
    assert Nvml(fake_nvml()).settings(UUID.replace("GPU", "MIG"))["power_limit_w"] == 650.0


def test_a_gpu_that_nvml_does_not_know_has_no_settings_and_no_links(fake_nvml):
    assert Nvml(fake_nvml()).settings("unknown") == {}
    assert Nvml(fake_nvml()).nvlink("unknown") is None


def test_links_are_named_by_version_and_number(fake_nvml):
    assert Nvml(fake_nvml(18)).nvlink(UUID) == "nvlink4x18"
    assert Nvml(fake_nvml(0)).nvlink(UUID) is None


@pytest.mark.parametrize("module", [devices, nvml])
def test_an_override_that_cannot_be_opened_is_not_passed_over(module, monkeypatch):
    monkeypatch.setenv(module.OVERRIDE, "/nowhere/library.so")
    with pytest.raises(Unavailable, match=rf"{module.OVERRIDE}=/nowhere/library.so cannot be opened"):
        open_library(module.OVERRIDE, ["libm.so.6"])


def test_a_machine_without_the_library_has_no_gpus(monkeypatch):
    monkeypatch.setattr(devices, "driver", lambda: Unavailable("absent"))
    assert devices.gpus() == []


def test_opening_no_library_says_that_there_is_no_driver(monkeypatch):
    monkeypatch.delenv(devices.OVERRIDE, raising=False)
    with pytest.raises(Unavailable, match=r"libnothing.so.1 cannot be opened, so there is no NVIDIA driver"):
        open_library(devices.OVERRIDE, ["libnothing.so.1", "libnothing.so"])


def test_a_gpus_readings_are_told_in_units_and_words(fake_nvml):
    assert Nvml(fake_nvml()).readings("GPU-1") == {
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 3201,
        "power_w": 688.5,
        "temperature_celsius": 61,
        "throttle_reasons": ["power cap"],
    }


def test_throttle_reasons_are_told_by_themselves(fake_nvml):
    assert Nvml(fake_nvml()).throttle_reasons("GPU-1") == ["power cap"]


def test_readings_of_a_gpu_that_is_not_there_are_none(fake_nvml):
    assert Nvml(fake_nvml()).readings("nothing") == {}
    assert Nvml(fake_nvml()).throttle_reasons("nothing") is None


def test_what_went_over_nvlinks_is_told_in_bytes_and_not_where_nothing_counts(fake_nvml):
    assert Nvml(fake_nvml()).nvlink_bytes("GPU-1") == (5 * 1024, 7 * 1024)
    assert Nvml(fake_nvml(links=0)).nvlink_bytes("GPU-1") is None
    assert Nvml(fake_nvml()).nvlink_bytes("unknown") is None


def test_a_gpus_health_is_told_in_words_and_units_and_what_is_not_told_is_absent(fake_nvml):
    assert Nvml(fake_nvml()).health("GPU-1") == {
        "compute_mode": "exclusive process",
        "default_power_limit_w": 700.0,
        "mig": True,
        "uncorrected_errors": 3,
        "remapping": "pending",
        "slowdown_celsius": 87,
    }
    assert Nvml(fake_nvml()).health("unknown") == {}


def test_processes_on_a_gpu_are_told_with_the_memory_they_hold(fake_nvml):
    assert Nvml(fake_nvml()).processes("GPU-1") == ((41, 1 << 30), (42, 1 << 20))
    assert Nvml(fake_nvml()).processes("unknown") is None


def test_memory_errors_remapped_rows_and_retired_pages_are_counted(fake_nvml):
    assert Nvml(fake_nvml()).memory_errors(UUID) == {
        "corrected": 7,
        "uncorrected": 3,
        "corrected_ever": 19,
        "uncorrected_ever": 4,
        "rows_remapped_corrected": 2,
        "rows_remapped_uncorrected": 1,
        "pages_retired_corrected": 2,
        "pages_retired_uncorrected": 1,
    }
    assert Nvml(fake_nvml()).memory_errors("unknown") == {}


def test_a_driver_that_counts_no_memory_errors_reports_none(fake_nvml):
    class Silent(fake_nvml):
        def __getattr__(self, function):
            if function in ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPages"):
                raise AttributeError(function)
            return super().__getattr__(function)

    assert Nvml(Silent()).memory_errors(UUID) == {}


def test_a_gpus_load_has_its_use_memory_and_counters(fake_nvml):
    manager = Nvml(fake_nvml(links=4))
    assert manager.uuids() == ("GPU-7", "GPU-8")
    assert manager.name(UUID) == "NVIDIA H200"
    assert manager.load(UUID) == {
        "utilization": 0.93,
        "memory_used_bytes": 41 << 30,
        "memory_total_bytes": 141 << 30,
        "energy_j": 1234.5,
        "pcie_bytes": (11, 13),
        "nvlink_bytes": (5 * 1024, 7 * 1024),
    }
    assert "nvlink_bytes" not in Nvml(fake_nvml(links=0)).load(UUID)


def test_a_driver_that_reports_no_load_reports_nothing_of_it(fake_nvml):
    class Old(fake_nvml):
        nvmlDeviceGetUtilizationRates = nvmlDeviceGetMemoryInfo = nvmlDeviceGetFieldValues = None  # noqa: N815

    assert Nvml(Old()).load(UUID) == {"energy_j": 1234.5}
    assert Nvml(fake_nvml()).load("UUID-of-none") == {}


def test_activity_is_that_since_the_last_call_in_shares_and_bytes(fake_nvml):
    manager = Nvml(fake_nvml())
    assert manager.activity(UUID) == {}
    expected = {"sm_activity": 0.4, "sm_occupancy": 0.12, "tensor_activity": 0.1, "pcie_bytes_per_s": 8 * 1024**2}
    for _ in range(3):
        assert manager.activity(UUID) == pytest.approx(expected)
    assert manager.activity("unknown") == {}


@pytest.mark.parametrize("function", ["QueryDeviceSupport", "SampleAlloc", "SampleGet", "MetricsGet"])
def test_a_gpu_or_driver_without_performance_counters_reports_no_activity(fake_nvml, function):
    class Old(fake_nvml):
        pass

    setattr(Old, f"nvmlGpm{function}", lambda *_: 3)
    old = Old()
    manager = Nvml(old)
    assert [manager.activity(UUID) for _ in range(3)] == [{}, {}, {}]
    assert len(old.samples) == (2 if function == "MetricsGet" else 0)
    without = Nvml(fake_nvml(has_counters=False))
    assert [without.activity(UUID) for _ in range(2)] == [{}, {}]
