"""Ask NVIDIA's management library about a GPU: its settings now, and the links it has to others.

Through ctypes rather than nvidia-ml-py: the library comes with the driver, so the answer, and with it a
machine's identity, does not depend on which Python packages are installed. Signatures: NVML API reference.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
from typing import Any

from pyperf_suite.hardware.devices import Unavailable, open_library

LIBRARIES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
OVERRIDE = "PYPERF_LIBNVML"
MAXIMUM_LINKS = 36  # NVML_NVLINK_MAX_LINKS of CUDA 13.5; 18 of 12.9
SM_CLOCK = 1  # NVML_CLOCK_SM
MEMORY_CLOCK = 2  # NVML_CLOCK_MEM
GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
# Payload over all NVLinks since the driver started, in KiB: NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX.
NVLINK_SENT, NVLINK_RECEIVED = 138, 139
# Bytes over PCIe: NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES. Unlike nvmlDeviceGetPcieThroughput they do not block.
PCIE_SENT, PCIE_RECEIVED = 197, 198
EVERY_LINK = 0xFFFFFFFF
KIB, MIB = 1024, 1024**2
# The slot's are the most that card and slot have in common.
PCIE_FIGURES = {
    "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
    "slot_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "slot_width": "nvmlDeviceGetMaxPcieLinkWidth",
    "card_generation": "nvmlDeviceGetGpuMaxPcieLinkGeneration",
}
# NVML_P2P_CAPS_INDEX_READ and _WRITE, and nvmlGpuP2PStatus_t in words; 6 is that the driver does not know.
DIRECT_READS, DIRECT_WRITES = 0, 1
ALLOWED = "allowed"
DIRECT_COPIES = {
    0: ALLOWED,
    1: "the chipset has no way for them",
    2: "the GPU's kind has none",
    3: "the bridges between the two pass none",
    4: "switched off in the driver",
    5: "not supported",
}
# nvmlClocksEventReasons*. Idle and requested clocks are no throttling.
THROTTLE_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
# Nanoseconds of lowered clocks since the driver was loaded: NVML_FI_DEV_PERF_POLICY_POWER, and the first of three of
# NVML_FI_DEV_CLOCKS_EVENT_REASON: SW_THERM_SLOWDOWN, HW_THERM_SLOWDOWN, HW_POWER_BRAKE_SLOWDOWN. nvml.h of the wheel
# 13.0.39 (driver 580.65) has these at 251, that of 13.0.87 (driver 580.82 and later) at 269, where power smoothing was.
POWER_CAP_FIELD, HEAT_AND_BRAKE = 74, ("thermal slowdown by software", "thermal slowdown by hardware", "power brake")
OLD_HEAT_FIELD, NEW_HEAT_FIELD, OLD_UNTIL, NEW_FROM = 251, 269, (580, 0), (580, 82)


COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
SLOWDOWN_THRESHOLD = 1  # NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
UNCORRECTED, VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED; since the driver was loaded
# NVML_MEMORY_ERROR_TYPE_* and NVML_VOLATILE_ECC or NVML_AGGREGATE_ECC.
ERROR_COUNTERS = {"corrected": (0, 0), "uncorrected": (1, 0), "corrected_ever": (0, 1), "uncorrected_ever": (1, 1)}
# nvmlPageRetirementCause_t.
RETIRED_PAGES = {"pages_retired_corrected": 0, "pages_retired_uncorrected": 1}
INSUFFICIENT_SIZE = 7
MOST_PROCESSES = 64
# nvmlGpmMetricId_t: means between two samples, in percent, and in MiB/s sent and received.
GPM_SHARES = {2: "sm_activity", 3: "sm_occupancy", 5: "tensor_activity", 10: "dram_activity"}
GPM_RATES = {20: "pcie_bytes_per_s", 21: "pcie_bytes_per_s", 60: "nvlink_bytes_per_s", 61: "nvlink_bytes_per_s"}
GPM_METRICS = GPM_SHARES | GPM_RATES
GPM_VERSION, MOST_GPM_METRICS = 1, 477  # NVML_GPM_METRIC_MAX of CUDA 13.5; 98, 210 and 333 before


class FieldValue(ctypes.Structure):
    """`nvmlFieldValue_t`: a question by number, and its answer."""

    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp_us", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class ProcessInfo(ctypes.Structure):
    """`nvmlProcessInfo_t`: a process that has a context on a GPU."""

    _fields_ = (
        ("process", ctypes.c_uint),
        ("memory_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Utilization(ctypes.Structure):
    """`nvmlUtilization_t`: percent of the last sampling period in which a kernel ran, and memory was accessed."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class MemoryInfo(ctypes.Structure):
    """`nvmlMemory_t`: bytes of a GPU's memory."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class PciInfo(ctypes.Structure):
    """`nvmlPciInfo_t`: where on the bus a GPU is."""

    _fields_ = (
        ("legacy_address", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("address", ctypes.c_char * 32),
    )


class GpmMetric(ctypes.Structure):
    """`nvmlGpmMetric_t`: a question by number, its answer, and its names in words."""

    _fields_ = (
        ("metric", ctypes.c_uint),
        ("code", ctypes.c_int),
        ("value", ctypes.c_double),
        ("names", ctypes.c_void_p * 3),
    )


class GpmMetrics(ctypes.Structure):
    """`nvmlGpmMetricsGet_t`: two samples and the metrics wanted of the time between them."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("before", ctypes.c_void_p),
        ("after", ctypes.c_void_p),
        ("metrics", GpmMetric * MOST_GPM_METRICS),
    )


class Nvml:
    """The few queries that identity and state need; each answers None where GPU or driver does not report."""

    def __init__(self, library: Any) -> None:
        """Initialise the library; raises Unavailable where it does not start."""
        self._library = library
        self._handles: dict[str, ctypes.c_void_p] = {}
        # By GPU, the last sample of performance counters and room for the next; None where it has no such counters.
        self._counters: dict[str, tuple[ctypes.c_void_p, ctypes.c_void_p] | None] = {}
        code = int(library.nvmlInit_v2())
        if code:
            raise Unavailable(f"nvmlInit failed (nvmlReturn {code})")

    def driver_version(self) -> str | None:
        """The kernel driver's version, as in 580.82.07."""
        return self._text("nvmlSystemGetDriverVersion")

    def settings(self, uuid: str) -> dict[str, Any]:
        """Power limit, ECC, persistence, clocks of the GPU with that UUID (for a MIG slice, its parent)."""
        device = self._physical(uuid)
        if device is None:
            return {}
        power_limit_mw = self._unsigned("nvmlDeviceGetEnforcedPowerLimit", device)
        pending = ctypes.c_uint()
        ecc = self._unsigned("nvmlDeviceGetEccMode", device, after=(ctypes.byref(pending),))
        persistence = self._unsigned("nvmlDeviceGetPersistenceMode", device)
        return {
            "power_limit_w": None if power_limit_mw is None else power_limit_mw / 1000,
            "ecc": None if ecc is None else bool(ecc),
            "persistence_mode": None if persistence is None else bool(persistence),
            "application_sm_clock_mhz": self._unsigned("nvmlDeviceGetApplicationsClock", device, SM_CLOCK),
            "maximum_sm_clock_mhz": self._unsigned("nvmlDeviceGetMaxClockInfo", device, SM_CLOCK),
        }

    def readings(self, uuid: str) -> dict[str, Any]:
        """Clocks, power, temperature and throttle reasons of the GPU now; what it does not report is absent."""
        device = self._physical(uuid)
        power_mw = self._unsigned("nvmlDeviceGetPowerUsage", device)
        answers = {
            "sm_clock_mhz": self._unsigned("nvmlDeviceGetClockInfo", device, SM_CLOCK),
            "memory_clock_mhz": self._unsigned("nvmlDeviceGetClockInfo", device, MEMORY_CLOCK),
            "power_w": None if power_mw is None else power_mw / 1000,
            "temperature_celsius": self._unsigned("nvmlDeviceGetTemperature", device, GPU_SENSOR),
            "throttle_reasons": self.throttle_reasons(uuid),
        }
        return {name: value for name, value in answers.items() if value is not None}

    def energy_j(self, uuid: str) -> float | None:
        """Joules that the GPU's board has used since its driver was loaded; None without a counter."""
        device, millijoules = self._physical(uuid), ctypes.c_ulonglong()
        counted = self._call("nvmlDeviceGetTotalEnergyConsumption", device, ctypes.byref(millijoules))
        return millijoules.value / 1000 if counted else None

    def used_bytes(self, uuid: str) -> int | None:
        """Memory in use on the GPU by all processes and the driver, as nvidia-smi shows it."""
        held = self._memory(uuid)
        return held.used if held else None

    def _memory(self, uuid: str) -> MemoryInfo | None:
        device, held = self._physical(uuid), MemoryInfo()
        return held if self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(held)) else None

    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of all whole GPUs that this process may see, in NVML's order, which is that of nvidia-smi."""
        uuids = []
        for index in range(self._unsigned("nvmlDeviceGetCount_v2") or 0):
            device = ctypes.c_void_p()
            if self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device)):
                uuids.append(self._text("nvmlDeviceGetUUID", device))
        return tuple(uuid for uuid in uuids if uuid is not None)

    def name(self, uuid: str) -> str | None:
        """The product's name, as in NVIDIA H100 80GB HBM3."""
        return self._text("nvmlDeviceGetName", self._physical(uuid))

    def load(self, uuid: str) -> dict[str, Any]:
        """Return the GPU's use now, and its counters; unreported ones are absent.

        `utilization` (share of the last period in which a kernel ran), `memory_used_bytes`, `memory_total_bytes`,
        `energy_j` since the driver was loaded, `pcie_bytes` and `nvlink_bytes` (sent and received so far).
        """
        device = self._physical(uuid)
        use, held = Utilization(), self._memory(uuid)
        is_used = self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(use))
        answers = {
            "utilization": use.gpu / 100 if is_used else None,
            "memory_used_bytes": held.used if held else None,
            "memory_total_bytes": held.total if held else None,
            "energy_j": self.energy_j(uuid),
            "pcie_bytes": self._fields(device, (PCIE_SENT, PCIE_RECEIVED), 0),
            "nvlink_bytes": self.nvlink_bytes(uuid),
        }
        return {name: value for name, value in answers.items() if value is not None}

    def activity(self, uuid: str) -> dict[str, float]:
        """How busy the GPU's parts were since the last call for it; what is not reported is absent.

        Performance counters that Hopper and newer GPUs have (GPM): `sm_activity` and `sm_occupancy` (mean shares of the
        SMs with work and of the warps they have room for), `tensor_activity`, `dram_activity` (of its bandwidth),
        `pcie_bytes_per_s` and `nvlink_bytes_per_s`, sent and received. Nothing at the first call.
        """
        device = self._physical(uuid)
        if device is None:
            return {}
        if uuid not in self._counters:
            self._counters[uuid] = self._first_sample(device)
            return {}
        samples = self._counters[uuid]
        if samples is None or not self._call("nvmlGpmSampleGet", device, samples[1]):
            return {}
        before, after = samples
        self._counters[uuid] = after, before
        requested = GpmMetrics(GPM_VERSION, len(GPM_METRICS), before, after)
        for question, number in zip(requested.metrics, GPM_METRICS, strict=False):
            question.metric = number
        if not self._call("nvmlGpmMetricsGet", ctypes.byref(requested)):
            return {}
        found: dict[str, float] = {}
        for each in requested.metrics[: len(GPM_METRICS)]:
            name, value = GPM_METRICS[each.metric], each.value * (MIB if each.metric in GPM_RATES else 0.01)
            found[name] = found.get(name, 0.0) + (math.nan if each.code else value)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _first_sample(self, device: ctypes.c_void_p) -> tuple[ctypes.c_void_p, ctypes.c_void_p] | None:
        """A sample of performance counters and room for the next; None where the GPU or the driver has none."""
        support, samples = (ctypes.c_uint * 2)(GPM_VERSION), (ctypes.c_void_p(), ctypes.c_void_p())  # nvmlGpmSupport_t
        if not self._call("nvmlGpmQueryDeviceSupport", device, support) or not support[1]:
            return None
        allocated = [each for each in samples if self._call("nvmlGpmSampleAlloc", ctypes.byref(each))]
        if len(allocated) == 2 and self._call("nvmlGpmSampleGet", device, samples[0]):
            return samples
        for each in allocated:
            self._call("nvmlGpmSampleFree", each)
        return None

    def throttle_reasons(self, uuid: str) -> list[str] | None:
        """Why the GPU's clocks are below those requested, in words; None where that is not reported."""
        mask = ctypes.c_ulonglong()
        # The call has a newer name since driver 535.
        for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if self._call(function, self._physical(uuid), ctypes.byref(mask)):
                return [words for bit, words in THROTTLE_REASONS.items() if mask.value & bit]
        return None

    def throttled_s(self, uuid: str) -> dict[str, float] | None:
        """Seconds since the driver was loaded that each reason lowered the clocks; None without such counters.

        Heat and brake are left out under a driver whose numbers for them are not known.
        """
        device, seconds = self._physical(uuid), {}
        power = self._fields(device, (POWER_CAP_FIELD,), 0)
        if power is None:
            return None
        seconds["power cap"] = power[0] * 1e-9
        first = heat_field(self.driver_version() or "")
        heat = self._fields(device, tuple(range(first, first + len(HEAT_AND_BRAKE))), 0) if first else None
        return seconds | {reason: ns * 1e-9 for reason, ns in zip(HEAT_AND_BRAKE, heat or (), strict=False)}

    def health(self, uuid: str) -> dict[str, Any]:
        """Modes, limits and errors of the GPU that decide whether it can be measured; what is not reported is absent.

        `compute_mode` in words, `default_power_limit_w`, `default_sm_clock_mhz` (of applications), `mig` (whether the
        GPU is cut into slices), `uncorrected_errors` since the driver was loaded, `remapping` (memory rows wait for a
        reset, or could not be replaced), `slowdown_celsius`.
        """
        device = self._physical(uuid)
        mode = self._unsigned("nvmlDeviceGetComputeMode", device)
        default_mw = self._unsigned("nvmlDeviceGetPowerManagementDefaultLimit", device)
        mig = self._unsigned("nvmlDeviceGetMigMode", device, after=(ctypes.byref(ctypes.c_uint()),))
        errors = ctypes.c_ulonglong()
        counted = self._call("nvmlDeviceGetTotalEccErrors", device, UNCORRECTED, VOLATILE, ctypes.byref(errors))
        answers = {
            "compute_mode": None if mode is None else COMPUTE_MODES.get(mode, str(mode)),
            "default_power_limit_w": None if default_mw is None else default_mw / 1000,
            "default_sm_clock_mhz": self._unsigned("nvmlDeviceGetDefaultApplicationsClock", device, SM_CLOCK),
            "mig": None if mig is None else bool(mig),
            "uncorrected_errors": errors.value if counted else None,
            "remapping": self._remapping(device),
            "slowdown_celsius": self._unsigned("nvmlDeviceGetTemperatureThreshold", device, SLOWDOWN_THRESHOLD),
        }
        return {name: value for name, value in answers.items() if value is not None}

    def _remapping(self, device: ctypes.c_void_p | None) -> str | None:
        """`pending` where replaced rows of memory wait for a reset, `failed` where none were left, else `none`."""
        corrected, uncorrected, pending, failed = (ctypes.c_uint() for _ in range(4))
        answers = (ctypes.byref(each) for each in (corrected, uncorrected, pending, failed))
        if not self._call("nvmlDeviceGetRemappedRows", device, *answers):
            return None
        return "failed" if failed.value else "pending" if pending.value else "none"

    def processes(self, uuid: str) -> tuple[tuple[int, int], ...] | None:
        """(process, bytes it holds) of each that computes on the GPU; None where that is not reported."""
        device, count, table = self._physical(uuid), ctypes.c_uint(MOST_PROCESSES), (ProcessInfo * MOST_PROCESSES)()
        function = getattr(self._library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if device is None or function is None:
            return None
        code = int(function(device, ctypes.byref(count), table))
        if code not in (0, INSUFFICIENT_SIZE):
            return None
        return tuple((each.process, each.memory_bytes) for each in table[: min(count.value, MOST_PROCESSES)])

    def index(self, uuid: str) -> int | None:
        """The number that NVML and nvidia-smi give the GPU; None where they do not know it."""
        return self._unsigned("nvmlDeviceGetIndex", self._physical(uuid))

    def nvlink(self, uuid: str) -> str | None:
        """The GPU's active NVLinks as `nvlink<version>x<links>`; None if no link is active."""
        device = self._physical(uuid)
        active = [link for link, is_active in enumerate(self.nvlink_states(uuid)) if is_active]
        if not active:
            return None
        version = self._unsigned("nvmlDeviceGetNvLinkVersion", device, active[0])
        return f"nvlink{version or ''}x{len(active)}"

    def nvlink_states(self, uuid: str) -> tuple[bool | None, ...]:
        """State of each NVLink by its number: active or not, None where that is not reported; empty without links."""
        device = self._physical(uuid)
        answers = [self._unsigned("nvmlDeviceGetNvLinkState", device, link) for link in range(MAXIMUM_LINKS)]
        while answers and answers[-1] is None:
            answers.pop()
        return tuple(None if state is None else state == 1 for state in answers)

    def pci_address(self, uuid: str) -> str | None:
        """Return the GPU's address on the PCI bus, as Linux writes it: 0000:17:00.0."""
        device, place = self._physical(uuid), PciInfo()
        if not self._call("nvmlDeviceGetPciInfo_v3", device, ctypes.byref(place)):
            return None
        return f"{place.domain:04x}:{place.bus:02x}:{place.device:02x}.0"

    def pcie(self, uuid: str) -> dict[str, int]:
        """The GPU's PCIe generation and lanes now and at most in this slot, the card's generation; else absent.

        A GPU that has nothing to do may run at an older generation until it has.
        """
        device = self._physical(uuid)
        answers = {name: self._unsigned(function, device) for name, function in PCIE_FIGURES.items()}
        return {name: value for name, value in answers.items() if value is not None}

    def pcie_replays(self, uuid: str) -> int | None:
        """Packets that the GPU's PCIe link had to send again since its driver was loaded; None without a counter."""
        return self._unsigned("nvmlDeviceGetPcieReplayCounter", self._physical(uuid))

    def direct_copies(self, uuid: str, peer: str) -> str | None:
        """ALLOWED where one GPU may read and write the other's memory, else why not in words; None if not reported."""
        ends = self._physical(uuid), self._physical(peer)
        answers = [self._unsigned("nvmlDeviceGetP2PStatus", *ends, way) for way in (DIRECT_READS, DIRECT_WRITES)]
        if any(status not in DIRECT_COPIES for status in answers):
            return None
        return next((DIRECT_COPIES[status] for status in answers if status), ALLOWED)

    def nvlink_bytes(self, uuid: str) -> tuple[int, int] | None:
        """Bytes of payload that the GPU sent and received over its NVLinks so far; None where it does not count."""
        found = self._fields(self._physical(uuid), (NVLINK_SENT, NVLINK_RECEIVED), EVERY_LINK)
        return None if found is None else (found[0] * KIB, found[1] * KIB)

    def _fields(self, device: ctypes.c_void_p | None, fields: tuple[int, ...], scope: int) -> tuple[int, ...] | None:
        """The values of fields; None where the GPU does not have all of them."""
        requested = (FieldValue * len(fields))()
        for question, field in zip(requested, fields, strict=True):
            question.field, question.scope = field, scope
        answered = self._call("nvmlDeviceGetFieldValues", device, len(requested), requested)
        if not answered or any(question.code for question in requested):
            return None
        return tuple(question.value for question in requested)

    def memory_errors(self, uuid: str) -> dict[str, int]:
        """Return the GPU's counts of memory errors; unreported ones are absent.

        Errors that ECC put right and that it could not, since the driver was loaded (`corrected`, `uncorrected`) and
        ever (`corrected_ever`, `uncorrected_ever`); rows that spare ones stand in for after either kind, and on GPUs
        before Ampere pages that are no longer used.
        """
        device = self._physical(uuid)
        if device is None:
            return {}
        counts: dict[str, int] = {}
        for name, (kind, counter) in ERROR_COUNTERS.items():
            answer = ctypes.c_ulonglong()
            if self._call("nvmlDeviceGetTotalEccErrors", device, kind, counter, ctypes.byref(answer)):
                counts[name] = answer.value
        rows = [ctypes.c_uint() for _ in range(4)]
        if self._call("nvmlDeviceGetRemappedRows", device, *map(ctypes.byref, rows)):
            counts |= {"rows_remapped_corrected": rows[0].value, "rows_remapped_uncorrected": rows[1].value}
        for name, cause in RETIRED_PAGES.items() if hasattr(self._library, "nvmlDeviceGetRetiredPages") else ():
            # With room for none it answers how many there are.
            pages = ctypes.c_uint(0)
            code = self._library.nvmlDeviceGetRetiredPages(device, cause, ctypes.byref(pages), None)
            counts |= {name: pages.value} if int(code) in (0, INSUFFICIENT_SIZE) else {}
        return counts

    def _physical(self, uuid: str) -> ctypes.c_void_p | None:
        """The handle of the GPU with that UUID, of the whole GPU where the UUID is a MIG slice's; looked up once."""
        if uuid not in self._handles:
            device, parent = ctypes.c_void_p(), ctypes.c_void_p()
            if not self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(device)):
                return None
            of_slice = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"
            is_slice = uuid.startswith("MIG-") and self._call(of_slice, device, ctypes.byref(parent))
            self._handles[uuid] = parent if is_slice else device
        return self._handles[uuid]

    def _text(self, function: str, *arguments: Any) -> str | None:
        text = ctypes.create_string_buffer(96)
        answered = self._call(function, *arguments, text, len(text))
        return text.value.decode("utf-8", "replace") if answered else None

    def _unsigned(self, function: str, *arguments: Any, after: tuple[Any, ...] = ()) -> int | None:
        """Call a function that answers through a pointer to unsigned int behind `arguments`."""
        answer = ctypes.c_uint()
        return answer.value if self._call(function, *arguments, ctypes.byref(answer), *after) else None

    def _call(self, function: str, *arguments: Any) -> bool:
        """True if the driver's library has the function and it succeeded; False for a GPU unknown to the driver."""
        found = getattr(self._library, function, None)
        return found is not None and all(each is not None for each in arguments) and int(found(*arguments)) == 0


def heat_field(driver: str) -> int | None:
    """The number of the first of the three counters of heat and brake under that driver; None if it is not known."""
    release = re.match(r"(\d+)\.(\d+)", driver)
    if release is None:
        return None
    version = int(release[1]), int(release[2])
    return OLD_HEAT_FIELD if version < OLD_UNTIL else NEW_HEAT_FIELD if version >= NEW_FROM else None


@functools.cache
def nvml() -> Nvml | Unavailable:
    """The management library, or why there is none; opened once, then remembered."""
    try:
        return Nvml(open_library(OVERRIDE, LIBRARIES))
    except Unavailable as reason:
        return reason.anew()
