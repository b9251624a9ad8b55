"""A step in each precision keeps the bytes that it tells, and casts weights as often as its cache lets it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.workloads.training.training_step import CAST_CACHES, PrecisionStep, PrecisionStepParameters
from pyperf_suite.workloads.workload import Place

torch = pytest.importorskip("torch")

CPU = Device("cpu")
SMALL = PrecisionStepParameters(hidden=64, heads=4, layers=2, seq=16, batch=2, vocab=96)
AUTOCAST = replace(SMALL, precision="autocast_bfloat16")
# Weights and biases of qkv, out, up and down in each block, and the logits' weight.
CAST_BY_AUTOCAST = 2 * 4 * 2 + 1


def prepared(parameters):
    return PrecisionStep().implementation("torch").prepare(parameters, Place(CPU))


def observed(parameters):
    return {name: each.samples[0] for name, each in prepared(parameters).observed().items()}


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "autocast_bfloat16", "autocast_float16"])
def test_gradients_add_up_over_micro_batches_in_every_precision(precision):
    checked = prepared(replace(SMALL, precision=precision, micro_batches=3)).check()
    assert checked.compared > 40
    assert checked.wrong == 0, checked.first


@pytest.mark.parametrize("cast_cache", CAST_CACHES)
def test_gradients_are_the_same_however_long_casts_are_kept(cast_cache):
    checked = prepared(replace(AUTOCAST, micro_batches=2, cast_cache=cast_cache)).check()
    assert checked.wrong == 0, checked.first


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
    told = observed(replace(AUTOCAST, micro_batches=3, cast_cache=cast_cache))
    assert told["casts"] == casts * CAST_BY_AUTOCAST


def test_only_autocast_keeps_copies_of_weights():
    told = {each: observed(replace(SMALL, precision=each)) for each in ("float32", "bfloat16", "autocast_bfloat16")}
    assert told["float32"]["casts"] == told["bfloat16"]["weight_copies"] == 0
    # All of it but embeddings' rows, norms and biases: their casts backward does not need.
    matrices = 2 * 12 * 64**2 + 96 * 64
    assert told["autocast_bfloat16"]["weight_copies"] == 2 * matrices
    assert told["autocast_bfloat16"]["weights"] == told["float32"]["weights"] == 2 * told["bfloat16"]["weights"]
    assert told["autocast_bfloat16"]["gradients"] == told["float32"]["gradients"] == 2 * told["bfloat16"]["gradients"]


def test_autocast_keeps_fewer_activations_but_more_than_half_of_them():
    full, half, autocast = (
        observed(replace(SMALL, precision=each))["activations"] for each in ("float32", "bfloat16", "autocast_bfloat16")
    )
    assert full / 2 < half < autocast < full
