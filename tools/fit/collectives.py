"""Fits the curves of NCCL's collectives on each GPU of the published tables, and infers those that no table has.

Half the curves of a GPU are usually missing: an operation was timed among 4 and 8 ranks, another among 2. What they
share — operation, ranks, architecture, kind of link — predicts the missing ones; the error is that of whole curves left
out.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.calibration import CalibrationBlock
from pyperf_suite.laws.collectives import (
    PiecewiseAlphaBeta,
    has_nvlink,
    held_out_errors,
    pack_curves,
    transferred_laws,
    unpack_laws,
)
from tools.fit.published import read_columns, rows_of

TABLE = "collectives"
ORIGIN = "NCCL's collectives in half precision as published by ai-dynamo/aiconfigurator (095f58a5, Apache-2.0)"
# NCCL's own kernels, in one dtype: reductions of int8 run up to 8 % slower at the same bytes.
FILE, DTYPE = "nccl_perf", "half"
OPERATION_OF = {"alltoall": "all_to_all"}
OPERATIONS = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
RANKS = (2, 4, 8)
# Variance of log seconds that curves share if they agree in all that is named; "trend" is over log ranks. Orders of
# magnitude, chosen on curves left out: links differ most, then operations, then how either scales with ranks.
SHARED_VARIANCE = {
    ("architecture",): 10.0,
    ("reduces twice",): 1.0,
    ("architecture", "ring"): 1.0,
    ("link", "ranks"): 1.0,
    ("link", "trend"): 10.0,
    ("operation", "trend"): 0.3,
    ("architecture", "operation"): 0.1,
    ("architecture", "operation", "ranks"): 0.1,
    ("architecture", "operation", "trend"): 0.1,
}
# Of one curve about what it shares with its like: repeated runs differ by a tenth at the same bytes.
OWN_VARIANCE = 0.01
# What all curves have in common is not shrunk towards anything.
COMMON_VARIANCE = 1e3


class Curve(NamedTuple):
    """What a curve of seconds over bytes is of; `gpu` is the name in the catalogue."""

    gpu: str
    operation: str
    ranks: int


@functools.cache
def fit_collectives(tables_folder: Path) -> dict[str, CalibrationBlock]:
    """The block "collectives" of every GPU in the folder's table of collectives, by the GPU's name in the catalogue.

    Every operation of `OPERATIONS` gets a curve at every number of `RANKS`. The block's stated error is of this GPU's
    curves left out whole; that of sizes left out is stated too. Raises UserError where the folder has no such table.
    """
    measured = read_curves(tables_folder)
    sizes = np.array(sorted(next(iter(measured.values()))), dtype=np.float64)
    curves = sorted(measured)
    log_s = np.log([[measured[curve][size] for size in sizes] for curve in curves])
    left_out = {curve: np.abs(np.expm1(row)) for curve, row in zip(curves, left_out_logs(curves, log_s), strict=True)}
    blocks = {}
    for gpu in sorted({curve.gpu for curve in curves}):
        wanted = [Curve(gpu, operation, ranks) for operation in OPERATIONS for ranks in RANKS]
        missing = [curve for curve in wanted if curve not in measured]
        inferred = np.exp(infer_logs(curves, log_s, missing))
        own = [curve for curve in curves if curve.gpu == gpu]
        errors = np.concatenate([left_out[curve] for curve in own])
        by_size = {curve: held_out_errors(sizes, np.exp(log_s[curves.index(curve)])) for curve in own}
        seconds = {curve: np.exp(log_s[curves.index(curve)]) for curve in own} | dict(
            zip(missing, inferred, strict=True)
        )
        median = float(np.median(errors)) * 100
        packed = pack_curves(
            {(c.operation, c.ranks): PiecewiseAlphaBeta.fit(sizes, time) for c, time in seconds.items()},
            frozenset((c.operation, c.ranks) for c in missing),
            {(c.operation, c.ranks): float(np.median(by_size[c])) * 100 if c in by_size else median for c in seconds},
        )
        at_sizes = np.concatenate(list(by_size.values()))
        held_out: dict[str, float | int | str] = {
            "mape": round(float(np.mean(errors)) * 100, 2),
            "median": round(median, 2),
            "sites": len(own),
            "how": "each curve of an operation among a number of ranks left out whole, one after the other",
            "mape_of_sizes": round(float(np.mean(at_sizes)) * 100, 2),
            "median_of_sizes": round(float(np.median(at_sizes)) * 100, 2),
        }
        limits = {"nbytes": (float(sizes[0]), float(sizes[-1])), "ranks": (float(RANKS[0]), float(RANKS[-1]))}
        blocks[gpu] = CalibrationBlock(packed, held_out, limits, ORIGIN)
    return blocks


def read_curves(tables_folder: Path) -> dict[Curve, dict[float, float]]:
    """Seconds by bytes of each measured curve: the median of NCCL's versions and of repeated runs.

    Sizes that not every curve has are left out. Raises UserError where the folder has no table of collectives.
    """
    repeated: dict[Curve, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(read_columns(tables_folder, TABLE)):
        if row["file"] == FILE and row["dtype"] == DTYPE:
            operation = OPERATION_OF.get(row["op_name"], row["op_name"])
            curve = Curve(find_gpu(row["gpu"]).name, operation, row["num_gpus"])
            repeated[curve][float(row["bytes"])].append(row["latency_us"] * 1e-6)
    everywhere = set.intersection(*(set(times) for times in repeated.values()))
    return {
        curve: {size: float(np.median(times[size])) for size in sorted(everywhere)} for curve, times in repeated.items()
    }


def infer_logs(curves: Sequence[Curve], log_s: NDArray[np.float64], missing: Sequence[Curve]) -> NDArray[np.float64]:
    """Log seconds of curves that were not measured, from those that were: one row a curve, columns as in `log_s`.

    The best linear guess from what curves share (`SHARED_VARIANCE`): a random-effects model, as in Rasmussen and
    Williams 2006, Gaussian Processes for Machine Learning, equation 2.25, each size by itself.
    """
    together = [*curves, *missing]
    shared = _shared_variance(together)
    seen = len(curves)
    own = OWN_VARIANCE * np.eye(seen)
    return np.asarray(shared[seen:, :seen] @ np.linalg.solve(shared[:seen, :seen] + own, log_s))


def left_out_logs(curves: Sequence[Curve], log_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inferred minus measured log seconds of every curve, each inferred from all the others.

    In closed form (the same book, equation 5.12).
    """
    inverse = np.linalg.inv(_shared_variance(curves) + OWN_VARIANCE * np.eye(len(curves)))
    return np.asarray(-(inverse @ log_s) / np.diag(inverse)[:, None])


def left_out_gpu_errors(blocks: dict[str, CalibrationBlock], tables_folder: Path) -> dict[str, NDArray[np.float64]]:
    """|predicted − measured| / measured of all a GPU's curves, read off the other GPUs' as if it had no table."""
    laws = {gpu: unpack_laws(block) for gpu, block in blocks.items()}
    errors: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
    for curve, times in read_curves(tables_folder).items():
        others = {gpu: law for gpu, law in laws.items() if gpu != curve.gpu}
        law = transferred_laws(find_gpu(curve.gpu), others)
        size, seconds = np.array(list(times.items())).T
        predicted = law.curves[curve.operation].seconds(size / law.speed_up, curve.ranks)
        errors[curve.gpu].append(np.abs(predicted / seconds - 1))
    return {gpu: np.concatenate(parts) for gpu, parts in errors.items()}


def _shared_variance(curves: Sequence[Curve]) -> NDArray[np.float64]:
    """How log seconds of each two curves vary together, square."""
    names = {
        "architecture": [find_gpu(curve.gpu).architecture for curve in curves],
        "link": [has_nvlink(find_gpu(curve.gpu)) for curve in curves],
        "operation": [curve.operation for curve in curves],
        "reduces twice": [curve.operation == "all_reduce" for curve in curves],
        "ring": [curve.operation in ("all_gather", "reduce_scatter") for curve in curves],
        "ranks": [curve.ranks for curve in curves],
    }
    same = {name: np.equal.outer(np.array(values), np.array(values)).astype(float) for name, values in names.items()}
    trend = np.log2([curve.ranks for curve in curves]) - np.log2(RANKS[1])
    same["trend"] = np.outer(trend, trend)
    total = np.full((len(curves), len(curves)), COMMON_VARIANCE)
    for agreeing, variance in SHARED_VARIANCE.items():
        total += variance * np.prod([same[name] for name in agreeing], axis=0)
    return total
