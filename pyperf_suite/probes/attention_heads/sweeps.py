"""Rows in order: what stays fixed while heads vary, and sweeps by number of heads and by head dimension.

A sweep is a list of rows of one pass, along `heads` at a fixed hidden size or along `head_dim` at a fixed number of
heads, growing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.spec.rows import Reading, Row, Rows, grouped

# What stays as it is along each axis.
HELD = {"heads": "hidden", "head_dim": "heads"}

# A step over head dimensions shows with three.
FEWEST = {"heads": 2, "head_dim": 3}


def kernel(row: Row | Reading) -> str:
    """Who computes, as in `sustained triton 128x64, bfloat16`."""
    case = row.case
    words = ("" if case.mode == "burst" else case.mode, case.implementation, str(case.parameters.blocks or ""))
    return f"{' '.join(filter(None, words))}, {case.parameters.dtype}"


def what(row: Row) -> str:
    """What is computed, as in `2 x 4096 tokens, causal, kv ratio 4`."""
    keys = "" if row.seq_q == row.keys else f" to {row.keys} keys"
    mask = ", causal" if row.causal else ""
    ratio = "" if kv_ratio(row) == "1" else f", kv ratio {kv_ratio(row)}"
    return f"{row.batch} x {row.seq_q} tokens{keys}{mask}{ratio}"


def split(row: Row) -> str:
    """`40 x 128`: heads and their dimension."""
    return f"{row.heads} x {row.head_dim}"


def kv_ratio(row: Row) -> str:
    """How many query heads share a key head, or "all"."""
    return "all" if row.key_heads == 1 < row.heads else str(row.group)


def pass_of(row: Row) -> str:
    """Which pass was timed."""
    return "backward" if row.backward else "forward"


def setting(row: Row) -> tuple[Any, ...]:
    """What stays fixed while heads vary, in the order of telling."""
    who = (row.implementation, row.mode, row.dtype, row.workers, str(row.blocks or ""))
    return (*who, row.batch, row.seq_q, row.keys, kv_ratio(row), row.causal)


SWEEPS: Mapping[str, Callable[[Row], Hashable]] = {
    "heads": lambda row: (setting(row), row.hidden, row.backward),
    "head_dim": lambda row: (setting(row), row.heads, row.backward),
}


def sweep_of(row: Row, along: str) -> list[Row]:
    """The sweep that a row belongs to."""
    return row.rows.sharing(row, SWEEPS[along])


def is_swept(row: Row, along: str) -> bool:
    """Whether its sweep is long enough to compare."""
    return len(sweep_of(row, along)) >= FEWEST[along]


def sweeps_of(rows: Rows, along: str) -> list[list[Row]]:
    """All sweeps along an axis that are long enough to compare; a row may belong to one of each kind."""
    return [sweep for sweep in grouped(rows, SWEEPS[along]).values() if len(sweep) >= FEWEST[along]]


def ends(sweep: list[Row]) -> tuple[Row, Row]:
    """The fastest split and the slowest: by forward and backward together, if two splits were measured in both."""
    others = {row.heads: row.like(backward=not row.backward) for row in sweep}
    seconds = {row.heads: row.seconds + other.seconds for row in sweep if (other := others[row.heads]) is not None}
    if len(seconds) < 2:
        seconds = {row.heads: row.seconds for row in sweep}
    ordered = sorted((row for row in sweep if row.heads in seconds), key=lambda row: seconds[row.heads])
    return ordered[0], ordered[-1]


def relative_rate(row: Row, base: Row) -> Ratio | None:
    """Throughput relative to that of another row; None where no process measured both."""
    ratio = row.faster_than(base)
    return ratio and ratio * (row.flop / base.flop)
