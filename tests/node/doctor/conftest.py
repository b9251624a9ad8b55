"""Made-up machines, fit for measuring unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.hardware.devices import Gpu
from pyperf_suite.hardware.kernel_files import KernelFiles
from pyperf_suite.hardware.software import Compiler
from pyperf_suite.node.doctor.gpu import GpuReading, GpuReadings
from pyperf_suite.node.doctor.software import SoftwareReadings

Machine = Callable[[Mapping[str, str]], KernelFiles]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Write the given files (path to content) below a root of their own, and read that root as a machine."""

    def write(contents: Mapping[str, str]) -> KernelFiles:
        for path, content in contents.items():
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
        return KernelFiles(tmp_path)

    return write


@pytest.fixture
def gpu_reading() -> Callable[..., GpuReading]:
    """An H100 with nothing to complain of; keywords replace what NVML says of it, `processes` who uses it."""

    def made(uuid: str = "GPU-1", processes: Any = (), capability: tuple[int, int] = (9, 0), **said: Any) -> GpuReading:
        settings = {
            "power_limit_w": 700.0,
            "ecc": True,
            "persistence_mode": True,
            "application_sm_clock_mhz": 1980,
            "maximum_sm_clock_mhz": 1980,
        }
        readings = {"sm_clock_mhz": 345, "temperature_celsius": 34, "throttle_reasons": []}
        health = {
            "compute_mode": "default",
            "default_power_limit_w": 700.0,
            "default_sm_clock_mhz": 1980,
            "mig": False,
            "uncorrected_errors": 0,
            "remapping": "none",
            "slowdown_celsius": 87,
        }
        for part in (settings, readings, health):
            part.update({name: value for name, value in said.items() if name in part})
        gpu = Gpu(0, "NVIDIA H100 80GB HBM3", uuid, capability, 132, 80 * 2**30)
        return GpuReading(gpu, settings, readings, health, processes)

    return made


@pytest.fixture
def gpu_readings(gpu_reading) -> Callable[..., GpuReadings]:
    """A machine with one such GPU; keywords replace fields of the readings."""

    def made(**otherwise: Any) -> GpuReadings:
        usual: dict[str, Any] = {
            "on_bus": 1,
            "gpus": (gpu_reading(),),
            "cuda": "13.0",
            "driver": "580.82.07",
            "refusal": None,
            "silence": None,
        }
        return GpuReadings(**(usual | otherwise))

    return made


@pytest.fixture
def software() -> Callable[..., SoftwareReadings]:
    """A machine without a GPU where everything is installed; keywords replace fields of the readings."""

    def made(**otherwise: Any) -> SoftwareReadings:
        usual: dict[str, Any] = {
            "extension": None,
            "compiler": Compiler("c++", "c++ (Debian) 12.2.0", requested=False),
            "toolkits": (),
            "copies": {},
            "torch": {"version": "2.13.0+cpu", "cuda": None, "threads": 2, "opened": {}},
            "python": (3, 11, 7),
            "packages": {"pytest": "9.2.0", "pytest-benchmark": "5.3.1", "triton": "3.7.1"},
            "gpus": 0,
        }
        return SoftwareReadings(**(usual | otherwise))

    return made
