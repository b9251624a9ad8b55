"""GPUs as their driver and NVML describe them, judged."""

from __future__ import annotations

import pytest

from pyperf_suite.hardware.devices import Unavailable
from pyperf_suite.node.doctor.gpu import gpu_checks, read_gpus

ABSENT = Unavailable("libcuda.so.1 cannot be opened, so there is no NVIDIA driver here")


def named(checks):
    return {check.what: check for check in checks}


def test_a_gpu_as_delivered_and_idle_is_ok(gpu_readings):
    checks = gpu_checks(gpu_readings())
    assert {check.verdict for check in checks} == {"ok"}
    assert "580.82.07, for CUDA up to 13.0; 1 GPU" in checks[0].found


@pytest.mark.parametrize(
    ("name", "said", "verdict", "words"),
    [
        ("power limit", {"power_limit_w": 400.0}, "caution", "43% below its default of 700 W"),
        ("clocks", {"application_sm_clock_mhz": 1200}, "caution", "held to 1200 MHz"),
        ("clocks", {"application_sm_clock_mhz": None}, "ok", "at most 1980 MHz"),
        ("throttling", {"throttle_reasons": ["power cap"]}, "caution", "power cap"),
        ("throttling", {"throttle_reasons": ["power cap", "hardware slowdown"]}, "failed", "hardware slowdown"),
        ("temperature", {"temperature_celsius": 80}, "failed", "slowed down at 87"),
        ("temperature", {"temperature_celsius": 72}, "caution", "warm before"),
        ("compute mode", {"compute_mode": "prohibited"}, "failed", "no process may compute"),
        ("compute mode", {"compute_mode": "exclusive process"}, "caution", "one process at a time"),
        ("persistence", {"persistence_mode": False}, "caution", "set up anew"),
        ("MIG", {"mig": True}, "failed", "cut up"),
        ("MIG", {"uuid": "MIG-1"}, "caution", "a slice of a GPU"),
        ("ECC", {"uncorrected_errors": 3}, "failed", "3 uncorrected errors"),
        ("ECC", {"remapping": "pending"}, "failed", "wait to be replaced"),
        ("ECC", {"ecc": False}, "ok", "off"),
        ("other processes", {"processes": ((41, 2**30),)}, "failed", "41 (1 GiB)"),
        ("kind", {"capability": (7, 0)}, "caution", "own kernels from 8.0"),
    ],
)
def test_each_state_of_a_gpu_is_judged_with_what_to_do(gpu_readings, gpu_reading, name, said, verdict, words):
    check = named(gpu_checks(gpu_readings(gpus=(gpu_reading(**said),))))[name]
    assert (check.verdict, words in f"{check.found} {check.why}") == (verdict, True), check
    assert bool(check.advice) == (verdict != "ok")


def test_what_nvml_does_not_tell_is_not_applicable(gpu_readings, gpu_reading):
    full = gpu_reading()
    silent = type(full)(full.gpu)
    checks = named(gpu_checks(gpu_readings(gpus=(silent,), silence="libnvidia-ml.so.1 cannot be opened")))
    assert checks["NVML"].verdict == "caution"
    assert {check.verdict for name, check in checks.items() if name not in ("NVML", "driver", "kind")} == {"unknown"}


def test_a_machine_without_a_gpu_is_not_blamed_for_it(machine):
    (check,) = gpu_checks(read_gpus(machine({}), ABSENT, ABSENT))
    assert check.verdict == "ok"


@pytest.mark.parametrize(("expected", "verdict"), [(0, "ok"), (8, "failed")])
def test_a_machine_with_another_number_of_gpus_than_expected_has_a_problem(machine, expected, verdict):
    _, check = gpu_checks(read_gpus(machine({}), ABSENT, ABSENT), expected)
    assert check.verdict == verdict


def test_a_gpu_on_the_bus_that_cuda_cannot_use_is_a_problem(machine, monkeypatch):
    card = "sys/bus/pci/devices/0000:17:00.0"
    bridge = "sys/bus/pci/devices/0000:18:00.0"
    files = machine(
        {
            f"{card}/vendor": "0x10de\n",
            f"{card}/class": "0x030200\n",
            f"{bridge}/vendor": "0x10de\n",
            f"{bridge}/class": "0x068000\n",
        }
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (check,) = gpu_checks(read_gpus(files, ABSENT, ABSENT))
    assert check.verdict == "failed"
    assert "CUDA_VISIBLE_DEVICES=''" in check.found
    assert check.found.startswith("1 NVIDIA on the PCI bus, but libcuda.so.1 cannot be opened")
