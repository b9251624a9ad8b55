"""Fits the curves of NCCL's collectives on each GPU of the published tables, and infers those that no table has.

Half the curves of a GPU are usually missing: an operation was timed among 4 and 8 ranks, another among 2. What they
share — operation, ranks, architecture, kind of link — predicts the missing ones; the error is that of whole curves left
out. The all_reduce of serving libraries is fitted as measured.
"""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.traffic import bus_factor
from pyperf_suite.planner.laws import collectives, internode
from pyperf_suite.planner.laws.calibration import Band, CalibrationBlock
from pyperf_suite.planner.laws.collectives import BLOCK
from pyperf_suite.planner.laws.internode import Network, NetworkStage, Point
from pyperf_suite.planner.laws.transfers import Interval
from tools.fit.fitting import in_words
from tools.fit.published import SAMPLE, read_columns, rows_of

Floats = NDArray[np.float64]

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
# From about this size on bytes on the bus decide, not launches; they are taken out before curves are compared.
BUS_BYTES = 1e5
LEFT_OUT = "each curve of an operation among a number of ranks left out whole, one after the other"
# What all curves have in common is not shrunk towards anything.
COMMON_VARIANCE = 1e3


class Curve(NamedTuple):
    """What a curve of seconds over bytes is of; `gpu` is the name in the catalogue."""

    gpu: str
    operation: str
    ranks: int


# log(measured / predicted) of curves.
Errors = Mapping[Curve, Floats]


@functools.cache
def fit_collectives(tables_folder: Path) -> dict[str, dict[str, CalibrationBlock]]:
    """The blocks of every GPU in the folder's table of collectives, by the GPU's name in the catalogue and their own.

    "collectives" has NCCL's: every operation of `OPERATIONS` at every number of `RANKS`; its stated error is of this
    GPU's curves left out whole. Raises UserError where the folder has no such table.
    """
    return {gpu: {BLOCK: block} for gpu, block in _fit_nccl(tables_folder).items()}


def _fit_nccl(tables_folder: Path) -> dict[str, CalibrationBlock]:
    measured = read_curves(tables_folder)
    sizes = np.array(sorted(next(iter(measured.values()))), dtype=np.float64)
    curves = sorted(measured)
    log_s = np.log([[measured[curve][size] for size in sizes] for curve in curves])
    missed = dict(zip(curves, -left_out_logs(curves, sizes, log_s), strict=True))
    operations = missed_operations(curves, sizes, log_s)
    repeated = repeats(tables_folder)
    blocks = {}
    for gpu in sorted({curve.gpu for curve in curves}):
        wanted = [Curve(gpu, operation, ranks) for operation in OPERATIONS for ranks in RANKS]
        missing = [curve for curve in wanted if curve not in measured]
        inferred = np.exp(infer_logs(curves, sizes, log_s, missing))
        own = [curve for curve in curves if curve.gpu == gpu]
        seconds = {curve: np.exp(log_s[curves.index(curve)]) for curve in own} | dict(
            zip(missing, inferred, strict=True)
        )
        errors = np.concatenate([missed[curve] for curve in own])
        covered = [_covered(missed[curve], [missed[c] for c in own if c != curve]) for curve in own]
        # Of a GPU that one version was run on, the versions of all others speak.
        scatter = _interval(repeated.get(gpu, np.concatenate(list(repeated.values()))))
        packed = collectives.pack_curves(
            {(c.operation, c.ranks): PiecewiseAlphaBeta.through(sizes, time) for c, time in seconds.items()},
            frozenset((c.operation, c.ranks) for c in missing),
            {(c.operation, c.ranks): _inferred(c, missed, operations) if c in missing else scatter for c in seconds},
        )
        held_out = _held_out(errors, LEFT_OUT) | {
            "coverage": round(float(np.mean(np.concatenate(covered))) * 100, 1),
            "sites": len(own),
        }
        limits = {"nbytes": (float(sizes[0]), float(sizes[-1])), "ranks": (float(RANKS[0]), float(RANKS[-1]))}
        blocks[gpu] = CalibrationBlock(packed, held_out, limits, ORIGIN)
    return blocks


def _inferred(curve: Curve, missed: Errors, operations: Errors) -> Interval:
    """How far a curve that was inferred may be off, by curves left out of all GPUs with its kind of link.

    Where no GPU of its architecture was measured at its operation, by whole operations left out of an architecture.
    """
    known = any(_family(other) == _family(curve) for other in missed)
    alike = [
        errors for other, errors in (missed if known else operations).items() if _is_pcie(other) == _is_pcie(curve)
    ]
    return _interval(np.concatenate(alike))


def _is_pcie(curve: Curve) -> bool:
    return collectives.link_kind(find_gpu(curve.gpu)) == collectives.PCIE_ONLY


def _family(curve: Curve) -> tuple[str, str]:
    return find_gpu(curve.gpu).architecture, curve.operation


def missed_operations(curves: Sequence[Curve], sizes: Floats, log_s: Floats) -> Errors:
    """log(measured / inferred) of every curve, without any of its operation on a GPU of its architecture."""
    missed = {}
    for family in {_family(curve) for curve in curves}:
        out = np.array([_family(curve) == family for curve in curves])
        seen = [curve for curve, is_out in zip(curves, out, strict=True) if not is_out]
        unseen = [curve for curve, is_out in zip(curves, out, strict=True) if is_out]
        missed |= dict(zip(unseen, log_s[out] - infer_logs(seen, sizes, log_s[~out], unseen), strict=True))
    return missed


def repeats(tables_folder: Path) -> dict[str, Floats]:
    """log(one version's time / the median of the other versions') of each point that several were run at, by GPU."""
    runs: dict[tuple[str, str, int, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(read_columns(tables_folder, TABLE)):
        if row["file"] == FILE and row["dtype"] == DTYPE:
            key = (find_gpu(row["gpu"]).name, row["op_name"], row["num_gpus"], row["bytes"])
            runs[key][row["lib_version"]].append(np.log(row["latency_us"]))
    missed: dict[str, list[float]] = defaultdict(list)
    for (gpu, *_), versions in runs.items():
        for version, logs in versions.items():
            others = [log for other, times in versions.items() if other != version for log in times]
            if others:
                missed[gpu] += [log - float(np.median(others)) for log in logs]
    return {gpu: np.array(logs) for gpu, logs in missed.items()}


def _interval(missed: Floats) -> Interval:
    band = Band.fit(missed, np.ones_like(missed), knots=1)
    return float(band.low[0]), float(band.high[0]), _percent(missed, np.median)


def _held_out(missed: Floats, how: str) -> dict[str, float | int | str]:
    mape, median = (round(_percent(missed, middle), 2) for middle in (np.mean, np.median))
    return {"mape": mape, "median": median, "rows": missed.size, "how": how}


def _percent(missed: Floats, middle: Callable[[Floats], Any]) -> float:
    return float(middle(np.abs(np.expm1(-missed)))) * 100


def _covered(missed: Floats, others: list[Floats]) -> NDArray[np.bool_]:
    """Which of a curve's errors lie in the interval of the other curves'."""
    low, high, _ = _interval(np.concatenate(others))
    return np.asarray((missed >= low) & (missed <= high))


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


def infer_logs(curves: Sequence[Curve], sizes: Floats, log_s: Floats, missing: Sequence[Curve]) -> Floats:
    """Log seconds of curves that were not measured, from those that were: one row a curve, columns as in `log_s`.

    The best linear guess from what curves share (`SHARED_VARIANCE`): a random-effects model, as in Rasmussen and
    Williams 2006, Gaussian Processes for Machine Learning, equation 2.25, each size by itself.
    """
    together = [*curves, *missing]
    shared = _shared_variance(together)
    seen = len(curves)
    own = OWN_VARIANCE * np.eye(seen)
    bus = _log_bus(together, sizes)
    weights = np.linalg.solve(shared[:seen, :seen] + own, log_s - bus[:seen])
    return np.asarray(shared[seen:, :seen] @ weights + bus[seen:])


def left_out_logs(curves: Sequence[Curve], sizes: Floats, log_s: Floats) -> Floats:
    """Inferred minus measured log seconds of every curve, each inferred from all the others.

    In closed form (the same book, equation 5.12).
    """
    inverse = np.linalg.inv(_shared_variance(curves) + OWN_VARIANCE * np.eye(len(curves)))
    return np.asarray(-(inverse @ (log_s - _log_bus(curves, sizes))) / np.diag(inverse)[:, None])


def _log_bus(curves: Sequence[Curve], sizes: Floats) -> Floats:
    """What the bytes on the bus explain: all of the time of large messages, nothing of small ones'."""
    factors = np.log([float(bus_factor(curve.operation, curve.ranks)) for curve in curves])
    return np.asarray(factors[:, None] * sizes / (sizes + BUS_BYTES))


def left_out_gpu_errors(blocks: dict[str, CalibrationBlock], tables_folder: Path) -> dict[str, Floats]:
    """log(measured / predicted) of all a GPU's curves, read off the other GPUs' as if it had no table."""
    laws = {gpu: collectives.unpack_laws(block) for gpu, block in blocks.items()}
    errors: dict[str, list[Floats]] = defaultdict(list)
    for curve, times in read_curves(tables_folder).items():
        others = {gpu: law for gpu, law in laws.items() if gpu != curve.gpu}
        law = collectives.transferred_laws(find_gpu(curve.gpu), others)
        size, seconds = np.array(list(times.items())).T
        predicted = law.curves[curve.operation].seconds(size, curve.ranks)
        errors[curve.gpu].append(np.log(seconds / predicted))
    return {gpu: np.concatenate(parts) for gpu, parts in errors.items()}


def _shared_variance(curves: Sequence[Curve]) -> Floats:
    names = {
        "architecture": [find_gpu(curve.gpu).architecture for curve in curves],
        "link": [_is_pcie(curve) for curve in curves],
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


BETWEEN_NODES = "nccl_tests_between_nodes"
FITTED = ("InfiniBand NDR", "RoCE")
# The first of the constants are shares of the network's rate.
SHARES = 3
# How far a constant may lie from the one in the code, in logarithms, and what that costs against misses.
ROOM, PULL = 2.0, 0.1
POINTS = (2.0**20, 2.0**30)

Rows = list[dict[str, Any]]


def read_rows(folder: Path = SAMPLE) -> Rows:
    """The published rows between nodes, with the source's first name as `site` and seconds."""
    rows = rows_of(read_columns(folder, BETWEEN_NODES))
    for row in rows:
        row["site"] = row["source"].split(",")[0]
        row["seconds"] = row["latency_us"] * 1e-6
    return rows


def predicted_s(rows: Rows, network: Callable[[dict[str, Any]], Network] | None = None) -> Floats:
    """Seconds of each row, by the rate that its source states or by another network."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        rate = network(row) if network else row["network_gb_per_s"] * 1e9
        groups.setdefault((row["gpu"], row["op_name"], row["num_gpus"], row["ranks_per_node"], rate), []).append(index)
    seconds = np.empty(len(rows))
    for (gpu, operation, ranks, inside, rate), indices in groups.items():
        sizes = [rows[index]["bytes"] for index in indices]
        seconds[indices] = collectives.collective_time(gpu, operation, sizes, ranks, inside, rate).seconds
    return seconds


def fit_stage(rows: Rows) -> NetworkStage:
    """The constants, least absolute misses in logarithms, each source counting equally."""
    from scipy.optimize import least_squares

    start = np.log(astuple(internode.STAGE))
    sites = [row["site"] for row in rows]
    weight = np.array([1 / sites.count(site) for site in sites])
    weight = np.sqrt(weight / weight.mean())
    measured = np.log([row["seconds"] for row in rows])

    def misses(logs: Floats) -> Floats:
        error = np.log(_with_stage(NetworkStage(*np.exp(logs)), rows)) - measured
        return np.concatenate([weight * np.sign(error) * np.sqrt(np.abs(error) + 1e-3), PULL * (logs - start)])

    upper = np.where(np.arange(start.size) < SHARES, 0.0, start + ROOM)
    return NetworkStage(*np.exp(least_squares(misses, start, bounds=(start - ROOM, upper)).x))


def left_out_s(rows: Rows) -> Floats:
    """Seconds of each row by constants fitted without its source."""
    seconds = np.empty(len(rows))
    fitted = {row["site"] for row in rows if row["fabric"] in FITTED}
    everything = fit_stage([row for row in rows if row["fabric"] in FITTED])
    for site in sorted({row["site"] for row in rows}):
        held = [index for index, row in enumerate(rows) if row["site"] == site]
        seen = [row for row in rows if row["site"] != site and row["fabric"] in FITTED]
        seconds[held] = _with_stage(fit_stage(seen) if site in fitted else everything, [rows[i] for i in held])
    return seconds


def measured_points(rows: Rows) -> dict[tuple[Any, ...], tuple[Point, ...]]:
    """For each source, operation and number of ranks its own points of `POINTS`, as one would give them."""
    found: dict[tuple[Any, ...], tuple[Point, ...]] = {}
    for row in rows:
        if row["bytes"] in POINTS:
            factor = float(bus_factor(row["op_name"], row["num_gpus"]))
            point = Point(row["bytes"], factor * row["bytes"] / row["seconds"])
            found[key_of(row)] = tuple(sorted((*found.get(key_of(row), ()), point), key=lambda each: each.nbytes))
    return {key: points for key, points in found.items() if len(points) == len(POINTS)}


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What one run of nccl-tests is of."""
    return row["source"], row["op_name"], row["num_gpus"]


def _with_stage(stage: NetworkStage, rows: Rows) -> Floats:
    before, internode.STAGE = internode.STAGE, stage
    try:
        return predicted_s(rows)
    finally:
        internode.STAGE = before


def main() -> None:
    """Print the constants fitted to all rows, and the errors of sources left out."""
    rows = read_rows(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE)
    print(fit_stage([row for row in rows if row["fabric"] in FITTED]))
    measured = np.array([row["seconds"] for row in rows])
    missed = np.log(measured / left_out_s(rows))
    points = measured_points(rows)
    known = [index for index, row in enumerate(rows) if key_of(row) in points and row["bytes"] not in POINTS]
    through = np.log(measured[known] / predicted_s([rows[i] for i in known], lambda row: points[key_of(row)]))
    for low, high in ((0, 2**17), (2**17, 2**22), (2**22, 2**28), (2**28, 2**40), (0, 2**40)):
        chosen = [i for i, row in enumerate(rows) if row["fabric"] in FITTED and low < row["bytes"] <= high]
        near = [at for at, index in enumerate(known) if index in chosen]
        print(f"left out, {low} to {high}: {in_words(missed[chosen])}")
        print(f"   the same, through its own points: {in_words(through[near])}")


if __name__ == "__main__":
    main()
