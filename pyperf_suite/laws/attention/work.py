"""What attention over whole arrays of shapes amounts to: pairs, tiles, the busiest slot, bytes.

`attention.TiledAttention` hands out the tiles of one case one by one; here bounds stand in its place, so that a
million shapes are counted at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# More rounds of unequal tiles than this even out; the bound would be the mean load.
MOST_ROUNDS = 10
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention, float64 arrays of one shape each; causal is bottom-right aligned."""

    batch: Array
    seq_q: Array
    seq_k: Array
    heads: Array
    kv_heads: Array
    causal: bool

    def where(self, chosen: NDArray[np.bool_]) -> AttentionShape:
        """The shapes at which `chosen` is true, as one axis."""
        batch, seq_q, seq_k, heads, kv_heads = (
            size[chosen] for size in (self.batch, self.seq_q, self.seq_k, self.heads, self.kv_heads)
        )
        return AttentionShape(batch, seq_q, seq_k, heads, kv_heads, self.causal)

    @property
    def instances(self) -> Array:
        """Heads to compute: batch · heads."""
        return self.batch * self.heads

    @property
    def group(self) -> Array:
        """Query heads that share a key and value head."""
        return self.heads / self.kv_heads

    @property
    def visible_pairs(self) -> Array:
        """Pairs of query and key of all heads that count; `attention.visible_pairs` per head."""
        if not self.causal:
            return self.instances * self.seq_q * self.seq_k
        return self.instances * self.seq_q * (self.seq_k - (self.seq_q - 1) / 2)

    def nbytes(self, head_dim: Array | float) -> Array:
        """Bytes of Q, K, V and the output in 16 bits, each once."""
        rows = 2 * (self.heads * self.seq_q + self.kv_heads * self.seq_k)
        return ELEMENT_BYTES * self.batch * rows * head_dim


@dataclass(frozen=True)
class SpreadWork:
    """An attention cut into blocks of queries over slots; pairs are counted per slot.

    `busiest_pairs` are those of the slot that is done last, `even_pairs` what each would have were they spread evenly,
    `visible_pairs` the part of these that counts. `rounds` is how many tiles come to a slot, at least one.
    """

    busiest_pairs: Array
    even_pairs: Array
    visible_pairs: Array
    rounds: Array


def spread(shape: AttentionShape, block: int, slots: int) -> SpreadWork:
    """Tiles of `block` queries that step over `block` keys at a time, handed to `slots`, the heaviest first.

    The busiest slot has no less than the mean, and no less than (j+1) times the (j·slots+1)-th heaviest tile for every
    j: of so many tiles two or more must share a slot (Graham, SIAM J. Appl. Math. 17, 1969). Longest-first comes close
    to the largest of these bounds.
    """
    query_blocks, key_blocks = np.ceil(shape.seq_q / block), np.ceil(shape.seq_k / block)
    tiles = shape.instances * query_blocks
    if shape.causal:
        before = np.ceil((shape.seq_k - shape.seq_q) / block)
        # The last block sees all keys, each earlier one a block less.
        head_steps = key_blocks + (query_blocks - 1) * (query_blocks / 2 + before)
    else:
        head_steps = query_blocks * key_blocks
    even = shape.instances * head_steps / slots
    busiest = np.maximum(even, key_blocks)
    for round_ in range(1, MOST_ROUNDS):
        shared = round_ * slots < tiles
        if not shared.any():
            break
        if shape.causal:
            rank = np.floor(round_ * slots / shape.instances)
            steps = np.where(rank > 0, query_blocks - rank + before, key_blocks)
        else:
            steps = key_blocks
        busiest = np.maximum(busiest, np.where(shared, (round_ + 1) * steps, 0.0))
    pairs_of_step = float(block * block)
    return SpreadWork(
        busiest * pairs_of_step, even * pairs_of_step, shape.visible_pairs / slots, np.maximum(tiles / slots, 1.0)
    )
