"""Layers of several kinds on a rank, in memory and in grids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.laws.transformer import ModelDimensions, Sharding, attention_calls, linears, model_flop, products
from pyperf_suite.planner.laws.training.layer_work import kernel_calls
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from tests.models import KINDS, SMALL_LLAMA, SPARSE

TINY = ModelDimensions(layers=3, hidden=8, ffn=32, heads=4, vocab=10, kv_heads=2, gated=True)
TINY_EXPERTS = replace(TINY, experts=4, top_k=2, expert_ffn=16, dense_layers=1)
# 6 tokens of 2 query heads and 1 key head, which are 2 wide, on each rank.
CUT = ParallelPlan(global_batch=4, micro_batch=2, seq=6, tensor=2, data=2, context=2)
PLAIN = replace(CUT, fused_attention=False, dtype="fp8")
ALWAYS = [
    ("norms and residuals", 22 * 6 * 8, 3),
    ("loss", 16 * 6 * 5, 1),
]
SOFTMAX = ("softmax", 8 * 2 * 2 * 6**2 / 2, 3)

each_kind = pytest.mark.parametrize("model", KINDS.values(), ids=KINDS.keys())


def test_experts_of_a_rank_have_the_flop_of_one_grouped_product() -> None:
    routed = sum(each.flop for each in products(SPARSE, 4096, Sharding(2, expert=4), phases=("fprop",)) if each.routed)
    assert routed == 2 * 3 * (4 * 4096 * 2 / 4) * 1024 * (512 / 2) * 10
    plan = ParallelPlan(global_batch=4, micro_batch=1, seq=4096, tensor=2, data=4, expert=4)
    calls = [call for call in kernel_calls(SPARSE, plan) if call.kind == "experts_forward"]
    # Gate and up together, and down: each with the rows of all four experts of the rank.
    assert [call.sizes for call in calls] == [(8192, 512, 1024), (8192, 1024, 256)]
    assert [float(call.calls) for call in calls] == [10, 10]
    assert not [call for call in kernel_calls(SMALL_LLAMA, replace(plan, expert=1)) if call.kind.startswith("experts")]


@pytest.mark.parametrize(
    ("model", "plan", "expected"),
    [
        (
            TINY,
            CUT,
            [("activation function", 4 * 2 * 6 * 16, 3)],
        ),
        (
            TINY,
            PLAIN,
            [
                ("activation function", 4 * 2 * 6 * 16, 3),
                SOFTMAX,
                ("casts of operands", 4 * 6 * (8 + 8 + 8 + 4 + 32 + 8 + 8 + 16), 3),
            ],
        ),
        # Two of three layers route 6 tokens to two experts each.
        (
            TINY_EXPERTS,
            PLAIN,
            [
                ("dense activation function", 4 * 2 * 6 * 16, 1),
                SOFTMAX,
                ("casts of operands", 4 * (6 * 28 + 6 * 12 * 2 / 3 + 6 * 64 / 3 + 8 * (2 * 8 + 3 * 8)), 3),
                ("tokens sorted by expert", 8 * (16 * 8 + 4 * 2 * 8), 3),
            ],
        ),
    ],
    ids=["fused", "scores", "experts"],
)
def test_passes_over_memory_of_a_small_model_are_counted_by_hand(
    model: ModelDimensions, plan: ParallelPlan, expected: list[tuple[str, float, int]]
) -> None:
    calls = [call for call in kernel_calls(model, plan) if call.law == "memory_bound"]
    found = sorted((call.name, float(call.sizes[0]), int(call.calls)) for call in calls)
    for one, due in zip(found, sorted([*expected, *ALWAYS]), strict=True):
        assert one == (due[0], pytest.approx(due[1]), due[2])
    alone = replace(plan, tensor=1, data=2)
    assert not [call for call in kernel_calls(model, alone) if call.law == "collective"]


@each_kind
def test_flop_are_six_of_each_active_parameter_in_a_product_with_attention(model: ModelDimensions) -> None:
    batch, seq = 2, 8192
    multiplied = sum(
        each.outputs * each.inputs * each.calls for each in linears(model, 1) if "expert " not in each.part
    )
    if model.experts > 1:
        multiplied += 3 * model.top_k * model.hidden * model.expert_ffn * model.sparse_layers
    if model.shared_ffn:
        multiplied += 3 * model.hidden * model.shared_ffn * model.sparse_layers
    attention = sum(call.flop() for call in attention_calls(model, batch, seq))
    expected = 6 * multiplied * batch * seq + 3 * attention
    assert model_flop(model, batch, seq) == pytest.approx(expected, rel=1e-9)
    assert multiplied == pytest.approx(model.active_parameters - model.hidden * model.vocab, rel=0.02)
