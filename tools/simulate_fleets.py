"""How often `accept --fleet` accuses a healthy node and finds one that is 5 % slow, with noise of stored runs.

python tools/simulate_fleets.py [FOLDER] [FLEETS]    FOLDER holds results, by default bench_results
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pyperf_suite.history.fleet import ALL, compared
from pyperf_suite.runner.results import read_journal
from pyperf_suite.spec.findings import Quantity
from pyperf_suite.spec.rows import grouped

# The rates of a CPU's acceptance, by what is measured.
RATES = {"matmul": 3, "transfer": 2, "collective": 1}
NODES, ROUNDS, FLEETS, SLOWER = 50, 5, 100, 0.05
# More cores that others had are no noise of the machine.
QUIET = 0.1
LIKE = ("torch", "native", "memcpy", "gloo")
# What is shorter is not like the products and copies of an acceptance.
SHORTEST_S = 1e-3
Noise = Mapping[str, np.ndarray]


def measured_noise(folder: Path) -> Noise:
    """By operator, logarithms of the time of one process over another's, of the same case in a run left alone.

    Divided by the square root of two, so that they spread as each of both does.
    """
    found: dict[str, list[float]] = {operator: [] for operator in RATES}
    for journal in sorted(folder.rglob("records.jsonl")):
        timed = [each for each in read_journal(journal) if (each.kind, each.outcome) == ("timing", "ok")]
        known = [each.quality for each in timed if each.quality.get("elapsed_s") and "cpu_busy_s" in each.quality]
        taken_s = sum(each["cpu_busy_s"] - each["process_cpu_s"] for each in known)
        if not known or taken_s > QUIET * sum(each["elapsed_s"] for each in known):
            continue
        for trials in grouped(timed, lambda each: (each.probe, each.case_id)).values():
            logs = [
                np.log(each.seconds)
                for each in trials
                if each.case["implementation"] in LIKE and each.seconds > SHORTEST_S
            ]
            both = itertools.permutations(logs, 2)
            found.get(trials[0].case["operator"], []).extend((one - other) / np.sqrt(2) for one, other in both)
    return {operator: np.array(each) for operator, each in found.items()}


def fleet(random: np.random.Generator, noise: Noise) -> np.ndarray:
    """Logarithms of rates: checks by nodes by rounds, each one of the noise's."""
    operators = [operator for operator, count in RATES.items() for _ in range(count)]
    return np.stack([-random.choice(noise[operator], (NODES, ROUNDS)) for operator in operators])


def accused(logs: np.ndarray) -> dict[str, set[str]]:
    """Who is named, and in what."""
    rates: dict[tuple[str, str], dict[str, Quantity]] = {}
    for check, node in np.ndindex(logs.shape[:2]):
        low, middle, high = np.exp(np.quantile(logs[check, node], (0, 0.5, 1))).tolist()
        rates.setdefault((f"{node:02}", "cpu"), {})[f"{check}"] = Quantity(middle, "GB/s", low, high)
    found: dict[str, set[str]] = {}
    for each in compared(rates):
        for name, _ in each.slow:
            found.setdefault(name, set()).add(each.what)
    return found


def counts(noise: Noise, fleets: int, seed: int = 0) -> dict[str, int]:
    """Healthy nodes accused, and of fleets with a node that is slow in something how often it is found."""
    random, names = np.random.default_rng(seed), [op for op, count in RATES.items() for _ in range(count)]
    healthy = [accused(fleet(random, noise)) for _ in range(fleets)]
    found = {f"accused of {fleets * NODES} healthy nodes": sum(map(len, healthy))}
    for slow in (ALL, *RATES):
        hits = 0
        for _ in range(fleets):
            logs = fleet(random, noise)
            columns = range(len(names)) if slow == ALL else [names.index(slow)]
            logs[list(columns), 7] += np.log1p(-SLOWER)
            hits += "07" in accused(logs)
        found[f"found of {fleets}, {SLOWER:.0%} slow in {slow if slow == ALL else f'one {slow}'}"] = hits
    return found


def main() -> None:
    """Print how much noise there is, and the counts."""
    noise = measured_noise(Path(sys.argv[1] if len(sys.argv) > 1 else "bench_results"))
    fleets = int(sys.argv[2]) if len(sys.argv) > 2 else FLEETS
    for operator, each in noise.items():
        spread = 1.4826 * np.median(np.abs(each))
        print(f"{operator}: {len(each)} pairs, spread {spread:.2%}, 99 % within {np.quantile(np.abs(each), 0.99):.1%}")
    for what, count in counts(noise, fleets).items():
        print(f"{what}: {count}")


if __name__ == "__main__":
    main()
