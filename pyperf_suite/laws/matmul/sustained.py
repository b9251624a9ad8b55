"""How much longer products take when they run for seconds on end, and power and heat hold the clock down.

A burst is over before the power cap is felt. What keeps the tensor cores busy draws the most, so the slowdown grows
with the share of the peak that a product reaches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu

# Fastest bf16 product in a burst and sustained, TFLOP/s, by name in the catalogue.
ORIGIN = "stas00/ml-engineering, mamf-finder tables (maximum achievable matmul FLOPS)"
MAMF_TFLOP_PER_S = {
    "A100 PCIe": (285.0, 258.0),
    "H200 SXM": (850.0, 755.0),
    "B200 SXM": (1737.0, 1439.0),
    "MI300X": (676.0, 659.0),
}
# Below this share of the dense peak the H200 and B200 of ai-dynamo/aiconfigurator's tables run for a second as fast as
# in a burst.
UNCAPPED_UTILIZATION = 0.45
# A GPU that may draw more power than this times a measured one's is not held down as that one is: iterations of
# training on A100 SXM (400 W, vTrain's tables) take as long as bursts of their products, whose PCIe card has 300 W.
LIKE_POWER = 1.1


def sustained_slowdown(gpu: GpuSpec, utilization: ArrayLike) -> NDArray[np.float64]:
    """Sustained time over burst time, at least 1, of products by the share of their dtype's dense peak in a burst.

    That share, `utilization`, is 0 to 1, of any shape. The slowdown is 1 up to `UNCAPPED_UTILIZATION`, then rises
    straight to that of the GPU's fastest product (MAMF). A GPU without a figure has that of its architecture, if it has
    no more power; where there is none either the answer is 1: on an L40S a second's work was as fast as a burst.
    """
    known = _figure(gpu)
    share = np.asarray(utilization, dtype=np.float64)
    if known is None:
        return np.ones_like(share)
    measured, (burst, sustained) = known
    fastest = burst * 1e12 / measured.peak("bf16")
    return np.interp(share, [UNCAPPED_UTILIZATION, fastest], [1.0, burst / sustained])


def sustained_origin(gpu: GpuSpec) -> str | None:
    """Where a GPU's slowdown is from, None where it has no figure."""
    known = _figure(gpu)
    if known is None:
        return None
    return ORIGIN if known[0] == gpu else f"{ORIGIN}: {known[0]}, of the same architecture"


def _figure(gpu: GpuSpec) -> tuple[GpuSpec, tuple[float, float]] | None:
    """The GPU's own figures, else those of the first of its architecture that has about as much power or more."""
    measured = [find_gpu(name) for name in MAMF_TFLOP_PER_S]
    alike = [
        other
        for other in measured
        if other.architecture == gpu.architecture and gpu.power_w <= LIKE_POWER * other.power_w
    ]
    chosen = next((other for other in alike if other.name == gpu.name), alike[0] if alike else None)
    return None if chosen is None else (chosen, MAMF_TFLOP_PER_S[chosen.name])
