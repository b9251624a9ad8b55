"""The time of a training iteration: what it adds up from, how it scales, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.laws.calibration import Calibration
from pyperf_suite.laws.traffic import pipeline_bubble
from pyperf_suite.laws.training.step import Plan, StepConstants, pack_constants, step_time
from pyperf_suite.laws.transformer import ModelDimensions
from tests.laws.made_up import MadeUpPrices

MODEL = ModelDimensions(layers=24, hidden=1024, ffn=4096, heads=16, vocab=51200, bias=True, tied=True)
# A vocabulary of one, so that the last stage computes as much as the others.
WITHOUT_LOGITS = replace(MODEL, vocab=1)
PLAN = Plan(global_batch=64, micro_batch=2, seq=1024)
IDLE_HOST = StepConstants(slowdown=1.0, host_s_per_layer=0.0, network_bytes_per_s=10e9)


def parts(plan: Plan, constants: StepConstants = IDLE_HOST, linked: bool = True) -> dict[str, float]:
    """Where a made-up iteration's seconds go."""
    return dict(step_time("A100", MODEL, plan, constants, MadeUpPrices(linked)).parts)


def seconds(plan: Plan, constants: StepConstants = IDLE_HOST, linked: bool = True) -> float:
    """Of a made-up iteration."""
    return step_time("A100", MODEL, plan, constants, MadeUpPrices(linked)).seconds


def test_the_parts_add_up_to_the_iteration() -> None:
    plan = Plan(64, 1, 1024, tensor=2, data=2, pipeline=4, recompute="layers", fused_attention=False)
    found = step_time("A100", MODEL, plan, StepConstants(1.2, 1e-3, 5e9), MadeUpPrices())
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert all(part >= 0 for part in found.parts.values())


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
    assert found["bubble"] == pytest.approx(pipeline_bubble(4, plan.micro_batches) * of_layers, rel=1e-3)


def test_more_micro_batches_shrink_the_share_of_the_bubble() -> None:
    plans = [replace(PLAN, pipeline=4, global_batch=size) for size in (8, 64, 512)]
    shares = [parts(plan)["bubble"] / seconds(plan) for plan in plans]
    assert shares[0] > shares[1] > shares[2]


def test_a_host_that_launches_slower_than_the_gpu_computes_is_waited_for() -> None:
    slow_host = replace(IDLE_HOST, host_s_per_layer=1.0)
    found = step_time("A100", WITHOUT_LOGITS, PLAN, slow_host, MadeUpPrices())
    # Backward launches twice the kernels of forward, for each of 32 micro-batches and 24 layers.
    assert found.seconds == pytest.approx(32 * 24 * 3, rel=1e-3)
    assert found.parts["host"] > 0.9 * found.seconds
    assert parts(PLAN)["host"] == 0


def test_kernels_that_run_slower_in_a_step_slow_all_but_what_is_sent() -> None:
    plan = replace(PLAN, tensor=2, data=2)
    alone, within = parts(plan), parts(plan, replace(IDLE_HOST, slowdown=1.5))
    for name in ("products", "attention", "memory bound", "optimizer"):
        assert within[name] == pytest.approx(1.5 * alone[name])
    for name in ("tensor", "gradients"):
        assert within[name] == alone[name] > 0


def test_tensor_parallelism_sends_four_times_a_layer_and_six_where_layers_are_computed_again() -> None:
    plan = replace(PLAN, tensor=2)
    activations_s = 2 * 2 * 1024 * 1024 / 1e9
    assert parts(plan)["tensor"] == pytest.approx(32 * (24 * 4 + 2) * activations_s)
    assert parts(replace(plan, recompute="layers"))["tensor"] == pytest.approx(32 * (24 * 6 + 2) * activations_s)
    assert parts(PLAN)["tensor"] == 0


def test_gradients_hide_behind_the_last_backward_pass_where_they_are_sent_beside_it() -> None:
    plan = replace(PLAN, data=2)
    exposed, hidden = parts(plan)["gradients"], parts(replace(plan, overlap_gradients=True))["gradients"]
    assert 0 < hidden < exposed


def test_gradients_in_single_precision_take_twice_as_long() -> None:
    plan = replace(PLAN, data=2)
    assert parts(replace(plan, gradient_bytes=4))["gradients"] == pytest.approx(2 * parts(plan)["gradients"])


def test_a_calibrations_own_constants_are_used_and_those_of_another_gpu_are_said_to_be() -> None:
    block = pack_constants(StepConstants(2.0, 0.0, 10e9), {"mape": 5.0}, "made up")
    own = step_time(Calibration("A100 SXM", {"step": block}), MODEL, PLAN, None, MadeUpPrices())
    assert own.seconds == pytest.approx(2 * seconds(PLAN))
    assert own.error_percent == 5.0
    assert not own.extrapolated
    of_another = step_time("H100", MODEL, PLAN, None, MadeUpPrices())
    assert of_another.extrapolated
    assert of_another.error_percent is None
    assert not step_time("A100", MODEL, PLAN, None, MadeUpPrices()).extrapolated


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"pipeline": 5}, "24 layers cannot be cut into 5 stages"),
        ({"tensor": 3}, "cannot divide heads = 16"),
        ({"micro_batch": 3}, "cannot be cut into micro-batches of 3"),
        ({"micro_batch": 0}, "sizes of at least 1"),
        ({"gradient_bytes": 0}, "sizes of at least 1"),
    ],
)
def test_a_plan_that_does_not_divide_is_refused_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        seconds(replace(PLAN, **change))


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(UserError, match="no GPU 'H2000'"):
        step_time("H2000", MODEL, PLAN, None, MadeUpPrices())
