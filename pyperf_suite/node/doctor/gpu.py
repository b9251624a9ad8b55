"""The GPUs: whether there are any, whether the driver answers, and whether settings and neighbours let one measure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyperf_suite.hardware.catalogue import architecture, architectures
from pyperf_suite.hardware.devices import CudaDriver, Gpu, Unavailable, driver, required
from pyperf_suite.hardware.kernel_files import KernelFiles
from pyperf_suite.hardware.nvml import Nvml, nvml
from pyperf_suite.node.check import Check, caution, failed, of_part, ok, size_text, unknown

NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers (PCI Code and ID Assignment Specification)
# Degrees below its slowdown temperature at which a GPU that begins to work may be throttled within seconds.
NEAR_CELSIUS = 10
HOT_IDLE_CELSIUS = 70
SEVERE_REASONS = ("hardware slowdown", "thermal slowdown by hardware", "power brake")


@dataclass(frozen=True)
class GpuReading:
    """One GPU: the driver's description, and by name what NVML says of its settings, state and health.

    `processes` are (number, bytes) of those that use it; None if NVML does not report them.
    """

    gpu: Gpu
    values: Mapping[str, Any] = field(default_factory=dict)
    processes: tuple[tuple[int, int], ...] | None = None


def gpu_checks(
    files: KernelFiles, cuda: CudaDriver | Unavailable | None = None, manager: Nvml | Unavailable | None = None
) -> tuple[list[Check], int, str | None]:
    """The driver's checks, then each GPU's; how many GPUs there are, and the newest CUDA that the driver supports."""
    manager = nvml() if manager is None else manager
    answers = manager if isinstance(manager, Nvml) else None
    gpus: list[Gpu] = []
    version = refusal = None
    try:
        opened = required(driver() if cuda is None else cuda)
        gpus, version = [opened.gpu(index) for index in range(opened.device_count())], opened.version()
    except Unavailable as reason:
        refusal = str(reason)
    # NVIDIA's display and 3D controllers, with or without a driver.
    on_bus = sum(
        files.text(path) == NVIDIA
        and (files.text(f"{path.rpartition('/')[0]}/class") or "").startswith(DISPLAY_CLASSES)
        for path in files.matching("sys/bus/pci/devices/*/vendor")
    )
    release = answers.driver_version() if answers else None
    checks = {"driver": driver_check(on_bus, len(gpus), version, release, refusal)}
    if gpus:
        checks["NVML"] = manager_check(None if answers else str(manager))
    all_checks = of_part("GPU", checks)
    for number, gpu in enumerate(gpus):
        reading = GpuReading(gpu)
        if answers:
            values = {**answers.settings(gpu.uuid), **answers.readings(gpu.uuid), **answers.health(gpu.uuid)}
            reading = GpuReading(gpu, values, answers.processes(gpu.uuid))
        all_checks += reading_checks(number, reading)
    return all_checks, len(gpus), version


def reading_checks(number: int, reading: GpuReading) -> list[Check]:
    """Every check of one GPU."""
    return of_part(f"cuda:{number}", {what: judge(reading) for what, judge in GPU_CHECKS.items()})


def driver_check(on_bus: int, usable: int, cuda: str | None, release: str | None, refusal: str | None) -> Check:
    """Check that there is a GPU that CUDA can use; `on_bus` counts NVIDIA's, with or without a driver."""
    if usable:
        count = f"{usable} {'GPU' if usable == 1 else 'GPUs'} for this process"
        return ok(f"{release or 'of unknown version'}, for CUDA up to {cuda}; {count}")
    why = refusal or "this process may use none of them"
    if not on_bus:
        return ok(f"no NVIDIA GPU on the bus: {why}; what runs here runs on the CPU")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f", with CUDA_VISIBLE_DEVICES={visible!r}"
    return failed(
        f"{on_bus} NVIDIA on the PCI bus, but {why}{hidden}",
        "Install or load the driver; in a container, hand the GPUs in (docker: --gpus all).",
        "nvidia-smi",
    )


def manager_check(reason: str | None) -> Check:
    """Check that NVML answers, which reads clocks and errors, or say why it does not."""
    if reason is None:
        return ok("answers")
    return caution(
        f"{reason}: records will not have clocks, power or why a GPU was throttled",
        "Hand the driver's tools into the container (NVIDIA_DRIVER_CAPABILITIES=compute,utility).",
    )


def kind(reading: GpuReading) -> Check:
    """Check the GPU's kind: whether our kernels run on it."""
    gpu = reading.gpu
    capability = ".".join(map(str, gpu.compute_capability))
    summary = f"{gpu.name}, compute capability {capability}, {gpu.multiprocessors} SMs, {size_text(gpu.memory_bytes)}"
    if architecture(gpu.compute_capability).cuda_kernels:
        return ok(summary)
    first = next(each for each in architectures() if each.cuda_kernels)
    oldest = ".".join(map(str, first.compute_capability))
    return caution(f"{summary}: there are own kernels from {oldest} on", "Measure the library's kernels.")


def power_check(values: Mapping[str, Any], name: str) -> Check:
    """The power limit, and the one the GPU came with; `name` is what nvidia-smi calls the GPU."""
    limit, default = values.get("power_limit_w"), values.get("default_power_limit_w")
    if limit is None:
        return unknown()
    if default is None or limit >= default:
        return ok(f"{limit:g} W" + (f", default {default:g} W" if default else ""))
    return caution(
        f"{limit:g} W, {1 - limit / default:.0%} below its default of {default:g} W: large products run slower",
        "Find out why it was lowered, or restore it.",
        f"sudo nvidia-smi -i {name} -pl {default:g}",
    )


def clocks(highest: int, reading: GpuReading) -> Check:
    """The clock that applications are given, the highest, and the clock now."""
    requested, default = (reading.values.get(f"{name}_sm_clock_mhz") for name in ("application", "default"))
    summary = f"SM {reading.values.get('sm_clock_mhz', '?')} MHz now, at most {highest} MHz"
    if requested is None:
        return ok(f"{summary}, no clock of applications set")
    if default is not None and requested < default:
        return caution(
            f"{summary}; applications are held to {requested} MHz, below the default of {default} MHz",
            "Give them the default again.",
            f"sudo nvidia-smi -i {reading.gpu.uuid} -rac",
        )
    return ok(f"{summary}, applications {requested} MHz")


def throttling(reasons: Sequence[str], _reading: GpuReading) -> Check:
    """Why clocks are lower than requested now."""
    if not reasons:
        return ok("none")
    severe = [reason for reason in reasons if reason in SEVERE_REASONS]
    return (failed if severe else caution)(
        f"clocks are lowered now: {', '.join(reasons)}",
        "See to cooling and power supply." if severe else "See who uses the GPU, its power limit and its temperature.",
        "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",
    )


def temperature(now: int, reading: GpuReading) -> Check:
    """How near the GPU is to being slowed down by heat."""
    slowdown = reading.values.get("slowdown_celsius")
    summary = f"{now} °C" + (f", slowed down at {slowdown} °C" if slowdown else "")
    if slowdown and now >= slowdown - NEAR_CELSIUS:
        return failed(summary, "Let it cool, and see to fans and airflow.", "nvidia-smi -q -d TEMPERATURE")
    if now >= HOT_IDLE_CELSIUS:
        return caution(f"{summary}: warm before anything is measured", "Let it cool.")
    return ok(summary)


def mode(compute_mode: str, reading: GpuReading) -> Check:
    """Check that several processes may use the GPU: a run starts several, one after another."""
    command = f"sudo nvidia-smi -i {reading.gpu.uuid} -c DEFAULT"
    if compute_mode == "default":
        return ok(compute_mode)
    if compute_mode == "prohibited":
        return failed("prohibited: no process may compute", "Allow it.", command)
    return caution(
        f"{compute_mode}: one process at a time, so two runs side by side fail",
        "Leave it so if one run at a time is what you want.",
        command,
    )


def persistence(is_on: bool, reading: GpuReading) -> Check:
    """Check that the driver keeps the GPU initialised between processes."""
    if is_on:
        return ok("on")
    return caution(
        "off: the GPU is set up anew for each process, which takes a second or more and drops its clocks",
        "Let the driver keep it initialised.",
        f"sudo nvidia-smi -i {reading.gpu.uuid} -pm 1",
    )


def slices(reading: GpuReading) -> Check:
    """Check that this is a whole GPU, no part whose other parts others use."""
    if reading.gpu.uuid.startswith("MIG-"):
        return caution(
            "a slice of a GPU: power and clocks are shared with the other slices",
            "Measure when the other slices are idle; results of slices form series of their own.",
        )
    if not (is_on := reading.values.get("mig")):
        return unknown("this GPU has none, or does not report") if is_on is None else ok("off")
    return failed(
        "on, but this process sees no slice: a GPU that is cut up runs nothing as a whole",
        "Name a slice in CUDA_VISIBLE_DEVICES, or switch MIG off when nobody uses it.",
        "nvidia-smi -L",
    )


def memory_errors(has_ecc: bool, reading: GpuReading) -> Check:
    """Memory errors that could not be corrected, and memory rows that wait to be replaced."""
    errors, remapping = reading.values.get("uncorrected_errors", 0), reading.values.get("remapping", "none")
    if errors or remapping != "none":
        waiting = {"pending": "; rows of memory wait to be replaced", "failed": "; rows could not be replaced"}
        return failed(
            f"{errors} uncorrected errors since the driver was loaded{waiting.get(remapping, '')}",
            "Take the GPU out of use, reset it when idle; if errors come back, replace it.",
            f"nvidia-smi -i {reading.gpu.uuid} -q -d ECC,ROW_REMAPPER",
        )
    return ok("on" if has_ecc else "off: about 6 % more bandwidth on GDDR, and wrong bits go unseen")


def neighbours(reading: GpuReading) -> Check:
    """Other processes on the GPU; the doctor makes no context of its own before it reads them."""
    if not (others := reading.processes):
        return unknown() if others is None else ok("none")
    listed = ", ".join(f"{number} ({size_text(size)})" for number, size in others[:4])
    return failed(
        f"{len(others)} on this GPU: {listed}: they take its time, its memory and its power",
        "Stop them, wait until they are done, or choose another GPU (--device cuda:N).",
        "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv",
    )


def _of(name: str, judge: Callable[[Any, GpuReading], Check]) -> Callable[[GpuReading], Check]:
    """A check of one value; unknown if NVML does not report it."""

    def check(reading: GpuReading) -> Check:
        value = reading.values.get(name)
        return unknown() if value is None else judge(value, reading)

    return check


GPU_CHECKS: Mapping[str, Callable[[GpuReading], Check]] = {
    "kind": kind,
    "power limit": lambda reading: power_check(reading.values, reading.gpu.uuid),
    "clocks": _of("maximum_sm_clock_mhz", clocks),
    "throttling": _of("throttle_reasons", throttling),
    "temperature": _of("temperature_celsius", temperature),
    "compute mode": _of("compute_mode", mode),
    "persistence": _of("persistence_mode", persistence),
    "MIG": slices,
    "ECC": _of("ecc", memory_errors),
    "other processes": neighbours,
}
