"""How well change points are found: false alarms on quiet series, steps found at the end of a series, a real history.

python tools/check_changepoints.py [SERIES, 1000 by default]

Prints one line a kind of series. Levels are logarithms of seconds, noise is AR(1) of the stated standard deviation.
The real history is TigerBeetle's, from the folder that PYPERF_MEASURED_TABLES names (by default ../shared/data).
"""

from __future__ import annotations

import csv
import math
import os
import sys
import time
from pathlib import Path

import numpy as np

from pyperf_suite.history.changepoints import SAME_PLACE, find_changes

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
STEP = math.log(1.05)


def noise(
    generator: np.random.Generator, points: int, correlation: float, deviation: float, tails: float | None = None
) -> np.ndarray:
    """AR(1) noise of that marginal deviation; `tails` gives its shocks Student's t of so many degrees of freedom."""
    start = 50
    if tails is None:
        shocks = generator.standard_normal(points + start)
    else:
        shocks = generator.standard_t(tails, points + start) * math.sqrt((tails - 2) / tails)
    shocks *= deviation * math.sqrt(1 - correlation**2)
    values = np.zeros(points + start)
    for index in range(1, points + start):
        values[index] = correlation * values[index - 1] + shocks[index]
    return values[start:]


def quiet(series: int) -> None:
    """Series without a change: the share of series with an alarm, and alarms in 1,000 points."""
    print(f"\n{'no change':44} {'series alarmed':>15} {'alarms / 1000 points':>22}")
    kinds = [(n, r, 0.03, None) for n in (12, 50, 200) for r in (0.0, 0.5, 0.8)]
    kinds += [(200, 0.5, 0.01, None), (200, 0.5, 0.1, None), (200, 0.0, 0.03, 3.0), (200, 0.5, 0.03, 3.0)]
    for points, correlation, deviation, tails in kinds:
        generator = np.random.default_rng(1)
        found = [
            len(find_changes(np.exp(noise(generator, points, correlation, deviation, tails)))) for _ in range(series)
        ]
        heavy = f", t{tails:.0f} tails" if tails else ""
        print(
            f"{f'{points} points, AR {correlation}, {deviation:.0%} noise{heavy}':44} "
            f"{np.mean(np.array(found) > 0):15.1%} {1000 * sum(found) / series / points:22.2f}"
        )


def with_outliers_and_drift(series: int) -> None:
    """What is no step but is not noise either."""
    print(f"\n{'200 points, AR 0.5, 1% noise, and':44} {'series alarmed':>15}")
    places = np.arange(200)
    shapes = {
        "one outlier of 50 %": lambda generator: np.log(1.5) * (places == generator.integers(200)),
        "5 % of the points 20 % slower": lambda generator: np.log(1.2) * (generator.random(200) < 0.05),
        "a swing of 2 % up and down, three times": lambda _: 0.02 * np.sin(places / 200 * 6 * np.pi),
        "a random walk of 0.3 % a point": lambda generator: np.cumsum(0.003 * generator.standard_normal(200)),
        "a slow rise by 5 % (a change, but no step)": lambda _: places / 200 * STEP,
    }
    for name, shape in shapes.items():
        generator = np.random.default_rng(2)
        alarmed = [
            bool(find_changes(np.exp(noise(generator, 200, 0.5, 0.01) + shape(generator)))) for _ in range(series)
        ]
        print(f"{name:44} {np.mean(alarmed):15.1%}")


def steps(series: int) -> None:
    """A 5 % step shortly before the end: found within two points, and at the very point."""
    print(f"\n{'5 % step, 1 % noise':44} {'found':>15} {'at the very point':>22}")
    for points in (20, 50, 200):
        for correlation in (0.0, 0.5):
            for after in (3, 5, 10):
                generator = np.random.default_rng(3)
                near = exact = 0
                for _ in range(series):
                    logs = noise(generator, points, correlation, 0.01)
                    logs[-after:] += STEP
                    places = [change.index - (points - after) for change in find_changes(np.exp(logs))]
                    near += any(abs(place) <= SAME_PLACE for place in places)
                    exact += 0 in places
                name = f"{points} points, AR {correlation}, {after} points after"
                print(f"{name:44} {near / series:15.1%} {exact / series:22.1%}")


def long_series() -> None:
    """The time that 10,000 points take."""
    print(f"\n{'10,000 points':44} {'seconds':>15} {'changes':>22}")
    generator = np.random.default_rng(4)
    plain = noise(generator, 10_000, 0.5, 0.01)
    stepped = plain + STEP * (np.arange(10_000) // 500 % 2)
    wandering = np.cumsum(0.003 * generator.standard_normal(10_000))
    for name, logs in (("no change", plain), ("19 steps of 5 %", stepped), ("a random walk", wandering)):
        began = time.perf_counter()
        found = find_changes(np.exp(logs))
        print(f"{name:44} {time.perf_counter() - began:15.2f} {len(found):22}")


def tigerbeetle() -> None:
    """A real history beside its labels."""
    folder = Path(os.environ.get("PYPERF_MEASURED_TABLES") or DATA)
    path = folder / "tigerbeetle_history.csv"
    if not path.exists():
        print(f"\nTigerBeetle's history is not in {folder}: set PYPERF_MEASURED_TABLES to the folder that has it.")
        return
    with path.open() as file:
        values = [float(row["value"]) for row in csv.DictReader(file)]
    with path.with_name("tigerbeetle_history_labels.csv").open() as file:
        labels = {int(row["index"]): row["kind"] for row in csv.DictReader(file)}
    print(f"\nTigerBeetle's history, {len(values)} points: labelled {labels}")
    for change in find_changes(values):
        label = next((kind for index, kind in labels.items() if abs(index - change.index) <= SAME_PLACE), "no label")
        print(f"  {change.index:4} {change.before:9.0f} -> {change.after:9.0f}  x {change.ratio}  {label}")


def main() -> None:
    """Print all tables."""
    series = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{series} series of each kind")
    quiet(series)
    with_outliers_and_drift(series)
    steps(series)
    long_series()
    tigerbeetle()


if __name__ == "__main__":
    main()
