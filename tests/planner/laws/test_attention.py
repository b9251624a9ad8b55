"""Work of attention counted against masks written out and tiles handed out one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.laws.tiled_attention import Blocks, TiledAttention, visible_pairs
from pyperf_suite.planner.laws.attention import TILE, AttentionShape


def shape_of(batch, seq_q, seq_k, heads, kv_heads, causal, window=np.inf):
    sizes = (batch, seq_q, seq_k, heads, kv_heads, 64, 64, window)
    return AttentionShape(*(np.array([float(size)]) for size in sizes), causal)


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 700), st.integers(0, 300), st.integers(1, 16), st.booleans()),
)
@settings(max_examples=150, deadline=None)
def test_computed_pairs_are_those_of_tiles_within_a_tile_a_row(case):
    batch, seq_q, more_keys, heads, causal = case
    seq_k = seq_q + more_keys
    shape = shape_of(batch, seq_q, seq_k, heads, heads, causal)
    tiled = TiledAttention(batch, heads, seq_q, seq_k, 64, 64, causal, Blocks(TILE, TILE), 1)
    assert shape.visible_pairs[0] == batch * heads * visible_pairs(seq_q, seq_k, causal)
    computed = batch * heads * int(tiled.steps.sum()) * TILE**2
    assert shape.visible_pairs[0] <= shape.computed_pairs[0] <= computed + batch * heads * seq_q * TILE


def test_keys_and_values_that_heads_share_are_read_once():
    own, shared = (shape_of(2, 1024, 1024, 32, kv_heads, True).moved_bytes(False)[0] for kv_heads in (32, 8))
    assert own == 2 * 4 * 32 * 2 * 1024 * 64
    assert shared / own == pytest.approx((32 + 8) / 64)


@given(st.integers(1, 200), st.integers(0, 100), st.integers(1, 320))
def test_a_window_hides_all_but_the_last_keys(seq_q, more_keys, window):
    seq_k = seq_q + more_keys
    query, key = np.indices((seq_q, seq_k))
    seen = (key <= query + more_keys) & (key > query + more_keys - window)
    assert shape_of(3, seq_q, seq_k, 2, 2, True, window).visible_pairs[0] == 6 * seen.sum()
