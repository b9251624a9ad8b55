"""Choose the calibration whose law answers for a GPU: its own, or the nearest one's; and the interval's width.

One rule for all laws: first a GPU with the same kernels, then one with the same kind of memory, then the nearest in
bandwidth. The widths are those seen when whole GPUs of the tables were left out, law by law.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.laws.calibration import Calibration, Gpu, all_shipped, shipped_calibration, spec_of


def find_law(gpu: Gpu, law: str) -> tuple[Calibration, bool]:
    """The calibration whose `law` answers for a GPU, and whether it is the GPU's own.

    First the calibration given, then the one shipped for the GPU; else that of the nearest GPU which has the law.
    """
    spec = spec_of(gpu)
    given, shipped = gpu if isinstance(gpu, Calibration) else None, shipped_calibration(spec.name)
    for own in (given, shipped):
        if own is not None and own.libraries(law):
            return own, True
    known = {each.gpu: each for each in all_shipped() if each.libraries(law)}
    return known[nearest(spec, known).name], False


def nearest(spec: GpuSpec, fitted: Iterable[str]) -> GpuSpec:
    """Return the nearest of GPUs known by name, whose law `spec` takes; of equals the first by name."""
    return min(
        map(find_gpu, sorted(fitted)),
        key=lambda other: (
            not have_same_kernels(other, spec),
            is_desktop(other) != is_desktop(spec),
            log_ratio(other.memory_bytes_per_s, spec.memory_bytes_per_s),
        ),
    )


def have_same_kernels(first: GpuSpec, second: GpuSpec) -> bool:
    """True if libraries have the same kernels for two GPUs, of one compute capability or on servers of one major."""
    if first.compute_capability is None or second.compute_capability is None or is_desktop(first) != is_desktop(second):
        return False
    if is_desktop(first):
        return first.compute_capability == second.compute_capability
    return first.compute_capability[0] == second.compute_capability[0]


def is_desktop(spec: GpuSpec) -> bool:
    """True for a GPU with mma.sync, 100 KB of shared memory and GDDR: small Ampere and Ada, consumer Blackwell."""
    capability = spec.compute_capability
    return capability is not None and (capability in ((8, 6), (8, 9)) or capability[0] == 12)


def log_ratio(first: float, second: float) -> float:
    """How far apart two rates are."""
    return abs(float(np.log(first / second)))


# Power goes with the cube of the clock, as the voltage follows it: a GPU with less power for its peak clocks lower.
# From one published product to the next of the same kernels (MEASURED_MAXIMA) that is off by 6 %.
CLOCK_OVER_POWER = 1 / 3
# Half the width of the 90 % interval of that, as a logarithm.
HELD_DOWN_WIDTH = 0.13


def power_a_flop(gpu: GpuSpec) -> float:
    """Return the power limit of a GPU for each FLOP/s of its peak in 16 bits, in joules."""
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
    """True if two GPUs have the same multiprocessors, as H100 and H200, and `spec` no less power."""
    return (
        have_same_kernels(spec, source)
        and spec.compute_capability == source.compute_capability
        and log_ratio(spec.peak("fp16") / spec.sms, source.peak("fp16") / source.sms) < TWIN_RATE
        and float(np.log(source.power_w / spec.power_w)) < TWIN_POWER
    )


# The fastest products that were published of each GPU hold one without tables to what its library reaches, which can
# be half of its data sheet's peak.
MAMF = "stas00/ml-engineering, maximum achievable matmul FLOPS (CC-BY-SA)"
SQUARES = "zzc0721/torch-performance-test-data, square products by PyTorch"
SQUARE = (8192, 8192, 8192)


@dataclass(frozen=True)
class MeasuredMaximum:
    """The rate of a product in 16 bits that was published of a GPU, as of cuBLAS or AMD's hipBLASLt in PyTorch."""

    tflop_per_s: float
    sizes: tuple[int, int, int] = SQUARE
    origin: str = SQUARES


# By name in the catalogue. Of GPUs of one kind of kernels the first have tables of products too.
MEASURED_MAXIMA = {
    "A100 SXM": MeasuredMaximum(271.2, (1024, 10240, 5120), MAMF),
    "A100 PCIe": MeasuredMaximum(252.9, (2048, 5120, 6144), MAMF),
    "H100 SXM": MeasuredMaximum(794.5, (2048, 2048, 13312), MAMF),
    "GH200": MeasuredMaximum(828.6, (1024, 15360, 4096), MAMF),
    "B200 SXM": MeasuredMaximum(1745.0, (1792, 16128, 3072), MAMF),
    "B300 SXM": MeasuredMaximum(1769.0, (12288, 18432, 1024), MAMF),
    "GB200": MeasuredMaximum(1822.0, (4096, 9728, 2048), MAMF),
    "MI355X": MeasuredMaximum(1565.0, (12288, 8192, 8192), MAMF),
    "MI325X": MeasuredMaximum(784.9, (13312, 10240, 8192), MAMF),
    "MI300X": MeasuredMaximum(668.4, (10240, 15360, 8192), MAMF),
    "MI250X": MeasuredMaximum(147.0, (1024, 14080, 19968), MAMF),
    "H20": MeasuredMaximum(138.6),
    "RTX PRO 6000 Blackwell Server": MeasuredMaximum(417.3),
    "RTX PRO 6000 Blackwell Workstation": MeasuredMaximum(418.0),
    "RTX 5090": MeasuredMaximum(234.9),
    "RTX 5080": MeasuredMaximum(102.9),
    "RTX 4090": MeasuredMaximum(160.2),
    "RTX 3090": MeasuredMaximum(76.5),
    "RTX 3080": MeasuredMaximum(64.7),
    "A40": MeasuredMaximum(110.6),
    "RTX A6000": MeasuredMaximum(123.3),
    "A100 PCIe 40GB": MeasuredMaximum(215.3),
    "V100 SXM 16GB": MeasuredMaximum(97.4),
    "V100 SXM": MeasuredMaximum(97.4),
    "TITAN RTX": MeasuredMaximum(53.9),
    "RTX 2080 Ti": MeasuredMaximum(49.6),
    "T4": MeasuredMaximum(42.0),
}
# Fastest bf16 product in a burst and sustained, TFLOP/s, from the same source.
MAMF_TFLOP_PER_S = {
    "A100 PCIe": (285.0, 258.0),
    "H200 SXM": (850.0, 755.0),
    "B200 SXM": (1737.0, 1439.0),
    "MI300X": (676.0, 659.0),
}
# Below this share of the dense peak the H200 and B200 of ai-dynamo/aiconfigurator's tables run for a second as fast as
# in a burst.
UNCAPPED_UTILIZATION = 0.45
# Rates that the fastest products of the others reach.
USUAL_UTILIZATION = 0.8
# A GPU that may draw more power than this times a measured one's is not held down as that one is: iterations of
# training on A100 SXM (400 W, vTrain's tables) take as long as bursts of their products, whose PCIe card has 300 W.
# Nor with so much more for each FLOP/s of its peak: GB200, with 8 % more than B200, trains as if held down.
LIKE_POWER = 1.1


def sustained_slowdown(gpu: GpuSpec, utilization: ArrayLike) -> NDArray[np.float64]:
    """Sustained time over burst time, at least 1, of products by the share of their dtype's dense peak in a burst.

    That share, `utilization`, is 0 to 1, of any shape. The slowdown is 1 up to `UNCAPPED_UTILIZATION`, then rises
    straight to that of the GPU's fastest product (MAMF). A GPU without a figure has that of its architecture, if it has
    no more power; where there is none either the answer is 1: on an L40S a second's work was as fast as a burst. A card
    with less power than its kind is held down further.
    """
    fastest, slowdown = USUAL_UTILIZATION, held_by_power(gpu)
    # The GPU's own figures, else those of the first of its architecture that has about as much power or more.
    similar = [
        other
        for other in map(find_gpu, MAMF_TFLOP_PER_S)
        if other.architecture == gpu.architecture
        and gpu.power_w / other.power_w <= LIKE_POWER * max(1.0, gpu.peak("bf16") / other.peak("bf16"))
    ]
    if similar:
        measured = next((other for other in similar if other.name == gpu.name), similar[0])
        burst, sustained = MAMF_TFLOP_PER_S[measured.name]
        fastest, slowdown = burst * 1e12 / measured.peak("bf16"), slowdown * burst / sustained
    share = np.asarray(utilization, dtype=np.float64)
    return np.interp(share, [UNCAPPED_UTILIZATION, fastest], [1.0, slowdown])
