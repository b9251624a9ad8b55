"""A machine made of kernel files, and stand-ins for NVIDIA's two libraries."""

# ruff: noqa: N802 (the stand-ins' functions bear the libraries' names)

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.hardware.kernel_files import KernelFiles

Machine = Callable[[Mapping[str, str]], KernelFiles]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Write the given files (path to content) below a root of their own, and read that root as a machine."""

    def write(contents: Mapping[str, str]) -> KernelFiles:
        for path, content in contents.items():
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode("utf-8", "surrogateescape"))
        return KernelFiles(tmp_path)

    return write


class FakeCuda:
    """A libcuda of which only the answers are there."""

    def __init__(self, names: list[str], initialises: int = 0) -> None:
        self.names = names
        self.initialises = initialises

    def cuInit(self, flags: int) -> int:
        return self.initialises

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"driver words"
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 13010
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.names)
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0 if index < len(self.names) else 101

    def cuDeviceGetName(self, name: Any, length: int, device: int) -> int:
        name.value = self.names[device].encode()
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: int) -> int:
        memory._obj.value = 150_110_011_392
        return 0

    def cuDeviceGetUuid_v2(self, raw: Any, device: int) -> int:
        raw[:] = bytes(range(device, device + 16))
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int:
        value._obj.value = {16: 132, 75: 9, 76: 0}[attribute]
        return 0


class FakeNvml:
    """A libnvidia-ml whose GPUs have a number of active NVLinks, a status of copies, and an H200's settings."""

    def __init__(self, links: int = 18, peers: tuple[int, int] = (0, 0)) -> None:
        self.links = links
        self.peers = peers  # nvmlGpuP2PStatus_t of reads and writes between any two

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, length: int) -> int:
        text.value = b"580.82.07"
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device: Any) -> int:
        device._obj.value = 7
        return 0 if uuid.startswith((b"GPU-", b"MIG-")) else 2

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, device: ctypes.c_void_p, parent: Any) -> int:
        parent._obj.value = 8
        return 0

    def nvmlDeviceGetName(self, device: ctypes.c_void_p, text: Any, length: int) -> int:
        text.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetIndex(self, device: ctypes.c_void_p, index: Any) -> int:
        index._obj.value = 3
        return 0

    def nvmlDeviceGetPciInfo_v3(self, device: ctypes.c_void_p, place: Any) -> int:
        place._obj.domain, place._obj.bus, place._obj.device = 0, 0x17, 0
        return 0

    def nvmlDeviceGetCurrPcieLinkGeneration(self, device: ctypes.c_void_p, generation: Any) -> int:
        generation._obj.value = 3
        return 0

    def nvmlDeviceGetCurrPcieLinkWidth(self, device: ctypes.c_void_p, lanes: Any) -> int:
        lanes._obj.value = 8
        return 0

    def nvmlDeviceGetMaxPcieLinkGeneration(self, device: ctypes.c_void_p, generation: Any) -> int:
        generation._obj.value = 4
        return 0

    def nvmlDeviceGetMaxPcieLinkWidth(self, device: ctypes.c_void_p, lanes: Any) -> int:
        lanes._obj.value = 16
        return 0

    def nvmlDeviceGetGpuMaxPcieLinkGeneration(self, device: ctypes.c_void_p, generation: Any) -> int:
        generation._obj.value = 5
        return 0

    def nvmlDeviceGetPcieReplayCounter(self, device: ctypes.c_void_p, count: Any) -> int:
        count._obj.value = {7: 12, 8: 3}[device.value or 0]
        return 0

    def nvmlDeviceGetP2PStatus(self, one: ctypes.c_void_p, other: ctypes.c_void_p, way: int, status: Any) -> int:
        status._obj.value = self.peers[way]
        return 0

    def nvmlDeviceGetEnforcedPowerLimit(self, device: ctypes.c_void_p, milliwatts: Any) -> int:
        milliwatts._obj.value = {7: 700_000, 8: 650_000}[device.value or 0]
        return 0

    def nvmlDeviceGetEccMode(self, device: ctypes.c_void_p, current: Any, pending: Any) -> int:
        current._obj.value = 1
        return 0

    def nvmlDeviceGetPersistenceMode(self, device: ctypes.c_void_p, mode: Any) -> int:
        return 3  # NVML_ERROR_NOT_SUPPORTED

    def nvmlDeviceGetMaxClockInfo(self, device: ctypes.c_void_p, clock: int, mhz: Any) -> int:
        mhz._obj.value = {1: 1980}[clock]
        return 0

    def nvmlDeviceGetClockInfo(self, device: ctypes.c_void_p, clock: int, mhz: Any) -> int:
        mhz._obj.value = {1: 1755, 2: 3201}[clock]
        return 0

    def nvmlDeviceGetPowerUsage(self, device: ctypes.c_void_p, milliwatts: Any) -> int:
        milliwatts._obj.value = 688_500
        return 0

    def nvmlDeviceGetTemperature(self, device: ctypes.c_void_p, sensor: int, celsius: Any) -> int:
        celsius._obj.value = {0: 61}[sensor]
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: ctypes.c_void_p, mask: Any) -> int:
        mask._obj.value = 0x4 | 0x1  # power cap, and idle, which is none
        return 0

    def nvmlDeviceGetComputeMode(self, device: ctypes.c_void_p, mode: Any) -> int:
        mode._obj.value = 3
        return 0

    def nvmlDeviceGetPowerManagementDefaultLimit(self, device: ctypes.c_void_p, milliwatts: Any) -> int:
        milliwatts._obj.value = 700_000
        return 0

    def nvmlDeviceGetMigMode(self, device: ctypes.c_void_p, current: Any, pending: Any) -> int:
        current._obj.value = 1
        return 0

    def nvmlDeviceGetTotalEccErrors(self, device: ctypes.c_void_p, kind: int, counter: int, errors: Any) -> int:
        errors._obj.value = {(1, 0): 3}[(kind, counter)]
        return 0

    def nvmlDeviceGetRemappedRows(self, device: ctypes.c_void_p, *answers: Any) -> int:
        for answer, value in zip(answers, (2, 1, 1, 0), strict=True):
            answer._obj.value = value
        return 0

    def nvmlDeviceGetTemperatureThreshold(self, device: ctypes.c_void_p, threshold: int, celsius: Any) -> int:
        celsius._obj.value = {1: 87}[threshold]
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: ctypes.c_void_p, count: Any, found: Any) -> int:
        count._obj.value = 2
        found[0].process, found[0].memory_bytes = 41, 1 << 30
        found[1].process, found[1].memory_bytes = 42, 1 << 20
        return 0

    def nvmlDeviceGetNvLinkState(self, device: ctypes.c_void_p, link: int, active: Any) -> int:
        active._obj.value = int(link < self.links)
        return 0 if link < 18 else 2

    def nvmlDeviceGetNvLinkVersion(self, device: ctypes.c_void_p, link: int, version: Any) -> int:
        version._obj.value = 4
        return 0

    def nvmlDeviceGetFieldValues(self, device: ctypes.c_void_p, count: int, asked: Any) -> int:
        for question in asked[:count]:
            question.code = 0 if self.links and question.scope == 0xFFFFFFFF else 3
            question.value = {138: 5, 139: 7}[question.field]
        return 0


@pytest.fixture
def fake_cuda() -> type[FakeCuda]:
    """The stand-in for libcuda, to be made with the names of its GPUs."""
    return FakeCuda


@pytest.fixture
def fake_nvml() -> type[FakeNvml]:
    """The stand-in for libnvidia-ml, to be made with its number of active NVLinks."""
    return FakeNvml
