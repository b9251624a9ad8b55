"""Attention in tiles as its readings tell them, and a law of our own kernels fitted to those."""

from __future__ import annotations

from collections.abc import Iterable

from pyperf_suite.laws.attention.counted import Blocks, TiledAttention
from pyperf_suite.laws.attention.law import FittedLaw
from pyperf_suite.operators.attention.kernel_names import flash_kernel
from pyperf_suite.probes.attention_heads.sweeps import kernel
from pyperf_suite.spec.rows import Reading, Row, grouped

# Our own kernels, whose blocks are asked for.
OWN = ("native", "triton")


def tiled(row: Row | Reading) -> TiledAttention | None:
    """The tiles that a forward pass was computed in; None where its kernel does not tell them.

    The gradients are computed in tiles of other kinds, which the law does not count. A library does not tell its slots:
    as on a single one, none of its tiles are too few.
    """
    p, details = row.case.parameters, row.kernel.get("details", {})
    if p.backward:
        return None
    if {"blocks", "padded_head_dim"} <= details.keys():
        padded_head_dim, blocks = details["padded_head_dim"], Blocks.parse(details["blocks"])
    elif (flash := flash_kernel(details.get("launched", ()))) is not None:
        padded_head_dim, blocks = flash.padded_head_dim, flash.blocks
    else:
        return None
    return TiledAttention(
        batch=p.batch,
        heads=p.heads,
        seq_q=p.seq_q,
        seq_k=p.keys,
        head_dim=p.head_dim,
        padded_head_dim=padded_head_dim,
        causal=p.causal,
        blocks=blocks,
        slots=details.get("slots") or 1,
        heads_together=details.get("heads_together", 0),
    )


def law_key(row: Row | Reading) -> str:
    """The kernel that a law is fitted for: who computes, and on how many workers."""
    workers = row.case.parameters.workers
    return f"{kernel(row)}, {workers} worker{'s' if workers > 1 else ''}"


def laws_of(found: Iterable[Row | Reading]) -> dict[str, FittedLaw]:
    """A law for each of our kernels that has enough cases.

    Decoding takes no part: with one query a kernel is another one.
    """
    own = [
        (law_key(row), (case, row.seconds))
        for row in found
        if row.case.implementation in OWN and (case := tiled(row)) is not None and case.seq_q > 1
    ]
    members = grouped(own, lambda each: each[0])
    fitted = {key: FittedLaw.fit([measured for _, measured in members[key]]) for key in sorted(members)}
    return {key: law for key, law in fitted.items() if law is not None}
