"""Attention in tiles as its rows tell them, and a law of our own kernels fitted to those."""

from __future__ import annotations

from collections.abc import Iterable

from pyperf_suite.laws.attention.counted import Blocks, TiledAttention
from pyperf_suite.laws.attention.law import FittedLaw
from pyperf_suite.spec.rows import Row, grouped
from pyperf_suite.workloads.kernel_names import flash_kernel

# Our own kernels, whose blocks are asked for.
OWN = ("native", "triton")


def kernel(row: Row) -> str:
    """Who computes, as in `sustained triton 128x64, bfloat16`."""
    words = ("" if row.mode == "burst" else row.mode, row.implementation, str(row.blocks or ""))
    return f"{' '.join(filter(None, words))}, {row.dtype}"


def kv_ratio(row: Row) -> str:
    """How many query heads share a key head, or "all"."""
    return "all" if row.key_heads == 1 < row.heads else str(row.group)


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
