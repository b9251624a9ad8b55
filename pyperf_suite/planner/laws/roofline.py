"""The time of an operator that only moves bytes: a launch, then a share of the memory's bandwidth.

Norms, activations, optimizers and products of few rows are of this kind; what they compute hides behind the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.transformer import Sizes
from pyperf_suite.planner.laws.calibration import Band, Gpu, spec_of
from pyperf_suite.planner.laws.explained import Explained
from pyperf_suite.planner.laws.transfers import have_same_kernels, nearest

ORIGIN = "bf16 products of at most 16 rows as published by ai-dynamo/aiconfigurator (095f58a5, Apache-2.0)"
FITTED_BYTES = (8512.0, 2150105088.0)
# Bytes of an operator over the GPU's L2, where bands have their knots.
OVER_L2 = (0.002, 0.044, 0.13, 0.3, 0.85, 3.7, 13.9)


@dataclass(frozen=True)
class MemoryLaw:
    """A launch and the share of the data sheet's bandwidth that is reached, by least squares of the logarithms.

    `error_percent` is the mean over operators of all sizes; from 64 MB on all err by 4 to 10 %. Nine of ten
    measurements lay between `low` and `high`, logarithms at the knots of `OVER_L2`.
    """

    launch_s: float
    share: float
    error_percent: float
    low: tuple[float, ...]
    high: tuple[float, ...]


MEASURED = {
    "A100 SXM": MemoryLaw(
        *(5.23633e-6, 0.724394, 14.9),
        low=(-0.60, -0.47, -0.25, -0.10, -0.08, -0.10, -0.16),
        high=(0.28, 0.32, 0.41, 0.34, 0.22, 0.06, 0.01),
    ),
    "B200 SXM": MemoryLaw(
        *(2.94279e-6, 0.768685, 20.4),
        low=(-0.43, -0.43, -0.32, -0.14, -0.12, -0.17, -0.18),
        high=(0.47, 0.64, 0.53, 0.38, 0.15, 0.03, 0.01),
    ),
    "H100 SXM": MemoryLaw(
        *(3.21804e-6, 0.821412, 12.2),
        low=(-0.22, -0.27, -0.29, -0.08, -0.06, -0.07, -0.06),
        high=(0.53, 0.50, 0.42, 0.22, 0.13, 0.04, 0.004),
    ),
    "H200 SXM": MemoryLaw(
        *(3.52278e-6, 0.817440, 14.4),
        low=(-0.31, -0.29, -0.28, -0.12, -0.08, -0.10, -0.08),
        high=(0.46, 0.55, 0.51, 0.27, 0.15, 0.05, 0.004),
    ),
    # It finds in its large L2 what others read from memory.
    "L40S": MemoryLaw(
        *(2.99310e-6, 0.836985, 42.5),
        low=(-0.43, -0.88, -1.19, -1.05, -0.67, -0.01, -0.03),
        high=(1.60, 0.19, 0.09, 0.19, 0.15, 0.12, 0.10),
    ),
}
# H100 read off H200 and back; A100 off H100, B200 off H200 and L40S off A100: the mean error in %, and the same ends.
OF_SAME_KERNELS = (13.6, (-0.29, -0.33, -0.38, -0.20, -0.08, -0.08, -0.08), (0.55, 0.56, 0.44, 0.28, 0.15, 0.06, 0.02))
OF_OTHER_KERNELS = (44.5, (-0.90, -1.10, -1.32, -0.94, -0.40, -0.15, -0.15), (0.71, 0.60, 0.58, 0.44, 0.25, 0.18, 0.15))


def memory_bound_time(gpu: Gpu, nbytes: ArrayLike) -> Explained:
    """Seconds of an operator that reads and writes `nbytes` altogether, of any shape.

    The parts are ideal (bytes at the data sheet's bandwidth), bandwidth (what memory falls short of it) and launch.

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration`.
        nbytes: bytes read and written, not negative.

    Raises:
        UserError: an unknown GPU, or bytes that are negative or not finite.
    """
    spec, size = spec_of(gpu), np.asarray(nbytes, dtype=np.float64)
    if not np.all(np.isfinite(size) & (size >= 0)):
        raise UserError(f"An operator cannot move {np.min(size):g} bytes: give 0 bytes or more.")
    source = find_gpu(spec.name) if spec.name in MEASURED else nearest(spec, MEASURED, "memory is")
    law, origin, is_own = MEASURED[source.name], ORIGIN, source.name == spec.name
    percent, low, high = law.error_percent, law.low, law.high
    if not is_own:
        percent, low, high = OF_SAME_KERNELS if have_same_kernels(spec, source) else OF_OTHER_KERNELS
        origin = f"read off {source}, fitted to {ORIGIN}"
    ideal = size / spec.memory_bytes_per_s
    parts = {
        "ideal": ideal,
        "bandwidth": ideal * (1 / law.share - 1),
        "launch": np.full_like(ideal, law.launch_s),
    }
    seconds = np.asarray(sum(parts.values()))
    beyond = (size < FITTED_BYTES[0]) | (size > FITTED_BYTES[1]) | (not is_own)
    band = Band(*map(np.array, (OVER_L2, low, high)))
    ends = band.around(seconds, np.maximum(size, 1) / spec.l2_bytes)
    return Explained(seconds, parts, beyond, percent, origin, *ends)


def utilization(flop: Any, step_s: Any, gpus: Sizes, peak_flop_per_s: float) -> Any:
    """The share of the GPUs' peak that a step made use of: MFU from `model_flop`, HFU from `hardware_flop`.

    Raises UserError where time, GPUs or peak are not above 0.
    """
    if not (step_s > 0 and gpus > 0 and peak_flop_per_s > 0):
        raise UserError(
            f"A step of {step_s} s on {gpus} GPUs with a peak of {peak_flop_per_s} FLOP/s makes no share of it: "
            "all three have to be above 0."
        )
    return flop / (step_s * gpus * peak_flop_per_s)
