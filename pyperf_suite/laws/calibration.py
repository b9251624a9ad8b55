"""What was fitted for one GPU: blocks of coefficients, each with its origin, its range and its own held-out error.

One small compressed file a GPU keeps them; those shipped lie in `calibrations/`, a user's own wherever they were saved.
"""

from __future__ import annotations

import functools
import io
import json
import re
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu

VERSION = 1
SHIPPED = Path(__file__).parent / "calibrations"
# Not a GPU's name: the calibration of laws fitted to all GPUs with tables at once, for those without.
POOLED = "any GPU"
HEADER = "header.json"
# What the names of blocks begin with that hold laws of a CPU.
OF_CPU = "cpu_"
# A calibration is kilobytes; what unpacks to more than this is not one, and is not unpacked.
MOST_BYTES = 64 << 20
# The earliest time that a zip file can hold: the same coefficients make the same file whenever they are saved.
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Block:
    """The coefficients of one law on one GPU.

    `held_out` is the error on what the fit did not see: `mape` and `median` in %, `sites` left out, `how` they were
    chosen. `fitted_range` says for each size the smallest and largest that was fitted; beyond it the law extrapolates.
    `origin` names the measurements.
    """

    arrays: Mapping[str, NDArray[Any]]
    held_out: Mapping[str, float | int | str]
    fitted_range: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True)
class Calibration:
    """All blocks of one GPU, `gpu` being its name in the catalogue; `version` that of the file's format."""

    gpu: str
    blocks: Mapping[str, Block] = field(default_factory=dict)
    version: int = VERSION

    @property
    def device_kind(self) -> str:
        """What its laws are of: "cpu", whose blocks say so by their names, or "cuda"."""
        return "cpu" if any(name.startswith(OF_CPU) for name in self.blocks) else "cuda"

    @property
    def origin(self) -> str:
        """The measurements that the blocks were fitted to, each named once."""
        return "; ".join(dict.fromkeys(block.origin for block in self.blocks.values() if block.origin))

    def with_block(self, name: str, block: Block) -> Calibration:
        """The same calibration with that block added or replaced."""
        return replace(self, blocks={**self.blocks, name: block})

    def block(self, name: str) -> Block:
        """The block of a law. Raises UserError where it was not fitted."""
        if name not in self.blocks:
            known = ", ".join(sorted(self.blocks)) or "nothing"
            raise UserError(f"The calibration of {self.gpu} has no {name}, only {known}: fit it with `calibrate`.")
        return self.blocks[name]

    def save(self, path: Path | None = None) -> Path:
        """Write the file, by default among those shipped, whole or not at all; returns where it lies."""
        path = path or shipped_path(self.gpu)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        try:
            self._write(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return path

    def _write(self, path: Path) -> None:
        blocks: dict[str, Any] = {}
        with zipfile.ZipFile(path, "w") as archive:
            for name, block in sorted(self.blocks.items()):
                blocks[name] = {
                    "arrays": sorted(block.arrays),
                    "held_out": dict(block.held_out),
                    "fitted_range": {size: list(limits) for size, limits in block.fitted_range.items()},
                    "origin": block.origin,
                }
                for array in sorted(block.arrays):
                    content = io.BytesIO()
                    np.save(content, np.asarray(block.arrays[array]), allow_pickle=False)
                    _write(archive, f"{name}/{array}.npy", content.getvalue())
            header = {"gpu": self.gpu, "version": self.version, "blocks": blocks}
            _write(archive, HEADER, json.dumps(header, sort_keys=True, indent=1).encode())


def spec_of(gpu: str | GpuSpec | Calibration) -> GpuSpec:
    """The data sheet of a GPU by its name, itself or its calibration. Raises UserError for an unknown GPU."""
    return gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu.gpu if isinstance(gpu, Calibration) else gpu)


def shipped_path(gpu: str) -> Path:
    """Where the calibration shipped for a GPU of the catalogue lies, if there is one."""
    return SHIPPED / f"{re.sub(r'[^a-z0-9]+', '_', gpu.lower()).strip('_')}.npz"


def shipped_calibration(gpu: str) -> Calibration | None:
    """The calibration shipped for a GPU by its name in the catalogue, None where no table of it was published."""
    path = shipped_path(gpu)
    return _shipped(path, path.stat().st_mtime_ns) if path.is_file() else None


def all_shipped() -> tuple[Calibration, ...]:
    """The calibration of every GPU that one is shipped for, by name of file; that of `POOLED` is none of them."""
    paths = [path for path in sorted(SHIPPED.glob("*.npz")) if path != shipped_path(POOLED)]
    return tuple(_shipped(path, path.stat().st_mtime_ns) for path in paths)


def load_calibration(path: Path) -> Calibration:
    """Read a calibration. Raises UserError for what is none, or one of another version."""
    try:
        with zipfile.ZipFile(path) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's, of arrays that another hand wrote
            if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                raise ValueError(f"it unpacks to more than {MOST_BYTES >> 20} MiB")
            header = json.loads(archive.read(HEADER))
            version = header["version"]
            if version == VERSION:
                blocks = {name: _read(archive, name, block) for name, block in header["blocks"].items()}
                return Calibration(str(header["gpu"]), blocks)
    except FileNotFoundError:
        raise UserError(f"There is no calibration at {path}: make one with `pyperf-suite calibrate`.") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, LookupError, TypeError, AttributeError,
            RuntimeError, ArithmeticError, MemoryError, SyntaxError, tokenize.TokenError) as error:  # fmt: skip
        raise UserError(
            f"{path} is not a calibration ({error or type(error).__name__}): make one with `pyperf-suite calibrate`."
        ) from None
    raise UserError(
        f"{path} is a calibration of version {version}, but this pyperf-suite reads version {VERSION}: "
        "make it anew with `pyperf-suite calibrate`."
    )


def check_form(calibration: Calibration, origin: Path) -> None:
    """Raise UserError where a block is not what the laws read: one of an older law, or by someone's hand.

    A block is held against those of its name that are shipped; one that none is shipped of has to state its error.
    Then all laws price a few sizes, for coefficients of the right form may still be of nothing that runs.
    """
    from pyperf_suite.laws.calibration_trial import cannot_price

    pooled = shipped_calibration(POOLED)
    shipped = [*all_shipped(), *([pooled] if pooled else [])]
    for name, block in calibration.blocks.items():
        like = [each.blocks[name] for each in shipped if name in each.blocks]
        if not (_states_its_error(block) and (not like or any(_has_form(block, each) for each in like))):
            raise UserError(
                f"{origin} has a block {name} that this pyperf-suite cannot read: make it anew with `pyperf-suite "
                "calibrate`."
            )
    if why := cannot_price(calibration):
        raise UserError(f"{origin} is no calibration of a GPU, for {why}: make it anew with `pyperf-suite calibrate`.")


def _states_its_error(block: Block) -> bool:
    mape = block.held_out.get("mape")
    return isinstance(mape, (int, float)) and 0 <= mape < float("inf")


def _has_form(block: Block, like: Block) -> bool:
    """Whether it has the same arrays, of the same kinds and axes, with numbers where the other one has them.

    None is negative where the other's are not.
    """
    if block.arrays.keys() != like.arrays.keys() or block.fitted_range.keys() != like.fitted_range.keys():
        return False
    return all(
        (array.dtype.kind, array.ndim, array.size > 0) == (other.dtype.kind, other.ndim, other.size > 0)
        and (array.dtype.kind != "f" or not np.isfinite(other).all() or bool(np.isfinite(array).all()))
        and (array.dtype.kind not in "fi" or bool((other < 0).any()) or not bool((array < 0).any()))
        for array, other in ((block.arrays[name], like.arrays[name]) for name in block.arrays)
    )


@functools.cache
def _shipped(path: Path, _changed_ns: int) -> Calibration:
    """Read once in each state of the file: laws ask at every call."""
    return load_calibration(path)


def _read(archive: zipfile.ZipFile, name: str, block: Mapping[str, Any]) -> Block:
    arrays = {
        array: np.load(io.BytesIO(archive.read(f"{name}/{array}.npy")), allow_pickle=False) for array in block["arrays"]
    }
    limits = {size: (float(low), float(high)) for size, (low, high) in block["fitted_range"].items()}
    return Block(arrays, dict(block["held_out"]), limits, str(block["origin"]))


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)
