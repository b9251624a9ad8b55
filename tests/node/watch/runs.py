"""How often each job of `jobs` is named right: `python tests/node/watch/runs.py 20 FOLDER`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 7.0


@dataclass(frozen=True)
class Expected:
    """A job and its figures, its ranks, what it waits for as (name, rank), and what libnvidia-ml's double reports."""

    job: str
    patterns: frozenset[tuple[str, int | None]] = frozenset()
    figures: tuple[float, ...] = ()
    ranks: int = 1
    gpu: Mapping[str, str] = field(default_factory=dict)


CASES = {
    "starved loader": Expected("loaders", frozenset({("data", 0)}), (0.008, 400)),
    "straggler": Expected("ranks", frozenset({("straggler", 1)}), (0.02, 0.06), ranks=2),
    "memory leak": Expected("leak", frozenset({("memory leak", 0)})),
    "throttled GPU": Expected("sleeps", frozenset({("throttled", 0)}), gpu={"FAKE_NVML": "97 40"}),
    "launch-bound": Expected("launches", frozenset({("cpu", 0)})),
    "launch-bound on a GPU": Expected("spins", frozenset({("cpu", 0)}), gpu={"FAKE_NVML": "45 0"}),
    "small kernels": Expected("spins", frozenset({("idle SMs", 0)}), gpu={"FAKE_NVML": "97 0 20"}),
    "spawned straggler": Expected("spawned", frozenset({("straggler", 1)}), (0.02, 0.06)),
    "healthy threads": Expected("threads"),
    "healthy loaders": Expected("loaders", figures=(0.0002, 1200)),
    "healthy ranks": Expected("ranks", figures=(0.03, 0.03), ranks=2),
    "healthy spawned ranks": Expected("spawned", figures=(0.03, 0.03)),
    "healthy GPU": Expected("spins", gpu={"FAKE_NVML": "97 0"}),
    "healthy SMs": Expected("spins", gpu={"FAKE_NVML": "97 0 85"}),
}


def double(folder: Path) -> Path:
    """The library, compiled."""
    path = folder / "libnvidia-ml.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", "-o", str(path), str(HERE.parents[1] / "core" / "native" / "fake_nvml.c")],
        check=True,
    )
    return path


def named(case: Expected, folder: Path, library: Path) -> tuple[set[tuple[str, int | None]], dict]:
    """Patterns named in one run of the job, and its record."""
    launcher = (
        [] if case.ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    )
    command = [sys.executable, *launcher, str(HERE / "jobs.py"), case.job, *map(str, (SECONDS, *case.figures))]
    library_is = {"PYPERF_LIBNVML": str(library)} if case.gpu else {}
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-m", "pyperf_suite", "watch", "--interval", "0.5", "--results", str(folder), "--", *command],
        env={**environment, **library_is, **case.gpu},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    record = max(folder.glob("*/watch-*/watch.json"), key=lambda path: path.stat().st_mtime)
    found = json.loads(record.read_text())
    return {(each["name"], each["rank"]) for each in found["patterns"]}, found


def main() -> None:
    """The number of runs, the folder that keeps their records, and the cases if not all."""
    count, folder, names = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or list(CASES)
    folder.mkdir(parents=True, exist_ok=True)
    library = double(folder)
    for name in names:
        right, others, shares = 0, [], []
        for run in range(count):
            found, record = named(CASES[name], folder / name.replace(" ", "_") / str(run), library)
            right += found == CASES[name].patterns
            shares.append(record["own_cpu_share"])
            others += [sorted(map(str, found))] if found != CASES[name].patterns else []
        print(f"{name}: {right} of {count}; own CPU {max(shares):.2%} of a core at most; others: {others}", flush=True)


if __name__ == "__main__":
    main()
