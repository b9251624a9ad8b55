"""Fits how collectives take to the network between nodes: `python -m tools.fit.internode` prints constants and errors.

The rows are of many clusters, so errors are of whole sources left out. Only InfiniBand and RoCE are fitted: EFA and
TCPXO have several times their latency, which a measured point says (`network=`). The interval covers them too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.laws import internode
from pyperf_suite.laws.collectives import collective_time
from pyperf_suite.laws.internode import Network, NetworkStage, Point
from pyperf_suite.laws.traffic import bus_factor
from tools.fit.fitting import in_words
from tools.fit.published import SAMPLE, read_columns, rows_of

TABLE = "nccl_tests_between_nodes"
FITTED = ("InfiniBand NDR", "RoCE")
# The first of the constants are shares of the network's rate.
SHARES = 3
# How far a constant may lie from the one in the code, in logarithms, and what that costs against misses.
ROOM, PULL = 2.0, 0.1
POINTS = (2.0**20, 2.0**30)

Rows = list[dict[str, Any]]


def read_rows(folder: Path = SAMPLE) -> Rows:
    """The published rows between nodes, with the source's first name as `site` and seconds."""
    rows = rows_of(read_columns(folder, TABLE))
    for row in rows:
        row["site"] = row["source"].split(",")[0]
        row["seconds"] = row["latency_us"] * 1e-6
    return rows


def predicted_s(rows: Rows, network: Callable[[dict[str, Any]], Network] | None = None) -> NDArray[np.float64]:
    """Seconds of each row, by the rate that its source states or by another network."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        rate = network(row) if network else row["network_gb_per_s"] * 1e9
        groups.setdefault((row["gpu"], row["op_name"], row["num_gpus"], row["ranks_per_node"], rate), []).append(index)
    seconds = np.empty(len(rows))
    for (gpu, operation, ranks, inside, rate), indices in groups.items():
        sizes = [rows[index]["bytes"] for index in indices]
        seconds[indices] = collective_time(gpu, operation, sizes, ranks, inside, rate).seconds
    return seconds


def fit_stage(rows: Rows) -> NetworkStage:
    """The constants, least absolute misses in logarithms, each source counting alike."""
    from scipy.optimize import least_squares

    start = np.log(astuple(internode.STAGE))
    sites = [row["site"] for row in rows]
    weight = np.array([1 / sites.count(site) for site in sites])
    weight = np.sqrt(weight / weight.mean())
    measured = np.log([row["seconds"] for row in rows])

    def misses(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        error = np.log(_with_stage(NetworkStage(*np.exp(logs)), rows)) - measured
        return np.concatenate([weight * np.sign(error) * np.sqrt(np.abs(error) + 1e-3), PULL * (logs - start)])

    upper = np.where(np.arange(start.size) < SHARES, 0.0, start + ROOM)
    return NetworkStage(*np.exp(least_squares(misses, start, bounds=(start - ROOM, upper)).x))


def left_out_s(rows: Rows) -> NDArray[np.float64]:
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


def _with_stage(stage: NetworkStage, rows: Rows) -> NDArray[np.float64]:
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
    for key in sorted({(*key_of(row), row["fabric"]) for row in rows}):
        own = [index for index, row in enumerate(rows) if (*key_of(row), row["fabric"]) == key]
        print(f"{' '.join(map(str, key))}: {in_words(missed[own])}")
    for fabrics in (FITTED, tuple({row["fabric"] for row in rows})):
        for low, high in ((0, 2**17), (2**17, 2**22), (2**22, 2**28), (2**28, 2**40), (0, 2**40)):
            chosen = [i for i, row in enumerate(rows) if row["fabric"] in fabrics and low < row["bytes"] <= high]
            print(f"left out, {len(fabrics)} fabrics, {low} to {high}: {in_words(missed[chosen])}")
            near = [at for at, index in enumerate(known) if index in chosen]
            print(f"   the same, through its own points: {in_words(through[near])}")


if __name__ == "__main__":
    main()
