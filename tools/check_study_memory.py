"""Compares the predicted bytes of each rank with what a study's engines counted: `python tools/... RUN-FOLDER`.

A folder of `pyperf-suite study` on a CPU, where every storage is counted. Ends with 1 where weights, gradients or
optimizer states differ by a byte, or all together by more than a tenth.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyperf_suite.advise.study_planning import COUNTED, memory_by_rank
from pyperf_suite.probes.study.results import results_of
from pyperf_suite.runner.results import open_run

ALLOWED = 0.1


def main(folder: Path) -> int:
    """Print a row a rank of every configuration that ran; 1 if any is off."""
    found = [each for each in results_of(open_run(folder).records()) if each.timed]
    wrong = 0
    print(f"{'configuration':34} rank {' '.join(f'{name:>22}' for name in COUNTED)}     total")
    for result in found:
        p = result.parameters
        for rank, (need, counted) in enumerate(zip(memory_by_rank(p), result.rank_memory, strict=True)):
            pairs = {name: (float(getattr(need, name)), counted[name]) for name in COUNTED}
            predicted_bytes, counted_bytes = map(sum, zip(*pairs.values(), strict=True))
            off = predicted_bytes / counted_bytes - 1
            exact = all(pairs[name][0] == pairs[name][1] for name in ("weights", "gradients", "optimizer"))
            wrong += not exact or abs(off) > ALLOWED
            columns = " ".join(f"{f'{law:.0f}/{real:.0f}':>22}" for law, real in pairs.values())
            print(f"{p.name:34} {rank:4} {columns} {off:+8.2%}")
    print(f"{wrong} ranks are off." if wrong else "Every rank holds what the laws predict.")
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
