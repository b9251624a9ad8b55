"""The time of an operator that only moves bytes: a launch, then a share of the memory's bandwidth.

Norms, activations, optimizers and products of few rows are of this kind; what they compute hides behind the bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import Sizes
from pyperf_suite.planner.laws.calibration import Band, Gpu, spec_of
from pyperf_suite.planner.laws.explained import Explained

ORIGIN = "bf16 products of at most 16 rows as published by ai-dynamo/aiconfigurator (095f58a5, Apache-2.0)"
FITTED_BYTES = (8512.0, 2150105088.0)
# Seconds of a launch, and the share of the data sheet's bandwidth that is reached; of other GPUs the mean. From 64 MB
# on each errs by 4 to 10 % in the mean; below, an L40S finds in its large L2 what others read from memory.
MEASURED = {
    "A100 SXM": (5.24e-6, 0.724),
    "B200 SXM": (2.94e-6, 0.769),
    "H100 SXM": (3.22e-6, 0.821),
    "H200 SXM": (3.52e-6, 0.817),
    "L40S": (2.99e-6, 0.837),
}
OTHERS = (3.6e-6, 0.80)
ERROR_PERCENT = 19.4
# Nine of ten of all measurements, by bytes over the GPU's L2.
BAND = Band(
    np.array([0.002, 0.05, 0.3, 0.9, 4.0, 14.0]),
    np.array([-0.49, -0.67, -0.36, -0.09, -0.11, -0.14]),
    np.array([0.73, 0.57, 0.36, 0.16, 0.10, 0.03]),
)


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
    launch_s, share = MEASURED.get(spec.name, OTHERS)
    ideal = size / spec.memory_bytes_per_s
    parts = {"ideal": ideal, "bandwidth": ideal * (1 / share - 1), "launch": np.full_like(ideal, launch_s)}
    seconds = np.asarray(sum(parts.values()))
    beyond = (size < FITTED_BYTES[0]) | (size > FITTED_BYTES[1]) | (spec.name not in MEASURED)
    ends = BAND.around(seconds, np.maximum(size, 1) / spec.l2_bytes)
    return Explained(seconds, parts, beyond, ERROR_PERCENT, ORIGIN, *ends)


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
