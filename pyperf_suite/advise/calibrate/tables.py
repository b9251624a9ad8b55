"""Fits every law that is shipped to the published tables: what made `laws/calibrations`, to be run again at will."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pyperf_suite.errors import UserError
from pyperf_suite.laws.calibration import Block, Calibration, shipped_path

# A calibration is downloaded with the package by everybody, for every GPU.
LARGEST_BYTES = 200_000

# Blocks of every GPU of a folder of tables, by the GPU's name in the catalogue and the block's own.
FitTables = Callable[[Path], Mapping[str, Mapping[str, Block]]]


def fits() -> Mapping[str, FitTables]:
    """Every fit by the name of its law, in the order in which they are made."""
    from pyperf_suite.advise.calibrate.attention import fit_attention
    from pyperf_suite.advise.calibrate.collectives import fit_collectives
    from pyperf_suite.advise.calibrate.gemm import fit_gemm
    from pyperf_suite.advise.calibrate.memory import fit_memory

    return {
        "gemm": fit_gemm,
        "attention": fit_attention,
        "collectives": lambda folder: {gpu: {"collectives": block} for gpu, block in fit_collectives(folder).items()},
        "memory": lambda folder: {gpu: {"memory": block} for gpu, block in fit_memory(folder).items()},
    }


def calibrate_tables(folder: Path, laws: tuple[str, ...] = ()) -> Iterator[tuple[str, Calibration]]:
    """Each law's blocks by GPU as they are fitted: (law, a calibration of these blocks alone).

    `laws` names some of `fits`; all where it is empty. Raises UserError for a law that there is not, a folder that is
    not there, or one without the tables.
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: name the one that the published tables lie in.")
    known = fits()
    for law in laws:
        if law not in known:
            raise UserError(f"There is no law {law!r} to fit: choose from {', '.join(known)}.")
    for law, fit in known.items():
        if laws and law not in laws:
            continue
        for gpu, blocks in sorted(fit(folder).items()):
            yield law, Calibration(gpu, dict(blocks))


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
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(
                f"{path} has {path.stat().st_size} bytes, but a calibration has at most {LARGEST_BYTES}: fit a coarser "
                "grid."
            )
        paths.append(path)
    return paths
