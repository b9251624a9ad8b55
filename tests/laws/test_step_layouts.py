"""What the time of an iteration is made of beyond TP, DP and PP: interleaving, SP, CP, EP, ZeRO; and whole grids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.laws.prices import Prices
from pyperf_suite.laws.training.step import TAKEN_IN_NODE, Plan, StepConstants, step_time, waited_s
from pyperf_suite.laws.transformer import ModelDimensions
from tests.laws.made_up import MadeUpPrices

MODEL = ModelDimensions(layers=24, hidden=1024, ffn=4096, heads=16, vocab=51200, bias=True, tied=True)
EXPERTS = replace(MODEL, experts=8, top_k=2)
PLAN = Plan(global_batch=64, micro_batch=2, seq=1024)
IDLE_HOST = StepConstants(slowdown=1.0, host_s_per_layer=0.0, network_bytes_per_s=10e9)
STREAM_S = 2 * 2 * 1024 * 1024 / 1e9  # of one micro-batch's activations, where a GB takes a second


def parts(plan: Plan, model: ModelDimensions = MODEL, linked: bool = True) -> dict[str, float]:
    """Where a made-up iteration's seconds go."""
    return {
        name: float(part)
        for name, part in step_time("A100", model, plan, IDLE_HOST, MadeUpPrices(linked)).parts.items()
    }


def test_chunks_divide_the_bubble() -> None:
    plan = replace(PLAN, pipeline=4)
    whole, halves, thirds = (parts(replace(plan, chunks=chunks), linked=False)["bubble"] for chunks in (1, 2, 3))
    assert whole == pytest.approx(2 * halves)
    assert whole == pytest.approx(3 * thirds)


def test_chunks_send_more_often_beside_computation() -> None:
    plan = replace(PLAN, pipeline=4)
    unlinked = parts(replace(plan, chunks=6), linked=False)["bubble"]
    assert parts(replace(plan, chunks=6))["bubble"] > unlinked + 3 * 2 * STREAM_S


def test_sequence_parallelism_sends_as_much_and_cuts_passes_over_memory() -> None:
    plan = replace(PLAN, tensor=4)
    plain, split = parts(plan), parts(replace(plan, sequence_parallel=True))
    again = 24 * 32 * float(waited_s(2 * STREAM_S, 0.0, TAKEN_IN_NODE))
    # A reduce_scatter and an all_gather have the S of the all_reduce each, and here the price of it.
    assert 2 * plain["tensor"] <= split["tensor"] <= 2 * plain["tensor"] + again
    assert split["memory bound"] < plain["memory bound"]
    assert split["products"] == plain["products"]


def test_selective_recomputation_repeats_attention_alone() -> None:
    plan = replace(PLAN, fused_attention=False)
    nothing, attention, layers = (
        parts(replace(plan, recompute=recompute)) for recompute in ("nothing", "attention", "layers")
    )
    assert attention["attention"] == pytest.approx(4 / 3 * nothing["attention"])
    assert attention["products"] == nothing["products"] < layers["products"]
    assert nothing["memory bound"] < attention["memory bound"] < layers["memory bound"]


def test_context_parallelism_cuts_tokens_and_attention_and_passes_keys_round() -> None:
    plan = replace(PLAN, seq=65536)
    alone, cut = parts(plan, linked=False), parts(replace(plan, context=4), linked=False)
    assert cut["products"] == pytest.approx(alone["products"] / 4)
    assert cut["attention"] == pytest.approx(alone["attention"] / 4, rel=0.05)
    assert cut["attention"] > alone["attention"] / 4  # pieces are merged
    assert cut["context"] == 0 < parts(replace(plan, context=4))["context"]


def test_experts_send_their_tokens_four_times_a_layer_and_six_where_layers_are_computed_again() -> None:
    plan = replace(PLAN, data=4, expert=4)
    of_two_experts = 2 * STREAM_S
    assert parts(plan, EXPERTS)["experts"] == pytest.approx(8 * 24 * 4 * of_two_experts)
    again = parts(replace(plan, recompute="layers"), EXPERTS)["experts"]
    assert again == pytest.approx(8 * 24 * 6 * of_two_experts)
    assert parts(replace(plan, expert=1), EXPERTS)["experts"] == 0


def test_stages_of_zero_send_what_the_paper_says() -> None:
    plan = replace(PLAN, data=4)  # 8 micro-batches
    psi_s = 2 * (24 * MODEL.layer_parameters + MODEL.hidden * MODEL.vocab) / 1e9
    sent = [parts(replace(plan, zero_stage=stage)) for stage in range(4)]
    assert [each["gradients"] / psi_s for each in sent] == pytest.approx([1, 1, 8, 8])
    assert [each["parameters"] / psi_s for each in sent] == pytest.approx([0, 1, 1, 16])
    assert sent[1]["optimizer"] == pytest.approx(sent[0]["optimizer"] / 4)
    assert {each["products"] for each in sent} == {sent[0]["products"]}


def test_zero_hides_beside_computation_but_not_wholly() -> None:
    for stage in range(4):
        plan = replace(PLAN, data=4, zero_stage=stage)
        plain, beside = parts(plan), parts(replace(plan, overlap_gradients=True))
        waited = [each["gradients"] + each["parameters"] for each in (beside, plain)]
        assert 0 < waited[0] < waited[1]


def test_what_is_hidden_still_takes_its_share_of_the_computation_beside_it() -> None:
    assert waited_s(1.0, 10.0, 0.15) == pytest.approx(0.15)
    assert waited_s(10.0, 4.0, 0.02) == pytest.approx(6 + 0.02 * 4)
    assert waited_s(3.0, 0.0, 0.15) == 3.0


def test_a_grid_is_told_as_its_plans_alone() -> None:
    counts = {
        "micro_batch": [1, 2, 4, 1, 2], "tensor": [1, 2, 4, 2, 1], "data": [4, 2, 1, 2, 8], "pipeline": [1, 2, 4, 2, 1],
        "chunks": [1, 3, 2, 1, 1], "context": [2, 1, 1, 2, 1], "expert": [8, 2, 1, 4, 2], "zero_stage": [3, 1, 0, 2, 3],
    }  # fmt: skip
    for recompute in ("nothing", "attention", "layers"):
        for fused in (True, False):
            usual = replace(PLAN, recompute=recompute, fused_attention=fused, sequence_parallel=True)
            grid = replace(usual, **{name: np.array(column) for name, column in counts.items()})
            together = step_time("A100", EXPERTS, grid, IDLE_HOST, MadeUpPrices()).parts
            for place in range(5):
                plan = replace(usual, **{name: column[place] for name, column in counts.items()})
                for name, part in parts(plan, EXPERTS).items():
                    assert together[name][place] == pytest.approx(part, abs=1e-12), (name, place)


def test_the_laws_of_a_gpu_take_grids_too() -> None:
    grid = replace(PLAN, tensor=np.array([1, 2, 16]), data=np.array([8, 2, 1]), sequence_parallel=True)
    together = step_time("A100", MODEL, grid, None, Prices("A100")).seconds
    alone = [
        step_time("A100", MODEL, replace(grid, tensor=t, data=d), None, Prices("A100")).seconds
        for t, d in ((1, 8), (2, 2), (16, 1))
    ]
    assert together == pytest.approx(np.array(alone, dtype=float), rel=1e-9)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"zero_stage": 4}, "ZeRO has stages 0 to 3, but 4"),
        ({"context": 3}, "1024 tokens cannot be cut over 3"),
        ({"data": 4, "expert": 8}, "spread over 8 of 4 ranks"),
        ({"pipeline": 6, "chunks": 2}, "a multiple of 6 stages of micro-batches, but there are 32"),
        ({"pipeline": 4, "chunks": 4}, "24 layers cannot be cut into 4 stages of 4 chunks"),
        ({"recompute": "some"}, "cannot recompute 'some'"),
        ({"chunks": 0}, "sizes of at least 1"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parts(replace(PLAN, **change))
