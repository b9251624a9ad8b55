"""What rows of attention tell: their names, sweeps by heads and by head dimension, tiles, a law of our own kernels.

A sweep is a list of rows of one pass, along `heads` at a fixed hidden size or along `head_dim` at a fixed number of
heads, growing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyperf_suite.laws.attention.counted import Blocks, TiledAttention
from pyperf_suite.laws.attention.law import FittedLaw
from pyperf_suite.measure.ratio import Ratio
from pyperf_suite.operators.attention.kernel_names import flash_kernel
from pyperf_suite.spec.rows import Row, Rows, grouped

# Our own kernels, whose blocks are asked for.
OWN = ("native", "triton")


def kernel(row: Row) -> str:
    """Who computes, as in `sustained triton 128x64, bfloat16`."""
    words = ("" if row.mode == "burst" else row.mode, row.implementation, str(row.blocks or ""))
    return f"{' '.join(filter(None, words))}, {row.dtype}"


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


@dataclass(frozen=True)
class Along:
    """The axis of a sweep, what is held along it and how that is said, and how many rows are enough to compare."""

    axis: str
    held: str
    fixed: str
    fewest: int

    def key(self, row: Row) -> tuple[Any, ...]:
        """What the rows of a sweep have in common."""
        return (setting(row), getattr(row, self.held), row.backward)

    def sweep_of(self, row: Row) -> list[Row]:
        """The sweep that a row belongs to; nothing where it is too short."""
        sweep = row.rows.sharing(row, self.key)
        return sweep if len(sweep) >= self.fewest else []

    def sweeps(self, rows: Rows) -> list[list[Row]]:
        """All that are long enough; a row may belong to one along each axis."""
        return [sweep for sweep in grouped(rows, self.key).values() if len(sweep) >= self.fewest]


HEADS = Along("heads", "hidden", "hidden {hidden}", 2)
# A step over head dimensions shows with three.
HEAD_DIM = Along("head_dim", "heads", "{heads} heads", 3)


def ends(sweep: list[Row]) -> tuple[Row, Row]:
    """The fastest split and the slowest: by forward and backward together, if two splits were measured in both."""
    both = [(row, row.like(backward=not row.backward)) for row in sweep]
    seconds = {row.heads: row.seconds + other.seconds for row, other in both if other is not None}
    if len(seconds) < 2:
        seconds = {row.heads: row.seconds for row in sweep}
    ordered = sorted((row for row in sweep if row.heads in seconds), key=lambda row: seconds[row.heads])
    return ordered[0], ordered[-1]


def relative_rate(row: Row, base: Row) -> Ratio | None:
    """Throughput relative to that of another row; None where no process measured both."""
    ratio = row.faster_than(base)
    return ratio and ratio * (row.flop / base.flop)


def tiled(row: Row) -> TiledAttention | None:
    """The tiles that a forward pass was computed in; None where its kernel does not tell them.

    The gradients are computed in tiles of other kinds, which the law does not count. A library does not tell its slots:
    as on a single one, none of its tiles are too few.
    """
    p, details = row.parameters, row.kernel.get("details", {})
    if p.backward:
        return None
    if {"blocks", "padded_head_dim"} <= details.keys():
        padded_head_dim, blocks = details["padded_head_dim"], Blocks.parse(details["blocks"])
    elif (flash := flash_kernel(details.get("launched", ()))) is not None:
        padded_head_dim, blocks = flash.padded_head_dim, flash.blocks
    else:
        return None
    slots, together = details.get("slots") or 1, details.get("heads_together", 0)
    return TiledAttention(
        p.batch, p.heads, p.seq_q, p.keys, p.head_dim, padded_head_dim, p.causal, blocks, slots, together
    )


def law_key(row: Row) -> str:
    """The kernel that a law is fitted for: who computes, and on how many workers."""
    return f"{kernel(row)}, {row.workers} worker{'s' if row.workers > 1 else ''}"


def laws_of(rows: Iterable[Row]) -> dict[str, FittedLaw]:
    """A law for each of our kernels that has enough cases. With one query a kernel is another one: none decodes."""
    members = grouped((row for row in rows if row.implementation in OWN and row.seq_q > 1), law_key)
    measured = {key: [(case, row.seconds) for row in members[key] if (case := tiled(row))] for key in sorted(members)}
    return {key: law for key, cases in measured.items() if (law := FittedLaw.fit(cases)) is not None}
