"""FLOPs of a step, counted by the laws, are those that torch counts while it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.workloads.training.shape import (
    Checkpointing,
    TransformerShape,
    asked_flop,
    computed_flop,
    guides_flop,
)

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from pyperf_suite.workloads.training.gpt import build, inputs  # noqa: E402

SHAPE = TransformerShape(hidden=64, heads=4, layers=3, seq=16, batch=2)
BLOCKS = {
    "gpt-2": SHAPE,
    "a single block": replace(SHAPE, layers=1),
    "with logits": replace(SHAPE, vocab=96),
    "explicit": replace(SHAPE, attention="explicit"),
    "llama": replace(SHAPE, vocab=96, gated=True, kv_heads=2, tied=False),
    "llama, explicit, one key head": replace(SHAPE, gated=True, kv_heads=1, attention="explicit"),
    "a narrow MLP": replace(SHAPE, ffn=40, vocab=33),
    "dropout": replace(SHAPE, dropout=0.2),
    "one head, odd length": replace(SHAPE, heads=1, seq=13, batch=1),
}


def counted(shape):
    model, data = build(shape), inputs(shape)
    # The counter knows torch's own attention by its products, not the CPU's fused kernel.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*data).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("shape", BLOCKS.values(), ids=BLOCKS)
def test_what_is_asked_for_is_what_torch_counts(shape):
    assert asked_flop(shape, causal_halved=False) == counted(shape)


@pytest.mark.parametrize("kind", ["every:1", "every:2", "selective"])
@pytest.mark.parametrize("vocab", [0, 96])
@pytest.mark.parametrize("gated", [False, True])
def test_what_is_computed_again_is_what_torch_counts(kind, vocab, gated):
    shape = replace(SHAPE, vocab=vocab, gated=gated, attention="explicit", checkpointing=Checkpointing.parse(kind))
    assert computed_flop(shape, causal_halved=False) == counted(shape)


def test_a_causal_mask_takes_less_than_half_off_attention_and_nothing_off_the_rest():
    longer = replace(SHAPE, seq=64)
    hidden_pairs = 64 * 63 // 2
    saved = asked_flop(longer, causal_halved=False) - asked_flop(longer)
    assert saved == 3 * longer.layers * 4 * longer.batch * longer.hidden * hidden_pairs


def test_the_guides_estimate_counts_a_fourth_pass_with_checkpointing():
    assert guides_flop(SHAPE, 1000) == 3 * 2 * 1000 * 32
    assert guides_flop(replace(SHAPE, checkpointing=Checkpointing("every")), 1000) == 4 * 2 * 1000 * 32
