"""The transformer that training workloads train: right to every gradient, whatever is dropped and computed again."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.workloads.training import training_step
from pyperf_suite.workloads.training.training_step import PrecisionStep, TrainingStepParameters
from pyperf_suite.workloads.workload import ExecutionContext

torch = pytest.importorskip("torch")

CPU = Device("cpu")
BRIEF = Effort(SteadyRule(min_time_s=0.0, time_cap_s=0.05), StopRule(time_cap_s=0.2))
SMALL = TrainingStepParameters(hidden=64, heads=4, layers=3, seq=16, batch=2)


def prepared(parameters: TrainingStepParameters, seed: int = 0):
    return PrecisionStep().implementation("torch").prepare(parameters, ExecutionContext(CPU, seed))


@pytest.mark.parametrize("kind", ["weight", "exp_avg", "exp_avg_sq"])
def test_a_single_weight_or_moment_that_an_update_gets_wrong_is_found(kind, monkeypatch):
    steps = prepared(replace(SMALL, part="train"))
    weight = steps.model.blocks[1].mlp.up.weight
    update = steps._optimizer.step

    def then_spoil():
        update()
        spoilt = weight.data if kind == "weight" else steps._optimizer.state[weight][kind]
        spoilt[3, 4] += 1e-3

    monkeypatch.setattr(steps._optimizer, "step", then_spoil)
    assert steps.check().wrong == 1


@pytest.mark.parametrize("attention", ["flash", "math"])
def test_attention_is_pinned_to_the_backend_that_was_asked_for(attention):
    from pyperf_suite.workloads.attention import backend_of, operators_seen
    from pyperf_suite.workloads.training import gpt

    shape = TrainingStepParameters(hidden=32, heads=4, kv_heads=2, layers=1, seq=8, attention=attention)
    gpt.require_attention(shape, "cpu", torch.float32)
    model = gpt.build(shape)
    with operators_seen() as seen:
        model(*gpt.inputs(shape))
    assert backend_of(seen) == attention


def test_a_backend_that_cannot_take_the_shape_says_why():
    from pyperf_suite.workloads.training import gpt

    # A CPU's fused kernel has no dropout.
    shape = TrainingStepParameters(hidden=32, heads=4, layers=1, seq=8, attention="flash", dropout=0.5)
    with pytest.raises(Unsupported, match="flash attention cannot take heads of 8"):
        gpt.require_attention(shape, "cpu", torch.float32)


def test_a_step_that_goes_wrong_while_it_is_timed_is_found(monkeypatch):
    backward, calls = training_step.TorchSteps.backward, []

    def wrong_from_the_second(steps, result):
        """Turn a gradient's sign after verification, before timing ends."""
        backward(steps, result)
        calls.append(1)
        if len(calls) > 1:
            steps.model.blocks[0].mlp.up.weight.grad[0, 0] *= -1

    monkeypatch.setattr(training_step.TorchSteps, "backward", wrong_from_the_second)
    answer = measure_case(Case("training_step", SMALL, "torch"), BRIEF, CPU)
    assert answer["outcome"] == "failed"
    assert answer["reason"].startswith("Wrong result while it was timed")


PRECISE = TrainingStepParameters(hidden=64, heads=4, layers=2, seq=16, batch=2, vocab=96)
AUTOCAST = replace(PRECISE, precision="autocast_bfloat16")
# Weights and biases of qkv, out, up and down in each block, and the logits' weight.
CAST_BY_AUTOCAST = 2 * 4 * 2 + 1


def observed(parameters):
    return {name: each.samples[0] for name, each in prepared(parameters).observed().items()}


def test_a_micro_batch_that_is_left_out_is_found(monkeypatch):
    steps = prepared(replace(AUTOCAST, micro_batches=3))
    backward, calls = steps.backward, []

    def all_but_the_last(result):
        calls.append(1)
        if len(calls) != 3:
            backward(result)

    monkeypatch.setattr(steps, "backward", all_but_the_last)
    assert steps.check().wrong > 0


@pytest.mark.parametrize(("cast_cache", "casts"), [("iteration", 3), ("nested", 1), ("off", 3)])
def test_weights_are_cast_once_as_long_as_the_outermost_context_lasts(cast_cache, casts):
    message = observed(replace(AUTOCAST, micro_batches=3, cast_cache=cast_cache))
    assert message["casts"] == casts * CAST_BY_AUTOCAST


# Matrices of 65,536 elements and more, of which 1 in 10,000 are several.
WIDE = TrainingStepParameters(hidden=256, heads=4, layers=2, seq=16, batch=2, vocab=96, micro_batches=2)
JUDGED = ["float32", "bfloat16", "float16", "autocast_bfloat16", "autocast_float16"]


@functools.cache
def taken(precision):
    """A step that was taken, and the gradients that it left."""
    steps = prepared(replace(WIDE, precision=precision))
    assert steps.check().wrong == 0, steps.check().first
    return steps, {name: each.grad.clone() for name, each in steps.model.named_parameters()}


def verdict(steps, gradients, **spoilt):
    """Verdict on the same step with some gradients exchanged, by name."""
    for name, each in steps.model.named_parameters():
        each.grad = spoilt.get(name, gradients[name]).clone()
    return steps.verify_last(0)


@pytest.mark.slow
@pytest.mark.parametrize("precision", JUDGED)
def test_a_tenth_of_the_usual_size_in_1_of_10_000_elements_is_found(precision):
    steps, gradients = taken(precision)
    generator = torch.Generator().manual_seed(1)
    for name, right in gradients.items():
        if "blocks.1." in name and right.numel() >= 1 << 17:
            wrong = right.clone()
            places = torch.randperm(right.numel(), generator=generator)[: right.numel() // 10_000]
            signs = torch.randint(2, places.shape, generator=generator) * 2 - 1
            wrong.view(-1)[places] += (0.1 * right.float().square().mean().sqrt() * signs).to(right.dtype)
            checked = verdict(steps, gradients, **{name: wrong})
            assert checked.wrong > 0, name
            assert name in checked.first


@pytest.mark.parametrize("precision", JUDGED)
@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("blocks.blocks.0.attention.out.weight", lambda right: right.T),
        ("blocks.blocks.1.mlp.up.bias", torch.zeros_like),
        ("blocks.blocks.0.mlp_norm.weight", torch.zeros_like),
        ("tokens.weight", lambda right: 1.01 * right),
    ],
    ids=["transposed", "no bias", "no norm", "scaled"],
)
def test_a_gradient_that_is_wrong_as_a_whole_is_found(precision, name, spoil):
    steps, gradients = taken(precision)
    checked = verdict(steps, gradients, **{name: spoil(gradients[name])})
    assert checked.wrong > 0
    assert name in checked.first


@pytest.mark.slow
@pytest.mark.parametrize("precision", JUDGED)
def test_no_honest_step_is_refused_and_large_errors_are_as_rare_as_the_limits_presume(precision):
    levels, beyond, count = torch.tensor([4.0, 6.0, 8.0, 10.0]), torch.zeros(4), 0
    for seed in range(1, 8):
        for change in ({}, {"gated": True, "kv_heads": 2, "tied": False}, {"classes": 3}):
            shape = replace(SMALL, vocab=96, **change)
            steps = prepared(replace(shape, precision=precision), seed)
            checked = steps.check()
            assert checked.wrong == 0, checked.first
            exact, scales, _ = steps.due()
            for name, found in steps.results(0).items():
                share = ((found.detach().double() - exact[name]).abs() / scales[name]).flatten()
                share /= max(0.5, float(share.square().mean().sqrt()))
                beyond += (share > levels[:, None]).sum(1)
                count += len(share)
    print(f"{precision}: {count} elements, over {levels.tolist()} r·s: {beyond.int().tolist()}")
    assert (beyond / count <= torch.tensor([2e-3, 1e-4, 1e-5, 1e-6])).all(), beyond
