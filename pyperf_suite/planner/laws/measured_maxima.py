"""The fastest products that were published of each GPU, and what running on end costs what is nearly as fast.

They hold a GPU without tables of products to what its library reaches, which can be half of its data sheet's peak.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.planner.laws.transfers import held_by_power

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
# What the fastest products of the others reach.
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
    known, share = _figure(gpu), np.asarray(utilization, dtype=np.float64)
    fastest, slowdown = USUAL_UTILIZATION, held_by_power(gpu)
    if known is not None:
        measured, (burst, sustained) = known
        fastest, slowdown = burst * 1e12 / measured.peak("bf16"), slowdown * burst / sustained
    return np.interp(share, [UNCAPPED_UTILIZATION, fastest], [1.0, slowdown])


def _figure(gpu: GpuSpec) -> tuple[GpuSpec, tuple[float, float]] | None:
    """The GPU's own figures, else those of the first of its architecture that has about as much power or more."""
    measured = [find_gpu(name) for name in MAMF_TFLOP_PER_S]
    similar = [
        other
        for other in measured
        if other.architecture == gpu.architecture
        and gpu.power_w / other.power_w <= LIKE_POWER * max(1.0, gpu.peak("bf16") / other.peak("bf16"))
    ]
    chosen = next((other for other in similar if other.name == gpu.name), similar[0] if similar else None)
    return None if chosen is None else (chosen, MAMF_TFLOP_PER_S[chosen.name])
