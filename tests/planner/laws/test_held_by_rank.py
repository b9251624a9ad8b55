"""What each rank of torch's engines holds, to the byte: what torch allocates, and all ranks together."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.training.memory import MIXED, ActivationPolicy, Weight, gpt_weights, kept_bytes
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.training.held_by_rank import (
    FLOAT32,
    StateBytes,
    held_by_rank,
    interleaved,
    one_forward_one_backward,
    rank_weights,
    saved_bytes,
    working_bytes,
)
from pyperf_suite.workloads.training import TransformerShape

GPT = ModelDimensions(layers=6, hidden=256, ffn=1024, heads=8, vocab=1, bias=True)


def test_what_backward_works_on_is_one_group_without_what_was_kept_of_it():
    plain = ActivationPolicy(ends=False)
    layer = kept_bytes(replace(GPT, layers=1), 2, 64, plain).total
    assert working_bytes(GPT, 2, 64, plain) == 0
    assert working_bytes(GPT, 2, 64, replace(plain, checkpointing="every", every=2)) == 2 * layer
    assert working_bytes(GPT, 2, 64, replace(plain, checkpointing="every", every=100)) == 6 * layer
    assert 0 < working_bytes(GPT, 2, 64, replace(plain, checkpointing="selective")) < layer


MODEL = TransformerShape(hidden=128, heads=4, layers=4, seq=128, vocab=512, tied=False).dimensions
KEEPINGS = [
    ActivationPolicy(),
    ActivationPolicy(attention="math"),
    ActivationPolicy(checkpointing="every"),
    ActivationPolicy(checkpointing="every", every=2),
    ActivationPolicy(checkpointing="selective"),
]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("keeping", KEEPINGS, ids=str)
def test_one_rank_keeps_what_one_process_keeps(keeping, gated):
    model = replace(MODEL, gated=gated, bias=not gated)
    assert saved_bytes(model, 2, 128, keeping) == pytest.approx(kept_bytes(model, 2, 128, keeping).total)


def test_tensor_parallel_ranks_keep_what_torch_was_seen_to_keep():
    # One rank of tp2 in a study of this model, batch 2: every storage that autograd held, counted.
    assert saved_bytes(MODEL, 2, 128, ActivationPolicy(), tensor=2) == 5_198_852


def test_stages_in_front_keep_more_micro_batches_than_stages_behind():
    def kept(stage, micro_batches=4):
        order = one_forward_one_backward(stage, 2, micro_batches)
        return saved_bytes(
            MODEL, 2, 128, ActivationPolicy(), chunk_layers=2, last_chunk=1, order=order, micro_batches=micro_batches
        )

    whole = kept_bytes(MODEL, 2, 128, ActivationPolicy()).total
    assert kept(0) > 0.9 * whole
    assert kept(1) < whole
    tokens = 8 * 2 * 128
    assert kept(0, 8) - kept(0, 4) == 4 * tokens
    assert kept(1, 8) - kept(1, 4) == 4 * tokens


def test_interleaved_stages_keep_more_than_1f1b():
    def kept(order, layers, last):
        return saved_bytes(
            MODEL, 2, 128, ActivationPolicy(), chunk_layers=layers, last_chunk=last, order=order, micro_batches=4
        )

    plain = kept(one_forward_one_backward(0, 2, 4), 2, 1)
    cut = kept(interleaved(0, 2, 2, 4), 1, 3)
    assert plain < cut < 2 * plain


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


# Nothing in it divides by 2 or 3 throughout.
SHAPES = {
    "gpt": TransformerShape(hidden=20, heads=4, layers=3, seq=7, batch=1, vocab=101, tied=False),
    "tied": TransformerShape(hidden=20, heads=4, layers=2, seq=7, batch=1, vocab=50),
    "gated": TransformerShape(hidden=24, heads=4, layers=2, seq=7, batch=1, vocab=50, gated=True, kv_heads=2),
}
shapes = st.lists(st.integers(1, 40), min_size=1, max_size=2).map(tuple)
weight_lists = st.lists(shapes, min_size=1, max_size=12).map(
    lambda found: [Weight(f"w{number}", shape, 0) for number, shape in enumerate(found)]
)


def allocated(shape: TransformerShape, engine: str, rank: int, ranks: int) -> StateBytes:
    """What torch has after a step on that rank."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from pyperf_suite.workloads.training import gpt
    from pyperf_suite.workloads.training.held_bytes import bytes_of

    def local(tensors):
        return [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        model = gpt.build(shape)
        if engine == "fsdp":
            from torch.distributed.fsdp import fully_shard

            for block in model.blocks.blocks:
                fully_shard(block, mesh=dist.init_device_mesh("cpu", (ranks,)))
            fully_shard(model, mesh=dist.init_device_mesh("cpu", (ranks,)))
        model(*gpt.inputs(shape)).backward()
        optimizer = torch.optim.AdamW(model.parameters())
        if engine == "zero_optimizer":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch imports its own deprecated parts here
                from torch.distributed.optim import ZeroRedundancyOptimizer
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW).optim
        optimizer.step()
        weights = list(model.parameters())
        states = [value for state in optimizer.state.values() for value in state.values()]
        found = (weights, [weight.grad for weight in weights], states)
        return StateBytes(*(bytes_of(local(tensors)) for tensors in found))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine", "ranks"),
    [
        ("gpt", "fsdp", 3),
        ("tied", "fsdp", 2),
        ("gated", "zero_optimizer", 2),
        ("gpt", "zero_optimizer", 3),
        ("tied", "ddp", 1),
    ],
)
def test_weights_gradients_and_states_are_those_that_torch_allocates_on_every_rank(name, engine, ranks):
    pytest.importorskip("torch")
    shape = SHAPES[name]
    expected = [allocated(shape, engine, rank, ranks) for rank in range(ranks)]
    assert list(held_by_rank(gpt_weights(shape.dimensions), engine, ranks)) == expected


@given(weight_lists, st.integers(1, 6))
def test_states_are_dealt_out_whole_and_none_twice(weights, ranks):
    shares = held_by_rank(weights, "zero_optimizer", ranks)
    elements = sum(weight.elements for weight in weights)
    assert sum(share.optimizer for share in shares) == FLOAT32.optimizer * elements + FLOAT32.step * len(weights)
    largest = max(weight.elements for weight in weights)
    sizes = [share.optimizer for share in shares]
    assert max(sizes) - min(sizes) <= FLOAT32.optimizer * largest + FLOAT32.step * len(weights)


@given(weight_lists, st.integers(1, 6))
def test_shards_together_are_all_of_it_and_padding_is_less_than_a_row_a_rank(weights, ranks):
    shares = held_by_rank(weights, "fsdp", ranks)
    elements = sum(weight.elements for weight in weights)
    states = sum(share.optimizer for share in shares) - ranks * FLOAT32.step * len(weights)
    assert states == FLOAT32.optimizer * elements
    rows = sum(weight.elements // weight.shape[0] for weight in weights)
    assert 0 <= sum(share.weights for share in shares) - FLOAT32.weight * elements <= FLOAT32.weight * ranks * rows


@given(weight_lists, st.sampled_from(["ddp", "zero_optimizer", "fsdp"]))
def test_one_rank_has_everything_with_any_engine(weights, engine):
    elements = sum(weight.elements for weight in weights)
    (held,) = held_by_rank(weights, engine, 1, MIXED)
    assert held == StateBytes(2 * elements, 4 * elements, 12 * elements + 4 * len(weights))
    assert held.total == 18 * elements + 4 * len(weights)
