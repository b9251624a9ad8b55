"""Exact figures of a kernel's machine code, old against new: what can be judged without running it.

Spills and lost occupancy are worse by rule. Other changes show that the code is another one, but only a timing tells
what that costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyperf_suite.history.finding import Verdict

# Registers that did not fit go to local memory, which is device memory.
MORE_IS_WORSE = ("local_memory", "stack")
# What hides the latency of memory.
LESS_IS_WORSE = ("resident_warps", "resident_blocks")


def judge_figures(
    old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> tuple[Verdict, str, dict[str, list[float | None]]]:
    """Verdict, sentence, and the figures that changed as [old, new]; the arguments are metrics as records keep them.

    Slower where a kernel spills more or fewer of its warps are resident, faster for the opposite, undecided where it is
    both, or other figures changed; equivalent where every figure is the same.
    """
    changed: dict[str, list[float | None]] = {}
    for name in dict.fromkeys([*old, *new]):
        figures = [side[name]["value"] if name in side else None for side in (old, new)]
        if figures[0] != figures[1]:
            changed[name] = figures
    if not changed:
        return "equivalent", f"All {len(old)} exact figures are the same.", changed
    listed = ", ".join(f"{name} {_told(before)} -> {_told(after)}" for name, (before, after) in changed.items())
    rises = {name for name, (before, after) in changed.items() if (after or 0) > (before or 0)}
    worse = {name for name in changed if name in (MORE_IS_WORSE if name in rises else LESS_IS_WORSE)}
    better = {name for name in changed if name in (LESS_IS_WORSE if name in rises else MORE_IS_WORSE)}
    if worse and not better:
        return "slower", f"Worse by its exact figures ({', '.join(sorted(worse))}): {listed}.", changed
    if better and not worse:
        return "faster", f"Better by its exact figures ({', '.join(sorted(better))}): {listed}.", changed
    return "undecided", f"The machine code changed: {listed}; only a timing tells what that costs.", changed


def _told(figure: float | None) -> str:
    return "none" if figure is None else f"{figure:g}"
