"""Count how often each cheat of cheats.md is caught, and how often a kernel of the other pages is refused.

python count_cheats.py 10 [WORD...] [--profile standard] [--no-audit]: ten trials of each case of each kernel whose
name or page holds one of the words, its function under another name each time. Exits with 1 where one ended otherwise
than it must.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from catalogue import Entry, Values, end_of, entries, label

from pyperf_suite.hardware.devices import Unavailable, driver
from pyperf_suite.runner.profiles import PROFILES, Effort
from pyperf_suite.user_kernels import declared, workload
from pyperf_suite.workloads.workload import AUDIT_VARIABLE


def main() -> int:
    """Print a line a case: how often it ended as it must, and how each trial ended; then the counts of each page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--profile", choices=PROFILES, default="quick")
    parser.add_argument("--no-audit", action="store_true")
    requested = parser.parse_args()
    os.environ[AUDIT_VARIABLE] = str(int(not requested.no_audit))
    effort = PROFILES[requested.profile].effort
    pages = {
        page: [each for each in entries(page) if any(word in f"{page} {each.name}" for word in requested.words or [""])]
        for page in ("cheats.md", "honest_kernels.md", "uncaught.md")
    }
    counts = [f"{page}: {count(kernels, requested.times, effort)}" for page, kernels in pages.items()]
    print(*counts, sep="\n")
    return 0 if all(each.endswith(" of which 0 ended otherwise") for each in counts) else 1


def count(kernels: list[Entry], times: int, effort: Effort) -> str:
    """How many kernels, cases and trials there were, and how many trials ended otherwise than they must."""
    tried = cases = otherwise = 0
    for entry in kernels:
        if entry.on_gpu and isinstance(driver(), Unavailable):
            print(f"  not run   {entry.name}: needs a CUDA device")
            continue
        tried += 1
        for values in entry.cases():
            found = [one(entry, values, number, effort) for number in range(times)]
            right = sum(is_right for _, is_right in found)
            ends = ", ".join(f"{end} {number}" for end, number in Counter(end for end, _ in found).most_common())
            print(f"{right:4} of {times:2}  {label(entry, values)}: {ends}", flush=True)
            cases, otherwise = cases + 1, otherwise + times - right
    return f"{tried} kernels, {cases} cases, {cases * times} trials, of which {otherwise} ended otherwise"


def one(entry: Entry, values: Values, number: int, effort: Effort) -> tuple[str, bool]:
    """How a trial ends in a folder of its own, and whether as it must."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[declared.ROOT_VARIABLE] = folder
        try:
            return end_of(entry, Path(folder), f"kernel_{number}", values, effort)
        finally:
            workload.forget_reference()


if __name__ == "__main__":
    sys.exit(main())
