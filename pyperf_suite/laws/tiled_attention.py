"""Attention as a kernel with blocks computes it: pairs of query and key, tiles, the busiest slot, and a law over them.

The law is time = overhead + what the busiest slot computes, tile by tile. It is judged on cases that it was not fitted
to, and names the causes that make one split of the heads slower than another. Causal is bottom-right aligned
throughout: query i sees keys j ≤ i + seq_k − seq_q.
"""

from __future__ import annotations

import functools
import heapq
import math
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import ceil_div, nonnegative_fit, relative_error

_BLOCKS = re.compile("([0-9]{1,9})x([0-9]{1,9})(?::s([0-9]{1,9}))?(?::w([0-9]{1,9}))?(:p)?")


@dataclass(frozen=True, order=True)
class Blocks:
    """Blocks that one worker holds at a time: `m` queries, and `n` keys per step of its loop.

    `stages` is the depth of the key and value pipeline and `warps` those of one program; both are 1 on CPUs. Programs
    that are `persistent` stay and take tile after tile. Written `128x64:s3:w8:p`, parts at 1 left out.
    """

    m: int
    n: int
    stages: int = 1
    warps: int = 1
    persistent: bool = False

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.stages, self.warps) < 1:
            raise UserError(f"Blocks have sizes of at least 1, but {self} was requested.")

    def __str__(self) -> str:
        pipeline = f":s{self.stages}" if self.stages != 1 else ""
        warps = f":w{self.warps}" if self.warps != 1 else ""
        return f"{self.m}x{self.n}{pipeline}{warps}{':p' * self.persistent}"

    @classmethod
    def parse(cls, text: str) -> Blocks:
        """The inverse of `str`. Raises UserError for anything else."""
        match = _BLOCKS.fullmatch(text.strip())
        if match is None:
            raise UserError(f"{text[:80]!r} are not blocks: write QUERIESxKEYS, as in 128x64 or 128x64:s3:w8.")
        m, n, stages, warps, persistent = match.groups(default="1")
        return cls(int(m), int(n), int(stages), int(warps), persistent == ":p")


def visible_pairs(seq_q: ArrayLike, seq_k: ArrayLike, causal: bool) -> NDArray[np.int64]:
    """Σᵢ visible(i): pairs of query and key that one head computes, for seq_q ≤ seq_k where causal."""
    queries, keys = np.asarray(seq_q, dtype=np.int64), np.asarray(seq_k, dtype=np.int64)
    if not causal:
        return queries * keys
    # Query 0 sees seq_k − seq_q + 1 keys, each later one sees one more.
    return queries * (keys - queries) + queries * (queries + 1) // 2


def attention_flop(
    batch: ArrayLike, heads: ArrayLike, head_dim: ArrayLike, pairs: ArrayLike, backward: bool = False
) -> NDArray[np.int64]:
    """4·b·h·d·Σᵢ visible(i) for the forward pass, 2.5 × that for the backward pass alone (Dao, FlashAttention-2)."""
    sizes = (np.asarray(each, dtype=np.int64) for each in (batch, heads, head_dim, pairs))
    forward = math.prod(sizes, start=np.asarray(4))
    return forward * 5 // 2 if backward else forward


@dataclass(frozen=True)
class TiledAttention:
    """One forward pass as a kernel with explicit blocks computes it: a tile is a block of queries of one head.

    `padded_head_dim` is what its products compute with, `slots` how many tiles are computed at once (workers of a CPU,
    multiprocessors times resident programs of a GPU). Tiles are handed out to whoever is free, the heaviest first among
    the `heads_together` heads that are computed at a time (0: all of them), or first queries first, head by head. A
    block that hangs over an edge or over the diagonal costs a whole one; one that no query sees is stepped over.
    """

    batch: int
    heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    padded_head_dim: int
    causal: bool
    blocks: Blocks
    slots: int
    heads_together: int = 0
    heaviest_first: bool = True

    @property
    def query_blocks(self) -> int:
        return int(ceil_div(self.seq_q, self.blocks.m))

    @property
    def tiles(self) -> int:
        return self.batch * self.heads * self.query_blocks

    @property
    def steps(self) -> NDArray[np.int64]:
        """Blocks of keys that each tile of one head steps over, first queries first."""
        if not self.causal:
            return np.full(self.query_blocks, ceil_div(self.seq_k, self.blocks.n))
        ends = np.minimum(np.arange(1, self.query_blocks + 1) * self.blocks.m, self.seq_q)
        return ceil_div(ends + self.seq_k - self.seq_q, self.blocks.n)

    @property
    def padding_efficiency(self) -> float:
        """Share of the computed head dimension that is the model's: head_dim / padded_head_dim, in (0, 1]."""
        return self.head_dim / self.padded_head_dim

    @property
    def tile_efficiency(self) -> float:
        """Share of the computed pairs of query and key that count: Σ visible / (Σ steps · m · n), in (0, 1]."""
        computed = int(self.steps.sum()) * self.blocks.m * self.blocks.n
        return float(visible_pairs(self.seq_q, self.seq_k, self.causal)) / computed

    @property
    def slot_efficiency(self) -> float:
        """Share of the slots that work until the busiest is done: Σ steps / (slots · its steps), in (0, 1]."""
        return float(self.batch * self.heads * self.steps.sum()) / (self.slots * self.busiest[0])

    @functools.cached_property
    def busiest(self) -> tuple[int, int]:
        """Steps and tiles of the slot that is done last, which decides the time: the critical path.

        Equal tiles make rounds, ⌈tiles/slots⌉ of them; unequal ones are handed out one by one, as greedily as kernels
        do it. A tile's own cost is small compared with its steps and does not enter who is free first.
        """
        if not self.causal:
            rounds = int(ceil_div(self.tiles, self.slots))
            return rounds * int(self.steps[0]), rounds
        free_at = [(0, 0)] * min(self.slots, self.tiles)
        heads = self.batch * self.heads
        together = min(self.heads_together or heads, heads) if self.heaviest_first else 1
        in_order = sorted(self.steps.tolist(), reverse=self.heaviest_first)
        for first in range(0, heads, together):
            for steps in np.repeat(in_order, min(together, heads - first)).tolist():
                done, tiles = free_at[0]
                heapq.heapreplace(free_at, (done + steps, tiles + 1))
        return max(free_at)


FEWEST_FITTED = 5  # the law has five constants; with fewer cases it repeats what it was given

# A cause is named where it explains so much of the difference, and all that are named at least so much together.
ONE_CAUSE, ALL_CAUSES = 0.25, 0.5


@dataclass(frozen=True)
class AttentionLaw:
    """Seconds = overhead + Σ over the busiest slot's tiles of (per_tile + Σ over the steps of each of its parts).

    A step of m queries over n keys costs m·n·padded_head_dim products (`per_product_s` is one multiply-add of Q·Kᵀ and
    one of P·V), m·n scores of the softmax, and n·padded_head_dim elements of K and of V that are brought in.
    """

    overhead_s: float
    per_tile_s: float
    per_product_s: float
    per_score_s: float
    per_element_s: float

    def seconds(self, cases: Sequence[TiledAttention]) -> NDArray[np.float64]:
        return _features(cases) @ np.array(astuple(self))

    def product_share(self, head_dim: int) -> float:
        """Share of a step that the two products take, in [0, 1]; the softmax costs the same at any head dimension."""
        products = self.per_product_s * head_dim
        both = products + self.per_score_s
        return products / both if both else 1.0

    @classmethod
    def fit(cls, cases: Sequence[TiledAttention], seconds: ArrayLike) -> AttentionLaw:
        """Fit to measured seconds, one per case. Raises ValueError where there are none."""
        return cls(*nonnegative_fit(_features(cases), seconds))


@dataclass(frozen=True)
class FittedLaw:
    """A law, how many cases made it, and its relative errors on those it was not fitted to."""

    law: AttentionLaw
    fitted_on: int
    held_out: tuple[float, ...]

    @classmethod
    def fit(cls, measured: Sequence[tuple[TiledAttention, float]]) -> FittedLaw | None:
        """Judged on every third (head_dim, queries, keys, mask), fitted on the others; None where cases are too few."""
        judging = set(sorted({_kind(case) for case, _ in measured})[1::3])
        fitted, held_out = (
            [each for each in measured if (_kind(each[0]) in judging) == judged] for judged in (False, True)
        )
        if len(fitted) < FEWEST_FITTED or not held_out:
            return None
        law = AttentionLaw.fit([case for case, _ in fitted], [seconds for _, seconds in fitted])
        errors = relative_error(law.seconds([case for case, _ in held_out]), [seconds for _, seconds in held_out])
        return cls(law, len(fitted), tuple(errors.tolist()))


# Head dimensions beyond which libraries take another kernel on a GPU (FlashAttention-3's tile_size.h).
BUCKETS = (64, 96, 128, 192, 256)


def bucket_of(head_dim: int) -> int:
    """Columns that a library computes for a head of `head_dim`; as it is beyond the largest bucket."""
    return next((bucket for bucket in BUCKETS if head_dim <= bucket), head_dim)


@dataclass(frozen=True)
class HeadSizeLaw:
    """Seconds = heads · (per_head_s + per_column_s · computed columns of head_dim), at one length, mask and batch.

    `held_out` are relative errors at head dimensions that the other ones predict; none for fewer than three.
    """

    per_head_s: float
    per_column_s: float
    head_dims: tuple[int, ...]
    held_out: tuple[float, ...] = ()

    @property
    def columns(self) -> float:
        """Columns of head_dim that cost as much as what each head costs whatever its size: mostly the softmax."""
        return self.per_head_s / self.per_column_s

    @classmethod
    def fit(cls, measured: Sequence[tuple[int, int, float]]) -> HeadSizeLaw | None:
        """Fit to (heads, computed columns, seconds); None where fewer than two sizes, or none that costs more."""

        def constants(of: Sequence[tuple[int, int, float]]) -> NDArray[np.float64]:
            features = [(heads, heads * columns) for heads, columns, _ in of]
            return np.asarray(nonnegative_fit(np.array(features, dtype=np.float64), [seconds for *_, seconds in of]))

        sizes = sorted({columns for _, columns, _ in measured})
        if len(sizes) < 2:
            return None
        per_head_s, per_column_s = constants(measured)
        if not per_column_s:
            return None
        held_out: list[float] = []
        for size in sizes if len(sizes) > 2 else ():
            a, b = constants([each for each in measured if each[1] != size])
            held_out += [abs(n * (a + b * size) / s - 1) for n, columns, s in measured if columns == size]
        return cls(float(per_head_s), float(per_column_s), tuple(sizes), tuple(held_out))


def causes(slow: TiledAttention, fast: TiledAttention, ratio: float, law: AttentionLaw | None) -> list[str]:
    """Return the causes for which one case takes `ratio` times as long as another of equal work, the strongest first.

    Each of "padding", "edges", "slots" and "softmax" is a share of time well spent, and explains the logarithm of the
    ratio of both shares. None is named unless together they explain half of the difference.
    """
    if ratio <= 1:
        return []
    bad, good = _well_spent(slow, law), _well_spent(fast, law)
    explained = {
        cause: math.log(good[cause] / bad[cause]) / math.log(ratio) for cause in bad if bad[cause] and good[cause]
    }
    named = sorted((cause for cause in explained if explained[cause] >= ONE_CAUSE), key=lambda each: -explained[each])
    return named if sum(explained[cause] for cause in named) >= ALL_CAUSES else []


def _well_spent(case: TiledAttention, law: AttentionLaw | None) -> dict[str, float]:
    counted = {"padding": case.padding_efficiency, "edges": case.tile_efficiency, "slots": case.slot_efficiency}
    return counted if law is None else counted | {"softmax": law.product_share(case.padded_head_dim)}


def _kind(case: TiledAttention) -> tuple[int, int, int, bool]:
    return (case.head_dim, case.seq_q, case.seq_k, case.causal)


def _features(cases: Sequence[TiledAttention]) -> NDArray[np.float64]:
    rows = []
    for case in cases:
        steps, tiles = case.busiest
        m, n, width = case.blocks.m, case.blocks.n, case.padded_head_dim
        rows.append((1.0, tiles, steps * m * n * width, steps * m * n, steps * n * width))
    return np.array(rows, dtype=np.float64).reshape(-1, 5)
