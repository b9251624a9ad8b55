"""How often `accept --fleet` accuses a healthy node and finds a slow one, with the noise of acceptances measured here.

python tools/simulate_fleets.py FOLDER [FLEETS]    FOLDER holds acceptances of one machine, measured again and again
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pyperf_suite.history.fleet import ALL, compared
from pyperf_suite.probes.accept import PROBE, checks_of
from pyperf_suite.runner.results import read_journal
from pyperf_suite.spec.rows import rows_of

NODES, HEALTHY_FLEETS, SLOW_FLEETS, SLOWER = 50, 20, 100, 0.05


def residuals(folder: Path) -> tuple[list[str], np.ndarray]:
    """Checks, and for each trial of all of them (a process) the logarithm of its rates over the run's medians."""
    trials = []
    for journal in sorted(folder.rglob("records.jsonl")):
        records = [record for record in read_journal(journal) if record.probe == PROBE.name]
        for process in sorted({each.process for each in records if each.kind == "timing"}):
            own = [each for each in records if each.process == process and each.kind == "timing"]
            trials.append(
                {c.what: c.found.value for c in checks_of(rows_of(own)) if c.found and c.found.base[-2:] == "/s"}
            )
    names = sorted(set.intersection(*map(set, trials)))
    logs = np.log([[each[name] for name in names] for each in trials])
    return names, logs - np.median(logs, axis=0)


def fleet(random: np.random.Generator, noise: np.ndarray, rounds: int = 3) -> np.ndarray:
    """Logarithms of rates: a row a node, the best of its rounds, each of which is one that was measured."""
    drawn = noise[random.integers(len(noise), size=(NODES, rounds))]
    # Between those that were measured: without it a fleet of 50 repeats each of them exactly.
    return np.max(drawn + random.normal(0, 0.2 * noise.std(axis=0), drawn.shape), axis=1)


def accused(names: list[str], logs: np.ndarray) -> dict[str, set[str]]:
    """Who is named, and in what."""
    rates = {(f"{n:02}", "cpu"): dict(zip(names, np.exp(row), strict=True)) for n, row in enumerate(logs)}
    found: dict[str, set[str]] = {}
    for check in compared(rates):
        for node, _ in check.slow:
            found.setdefault(node, set()).add(check.what)
    return found


def counts(names: list[str], noise: np.ndarray, fleets: int, seed: int = 0) -> dict[str, tuple[int, int]]:
    """Healthy nodes accused of all; slow nodes found of all, slow in everything and in each check alone."""
    random, healthy = np.random.default_rng(seed), max(1, fleets // 5)
    alarms = sum(len(accused(names, fleet(random, noise))) for _ in range(healthy))
    found = {"healthy, accused": (alarms, healthy * NODES)}
    for what in (ALL, *names):
        hits = others = 0
        for _ in range(fleets):
            logs = fleet(random, noise)
            logs[7, [n for n, name in enumerate(names) if what in (ALL, name)]] += np.log1p(-SLOWER)
            named = accused(names, logs)
            hits, others = hits + ("07" in named), others + len(named.keys() - {"07"})
        found[f"{SLOWER:.0%} slow in {what}"] = hits, fleets
        found["  others accused"] = others + found.get("  others accused", (0, 0))[0], 0
    return found


def main() -> None:
    """Print the counts for noise as it was measured, and scaled down to that of a quieter machine."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    names, noise = residuals(Path(sys.argv[1]))
    fleets = int(sys.argv[2]) if len(sys.argv) > 2 else SLOW_FLEETS
    spread = {name: 1.4826 * np.median(np.abs(column)) for name, column in zip(names, noise.T, strict=True)}
    print(f"{len(noise)} trials measured; spread {', '.join(f'{name} {each:.1%}' for name, each in spread.items())}")
    for scale in (1.0, 0.5, 0.25, 0.1):
        print(f"noise x {scale:g}")
        for what, (count, of) in counts(names, scale * noise, fleets).items():
            print(f"  {what}: {count}" + (f" of {of}" if of else ""))


if __name__ == "__main__":
    main()
