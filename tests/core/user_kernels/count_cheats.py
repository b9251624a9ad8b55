"""Count how often each cheat of tests/core/user_kernels/cheats.md is caught, and how often an honest kernel is refused.

python count_cheats.py 10 [WORD...]: ten trials of each kernel whose name holds one of the words, its
function under another name each time. Exits with 1 where a cheat was missed or an honest kernel refused.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from pyperf_suite.hardware.devices import Unavailable, driver
from pyperf_suite.user_kernels import workload as user_kernel

CATALOGUE = Path(__file__).with_name("test_cheats.py")


def catalogue() -> Any:
    """The test's module, which reads the pages."""
    spec = importlib.util.spec_from_file_location("cheats", CATALOGUE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cheats"] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Print a line a kernel: how often it ended as it must, and how it ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int)
    parser.add_argument("words", nargs="*")
    requested = parser.parse_args()
    kernels = catalogue()
    bad = 0
    for entry in kernels.CHEATS + kernels.HONEST:
        if requested.words and not any(word in entry.name for word in requested.words):
            continue
        if entry.on_gpu and isinstance(driver(), Unavailable):
            print(f"  not run   {entry.name}: needs a CUDA device")
            continue
        ends = Counter(end_of(kernels, entry, number) for number in range(requested.times))
        right = sum(
            count for end, count in ends.items() if end in (entry.reason.split(" or ") if entry.reason else ["ok"])
        )
        bad += requested.times - right
        reported = ", ".join(f"{end} {count}" for end, count in ends.most_common())
        print(f"{right:4} of {requested.times:2}  {entry.name}: {reported}", flush=True)
    return 1 if bad else 0


def end_of(kernels: Any, entry: Any, number: int) -> str:
    """The reason that a trial's record gives, or how else it ended."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[user_kernel.ROOT_VARIABLE] = folder
        answer = kernels.trial(entry, Path(folder), f"kernel_{number}")
        user_kernel.forget_reference()
    if answer["outcome"] == "ok":
        return "ok"
    return answer.get("verification", {}).get("reason") or f"{answer['outcome']}: {answer['reason'][:80]}"


if __name__ == "__main__":
    sys.exit(main())
