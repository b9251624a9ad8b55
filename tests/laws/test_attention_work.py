"""Counting attention over arrays agrees with handing out the tiles of each case one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.laws.attention import AttentionShape, spread
from pyperf_suite.laws.tiled_attention import Blocks, TiledAttention, visible_pairs


def shape_of(batch, seq_q, seq_k, heads, kv_heads, causal):
    return AttentionShape(*(np.array([float(size)]) for size in (batch, seq_q, seq_k, heads, kv_heads)), causal)


cases = st.tuples(
    st.integers(1, 4), st.integers(1, 700), st.integers(0, 300), st.integers(1, 16), st.booleans(), st.integers(1, 64)
)


@given(cases)
@settings(max_examples=150, deadline=None)
def test_pairs_steps_and_the_busiest_slot_are_those_of_tiles_handed_out_one_by_one(case):
    batch, seq_q, more_keys, heads, causal, slots = case
    seq_k, block = seq_q + more_keys, 64
    shape = shape_of(batch, seq_q, seq_k, heads, heads, causal)
    work = spread(shape, block, slots)
    tiled = TiledAttention(batch, heads, seq_q, seq_k, 64, 64, causal, Blocks(block, block), slots)
    assert shape.visible_pairs[0] == batch * heads * visible_pairs(seq_q, seq_k, causal)
    steps = batch * heads * int(tiled.steps.sum())
    # Tiles are aligned to the last key here and to the first query there: at most a step a tile apart.
    assert abs(work.even_pairs[0] * slots / block**2 - steps) <= tiled.tiles
    # A bound from below; handing out greedily stays within 4/3 of the best (Graham 1969).
    exact = tiled.busiest[0]
    assert work.busiest_pairs[0] / block**2 <= exact + exact / max(int(tiled.steps.max()), 1) + 1
    assert work.busiest_pairs[0] / block**2 >= 0.6 * exact - 1


@pytest.mark.parametrize(("heads", "rounds"), [(108, 1), (109, 2), (216, 2), (217, 3)])
def test_one_tile_beyond_a_wave_makes_the_busiest_slot_work_a_round_more(heads, rounds):
    work = spread(shape_of(1, 128, 128, heads, heads, True), block=128, slots=108)
    assert work.busiest_pairs[0] == rounds * 128 * 128


def test_keys_and_values_that_heads_share_are_read_once():
    own, shared = (shape_of(2, 1024, 1024, 32, kv_heads, True).nbytes(128)[0] for kv_heads in (32, 8))
    assert own == 2 * 4 * 32 * 2 * 1024 * 128
    assert shared / own == pytest.approx((32 + 8) / 64)
