"""Tiled attention counted against masks written out and tiles handed out one by one; its law against what it made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
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
    """Mask of the keys that each query (row) sees, written out from the definition."""
    query, key = np.indices((seq_q, seq_k))
    return key <= query + seq_k - seq_q if causal else np.ones((seq_q, seq_k), dtype=bool)


@pytest.mark.parametrize("text", ["64x32", "128x64:s3", "128x64:w4", "128x64:s3:w8:p", "64x32:p"])
def test_blocks_are_read_as_they_are_written(text):
    assert str(Blocks.parse(text)) == text


@pytest.mark.parametrize("text", ["128x64:p:s3", "", "128", "128x64x32", "0x64", "128x64:s0", "axb", "128x64:w4:s3"])
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


def varied() -> list[TiledAttention]:
    return [
        TiledAttention(1, heads, seq, seq, d, -(-d // 16) * 16, causal, Blocks(m, 64), 2)
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
