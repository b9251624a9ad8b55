"""Work of attention counted against masks written out and tiles handed out one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.laws.tiled_attention import Blocks, TiledAttention, visible_pairs
from pyperf_suite.planner.laws.attention import BLOCK, RESIDENT, SOFTMAX_COLUMNS, AttentionShape


def shape_of(batch, seq_q, seq_k, heads, kv_heads, causal, window=np.inf):
    sizes = (batch, seq_q, seq_k, heads, kv_heads, 64, 64, window)
    return AttentionShape(*(np.array([float(size)]) for size in sizes), causal)


def steps_of(shape, slots):
    """Blocks of queries by blocks of keys: of all slots together, and as many as if all were as busy as the busiest."""
    assert slots % RESIDENT == 0
    work = shape.work(slots // RESIDENT, 4.0 * BLOCK**2 * (64 + SOFTMAX_COLUMNS), 1.0)
    return work[0, 1], work[0, 2]


@given(
    st.tuples(
        st.integers(1, 4),
        st.integers(1, 700),
        st.integers(0, 300),
        st.integers(1, 16),
        st.booleans(),
        st.integers(1, 32),
    )
)
@settings(max_examples=150, deadline=None)
def test_pairs_and_steps_are_those_of_tiles_handed_out_one_by_one(case):
    batch, seq_q, more_keys, heads, causal, half_slots = case
    seq_k, slots = seq_q + more_keys, RESIDENT * half_slots
    shape = shape_of(batch, seq_q, seq_k, heads, heads, causal)
    tiled = TiledAttention(batch, heads, seq_q, seq_k, 64, 64, causal, Blocks(BLOCK, BLOCK), slots)
    assert shape.visible_pairs[0] == batch * heads * visible_pairs(seq_q, seq_k, causal)
    even, busiest = steps_of(shape, slots)
    # Tiles are aligned to the last key here and to the first query there: at most a step a tile apart.
    assert abs(even - batch * heads * int(tiled.steps.sum())) <= tiled.tiles
    assert even <= busiest <= slots * (tiled.busiest[0] + 1 + tiled.busiest[0] / max(int(tiled.steps.max()), 1))


def test_keys_and_values_that_heads_share_are_read_once():
    own, shared = (shape_of(2, 1024, 1024, 32, kv_heads, True).work(1, 1.0, 1.0)[0, 3] for kv_heads in (32, 8))
    assert own == 2 * 4 * 32 * 2 * 1024 * 64
    assert shared / own == pytest.approx((32 + 8) / 64)


@given(st.integers(1, 200), st.integers(0, 100), st.integers(1, 320))
def test_a_window_hides_all_but_the_last_keys(seq_q, more_keys, window):
    seq_k = seq_q + more_keys
    query, key = np.indices((seq_q, seq_k))
    seen = (key <= query + more_keys) & (key > query + more_keys - window)
    assert shape_of(3, seq_q, seq_k, 2, 2, True, window).visible_pairs[0] == 6 * seen.sum()


@given(st.integers(1, 10), st.integers(0, 4), st.integers(1, 400))
@settings(deadline=None)
def test_the_steps_of_a_window_reach_over_its_keys_and_no_further(query_blocks, more_blocks, window):
    seq_q, seq_k = BLOCK * query_blocks, BLOCK * (query_blocks + more_blocks)
    query, key = np.indices((seq_q, seq_k))
    seen = (key <= query + seq_k - seq_q) & (key > query + seq_k - seq_q - window)
    steps = seen.reshape(query_blocks, BLOCK, seq_k // BLOCK, BLOCK).any(axis=(1, 3)).sum()
    assert steps_of(shape_of(1, seq_q, seq_k, 1, 1, True, window), 2)[0] == pytest.approx(steps)
