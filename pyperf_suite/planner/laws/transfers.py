"""Which calibration's law answers for a GPU: its own, or the nearest one's, and how wide the interval is then.

One rule for all laws: first a GPU with the same kernels, then one with the same kind of memory, then the nearest in
bandwidth. The widths are what leaving whole GPUs of the tables out showed, law by law.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.laws.calibration import Calibration, Gpu, all_shipped, shipped_calibration, spec_of


def find_law(gpu: Gpu, law: str, subject: str) -> tuple[Calibration, bool]:
    """The calibration whose `law` answers for a GPU, and whether it is the GPU's own.

    First the calibration given, then the one shipped for the GPU; else that of the nearest GPU which has the law.
    `subject` is the `law` of `nearest`. Raises UserError for an unknown GPU, and where no calibration has the law.
    """
    spec = spec_of(gpu)
    given, shipped = gpu if isinstance(gpu, Calibration) else None, shipped_calibration(spec.name)
    for own in (given, shipped):
        if own is not None and own.has(law):
            return own, True
    known = {each.gpu: each for each in all_shipped() if each.has(law)}
    return known[nearest(spec, known, subject).name], False


def nearest(spec: GpuSpec, known: Iterable[str], law: str) -> GpuSpec:
    """Of GPUs known by name the nearest one, whose law `spec` takes; of equals the first by name.

    Raises UserError if none is known; `law` says of what, as in "memory is".
    """
    gpus = [find_gpu(name) for name in sorted(known)]
    if not gpus:
        raise UserError(f"No GPU's {law} calibrated, so nothing is known of {spec.name}'s: calibrate one.")
    return min(
        gpus,
        key=lambda other: (
            not have_same_kernels(other, spec),
            is_desktop(other) != is_desktop(spec),
            log_ratio(other.memory_bytes_per_s, spec.memory_bytes_per_s),
        ),
    )


def have_same_kernels(one: GpuSpec, other: GpuSpec) -> bool:
    """Whether libraries have the same kernels for two GPUs, of one compute capability or on servers of one major."""
    if one.compute_capability is None or other.compute_capability is None or is_desktop(one) != is_desktop(other):
        return False
    if is_desktop(one):
        return one.compute_capability == other.compute_capability
    return one.compute_capability[0] == other.compute_capability[0]


def is_desktop(spec: GpuSpec) -> bool:
    """Whether it has mma.sync, 100 KB of shared memory and GDDR: Ampere's and Ada's small chips, consumer Blackwell."""
    capability = spec.compute_capability
    return capability is not None and (capability in ((8, 6), (8, 9)) or capability[0] == 12)


def log_ratio(one: float, other: float) -> float:
    """How far apart two rates are."""
    return abs(float(np.log(one / other)))


# Power goes with the cube of the clock, as the voltage follows it: a GPU with less power for its peak clocks lower.
# From one published product to the next of the same kernels (measured_maxima.py) that is off by 6 %.
CLOCK_OVER_POWER = 1 / 3
# Half the width of the 90 % interval of that, as a logarithm.
HELD_DOWN_WIDTH = 0.13


def power_a_flop(gpu: GpuSpec) -> float:
    """What a GPU may draw for each FLOP/s of its peak in 16 bits, in joules."""
    return gpu.power_w / gpu.peak("fp16")


def held_down(gpu: GpuSpec, source: GpuSpec) -> float:
    """The clock that less power a FLOP leaves a GPU, over that of another of the same kernels: 1 or less."""
    ratio = power_a_flop(gpu) / power_a_flop(source) if have_same_kernels(gpu, source) else 1.0
    return float(min(1.0, ratio) ** CLOCK_OVER_POWER)


def held_by_power(spec: GpuSpec) -> float:
    """The time of what power holds down on a card that may draw less than its kind, over that of its kind."""
    return float(max(1.0, find_gpu(spec.name).power_w / spec.power_w) ** CLOCK_OVER_POWER)


def card_of(spec: GpuSpec, power_w: float | None = None, memory_gb_s: float | None = None) -> GpuSpec:
    """The GPU as a card of that power and memory bandwidth, where they are given. Raises UserError for none above 0."""
    for name, value in (("power", power_w), ("memory bandwidth", memory_gb_s)):
        if value is not None and not 0 < value < np.inf:
            raise UserError(f"A {spec.name} with a {name} of {value:g} computes nothing: give more.")
    power = spec.power_w if power_w is None else power_w
    memory = spec.memory_bytes_per_s if memory_gb_s is None else memory_gb_s * 1e9
    return replace(spec, power_w=power, memory_bytes_per_s=memory)


# Products on a GPU of the same kernels: peaks that differ by more than this make a GPU another one. Bands are in the
# blocks of all GPUs.
LIKE_PEAK = 1.5

# A twin's multiprocessors are as fast, and its power no less, within these logarithms.
TWIN_RATE, TWIN_POWER = 0.10, 0.20


def are_twins(spec: GpuSpec, source: GpuSpec) -> bool:
    """Whether two GPUs have the same multiprocessors, as H100 and H200, and `spec` no less power."""
    return (
        have_same_kernels(spec, source)
        and spec.compute_capability == source.compute_capability
        and log_ratio(spec.peak("fp16") / spec.sms, source.peak("fp16") / source.sms) < TWIN_RATE
        and float(np.log(source.power_w / spec.power_w)) < TWIN_POWER
    )
