"""Measure the store of a results folder: how long a new run takes to read, a series to answer, and the memory.

    python tools/bench_index.py --runs 1000 --records 1000 --samples 1 --folder /tmp/many_runs

The runs are made up: records of this suite's form with random times. Records hold few samples by default, so that a
million of them fit a small disk; samples cost reading time alone, for the cache leaves them in the journals.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import resource
import statistics
import time
from pathlib import Path

from pyperf_suite.history.stored.store import RunCache, Store

MACHINE = "cpu-made-up-2c"
BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
PROCESSES = 3


def main() -> None:
    """Make the runs that are not there yet, then measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    for number in range(options.runs):
        write_run(options.folder, number, options.records, options.samples)
    tell("first update, all runs", lambda: update(options.folder))
    tell("update with nothing new", lambda: update(options.folder))
    write_run(options.folder, options.runs, options.records, options.samples)
    tell("update with one new run", lambda: update(options.folder))
    with Store(options.folder) as store:
        store.update()
        tell("list of all benchmarks", store.benchmarks)
        tell("list of all runs", store.runs)
        benchmarks = store.benchmarks()
        seconds = []
        for benchmark in random.Random(0).sample(benchmarks, min(50, len(benchmarks))):
            began = time.perf_counter()
            store.series(benchmark)
            seconds.append(time.perf_counter() - began)
        print(f"a series: median {statistics.median(seconds):.3f} s, slowest {max(seconds):.3f} s of {len(seconds)}")
    kept = sum(each.stat().st_size for each in (options.folder / RunCache.NAME).iterdir())
    print(f"size of the cache: {kept / 2**20:.0f} MiB")
    print(f"most memory used: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def tell(what, action) -> None:
    """Print how long an action takes, and how much of it this process worked."""
    began, began_cpu = time.perf_counter(), time.process_time()
    action()
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    print(f"{what}: {seconds:.3f} s ({cpu:.3f} s of CPU)", flush=True)


def update(folder: Path) -> None:
    """Open the store and bring it up to date."""
    with Store(folder) as store:
        store.update()


def write_run(folder: Path, number: int, records: int, samples: int) -> None:
    """One run's journal, unless it is there."""
    begun = BEGIN + datetime.timedelta(hours=number)
    run_id = f"{begun:%Y%m%dT%H%M%SZ}-{number:04x}"
    path = folder / MACHINE / run_id / "records.jsonl"
    if path.exists():
        return
    path.parent.mkdir(parents=True)
    chance = random.Random(number)
    with path.open("w") as file:
        for position in range(records):
            case, process = divmod(position, PROCESSES)
            file.write(json.dumps(record(run_id, begun, case, process, position, chance, samples)) + "\n")


def record(
    run_id: str,
    begun: datetime.datetime,
    case: int,
    process: int,
    position: int,
    chance: random.Random,
    samples: int,
) -> dict[str, object]:
    """One record with a made-up time around a millisecond."""
    seconds = [1e-3 * chance.lognormvariate(0, 0.02) for _ in range(samples)]
    middle = statistics.median(seconds)
    return {
        "run_id": run_id,
        "kind": "timing",
        "case": {"operator": "matmul", "parameters": {"m": case, "n": 1024, "k": 1024}, "implementation": "native"},
        "case_id": f"{case:016x}",
        "process": process,
        "position": position,
        "started_at": (begun + datetime.timedelta(seconds=position)).isoformat(timespec="milliseconds"),
        "outcome": "ok",
        "probe": "alignment",
        "metrics": {
            "time": dict.fromkeys(("value", "low", "high", "q20", "q80"), middle) | {"unit": "s", "samples": seconds}
        },
        "work": {"flop": 2 * 1024 * 1024 * case},
        "quality": {"converged": True, "discarded": [], "steal_share": 0.0},
        "identity": {"kind": "cpu", "slug": MACHINE},
        "state": {"python": "CPython 3.11.7", "packages": {"numpy": "2.4.6"}, "source": {"commit": run_id}},
        "schema_version": 1,
    }


if __name__ == "__main__":
    main()
