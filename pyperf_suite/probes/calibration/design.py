"""Which sizes to measure so that a few say something of all: points that fill the space of their logarithms evenly.

A lattice, not a grid: on a grid of four sizes each, sixty-four products would only ever see four values of m.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyperf_suite.laws.tiled_attention import attention_flop, visible_pairs
from pyperf_suite.spec.axes import Dimensions, Shape
from pyperf_suite.workloads.attention import AttentionParameters

# Sizes that models have and libraries are good at; what misaligned ones cost is the alignment probe's to find.
ROUND_M, ROUND_NK = 8, 64

KV_RATIOS = (1, 4, 8)
HEAD_DIMS = (64, 128)


@dataclass(frozen=True)
class Extent:
    """Sizes from `low` to `high`, and the most that one of what they make may cost.

    `flop` bounds the time on the device, `elements` of the operands the time to make and verify them on the host.
    """

    m: tuple[int, int]
    nk: tuple[int, int]
    flop: float
    elements: float


@dataclass(frozen=True)
class AttentionShape(Dimensions):
    """Batch, heads, key heads, head dimension and tokens of one causal self-attention."""

    form = "the shape of an attention: write BATCHxHEADSxKV_HEADSxHEAD_DIMxSEQ, as in 1x32x8x128x4096"
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    seq: int

    def parameters(self, **other: Any) -> AttentionParameters:
        """It as a case has it, with what else there is to choose."""
        kv_heads = 0 if self.kv_heads == self.heads else self.kv_heads
        sizes = (self.batch, self.heads, self.head_dim, self.seq)
        return AttentionParameters(*sizes, kv_heads=kv_heads, causal=True, **other)


def spread_products(count: int, extent: Extent) -> tuple[Shape, ...]:
    """So many different products, evenly over the logarithms of m, n and k inside the extent."""
    found: list[Shape] = []
    places = _lattice(3)
    while len(found) < count:
        place = next(places)
        m = _between(*extent.m, place[0], ROUND_M)
        n, k = (_between(*extent.nk, each, ROUND_NK) for each in place[1:])
        if 2.0 * m * n * k <= extent.flop and m * k + k * n + m * n <= extent.elements:
            found.append(Shape(m, n, k))
    return tuple(found)


def spread_attentions(
    count: int, tokens: tuple[int, int], heads: tuple[int, int], flop: float
) -> tuple[AttentionShape, ...]:
    """So many different causal attentions, evenly over the logarithms of tokens, batch x heads and grouping."""
    found: dict[AttentionShape, None] = {}
    places = _lattice(5)
    while len(found) < count:
        place = next(places)
        ratio, head_dim = (of[int(each * len(of))] for of, each in ((KV_RATIOS, place[2]), (HEAD_DIMS, place[4])))
        all_heads, seq = _between(*heads, place[1], ratio), _between(*tokens, place[0], ROUND_NK)
        shape = AttentionShape(_between(1, 8, place[3], 1), all_heads, all_heads // ratio, head_dim, seq)
        pairs = int(visible_pairs(seq, seq, causal=True))
        if float(attention_flop(shape.batch, all_heads, head_dim, pairs)) <= flop:
            found[shape] = None
    return tuple(found)


def _between(low: int, high: int, place: float, multiple: int) -> int:
    """The size at that share of the way in the logarithm, as a multiple and at least one."""
    return max(1, round(low * (high / low) ** place / multiple)) * multiple


def _lattice(dimensions: int) -> Iterator[tuple[float, ...]]:
    """Points of the unit cube without end, each set of first ones spread evenly.

    The additive recurrence with the generalised golden ratio, the root of x^(d+1) = x + 1 (Roberts, *The unreasonable
    effectiveness of quasirandom sequences*, 2018).
    """
    ratio = 1.5
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    steps = [ratio**-power for power in range(1, dimensions + 1)]
    for index in itertools.count():
        yield tuple((0.5 + index * step) % 1 for step in steps)
