"""Fitted coefficients of one GPU, in blocks, each with its origin, its range and its own held-out error.

One small compressed file a GPU keeps them; those shipped lie in `calibrations/`, a user's own where they were saved.
Three forms of what a law misses are here too: a grid over the sizes of a large table, a smooth factor from a short run
on one machine, and the band that 90 % of the measured times lie in.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.files import write_whole
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu

VERSION = 2
# Whose kernels a law can be of; the first one that a GPU has tables of answers where none is requested.
LIBRARIES = ("trtllm", "sglang", "vllm")
SHIPPED = Path(__file__).parent / "calibrations"
# Not a GPU's name: the calibration of laws fitted to all GPUs with tables at once, for those without.
POOLED = "any GPU"
HEADER = "header.json"
# A calibration is kilobytes; what unpacks to more than this is not one, and is not unpacked.
MOST_BYTES = 64 << 20
# The earliest time that a zip file can hold: the same coefficients make the same file whenever they are saved.
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, eq=False)
class CalibrationBlock:
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
    """All blocks of one GPU, `gpu` being its name in the catalogue."""

    gpu: str
    blocks: Mapping[str, CalibrationBlock] = field(default_factory=dict)

    def with_block(self, name: str, block: CalibrationBlock) -> Calibration:
        return replace(self, blocks={**self.blocks, name: block})

    def block(self, name: str) -> CalibrationBlock:
        """The block of a law. Raises UserError where it was not fitted."""
        if name not in self.blocks:
            known = ", ".join(sorted(self.blocks)) or "nothing"
            raise UserError(f"The calibration of {self.gpu} has no {name}, only {known}: fit it with `calibrate`.")
        return self.blocks[name]

    def libraries(self, law: str) -> tuple[str, ...]:
        """Libraries that a law was fitted to, the default one first. Blocks are named as in `gemm_bf16.sglang`."""
        return tuple(library for library in LIBRARIES if f"{law}.{library}" in self.blocks)

    def library(self, law: str, requested: str | None = None) -> str:
        """The library that answers for a law. Raises UserError where there is none, or not the one requested."""
        known = self.libraries(law)
        if not known or (requested is not None and requested not in known):
            there = f"there are {', '.join(known)}" if known else "there is none"
            raise UserError(f"Of {requested or 'any library'} no {law} was measured on {self.gpu}: {there}.")
        return requested or known[0]

    def save(self, path: Path) -> Path:
        """Write the file, whole or not at all; returns where it lies."""
        blocks: dict[str, Any] = {}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
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
            header = {"gpu": self.gpu, "version": VERSION, "blocks": blocks}
            _write(archive, HEADER, json.dumps(header, sort_keys=True, indent=1).encode())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path.resolve(), buffer.getvalue())
        return path


Gpu = str | GpuSpec | Calibration


def outside(limits: Mapping[str, tuple[float, float]], sizes: Mapping[str, Any]) -> NDArray[np.bool_]:
    """True where a size lies beyond the fitted ones; of the sizes, arrays, only those with limits count."""
    beyond = [(sizes[name] < least) | (sizes[name] > most) for name, (least, most) in limits.items()]
    return np.asarray(functools.reduce(np.logical_or, beyond, np.zeros((), dtype=bool)))


def spec_of(gpu: Gpu) -> GpuSpec:
    """The data sheet of a GPU by its name, itself or its calibration. Raises UserError for an unknown GPU."""
    return gpu if isinstance(gpu, GpuSpec) else find_gpu(gpu.gpu if isinstance(gpu, Calibration) else gpu)


def shipped_path(gpu: str) -> Path:
    """Return the path of the calibration shipped for a GPU of the catalogue, if there is one."""
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
                blocks = {}
                for name, block in header["blocks"].items():
                    files = {array: io.BytesIO(archive.read(f"{name}/{array}.npy")) for array in block["arrays"]}
                    arrays = {array: np.load(file, allow_pickle=False) for array, file in files.items()}
                    limits = {size: (float(low), float(high)) for size, (low, high) in block["fitted_range"].items()}
                    blocks[name] = CalibrationBlock(arrays, dict(block["held_out"]), limits, str(block["origin"]))
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


@functools.cache
def _shipped(path: Path, _changed_ns: int) -> Calibration:
    """Read once in each state of the file: laws ask at every call."""
    return load_calibration(path)


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


# Terms of each degree: a level; a slope in each size.
DEGREES = (0, 1)


def correction_name(law: str) -> str:
    """The name of the block that corrects the block of that law."""
    return f"{law}_here"


def _here(gpu: Gpu, law: str) -> CalibrationBlock | None:
    """Return the correction of a law on this machine, if it was measured."""
    return gpu.blocks.get(correction_name(law)) if isinstance(gpu, Calibration) else None


def correction_of(gpu: Gpu, law: str, sizes: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
    """By what to multiply the seconds of a law on this machine; 1 where nothing was measured on it.

    `sizes` are arrays that broadcast together, under the names that the block was fitted with.
    """
    block = _here(gpu, law)
    if block is None:
        return np.ones(np.broadcast_shapes(*(np.shape(size) for size in sizes.values())))
    return correction(block, sizes)


def stated(gpu: Gpu, law: str, error_percent: float | None, origin: str) -> tuple[float | None, str]:
    """The mean error in % to state for a law, and its origin: the correction's own held-out one where there is one."""
    block = _here(gpu, law)
    if block is None or error_percent is None:
        return error_percent, origin
    return float(block.held_out["mape"]), f"{origin}; corrected by {block.origin or 'measurements of one machine'}"


def correction(block: CalibrationBlock, sizes: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
    """The factor of a block. Raises KeyError where a size that it was fitted with is not given."""
    level, *slopes = block.arrays["coefficients"]
    terms = zip(slopes, block.fitted_range.items(), block.arrays["centre"], block.arrays["spread"], strict=True)
    log_factor = np.asarray(level)
    for slope, (name, limits), centre, spread in terms:
        inside = np.clip(np.asarray(sizes[name], dtype=np.float64), *limits)
        log_factor = log_factor + slope * (np.log(inside) - centre) / spread
    return np.exp(log_factor)


def fit_correction(
    log_ratio: ArrayLike, sizes: Mapping[str, ArrayLike], degree: int
) -> tuple[Mapping[str, NDArray[np.float64]], Mapping[str, tuple[float, float]]]:
    """Arrays and range of a block whose factor follows log(measured / predicted) in the least squares.

    `log_ratio` and every size are arrays of one length. Half of a unit of noise is held against each slope, so that few
    points make no steep one (ridge regression: Hoerl & Kennard, Technometrics 12, 1970).

    Raises ValueError for no rows or a degree there is not.
    """
    wanted = np.asarray(log_ratio, dtype=np.float64)
    if degree not in DEGREES or wanted.size == 0:
        raise ValueError(f"a correction of degree {degree} cannot be fitted to {wanted.size} rows")
    logs = np.log([np.asarray(size, dtype=np.float64) for size in sizes.values()])
    centre, spread = logs.mean(axis=1), logs.std(axis=1)
    spread[spread == 0] = 1.0
    slopes = (logs - centre[:, None]) / spread[:, None]
    design = np.vstack([np.ones_like(wanted), slopes * degree]).T
    penalty = np.diag([0.0] + [0.5] * len(slopes))
    coefficients = np.linalg.solve(design.T @ design + penalty, design.T @ wanted)
    limits = {name: (float(np.min(size)), float(np.max(size))) for name, size in sizes.items()}
    return {"centre": centre, "spread": spread, "coefficients": coefficients}, limits


# Steps of one byte up to the largest factor: about a third of a percent each.
STEPS = 127
# Sizes are looked up in pieces that stay in a core's cache.
GRID_PIECE = 16384


@dataclass(frozen=True)
class ResidualGrid:
    """`axes` are the ascending sizes at the nodes, `values` natural logarithms of factors, one dimension per axis."""

    axes: tuple[NDArray[np.float64], ...]
    values: NDArray[np.float64]

    def __call__(self, *sizes: ArrayLike) -> NDArray[np.float64]:
        """The logarithm of the factor at sizes of at least 1, one array per axis, broadcast against each other."""
        requested = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in sizes))
        flat, logarithms = [np.ravel(size) for size in requested], np.empty(requested[0].size)
        values = self.values.ravel()
        for start in range(0, logarithms.size, GRID_PIECE):
            piece = slice(start, start + GRID_PIECE)
            logarithms[piece] = 0.0
            for node, weight in self.corners([size[piece] for size in flat]):
                logarithms[piece] += weight * values[node]
        return logarithms.reshape(requested[0].shape)

    def as_arrays(self) -> dict[str, NDArray[np.generic]]:
        """As a calibration's block keeps it: axes, and values in steps of one byte."""
        step = max(float(np.abs(self.values).max()) / STEPS, 1e-9)
        axes: dict[str, NDArray[np.generic]] = {f"residual_axis_{i}": axis for i, axis in enumerate(self.axes)}
        return axes | {"residual_step": np.array(step), "residual": np.round(self.values / step).astype(np.int8)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> ResidualGrid:
        """The inverse of `as_arrays`, within a step. Raises KeyError where there is no residual."""
        values = np.asarray(arrays["residual"], dtype=np.float64) * float(arrays["residual_step"])
        axes = tuple(np.asarray(arrays[f"residual_axis_{i}"], dtype=np.float64) for i in range(values.ndim))
        return cls(axes, values)

    def corners(self, sizes: Sequence[NDArray[np.float64]]) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """The flat places of the nodes around each size with their weights, one corner of the cells at a time."""
        places = []
        for axis, size in zip(self.axes, sizes, strict=True):
            logs, requested = np.log2(axis), np.log2(size)
            below = np.clip(np.searchsorted(logs, requested, side="right") - 1, 0, len(axis) - 2)
            share = np.clip((requested - logs[below]) / (logs[below + 1] - logs[below]), 0.0, 1.0)
            places.append((below, share))
        strides = [int(np.prod(self.values.shape[axis + 1 :])) for axis in range(self.values.ndim)]
        origin = np.asarray(sum(below * stride for (below, _), stride in zip(places, strides, strict=True)))
        for corner in product((0, 1), repeat=len(self.axes)):
            weight: Any = 1.0
            for (_, share), side in zip(places, corner, strict=True):
                weight = weight * (share if side else 1.0 - share)
            yield origin + sum(side * stride for side, stride in zip(corner, strides, strict=True)), weight


# Share of measured times in the interval that goes with every time.
COVERED = 0.9
# Standard deviations of the mean within which 90 % of a normal distribution lie.
SIGMA_OF_90 = 1.645
# Mean error of a normal distribution over the half-width that holds 90 % of it.
MEAN_OF_HALF_WIDTH = 0.8 / SIGMA_OF_90
# Names of a band in the arrays of a block.
BAND_NAMES = ("band_at", "band_low", "band_high")


@dataclass(frozen=True)
class Band:
    """The 5th and 95th percentile of log(measured / predicted) along one figure of a call, straight between knots.

    `at` are ascending values of the figure, for example the predicted seconds; beyond its ends the band stays as wide
    as there.
    """

    at: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def around(
        self, seconds: ArrayLike, figure: ArrayLike | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The seconds between which nine of ten measurements lie; the figure is the seconds themselves by default."""
        middle = np.asarray(seconds, dtype=np.float64)
        requested = np.log(np.maximum(middle if figure is None else np.asarray(figure, dtype=np.float64), 1e-300))
        low, high = (np.interp(requested, np.log(self.at), side) for side in (self.low, self.high))
        return middle * np.exp(low), middle * np.exp(high)

    def as_arrays(self) -> dict[str, NDArray[np.float64]]:
        """As a calibration's block keeps it."""
        return dict(zip(BAND_NAMES, (self.at, self.low, self.high), strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Band | None:
        """The inverse of `as_arrays`; None where the arrays hold no band."""
        if BAND_NAMES[0] not in arrays:
            return None
        return cls(*(np.asarray(arrays[name], dtype=np.float64) for name in BAND_NAMES))
