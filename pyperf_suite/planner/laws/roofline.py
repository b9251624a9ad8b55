"""The time of an operator that only moves bytes: a launch, then a share of the memory's or the L2's bandwidth.

Norms, activations, optimizers and products of few rows are of this kind; what they compute hides behind the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.transformer import Sizes
from pyperf_suite.planner.laws import transfers
from pyperf_suite.planner.laws.calibration import Band, CalibrationBlock, Gpu, spec_of
from pyperf_suite.planner.laws.explained import Explained

Floats = NDArray[np.float64]

BLOCK = "memory"
# Operands start to miss the L2 when they are this share of it, and all miss at twice that: it also holds what
# ran before. The share at which the tables of the GPU with the largest L2 (L40S) fit best.
CACHED_SHARE = 1 / 8


@dataclass(frozen=True)
class MemoryLaw:
    """What was fitted for one GPU.

    `launch_s` passes however few the bytes. `memory_share` and `cache_share` are the rates reached from memory and from
    L2, both over the memory's bandwidth by the data sheet.
    """

    launch_s: float
    memory_share: float
    cache_share: float
    fitted_bytes: tuple[float, float]
    error_percent: float
    origin: str
    transferred: bool = False
    band: Band | None = None

    def parts(self, gpu: GpuSpec, nbytes: Floats) -> dict[str, Floats]:
        ideal = nbytes / gpu.memory_bytes_per_s
        cached = np.clip(2 - nbytes / (CACHED_SHARE * gpu.l2_bytes), 0, 1)
        return {
            "ideal": ideal,
            "bandwidth": ideal * (1 - cached) * (1 / self.memory_share - 1),
            "cache": ideal * cached * (1 / self.cache_share - 1),
            "launch": np.full_like(ideal, self.launch_s),
        }


def memory_bound_time(gpu: Gpu, nbytes: ArrayLike) -> Explained:
    """Seconds of an operator that reads and writes `nbytes` altogether, of any shape.

    The parts are ideal (bytes at the data sheet's bandwidth), bandwidth (what memory falls short of it), cache (what
    bytes found in L2 gain, negative, or lose) and launch.

    Args:
        gpu: its name, its `GpuSpec`, or a `Calibration` with a block "memory".
        nbytes: bytes read and written, not negative.

    Raises:
        UserError: an unknown GPU, or bytes that are negative or not finite.
    """
    spec = spec_of(gpu)
    calibration, is_own = transfers.find_law(gpu, BLOCK, "memory is", "")
    law = unpack_law(calibration.block(BLOCK))
    if not is_own:
        law = transferred_law(spec, {calibration.gpu: law})
    size = np.asarray(nbytes, dtype=np.float64)
    if not np.all(np.isfinite(size) & (size >= 0)):
        raise UserError(f"An operator cannot move {np.min(size):g} bytes: give 0 bytes or more.")
    parts = law.parts(spec, size)
    seconds = np.asarray(sum(parts.values()))
    beyond = (size < law.fitted_bytes[0]) | (size > law.fitted_bytes[1])
    low, high = (None, None) if law.band is None else law.band.around(seconds, np.maximum(size, 1) / spec.l2_bytes)
    return Explained(seconds, parts, beyond | law.transferred, law.error_percent, law.origin, low, high)


def unpack_law(block: CalibrationBlock) -> MemoryLaw:
    """The law that a block of a calibration keeps."""
    launch_s, memory_share, cache_share = (
        float(block.arrays[name]) for name in ("launch_s", "memory_share", "cache_share")
    )
    mape = float(block.held_out["mape"])
    limits, band = block.fitted_range["nbytes"], Band.from_arrays(block.arrays)
    return MemoryLaw(launch_s, memory_share, cache_share, limits, mape, block.origin, band=band)


def transferred_law(gpu: GpuSpec, known: Mapping[str, MemoryLaw]) -> MemoryLaw:
    """The law of the nearest of GPUs known by name. Raises UserError where none is known."""
    source = transfers.nearest(gpu, known, "memory is")
    same = transfers.have_same_kernels(gpu, source)
    return replace(
        known[source.name],
        error_percent=transfers.MEMORY_PERCENT_OF_SAME_KERNELS if same else transfers.MEMORY_PERCENT_OF_OTHER_KERNELS,
        origin=f"read off {source}, fitted to {known[source.name].origin}",
        transferred=True,
        band=transfers.MEMORY_OF_SAME_KERNELS if same else transfers.MEMORY_OF_OTHER_KERNELS,
    )


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
