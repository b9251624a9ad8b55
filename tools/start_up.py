"""Measure how long the quick commands take from the shell: medians over fresh processes, and over a bare Python's time.

    .venv/bin/python tools/start_up.py
    .venv/bin/python tools/start_up.py --times 30 explain size

CPU time (user and system, of all threads) depends less on who else uses the machine than the time of a clock does.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

MODEL = "--layers 32 --hidden 2560 --heads 32 --ffn 10240 --vocab 50304 --not-gated"
COMMANDS = {
    "--help": "--help",
    "explain": "explain 4096 50257 4096 --gpu H200",
    "size": f"size {MODEL} --gpu A100",
    "layout": f"layout {MODEL} --gpu A100 --gpus 16 --global-batch 512 --seq 2048",
    "run --list": "run --list",
}


def seconds(arguments: list[str]) -> tuple[float, float]:
    """CPU seconds and seconds of one process. Raises CalledProcessError where it fails."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ended - began


def medians(arguments: list[str], times: int) -> tuple[float, float]:
    """Over so many processes, after one that fills the caches."""
    seconds(arguments)
    cpu, clock = zip(*(seconds(arguments) for _ in range(times)), strict=True)
    return statistics.median(cpu), statistics.median(clock)


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"of {', '.join(COMMANDS)}; by default all")
    parser.add_argument("--times", type=int, default=10, metavar="N", help="processes of each command (default 10)")
    asked = parser.parse_args()
    if unknown := [name for name in asked.commands if name not in COMMANDS]:
        parser.error(f"{unknown[0]!r} is none of the commands: {', '.join(COMMANDS)}")
    if asked.times < 1:
        parser.error(f"--times {asked.times} measures nothing: give at least 1")
    measured = {"bare Python": ["-c", "pass"], "import": ["-c", "import pyperf_suite"]}
    measured |= {name: ["-m", "pyperf_suite", *COMMANDS[name].split()] for name in asked.commands or COMMANDS}
    bare = None
    for name, arguments in measured.items():
        cpu, clock = medians(arguments, asked.times)
        bare = bare or cpu
        print(f"{name:12} {cpu:.3f} s of CPU, {clock:.3f} s by the clock, {cpu / bare:.1f} times bare Python's CPU")


if __name__ == "__main__":
    main()
