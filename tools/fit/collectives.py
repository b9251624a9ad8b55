"""Fits what the laws of collectives hold in code: NCCL over each kind of link, and the stage between nodes.

`python -m tools.fit.collectives` prints the constants fitted to all rows, and the errors of curves or sources left out.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.findings.rows import grouped
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.traffic import bus_factor
from pyperf_suite.planner.laws import collectives
from pyperf_suite.planner.laws.collectives import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    PCIE,
    LinkLaw,
    Network,
    NetworkStage,
    Point,
    link_bytes_per_s,
)
from tools.fit.fitting import USUAL_ERROR, in_words
from tools.fit.published import SAMPLE, read_columns, rows_of

Floats = NDArray[np.float64]

TABLE = "collectives"
# NCCL's own kernels, in one dtype: reductions of int8 run up to 8 % slower at the same bytes.
FILE, DTYPE = "nccl_perf", "half"
OPERATION_OF = {"alltoall": "all_to_all"}
LINK_LAWS = (AMPERE, HOPPER, BLACKWELL, PCIE)
CONSTANTS = ("launch_s", "growth", "twice", "share", "fill_s", "fill_bytes", "switch_share", "crowding")
# Messages of training are large: by these a step is longer or shorter.
LARGE_BYTES, LARGE_WEIGHT = 2.0**24, 4.0


class Curve(NamedTuple):
    """Key of a curve of seconds over bytes; `gpu` is the name in the catalogue."""

    gpu: str
    operation: str
    ranks: int


Curves = dict[Curve, dict[float, float]]


def read_curves(tables_folder: Path) -> Curves:
    """Seconds by bytes of each measured curve: the median of NCCL's versions and of repeated runs.

    Raises UserError where the folder has no table of collectives.
    """
    repeated: dict[Curve, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(read_columns(tables_folder, TABLE)):
        if row["file"] == FILE and row["dtype"] == DTYPE:
            operation = OPERATION_OF.get(row["op_name"], row["op_name"])
            curve = Curve(find_gpu(row["gpu"]).name, operation, row["num_gpus"])
            repeated[curve][float(row["bytes"])].append(row["latency_us"] * 1e-6)
    return {
        curve: {size: float(np.median(times[size])) for size in sorted(times)}
        for curve, times in sorted(repeated.items())
    }


def missed_by(law: LinkLaw, curves: Curves) -> Floats:
    """log(measured / predicted) of all points of the curves."""
    missed = []
    for curve, times in curves.items():
        size, seconds = np.array(list(times.items())).T
        ranks = np.asarray(float(curve.ranks))
        bus_bytes, link = size * bus_factor(curve.operation, ranks), link_bytes_per_s(find_gpu(curve.gpu), ranks)
        missed.append(np.log(seconds / law.seconds(curve.operation, bus_bytes, ranks, link)))
    return np.concatenate(missed)


def fit_link(law: LinkLaw, curves: Curves) -> LinkLaw:
    """The law with the constants that have the least errors, far points counting less, near those that it has."""
    from scipy.optimize import least_squares

    names = [name for name in CONSTANTS if getattr(law, name)]
    start = np.log([getattr(law, name) for name in names])

    def with_constants(logs: Floats) -> LinkLaw:
        return replace(law, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    sizes = np.concatenate([list(times) for times in curves.values()])
    weight = np.where(sizes >= LARGE_BYTES, LARGE_WEIGHT, 1.0)

    def misses(logs: Floats) -> Floats:
        return np.concatenate([weight * missed_by(with_constants(logs), curves), PULL * (logs - start)])

    return with_constants(least_squares(misses, start, loss="soft_l1", f_scale=USUAL_ERROR).x)


def left_out_curves(law: LinkLaw, curves: Curves) -> Floats:
    """log(measured / predicted) of each curve by the law that is fitted to the others."""
    others = {out: {curve: times for curve, times in curves.items() if curve != out} for out in curves}
    return np.concatenate([missed_by(fit_link(law, others[out]), {out: curves[out]}) for out in curves])


def curves_of(law: LinkLaw, curves: Curves) -> Curves:
    """The curves of the GPUs that a law is of."""
    return {curve: times for curve, times in curves.items() if curve.gpu in law.gpus}


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

    def curve_of(index: int) -> tuple[Any, ...]:
        row = rows[index]
        rate = network(row) if network else row["network_gb_per_s"] * 1e9
        return row["gpu"], row["op_name"], row["num_gpus"], row["ranks_per_node"], rate

    seconds = np.empty(len(rows))
    for (gpu, operation, ranks, inside, rate), indices in grouped(range(len(rows)), curve_of).items():
        sizes = [rows[index]["bytes"] for index in indices]
        seconds[indices] = collectives.collective_time(gpu, operation, sizes, ranks, inside, rate).seconds
    return seconds


def fit_stage(rows: Rows) -> NetworkStage:
    """The constants, least absolute misses in logarithms, each source counting equally."""
    from scipy.optimize import least_squares

    start = np.log(astuple(collectives.STAGE))
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
    by_key: dict[tuple[Any, ...], tuple[Point, ...]] = {}
    for row in rows:
        if row["bytes"] in POINTS:
            factor = float(bus_factor(row["op_name"], row["num_gpus"]))
            point = Point(row["bytes"], factor * row["bytes"] / row["seconds"])
            by_key[key_of(row)] = tuple(sorted((*by_key.get(key_of(row), ()), point), key=lambda each: each.nbytes))
    return {key: points for key, points in by_key.items() if len(points) == len(POINTS)}


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key of one run of nccl-tests."""
    return row["source"], row["op_name"], row["num_gpus"]


def _with_stage(stage: NetworkStage, rows: Rows) -> Floats:
    before, collectives.STAGE = collectives.STAGE, stage
    try:
        return predicted_s(rows)
    finally:
        collectives.STAGE = before


def main() -> None:
    """Print the constants fitted to all rows, and the errors of curves and sources left out."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE
    for law in LINK_LAWS:
        curves = curves_of(law, read_curves(folder))
        print(fit_link(law, curves))
        print(f"curves left out: {in_words(left_out_curves(law, curves))}")
    rows = read_rows(folder)
    print(fit_stage([row for row in rows if row["fabric"] in FITTED]))
    measured = np.array([row["seconds"] for row in rows])
    missed = np.log(measured / left_out_s(rows))
    points = measured_points(rows)
    known = [index for index, row in enumerate(rows) if key_of(row) in points and row["bytes"] not in POINTS]
    through = np.log(measured[known] / predicted_s([rows[i] for i in known], lambda row: points[key_of(row)]))
    fitted = np.array([row["fabric"] in FITTED for row in rows])
    print(f"sources left out: {in_words(missed[fitted])}")
    print(f"through points of their own: {in_words(through[fitted[known]])}")


if __name__ == "__main__":
    main()
