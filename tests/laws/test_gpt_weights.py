"""Weights by name and shape, against the modules that are really built."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.training.gpt_weights import gpt_weights, rank_weights
from pyperf_suite.workloads.training import TransformerShape

SMALL = {"hidden": 32, "heads": 4, "layers": 3, "seq": 7, "vocab": 101}


@pytest.mark.parametrize(
    "shape",
    [
        TransformerShape(**SMALL),
        TransformerShape(**SMALL, tied=False),
        TransformerShape(**SMALL, gated=True, kv_heads=2),
        TransformerShape(**SMALL, gated=True, kv_heads=1, tied=False, ffn=24),
    ],
    ids=str,
)
def test_weights_are_those_of_the_modules_in_their_order(shape):
    pytest.importorskip("torch")
    from pyperf_suite.workloads.training import gpt

    built = [(name, tuple(weight.shape)) for name, weight in gpt.build(shape).named_parameters()]
    assert [(weight.name, weight.shape) for weight in gpt_weights(shape.dimensions)] == built


@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 2, 4]), st.booleans(), st.booleans()
)
def test_all_ranks_together_have_each_weight_once_and_what_is_whole_as_often_as_there_are_ranks(
    layers_each, stages, chunks, tensor, gated, tied
):
    shape = TransformerShape(
        hidden=16, heads=4, layers=layers_each * stages * chunks, seq=8, vocab=24, gated=gated, tied=tied
    )
    model = shape.dimensions
    whole = gpt_weights(model)
    per_stage = [rank_weights(model, tensor, stages, chunks, stage) for stage in range(stages)]
    assert sorted(weight.name for weights in per_stage for weight in weights) == sorted(w.name for w in whole)
    together = tensor * sum(weight.elements for weights in per_stage for weight in weights)
    copies = (tensor - 1) * sum(weight.elements for weight in whole if weight.cut is None)
    assert together == model.parameters + copies


def test_interleaved_stages_have_every_so_manieth_group_of_layers():
    model = TransformerShape(hidden=16, heads=4, layers=8, seq=8, vocab=24, tied=False).dimensions
    places = [{w.place for w in rank_weights(model, stages=2, chunks=2, stage=stage)} for stage in (0, 1)]
    assert {place for place in places[0] if place >= 0} == {0, 1, 4, 5}
    assert {place for place in places[1] if place >= 0} == {2, 3, 6, 7}
