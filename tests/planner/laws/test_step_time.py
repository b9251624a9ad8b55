"""The time of a training iteration: what it adds up from, how it scales and is cut, whole grids, what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.explained import Explained
from pyperf_suite.planner.laws.training import layer_work
from pyperf_suite.planner.laws.training.framework import KINDS, StepConstants
from pyperf_suite.planner.laws.training.layer_work import (
    passes_and_slowdown,
    price_work,
)
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.laws.training.step import (
    HOP_S,
    kind_of,
    step_time,
)
from tests.models import LLAMA

MODEL = ModelDimensions(layers=24, hidden=1024, ffn=4096, heads=16, vocab=51200, bias=True, tied=True)
EXPERTS = replace(MODEL, experts=8, top_k=2)
# A vocabulary of one, so that the last stage computes as much as the others.
WITHOUT_LOGITS = replace(MODEL, vocab=1)
SEQ = 1024
PLAN = ParallelPlan(global_batch=64, micro_batch=2, seq=SEQ)
IDLE_HOST = StepConstants(slowdown=1.0)


@pytest.fixture(autouse=True)
def _idle_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches take no time."""
    monkeypatch.setattr(layer_work, "LAUNCH_S", 0.0)


STREAM_S = 2 * 2 * 1024 * 1024 / 1e9  # of one micro-batch's activations, where a GB takes a second


@dataclass
class MadeUpPrices:
    """100 TFLOP/s, 1 TB/s; a collective takes a second a GB where `linked`."""

    linked: bool = True

    @property
    def wide(self):
        return self

    def gemm(self, layout, m, n, k):
        return Explained(2.0 * m * n * k / 1e14)

    def attention(self, causal, backward, batch, seq, heads, kv_heads, head_dim, window=0):
        seq = np.sqrt(np.where(np.asarray(window) > 0, 2 * np.minimum(window, seq) * seq, np.square(seq)))
        flop = (2.5 if backward else 1.0) * 4.0 * batch * heads * seq**2 * head_dim / (2 if causal else 1)
        return Explained(flop / 1e14)

    def memory_bound(self, nbytes):
        return Explained(nbytes / 1e12)

    def collective(self, op, nbytes, ranks, ranks_per_node=None, network=None):
        return Explained(np.where(np.asarray(ranks) > 1, nbytes / 1e9 if self.linked else 0.0, 0.0))


def parts(
    plan: ParallelPlan, model: ModelDimensions = MODEL, linked: bool = True, constants: StepConstants = IDLE_HOST
) -> dict[str, float]:
    """Parts of a made-up iteration's seconds."""
    found = step_time("A100", model, plan, constants, MadeUpPrices(linked)).parts
    return {name: float(part) for name, part in found.items()}


def seconds(plan: ParallelPlan) -> float:
    return float(step_time("A100", MODEL, plan, IDLE_HOST, MadeUpPrices()).seconds)


def test_products_take_six_flop_a_parameter_and_token_and_eight_where_layers_are_computed_again() -> None:
    tokens = 64 * 1024
    in_layers, logits = 12 * 24 * 1024**2, 51200 * 1024
    assert parts(PLAN)["products"] == pytest.approx(6 * (in_layers + logits) * tokens / 1e14)
    again = parts(replace(PLAN, recompute="layers"))["products"]
    assert again == pytest.approx((8 * in_layers + 6 * logits) * tokens / 1e14)


def test_scores_in_memory_make_attention_slower_than_fused() -> None:
    fused, scored = parts(PLAN), parts(replace(PLAN, fused_attention=False))
    assert scored["memory bound"] > fused["memory bound"]
    # Without recomputing, products of scores count in full where fused ones skip the masked half; backward has 2.5
    # times the forward where fused, 2 times where not.
    assert scored["attention"] / fused["attention"] == pytest.approx(2 * (1 + 2) / (1 + 2.5))


def test_the_bubble_is_that_of_the_published_formula_where_stages_are_alike() -> None:
    plan = replace(PLAN, pipeline=4)
    found = step_time("A100", WITHOUT_LOGITS, plan, IDLE_HOST, MadeUpPrices(linked=False)).parts
    of_layers = sum(found[name] for name in ("products", "attention", "memory bound"))
    # (p − 1)/m of the computation (Narayanan et al. 2021, section 2.2).
    assert found["bubble"] == pytest.approx((4 - 1) / plan.micro_batches * of_layers, rel=1e-3)


def test_a_host_that_launches_slower_than_the_gpu_computes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts(PLAN)["host"] == 0
    monkeypatch.setattr(layer_work, "LAUNCH_S", 1.0 / layer_work.LAUNCHES)
    found = step_time("A100", WITHOUT_LOGITS, PLAN, IDLE_HOST, MadeUpPrices())
    # Backward launches twice the kernels of forward, for each of 32 micro-batches and 24 layers.
    assert found.seconds == pytest.approx(32 * 24 * 3, rel=1e-3)
    assert found.parts["host"] > 0.9 * found.seconds


def test_blocked_launches_are_waited_for_however_long_the_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_work, "LAUNCH_S", 10e-6)
    assert parts(PLAN)["host"] == 0
    # Three passes of 24 layers for each of 32 micro-batches, 20 microseconds an operation.
    assert parts(replace(PLAN, blocks=True))["host"] == pytest.approx(32 * 24 * 3 * 60 * 20e-6)


def test_kernels_that_run_slower_in_a_step_slow_all_but_what_is_sent() -> None:
    plan = replace(PLAN, tensor=2, data=2, framework="fsdp2")
    alone, within = parts(plan), parts(plan, constants=replace(IDLE_HOST, slowdown=1.5))
    for name in ("products", "attention", "memory bound", "optimizer"):
        assert within[name] == pytest.approx(1.5 * alone[name])
    for name in ("tensor", "gradients"):
        assert within[name] == alone[name] > 0


def test_how_often_each_kind_of_kernel_runs_and_what_slows_it() -> None:
    constants = replace(IDLE_HOST, slowdown=1.5)
    plan = replace(PLAN, fused_attention=False, recompute="layers", framework="fsdp2")
    found = passes_and_slowdown(plan, constants)
    due = {"scores": (2 + 11 / 8, 1.5), "memory": (3.5, 1.5), "attention_forward": (2, 1.5), "permuted": (3, 1.5)}
    assert {name: found[name] for name in due} == due
    assert found["cast"] == (1.5, 1.5)
    sparse = replace(EXPERTS, dense_layers=8)
    layer = price_work(sparse, replace(PLAN, context=2, dtype="fp8"), MadeUpPrices(), None)
    # 60 launches a layer, 20 for casts; where tokens are routed 60, and for each of 8 experts two products, their casts
    # and two operations for each bias. Keys and values of all tokens go round.
    assert float(layer["launches"]) == pytest.approx(60 + 20 + (60 + 8 * 2 * (1 + 1 + 2)) * 16 / 24)
    fused = price_work(sparse, replace(PLAN, context=2, dtype="fp8", fuses_experts=True), MadeUpPrices(), None)
    assert float(fused["launches"]) == pytest.approx(60 + 20 + 60 * 16 / 24)
    assert [KINDS[kind_of(EXPERTS, dtype)] for dtype in ("bf16", "fp8")] == list(KINDS[2:])
    assert float(layer["ring"]) == pytest.approx(2 * 2 * SEQ * 2 * 1024 / 1e9)


def test_tensor_parallelism_sends_four_times_a_layer_and_six_where_layers_are_computed_again() -> None:
    plan = replace(PLAN, tensor=2, framework="fsdp2")
    again = replace(plan, recompute="layers")
    assert parts(plan)["tensor"] == pytest.approx(32 * (24 * 4 + 2) * STREAM_S)
    assert parts(again)["tensor"] == pytest.approx(32 * (24 * 6 + 2) * STREAM_S)
    assert parts(PLAN)["tensor"] == 0


def test_gradients_that_torch_adds_up_are_read_twice_and_written_once_from_the_second_micro_batch_on() -> None:
    # In bf16 DeepSpeed's pipeline adds them in single precision, by kernels of its own.
    for dtype, stages, moved in (("fp16", 1, 6), ("bf16", 1, 6), ("fp16", 4, 6), ("bf16", 4, 20)):
        plan = replace(PLAN, framework="deepspeed", dtype=dtype, pipeline=stages)
        one, two = (parts(replace(plan, global_batch=batch))["optimizer"] for batch in (2, 4))
        parameters = 24 / stages * MODEL.layer_parameters + MODEL.hidden * MODEL.vocab
        assert two - one == pytest.approx(moved * parameters / 1e12, rel=1e-3)


def test_a_tied_embeddings_gradients_are_summed_by_the_first_and_the_last_stage() -> None:
    plan = replace(PLAN, pipeline=4)
    assert parts(plan)["gradients"] == pytest.approx(2 * MODEL.hidden * MODEL.vocab / 1e9)
    assert parts(plan, replace(MODEL, tied=False))["gradients"] == 0


def test_every_micro_batch_waits_for_what_is_sent_to_one_side_and_the_filling_for_both() -> None:
    plan = replace(PLAN, pipeline=4)
    # 32 micro-batches send activations to the next of 4 stages and their gradients back.
    due = 3 * 2 * STREAM_S + 32 * 2 * STREAM_S / 2
    assert parts(plan)["bubble"] - parts(plan, linked=False)["bubble"] == pytest.approx(due)


@pytest.mark.parametrize(
    ("layers", "vocab", "computed", "with_ends"),
    [
        (64, 1, 4, 1),
        # One in 16 stages has 3 of 61 layers, which the logits of 41 layers' work make the slowest.
        (61, 1, 4, 0),
        (61, 512_000, 3, 1),
    ],
)
def test_an_iteration_takes_what_its_slowest_stage_computes(
    layers: int, vocab: int, computed: int, with_ends: int
) -> None:
    plan = replace(PLAN, pipeline=16)
    found = parts(plan, replace(MODEL, layers=layers, vocab=vocab))["products"]
    flop = 6 * (computed * 12 * 1024**2 + with_ends * vocab * 1024) * 64 * SEQ
    assert found == pytest.approx(flop / 1e14)


def test_chunks_divide_the_bubble() -> None:
    plan = replace(PLAN, pipeline=4)
    whole, halves, thirds = (parts(replace(plan, chunks=chunks), linked=False)["bubble"] for chunks in (1, 2, 3))
    assert whole == pytest.approx(2 * halves)
    assert whole == pytest.approx(3 * thirds)


def test_sequence_parallelism_sends_as_much_and_cuts_passes_over_memory() -> None:
    plan = replace(PLAN, tensor=4, framework="fsdp2")
    plain, split = parts(plan), parts(replace(plan, sequence_parallel=True))
    # A reduce_scatter and an all_gather have the S of the all_reduce each, and here the price of it.
    assert split["tensor"] == pytest.approx(2 * plain["tensor"])
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
    assert cut["context"] == 0 < parts(replace(plan, context=4))["context"]


def test_experts_send_their_tokens_four_times_a_layer_and_six_where_layers_are_computed_again() -> None:
    plan = replace(PLAN, data=4, expert=4)
    of_two_experts = 2 * STREAM_S
    # Sorting the tokens takes little more.
    plain = replace(EXPERTS, bias=False)
    assert parts(plan, plain)["experts"] == pytest.approx(8 * 24 * 4 * of_two_experts, rel=0.01)
    again = parts(replace(plan, recompute="layers"), plain)["experts"]
    assert again == pytest.approx(8 * 24 * 6 * of_two_experts, rel=0.01)
    assert parts(replace(plan, expert=1), plain)["experts"] < 0.01 * again


def test_tokens_go_to_the_other_node_where_one_of_their_experts_is_there() -> None:
    prices = MadeUpPrices()
    prices.collective = lambda op, nbytes, *_: Explained(nbytes / 1e9 * (op == "send_receive"))  # type: ignore[method-assign]
    plan = ParallelPlan(global_batch=4, micro_batch=1, seq=SEQ, data=4, expert=4, ranks_per_node=2)
    # With both of its two experts in its own of two nodes a token stays: a quarter do.
    assert price_work(EXPERTS, plan, prices, None)["all_to_all"] == pytest.approx(3 / 4 * STREAM_S / 2)


def test_stages_of_zero_send_what_the_paper_says() -> None:
    plan = replace(PLAN, data=4)  # 8 micro-batches
    psi_s = 2 * (24 * MODEL.layer_parameters + MODEL.hidden * MODEL.vocab) / 1e9
    sent = [parts(replace(plan, zero_stage=stage)) for stage in range(4)]
    assert [each["gradients"] / psi_s for each in sent] == pytest.approx([1, 1, 8, 8])
    assert [each["parameters"] / psi_s for each in sent] == pytest.approx([0, 1, 1, 16])
    # Shares of 36 bytes a parameter, four passes over all gradients of a rank, and 2 bytes more in each micro-batch.
    assert sent[1]["optimizer"] / sent[0]["optimizer"] == pytest.approx((36 / 4 + 32) / (36 + 32))
    assert {each["products"] for each in sent} == {sent[0]["products"]}
    assert parts(replace(plan, gradient_bytes=4))["gradients"] == pytest.approx(2 * sent[0]["gradients"])
    # Gathered parameters are copied twice in each of 8 micro-batches (8 bytes); others scale gradients once (16).
    added = [parts(replace(plan, zero_stage=stage))["optimizer"] for stage in (2, 3)]
    assert added[1] - added[0] == pytest.approx((8 * 8 - 16) * psi_s / 2 * 1e-3)


def test_a_grid_is_told_as_its_plans_alone() -> None:
    counts = {
        "micro_batch": [1, 2, 4, 1, 2], "tensor": [1, 2, 4, 2, 1], "data": [4, 2, 1, 2, 8], "pipeline": [1, 2, 4, 2, 1],
        "chunks": [1, 3, 2, 1, 1], "context": [2, 1, 1, 2, 1], "expert": [8, 2, 1, 4, 2], "zero_stage": [3, 1, 0, 2, 3],
    }  # fmt: skip
    for recompute in ("nothing", "attention", "layers"):
        for fused in (True, False):
            usual = replace(
                PLAN, recompute=recompute, fused_attention=fused, sequence_parallel=True, framework="megatron"
            )
            grid = replace(usual, **{name: np.array(column) for name, column in counts.items()})
            together = step_time("A100", EXPERTS, grid, IDLE_HOST, MadeUpPrices()).parts
            for place in range(5):
                plan = replace(usual, **{name: column[place] for name, column in counts.items()})
                for name, part in parts(plan, EXPERTS).items():
                    assert together[name][place] == pytest.approx(part, abs=1e-12), (name, place)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"pipeline": 32}, "24 layers cannot fill 32 stages"),
        ({"tensor": 3}, "cannot divide heads = 16"),
        ({"micro_batch": 3}, "cannot be cut into micro-batches of 3"),
        ({"micro_batch": 0}, "sizes of at least 1"),
        ({"gradient_bytes": 0}, "sizes of at least 1"),
        ({"zero_stage": 4}, "ZeRO has stages 0 to 3, but 4"),
        ({"context": 3}, "1024 tokens cannot be cut over 3"),
        ({"data": 4, "expert": 8}, "spread over 8 of 4 ranks"),
        ({"pipeline": 6, "chunks": 2}, "a multiple of 6 stages of micro-batches, but there are 32"),
        ({"recompute": "some"}, "cannot recompute 'some'"),
        ({"chunks": 0}, "sizes of at least 1"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        seconds(replace(PLAN, **change))


def test_layers_with_a_window_take_as_long_as_what_they_see_and_ranks_of_cp_share_them() -> None:
    windowed = replace(MODEL, window=SEQ // 16, windowed_layers=MODEL.layers // 2)
    plan = ParallelPlan(global_batch=8, micro_batch=1, seq=SEQ)
    whole_s = parts(plan)["attention"]
    assert parts(plan, windowed)["attention"] == pytest.approx(whole_s * (1 / 2 + 1 / 2 / 8))
    chunked = replace(windowed, chunked=True)
    assert parts(plan, chunked)["attention"] == pytest.approx(whole_s * (1 / 2 + 1 / 2 / 16))
    shared = ParallelPlan(global_batch=8, micro_batch=1, seq=SEQ, context=2)
    for model, of_windowed in ((windowed, 1 / 8 / 2), (chunked, 1 / 16 / 2)):
        saved_s = parts(shared)["attention"] - parts(shared, model)["attention"]
        assert saved_s == pytest.approx(parts(shared)["attention"] / 2 - whole_s / 2 * of_windowed, rel=0.02)


def test_experts_take_as_long_as_their_grouped_product_and_again_where_layers_are_computed_again() -> None:
    sparse = replace(MODEL, experts=8, top_k=2)
    plan, again = (
        ParallelPlan(global_batch=8, micro_batch=1, seq=SEQ, recompute=kept) for kept in ("nothing", "layers")
    )
    flop = 2 * 2 * SEQ * MODEL.hidden * MODEL.ffn * (3 if MODEL.gated else 2) * MODEL.layers * 8
    dense_s = flop / 2 * 3 / 1e14
    router_s = 3 * 2 * SEQ * MODEL.hidden * 8 * MODEL.layers * 8 / 1e14
    assert parts(plan, sparse)["products"] == pytest.approx(parts(plan)["products"] + dense_s + router_s)
    more_s = parts(again, sparse)["products"] - parts(plan, sparse)["products"]
    assert more_s == pytest.approx(parts(again)["products"] - parts(plan)["products"] + dense_s / 3 + router_s / 3)


def test_a_pipeline_gathers_what_zero_3_shares_once_a_step_and_not_in_each_micro_batch() -> None:
    sharded = replace(PLAN, data=4, zero_stage=3)
    piped = replace(sharded, pipeline=4)
    for name in ("parameters", "gradients"):
        each = [parts(replace(plan, global_batch=batch))[name] for plan in (sharded, piped) for batch in (64, 128)]
        assert each[1] == pytest.approx(2 * each[0])
        assert each[3] == pytest.approx(each[2])


def test_zero_over_some_ranks_sums_a_share_of_gradients_over_the_copies() -> None:
    over_all = replace(PLAN, data=8, zero_stage=1)
    within = replace(over_all, shard_over=4)
    assert (within.sharing, over_all.sharing) == (4, 8)
    # In made-up prices a collective costs its bytes: scattered whole, and a quarter of it summed with the other copy.
    assert parts(within)["gradients"] == pytest.approx(1.25 * parts(over_all)["gradients"])
    assert parts(within)["parameters"] == pytest.approx(parts(over_all)["parameters"])
    assert parts(within)["optimizer"] > parts(over_all)["optimizer"]
    with pytest.raises(UserError, match="cannot share over 3 of 8 ranks"):
        replace(over_all, shard_over=3)


def test_a_ring_takes_a_hop_longer_for_each_rank_beyond_eight_nodes() -> None:
    few, many = (
        parts(replace(PLAN, global_batch=2 * ranks, data=ranks, zero_stage=3))["parameters"] for ranks in (64, 1024)
    )
    # Both passes gather 24 layers and the logits.
    assert many - few == pytest.approx(2 * 25 * (1024 - 64) * HOP_S, rel=1e-6)


def test_tp_across_nodes_hides_no_more_than_a_gradients_product_lasts() -> None:
    def waited(tensor: int, per_node: int) -> float:
        plan = ParallelPlan(
            global_batch=1, micro_batch=1, seq=4096, tensor=tensor, ranks_per_node=per_node, overlap_tensor=True,
            sequence_parallel=True, framework="megatron",
        )  # fmt: skip
        return float(step_time("H100", LLAMA, plan, network=50e9).parts["tensor"])

    inside, across = waited(16, 16), waited(16, 8)
    # At least the forward pass's sums: 16 ranks send 15/16 of 4096 x 4096 x 2 bytes four times over 8 links of 50 GB/s.
    sums_s = 32 * 4 * 15 / 16 * 4096 * 4096 * 2 / (8 * 50e9)
    assert across > max(2 * inside, sums_s)
    assert waited(8, 8) == waited(8, 16)
