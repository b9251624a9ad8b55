"""How we call NVIDIA's management library, against nvml.h: numbers, structures, and the arguments of each call."""

import ctypes
import inspect
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.hardware import nvml
from pyperf_suite.hardware.nvml import Nvml

pytestmark = pytest.mark.slow

NUMBERS = {
    "NVML_CLOCK_SM": nvml.SM_CLOCK,
    "NVML_CLOCK_MEM": nvml.MEMORY_CLOCK,
    "NVML_TEMPERATURE_GPU": nvml.GPU_SENSOR,
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": nvml.SLOWDOWN_THRESHOLD,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": nvml.NVLINK_SENT,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": nvml.NVLINK_RECEIVED,
    "NVML_FI_DEV_PERF_POLICY_POWER": nvml.POWER_CAP_FIELD,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": nvml.NEW_HEAT_FIELD,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": nvml.NEW_HEAT_FIELD + 1,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": nvml.NEW_HEAT_FIELD + 2,
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": nvml.PCIE_SENT,
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": nvml.PCIE_RECEIVED,
    "NVML_NVLINK_MAX_LINKS": nvml.MAXIMUM_LINKS,
    "NVML_P2P_CAPS_INDEX_READ": nvml.DIRECT_READS,
    "NVML_P2P_CAPS_INDEX_WRITE": nvml.DIRECT_WRITES,
    "NVML_ERROR_INSUFFICIENT_SIZE": nvml.INSUFFICIENT_SIZE,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": nvml.UNCORRECTED,
    "NVML_VOLATILE_ECC": nvml.VOLATILE,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": nvml.ERROR_COUNTERS["corrected"][0],
    "NVML_AGGREGATE_ECC": nvml.ERROR_COUNTERS["corrected_ever"][1],
    "NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS": nvml.RETIRED_PAGES["pages_retired_corrected"],
    "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR": nvml.RETIRED_PAGES["pages_retired_uncorrected"],
    "NVML_GPM_METRICS_GET_VERSION": nvml.GPM_VERSION,
    "NVML_GPM_METRIC_MAX": nvml.MOST_GPM_METRICS,
}
# Our words for NVIDIA's numbers.
WORDS = (
    (
        nvml.THROTTLE_REASONS,
        {
            "nvmlClocksEventReasonSwPowerCap": "power cap",
            "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
            "nvmlClocksEventReasonSyncBoost": "sync boost",
            "nvmlClocksEventReasonSwThermalSlowdown": "thermal slowdown by software",
            "nvmlClocksThrottleReasonHwThermalSlowdown": "thermal slowdown by hardware",
            "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
        },
    ),
    (
        nvml.COMPUTE_MODES,
        {
            "NVML_COMPUTEMODE_DEFAULT": "default",
            "NVML_COMPUTEMODE_EXCLUSIVE_THREAD": "exclusive thread",
            "NVML_COMPUTEMODE_PROHIBITED": "prohibited",
            "NVML_COMPUTEMODE_EXCLUSIVE_PROCESS": "exclusive process",
        },
    ),
    (
        nvml.DIRECT_COPIES,
        {
            "NVML_P2P_STATUS_OK": nvml.ALLOWED,
            "NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED": "the chipset has no way for them",
            "NVML_P2P_STATUS_GPU_NOT_SUPPORTED": "the GPU's kind has none",
            "NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED": "the bridges between the two pass none",
            "NVML_P2P_STATUS_DISABLED_BY_REGKEY": "switched off in the driver",
            "NVML_P2P_STATUS_NOT_SUPPORTED": "not supported",
        },
    ),
    (
        nvml.GPM_SHARES,
        {
            "NVML_GPM_METRIC_SM_UTIL": "sm_activity",
            "NVML_GPM_METRIC_SM_OCCUPANCY": "sm_occupancy",
            "NVML_GPM_METRIC_ANY_TENSOR_UTIL": "tensor_activity",
            "NVML_GPM_METRIC_DRAM_BW_UTIL": "dram_activity",
        },
    ),
    (
        nvml.GPM_RATES,
        {
            "NVML_GPM_METRIC_PCIE_TX_PER_SEC": "pcie_bytes_per_s",
            "NVML_GPM_METRIC_PCIE_RX_PER_SEC": "pcie_bytes_per_s",
            "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC": "nvlink_bytes_per_s",
            "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC": "nvlink_bytes_per_s",
        },
    ),
)
# NVIDIA's name of each structure, and of its members in order.
STRUCTURES: dict[type[ctypes.Structure], tuple[str, str]] = {
    nvml.FieldValue: ("nvmlFieldValue_t", "fieldId scopeId timestamp latencyUsec valueType nvmlReturn value"),
    nvml.ProcessInfo: ("nvmlProcessInfo_t", "pid usedGpuMemory gpuInstanceId computeInstanceId"),
    nvml.Utilization: ("nvmlUtilization_t", "gpu memory"),
    nvml.MemoryInfo: ("nvmlMemory_t", "total free used"),
    nvml.PciInfo: ("nvmlPciInfo_t", "busIdLegacy domain bus device pciDeviceId pciSubSystemId busId"),
    nvml.GpmMetric: ("nvmlGpmMetric_t", "metricId nvmlReturn value metricInfo"),
    nvml.GpmMetrics: ("nvmlGpmMetricsGet_t", "version numMetrics sample1 sample2 metrics"),
}
# Types that ctypes passes through a pointer, in C++; of all else the layout is compared by itself.
POINTERS = {ctypes.c_uint: "unsigned*", ctypes.c_ulonglong: "unsigned long long*", ctypes.c_void_p: "void**"}


class Recorder:
    """A management library that has every function and keeps how each is called; all but `failing` succeed."""

    def __init__(self, failing: str = "") -> None:
        self.failing, self.calls = failing, {}

    def __getattr__(self, function: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls[function] = ", ".join(map(self._kind, arguments))
            return int(function == self.failing)

        return call

    @staticmethod
    def _kind(argument: Any) -> str:
        """The argument's type in C++. Answered through it is 1: one GPU, an active link, a counter that is there."""
        if isinstance(argument, int):
            return "int"
        if isinstance(argument, bytes) or getattr(argument, "_type_", None) is ctypes.c_char:
            return "char*"
        if getattr(argument, "_type_", None) is ctypes.c_uint:
            argument[1] = 1
        held = getattr(argument, "_obj", None)
        if isinstance(held, ctypes.c_uint):
            held.value = 1
        return POINTERS.get(type(held), "void*")


def calls() -> dict[str, str]:
    """How each function of the library is called, those too that are called because another failed."""
    by_function: dict[str, str] = {}
    for failing in ("", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlGpmSampleGet"):
        library = Recorder(failing)
        manager = Nvml(library)
        for name, method in inspect.getmembers(manager, inspect.ismethod):
            if not name.startswith("_"):
                for uuid in ("GPU-1", "GPU-1", "MIG-1"):
                    method(*[uuid] * len(inspect.signature(method).parameters))
        by_function |= library.calls
    return by_function


def declarations() -> str:
    """All that we take nvml.h to say, as assertions that a compiler checks."""
    text = '#include <nvml.h>\n#include "api_check.h"\n'
    words = [
        (theirs, number)
        for ours, theirs_by_name in WORDS
        for (theirs, word), (number, own) in zip(theirs_by_name.items(), ours.items(), strict=True)
        if word == own
    ]
    assert len(words) == sum(len(ours) for ours, _ in WORDS)
    for name, number in [*NUMBERS.items(), *words]:
        text += f'static_assert(static_cast<long long>({name}) == {number}, "{name}");\n'
    for structure, (name, members) in STRUCTURES.items():
        for (own, *_), theirs in zip(structure._fields_, members.split(), strict=True):
            place = getattr(structure, own)
            text += f'static_assert(offsetof({name}, {theirs}) == {place.offset}, "{theirs}");\n'
            text += f'static_assert(sizeof({name}::{theirs}) == {place.size}, "{theirs}");\n'
        text += f'static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");\n'
    for name, arguments in calls().items():
        text += f'static_assert(Agree<decltype(&{name}), int (*)({arguments})>::value, "{name}");\n'
    return text


@pytest.fixture
def compile_against_header(tmp_path: Path, wheel: Callable[[str, str], Path]) -> Callable[[str], str]:
    """A compiler's complaints on assertions, none where they hold."""
    header = wheel("nvidia-nvml-dev", "nvidia/cu13/include")
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler: set CXX")

    def said(text: str) -> str:
        (tmp_path / "check.cpp").write_text(text)
        folders = ["-I", Path(__file__).parent, "-isystem", header]
        command = [compiler, "-std=c++17", "-fsyntax-only", "-Wno-deprecated-declarations", *folders, "check.cpp"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr

    return said


def test_every_function_that_is_named_is_compared():
    named = set(re.findall(r"\b(nvml[A-Z]\w+)\"|library\.(nvml\w+)\(", inspect.getsource(nvml)))
    assert {first or second for first, second in named} == set(calls())


def test_our_declarations_of_the_management_library_agree_with_its_header(compile_against_header):
    text = declarations()
    assert compile_against_header(text) == ""
    print(f"{text.count('static_assert')} numbers, members and calls agree")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(NVML_CLOCK_MEM) == 2", "(NVML_CLOCK_MEM) == 3"),
        ("offsetof(nvmlProcessInfo_t, usedGpuMemory) == 8", "offsetof(nvmlProcessInfo_t, usedGpuMemory) == 4"),
        ("sizeof(nvmlFieldValue_t) == 40", "sizeof(nvmlFieldValue_t) == 32"),
        ("&nvmlDeviceGetPowerUsage), int (*)(void*, unsigned*)", "&nvmlDeviceGetPowerUsage), int (*)(void*)"),
        (
            "&nvmlDeviceGetTotalEnergyConsumption), int (*)(void*, unsigned long long*)",
            "&nvmlDeviceGetTotalEnergyConsumption), int (*)(void*, unsigned*)",
        ),
    ],
    ids=["an enumerator", "a member's place", "a struct's size", "an argument that is missing", "what is written to"],
)
def test_a_mistake_in_our_declarations_of_the_management_library_is_seen(compile_against_header, right, wrong):
    text = declarations()
    assert text.count(right) == 1
    assert "static assertion failed" in compile_against_header(text.replace(right, wrong))
