"""Attention counted against masks written out and tiles handed out one by one, and the law against what it made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiled_attention import (
    AttentionLaw,
    Blocks,
    TiledAttention,
    attention_flop,
    causes,
    visible_pairs,
)
from pyperf_suite.laws.tiling import relative_error
from pyperf_suite.planner.laws.attention import BLOCK, RESIDENT, SOFTMAX_COLUMNS, AttentionShape

blocks = st.builds(Blocks, *(st.integers(1, 48) for _ in range(2)), stages=st.integers(1, 4), warps=st.integers(1, 8))


@st.composite
def tiled(draw: st.DrawFn) -> TiledAttention:
    causal = draw(st.booleans())
    seq_k = draw(st.integers(1, 150))
    head_dim = draw(st.integers(1, 256))
    return TiledAttention(
        batch=draw(st.integers(1, 3)),
        heads=draw(st.integers(1, 9)),
        seq_q=draw(st.integers(1, seq_k if causal else 150)),
        seq_k=seq_k,
        head_dim=head_dim,
        padded_head_dim=head_dim + draw(st.integers(0, 64)),
        causal=causal,
        blocks=draw(blocks),
        slots=draw(st.integers(1, 40)),
        heads_together=draw(st.integers(0, 5)),
    )


def mask(seq_q: int, seq_k: int, causal: bool) -> NDArray[np.bool_]:
    """Which query (row) sees which key, written out from the definition."""
    query, key = np.indices((seq_q, seq_k))
    return key <= query + seq_k - seq_q if causal else np.ones((seq_q, seq_k), dtype=bool)


@pytest.mark.parametrize("text", ["", "128", "128x64x32", "0x64", "128x64:s0", "axb", "128x64:w4:s3"])
def test_what_are_not_blocks_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"[Bb]locks"):
        Blocks.parse(text)


@given(st.integers(1, 40), st.integers(0, 40), st.booleans())
def test_visible_pairs_are_those_of_the_mask(seq_q: int, more: int, causal: bool) -> None:
    assert visible_pairs(seq_q, seq_q + more, causal) == mask(seq_q, seq_q + more, causal).sum()


def test_flop_are_counted_as_flash_attention_counts_them() -> None:
    # The 4·s²·h·d of FlashAttention-2's benchmark, half of it where causal (nearly), and 2.5 times for the gradients.
    full = 4 * 16384**2 * 16 * 128
    assert attention_flop(1, 16, 128, visible_pairs(16384, 16384, False)) == full
    assert attention_flop(1, 16, 128, visible_pairs(16384, 16384, True)) / full == pytest.approx(0.5, rel=1e-4)
    assert attention_flop(1, 16, 128, visible_pairs(16384, 16384, False), backward=True) == 2.5 * full


@given(tiled())
def test_steps_are_the_blocks_of_keys_that_some_query_sees(case: TiledAttention) -> None:
    visible = mask(case.seq_q, case.seq_k, case.causal)
    for block, steps in enumerate(case.steps.tolist()):
        rows = visible[block * case.blocks.m : (block + 1) * case.blocks.m]
        seen = [rows[:, first : first + case.blocks.n].any() for first in range(0, case.seq_k, case.blocks.n)]
        assert steps == sum(seen)
        assert all(seen[:steps])


@given(tiled())
def test_the_busiest_slot_is_that_of_handing_out_tile_by_tile(case: TiledAttention) -> None:
    heads = case.batch * case.heads
    together = min(case.heads_together or heads, heads)
    loads = [(0, 0)] * case.slots
    for first in range(0, heads, together):
        for steps in sorted(case.steps.tolist(), reverse=True):
            for _ in range(min(together, heads - first)):
                least = loads.index(min(loads))
                loads[least] = (loads[least][0] + steps, loads[least][1] + 1)
    assert case.busiest == max(loads)


def test_the_busiest_slot_and_what_blocks_waste_are_as_counted_by_hand() -> None:
    # 16 blocks of 1 to 16 steps: 136 steps on 4 slots; in rounds of four they would cost 16 + 12 + 8 + 4 = 40.
    case = TiledAttention(1, 1, 1024, 1024, 64, 64, True, Blocks(64, 64), slots=4)
    assert (case.tiles, case.busiest[0], case.slot_efficiency) == (16, 34, 1)
    # Decoding sees every key with one row of a whole block.
    case = TiledAttention(2, 8, 1, 1000, 80, 128, True, Blocks(16, 64), slots=132)
    assert (case.tiles, case.busiest) == (16, (16, 1))
    assert case.tile_efficiency == pytest.approx(1000 / (16 * 1024))
    assert case.padding_efficiency == 80 / 128


cost = st.floats(1e-3, 1.0)


def varied(slots: int = 2) -> list[TiledAttention]:
    return [
        TiledAttention(1, heads, seq, seq, d, -(-d // 16) * 16, causal, Blocks(m, 64), slots)
        for heads in (4, 7)
        for seq in (100, 256, 512)
        for d in (40, 64, 128)
        for m in (32, 128)
        for causal in (False, True)
    ]


@given(cost, cost, cost, cost, cost)
def test_fitting_recovers_the_law_that_made_the_times(
    overhead: float, tile: float, product: float, score: float, element: float
) -> None:
    truth = AttentionLaw(overhead * 1e-5, tile * 1e-5, product * 1e-10, score * 1e-8, element * 1e-8)
    cases = varied()
    fitted = AttentionLaw.fit(cases, truth.seconds(cases))
    assert relative_error(fitted.seconds(cases), truth.seconds(cases)).max() < 1e-4
    assert fitted.product_share(64) == pytest.approx(truth.product_share(64), rel=1e-2)
    with pytest.raises(ValueError, match="no measurements"):
        AttentionLaw.fit([], [])


@given(st.integers(0, 2**32 - 1))
def test_no_cost_comes_out_negative_whatever_the_noise(seed: int) -> None:
    cases = varied()
    law = AttentionLaw.fit(cases, np.random.default_rng(seed).uniform(1e-6, 1e-2, len(cases)))
    assert min(vars(law).values()) >= 0
    with pytest.raises(ValueError, match="no measurements"):
        AttentionLaw.fit([], [])


def test_the_softmax_takes_more_of_narrow_heads() -> None:
    law = AttentionLaw(0, 0, per_product_s=1e-10, per_score_s=64e-10, per_element_s=0)
    assert [law.product_share(d) for d in (64, 192)] == [0.5, 0.75]
    assert AttentionLaw(1e-6, 0, 0, 0, 0).product_share(64) == 1


@pytest.mark.parametrize(
    ("changed", "cause"), [({"seq_q": 65}, "edges"), ({"padded_head_dim": 128}, "padding"), ({"slots": 4}, "slots")]
)
def test_a_cause_is_named_where_it_explains_the_difference_and_no_other(changed, cause):
    fast = TiledAttention(1, 2, 64, 64, 64, 64, causal=False, blocks=Blocks(64, 64), slots=2)
    slow = replace(fast, **changed)
    assert causes(slow, fast, 2.0, None) == [cause]
    assert causes(slow, fast, 2.0, AttentionLaw(0, 0, per_product_s=1e-12, per_score_s=0, per_element_s=0)) == [cause]
    assert causes(slow, fast, 1.0, None) == []
    # A factor of two is a third of a factor of eight.
    assert causes(slow, fast, 8.0, None) == []


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
