"""Fits every law that is shipped to the published tables: what made `laws/calibrations`, to be run again at will."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.laws.calibration import POOLED, Calibration, CalibrationBlock, shipped_calibration, shipped_path
from pyperf_suite.laws.training.step import prices_of
from tools.fit.attention import fit_attention
from tools.fit.collectives import fit_collectives
from tools.fit.decode import fit_decode, fit_latent
from tools.fit.gemm import fit_gemm
from tools.fit.grouped_gemm import fit_grouped_gemm
from tools.fit.memory import fit_memory
from tools.fit.step import fit_step

# A calibration is downloaded with the package by everybody, for every GPU.
LARGEST_BYTES = 600_000
# Fits end where they no longer improve, which other machines' arithmetic puts a little elsewhere.
ROUNDING = 1e-3

Blocks = Mapping[str, Mapping[str, CalibrationBlock]]
# Blocks by GPU and name, from the folder of tables and what was fitted before, by GPU.
Fit = Callable[[Path, Mapping[str, Calibration]], Blocks]


def _step(folder: Path, fitted: Mapping[str, Calibration]) -> Blocks:
    """The constants of frameworks, on top of the laws of kernels as they were just fitted."""
    return {POOLED: fit_step(folder, lambda gpu, dtype: prices_of(fitted.get(gpu.name, gpu), dtype))}


# In the order in which they are made: iterations are predicted by the laws of kernels.
FITS: Mapping[str, Fit] = {
    "gemm": lambda folder, _: fit_gemm(folder),
    "attention": lambda folder, _: fit_attention(folder),
    "decode": lambda folder, _: fit_decode(folder),
    "mla": lambda folder, _: fit_latent(folder),
    "grouped_gemm": lambda folder, _: fit_grouped_gemm(folder),
    "memory": lambda folder, _: fit_memory(folder),
    "collectives": lambda folder, _: fit_collectives(folder),
    "step": _step,
}


def calibrate_tables(
    folder: Path, laws: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, CalibrationBlock, Calibration]]:
    """Each block as it is fitted: the GPU, the block's name, itself, and the GPU's calibration with it.

    `laws` names some of `FITS`, all where it is empty; blocks of others stay as they are shipped. Raises UserError for
    a law that there is not, a folder that is not there, or one without the tables.
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: name the one that the published tables lie in.")
    for law in laws:
        if law not in FITS:
            raise UserError(f"There is no law {law!r} to fit: choose from {', '.join(FITS)}.")
    fitted: dict[str, Calibration] = {}
    for law, fit in FITS.items():
        if laws and law not in laws:
            continue
        for gpu, blocks in sorted(fit(folder, fitted).items()):
            for name, block in sorted(blocks.items()):
                fitted[gpu] = (fitted.get(gpu) or shipped_calibration(gpu) or Calibration(gpu)).with_block(name, block)
                yield gpu, name, block, fitted[gpu]


def is_as_shipped(gpu: str, name: str, block: CalibrationBlock) -> bool:
    """Whether a block is the shipped one within rounding."""
    shipped = shipped_calibration(gpu)
    other = None if shipped is None else shipped.blocks.get(name)
    return other is not None and block.arrays.keys() == other.arrays.keys() and all(
        _is_close(np.asarray(block.arrays[each]), np.asarray(other.arrays[each])) for each in block.arrays
    )  # fmt: skip


def save(calibrations: Mapping[str, Calibration], folder: Path | None = None) -> list[Path]:
    """Write a file a GPU, by default where those shipped lie. Raises UserError for one too large or not writable."""
    paths = []
    for gpu, calibration in sorted(calibrations.items()):
        path = shipped_path(gpu) if folder is None else folder / shipped_path(gpu).name
        try:
            calibration.save(path)
        except OSError as error:
            raise UserError(
                f"{path} cannot be written ({error.strerror}): name another folder with --output."
            ) from None
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise UserError(
                f"{path} has {size} bytes, but a calibration has at most {LARGEST_BYTES}: fit coarser grids."
            )
        paths.append(path)
    return paths


def _is_close(array: np.ndarray, other: np.ndarray) -> bool:
    """Equal within rounding of the largest entry: small residuals are known no better than large ones."""
    if array.shape != other.shape or not np.issubdtype(array.dtype, np.number):
        return np.array_equal(array, other)
    scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
    return bool(np.allclose(array, other, rtol=ROUNDING, atol=ROUNDING * scale, equal_nan=True))
