"""Stand-ins for NVIDIA's two libraries."""

# ruff: noqa: N802 (the stand-ins' functions bear the libraries' names)

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest


class Double:
    """A library of which only the answers are there: `answers` has what each function writes where its pointers are."""

    answers: Mapping[str, Any]

    def __getattr__(self, function: str) -> Callable[..., int]:
        if function not in self.answers:
            raise AttributeError(function)

        def call(*arguments: Any) -> int:
            answer = self.answers[function]
            answer = answer(*arguments) if callable(answer) else answer
            if isinstance(answer, bytes):
                next(each for each in arguments if isinstance(each, ctypes.Array)).value = answer
            elif answer is not None:
                pointers = [each._obj for each in arguments if hasattr(each, "_obj")]
                if isinstance(answer, dict):
                    for name, value in answer.items():
                        setattr(pointers[0], name, value)
                    return 0
                for pointer, value in zip(pointers, answer if isinstance(answer, tuple) else (answer,), strict=False):
                    pointer.value = value
            return 0

        return call


class FakeCuda(Double):
    """A libcuda whose devices have the given names."""

    def __init__(self, names: list[str], initialises: int = 0) -> None:
        self.names = names
        self.initialises = initialises
        self.answers = {
            "cuDriverGetVersion": 13010,
            "cuDeviceTotalMem_v2": 150_110_011_392,
            "cuGetErrorString": (b"driver words",),
            "cuDeviceGetCount": len(names),
            "cuDeviceGetName": lambda name, length, device: names[device].encode(),
            "cuDeviceGetAttribute": lambda value, attribute, device: {16: 132, 75: 9, 76: 0}[attribute],
        }

    def cuInit(self, flags: int) -> int:
        return self.initialises

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0 if index < len(self.names) else 101

    def cuDeviceGetUuid_v2(self, raw: Any, device: int) -> int:
        raw[:] = bytes(range(device, device + 16))
        return 0


WHOLE_GPU, PARENT_OF_A_SLICE = 7, 8  # the handles that the double gives


class FakeNvml(Double):
    """A libnvidia-ml whose GPUs have a number of active NVLinks, a status of copies, and an H200's settings."""

    answers: ClassVar = {
        "nvmlInit_v2": None,
        "nvmlSystemGetDriverVersion": b"580.82.07",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": PARENT_OF_A_SLICE,
        "nvmlDeviceGetIndex": 3,
        "nvmlDeviceGetCurrPcieLinkGeneration": 3,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
        "nvmlDeviceGetMaxPcieLinkGeneration": 4,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetGpuMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetPcieReplayCounter": lambda device, count: {WHOLE_GPU: 12, PARENT_OF_A_SLICE: 3}[device.value],
        "nvmlDeviceGetEnforcedPowerLimit": lambda device, mw: {WHOLE_GPU: 700_000, PARENT_OF_A_SLICE: 650_000}[
            device.value
        ],
        "nvmlDeviceGetEccMode": (1, 1),  # now, and from the next reset on
        "nvmlDeviceGetMaxClockInfo": lambda device, clock, mhz: {1: 1980}[clock],
        "nvmlDeviceGetClockInfo": lambda device, clock, mhz: {1: 1755, 2: 3201}[clock],
        "nvmlDeviceGetPowerUsage": 688_500,
        "nvmlDeviceGetTemperature": lambda device, sensor, celsius: {0: 61}[sensor],
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x1,  # power cap, and idle, which is none
        "nvmlDeviceGetComputeMode": 3,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetMigMode": (1, 1),
        "nvmlDeviceGetTotalEccErrors": lambda device, kind, counter, errors: {
            (0, 0): 7,
            (1, 0): 3,
            (0, 1): 19,
            (1, 1): 4,
        }[kind, counter],
        "nvmlDeviceGetRetiredPages": lambda device, cause, count, addresses: {0: 2, 1: 1}[cause],
        "nvmlDeviceGetRemappedRows": (2, 1, 1, 0),
        "nvmlDeviceGetTemperatureThreshold": lambda device, threshold, celsius: {1: 87}[threshold],
        "nvmlDeviceGetNvLinkVersion": 4,
        "nvmlDeviceGetCount_v2": 2,
        "nvmlDeviceGetHandleByIndex_v2": lambda index, device: WHOLE_GPU + index,
        "nvmlDeviceGetName": b"NVIDIA H200",
        "nvmlDeviceGetTotalEnergyConsumption": 1_234_500,  # millijoules
        "nvmlDeviceGetUUID": lambda device, text, size: f"GPU-{device.value}".encode(),
        "nvmlDeviceGetUtilizationRates": {"gpu": 93, "memory": 41},
        "nvmlDeviceGetMemoryInfo": {"total": 141 << 30, "free": 100 << 30, "used": 41 << 30},
        "nvmlDeviceGetPciInfo_v3": {"domain": 0, "bus": 0x17, "device": 0},
    }

    def __init__(self, links: int = 18, peers: tuple[int, int] = (0, 0), has_counters: bool = True) -> None:
        self.links = links
        self.has_counters = has_counters
        self.samples: dict[int, int] = {}  # of performance counters: when each was taken
        self.samples_taken = 0
        self.peers = peers  # nvmlGpuP2PStatus_t of reads and writes between any two

    @classmethod
    def without(cls, functions: str) -> "type[FakeNvml]":
        """The library of an older driver, which lacks these functions."""
        names = {f"nvmlDeviceGet{name}" for name in functions.split()}
        answers = {name: answer for name, answer in cls.answers.items() if name not in names}
        return type("Old", (cls,), {"answers": answers} | dict.fromkeys(names - cls.answers.keys()))

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device: Any) -> int:
        device._obj.value = WHOLE_GPU
        return 0 if uuid.startswith((b"GPU-", b"MIG-")) else 2

    def nvmlGpmQueryDeviceSupport(self, device: ctypes.c_void_p, support: Any) -> int:
        support[1] = int(support[0] == 1 and self.has_counters)
        return 0

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:
        sample._obj.value = len(self.samples) + 1
        self.samples[len(self.samples) + 1] = 0
        return 0

    def nvmlGpmSampleFree(self, sample: ctypes.c_void_p) -> int:
        del self.samples[sample.value]
        return 0

    def nvmlGpmSampleGet(self, device: ctypes.c_void_p, sample: ctypes.c_void_p) -> int:
        self.samples_taken += 1
        self.samples[sample.value] = self.samples_taken
        return 0

    def nvmlGpmMetricsGet(self, requested: Any) -> int:
        """Values in proportion to the samples between the two; NVLinks are not counted, and memory is no number."""
        distance = self.samples[requested._obj.after] - self.samples[requested._obj.before]
        values = {2: 40.0, 3: 12.0, 5: 10.0, 10: float("nan"), 20: 3.0, 21: 5.0}
        for question in requested._obj.metrics[: requested._obj.count]:
            question.code = 0 if question.metric in values else 3
            question.value = distance * values.get(question.metric, 0.0)
        return 0

    def nvmlDeviceGetPersistenceMode(self, device: ctypes.c_void_p, mode: Any) -> int:
        return 3  # NVML_ERROR_NOT_SUPPORTED

    def nvmlDeviceGetP2PStatus(self, first: ctypes.c_void_p, second: ctypes.c_void_p, way: int, status: Any) -> int:
        status._obj.value = self.peers[way]
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: ctypes.c_void_p, count: Any, table: Any) -> int:
        count._obj.value = 2
        table[0].process, table[0].memory_bytes = 41, 1 << 30
        table[1].process, table[1].memory_bytes = 42, 1 << 20
        return 0

    def nvmlDeviceGetNvLinkState(self, device: ctypes.c_void_p, link: int, active: Any) -> int:
        active._obj.value = int(link < self.links)
        return 0 if link < 18 else 2

    def nvmlDeviceGetFieldValues(self, device: ctypes.c_void_p, count: int, requested: Any) -> int:
        for question in requested[:count]:
            is_its_own = question.field in (74, *range(269, 272), 197, 198)
            question.code = 0 if is_its_own or (self.links and question.scope == 0xFFFFFFFF) else 3
            values = {138: 5, 139: 7, 197: 11, 198: 13, 74: 2_500_000_000, 269: 0, 270: 1_000_000, 271: 0}
            question.value = values.get(question.field, 0)
        return 0


@pytest.fixture
def fake_cuda() -> type[FakeCuda]:
    """The stand-in for libcuda, to be made with the names of its GPUs."""
    return FakeCuda


@pytest.fixture
def fake_nvml() -> "type[FakeNvml]":
    """The stand-in for libnvidia-ml, to be made with its number of active NVLinks."""
    return FakeNvml
