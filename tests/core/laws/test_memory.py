"""Memory against the published closed forms, and the order in which ways to save it save more."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.training.memory import (
    FLOAT32,
    MIXED,
    StateBytes,
    Weight,
    activation_bytes,
    gpt_weights,
    held_by_rank,
    rank_parameters,
    rank_weights,
    training_memory,
)
from pyperf_suite.laws.transformer import ModelDimensions, ModelGrid, Sharding
from pyperf_suite.workloads.training import TransformerShape

GPT = ModelDimensions(96, 12288, 49152, 96, 51200, positions=2048, bias=True, tied=True)
LLAMA = ModelDimensions(32, 4096, 14336, 32, 128256, kv_heads=8, gated=True)
MIXTRAL = ModelDimensions(32, 4096, 14336, 32, 32000, kv_heads=8, gated=True, experts=8, top_k=2)
GIB = 2**30


def layer_activations(ranks: int, sequence_parallel: bool, recompute: str, seq: int = 2048) -> float:
    """Activations of one layer of GPT over s·b·h: of a model and the same without half of its layers."""
    sharding = Sharding(ranks, sequence_parallel)
    whole, half = (
        activation_bytes(GPT.resized(layers=layers), 1, seq, sharding, recompute=recompute)  # type: ignore[arg-type]
        for layers in (96, 48)
    )
    return (whole - half) / 48 / (seq * 12288)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_layer_keeps_what_table_2_of_korthikanti_says(ranks: int) -> None:
    scores = 5 * 96 * 2048 / 12288
    assert layer_activations(1, False, "nothing") == pytest.approx(34 + scores)
    assert layer_activations(ranks, False, "nothing") == pytest.approx(10 + (24 + scores) / ranks)
    assert layer_activations(ranks, True, "nothing") == pytest.approx((34 + scores) / ranks)
    assert layer_activations(ranks, True, "attention") == pytest.approx(34 / ranks)
    assert layer_activations(ranks, False, "layers") == pytest.approx(2)


def test_stages_of_zero_share_one_thing_more_each() -> None:
    stages = [training_memory(LLAMA, 1, 8192, data_ranks=8, zero_stage=stage) for stage in range(4)]
    p = LLAMA.parameters
    states = [need.weights + need.gradients + need.optimizer for need in stages]
    assert states == pytest.approx([18 * p, (2 + 4 + 12 / 8) * p, (2 + 16 / 8) * p, 18 / 8 * p])
    assert {need.activations for need in stages} == {stages[0].activations}
    assert stages[0].total == 18 * p + stages[0].activations


def test_an_8_billion_model_does_not_fit_one_gpu_but_eight_that_share() -> None:
    assert not training_memory(LLAMA, 1, 8192).fits(80 * GIB)
    shared = training_memory(LLAMA, 1, 8192, data_ranks=8, zero_stage=3)
    assert shared.fits(80 * GIB)
    assert not shared.fits(shared.total)  # some of it is kept free
    assert training_memory(LLAMA, 1, 8192, Sharding(8, True)).fits(80 * GIB)


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL], ids=["gpt", "llama", "mixtral"])
def test_ranks_together_hold_every_parameter_and_little_twice(model: ModelDimensions) -> None:
    assert rank_parameters(model, Sharding()) == model.parameters
    assert model.parameters <= 8 * rank_parameters(model, Sharding(8)) < 1.01 * model.parameters
    halves = rank_parameters(model, Sharding(), stages=2)
    assert model.parameters / 2 <= halves < model.parameters


def test_the_first_stage_of_a_pipeline_holds_as_many_micro_batches_as_there_are_stages() -> None:
    # Each in its share of the layers, so that only what stands outside of them changes.
    alone, piped = (activation_bytes(LLAMA, 1, 8192, stages=stages) for stages in (1, 4))
    assert alone - piped == 8192 * (5 * 4096 + 4 * 128256 - 4 * 4096)
    uneven = activation_bytes(LLAMA.resized(layers=33), 1, 8192, stages=32)
    assert uneven > 1.8 * activation_bytes(LLAMA, 1, 8192, stages=32)


def test_experts_keep_the_copies_of_their_tokens_too() -> None:
    dense = MIXTRAL.resized(experts=1, top_k=1)
    kept = activation_bytes(MIXTRAL, 1, 1) - activation_bytes(dense, 1, 1)
    assert kept == 32 * (6 * 14336 + 2 * 2 * 2 * 4096)


@given(st.integers(1, 8), st.integers(1, 32768), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_each_more_recomputation_and_each_more_rank_keeps_less(
    micro_batch: int, seq: int, ranks: int, sequence_parallel: bool
) -> None:
    for model in (GPT, LLAMA, MIXTRAL):
        sharding = Sharding(ranks, sequence_parallel)
        kept = [
            activation_bytes(model, micro_batch, seq, sharding, recompute=recompute)
            for recompute in ("layers", "attention", "nothing")
        ]
        assert sorted(kept) == kept
        assert activation_bytes(model, micro_batch, seq, Sharding(1)) >= kept[1]


@pytest.mark.parametrize("resized", [True, False], ids=["models", "schedules"])
def test_a_grid_needs_what_each_of_it_needs_alone(resized: bool) -> None:
    if resized:
        hidden, sharding = [2048, 4096, 8192], Sharding(np.array([1, 2, 8]))
        grid, varied = ModelGrid.around(LLAMA, hidden=hidden), {"zero_stage": [3] * 3}
        alone = [(LLAMA.resized(hidden=size), Sharding(t)) for size, t in zip(hidden, (1, 2, 8), strict=True)]
    else:
        grid, sharding, alone = GPT, Sharding(8, True), [(GPT, Sharding(8, True))] * 3
        varied = {"zero_stage": [3, 1, 2], "stages": [1, 2, 8], "chunks": [1, 4, 3], "micro_batches": [4, 16, 8]}
    varied["data_ranks"] = [4] * 3
    together = training_memory(grid, 2, 2048, sharding, **{name: np.array(each) for name, each in varied.items()})
    needs = [
        training_memory(model, 2, 2048, own, **{name: each[place] for name, each in varied.items()})
        for place, (model, own) in enumerate(alone)
    ]
    assert together.total.tolist() == pytest.approx([float(need.total) for need in needs])


def test_interleaved_stages_hold_more_and_few_micro_batches_less() -> None:
    by_stage = activation_bytes(GPT, 1, 2048, Sharding(8, True), stages=8)

    def held(**schedule: int) -> float:
        need = training_memory(GPT, 1, 2048, Sharding(8, True), stages=8, **schedule)
        return float(need.activations)

    assert held() == by_stage
    # L·(1 + (p − 1)/(p·v)): Korthikanti et al. 2022, section 4.2.3.
    assert held(chunks=3) == pytest.approx(by_stage * (1 + 7 / (8 * 3)), rel=1e-3)
    assert held(micro_batches=2) == pytest.approx(by_stage / 4, rel=1e-3)
    assert held(chunks=3, micro_batches=8) == pytest.approx(by_stage, rel=1e-3)


def test_the_last_stage_is_the_fullest_where_logits_are_most_of_it() -> None:
    wide = LLAMA.resized(vocab=1 << 22)
    logits = 4 * (1 << 22) * 8192
    assert activation_bytes(wide, 1, 8192, stages=32, recompute="layers") > logits


def test_context_parallel_ranks_share_the_sequence() -> None:
    whole, shared = (training_memory(LLAMA, 1, 8192, context=context) for context in (1, 4))
    assert shared.activations == whole.activations / 4
    assert shared.weights == whole.weights


def test_experts_are_shared_by_the_ranks_that_have_the_same_ones() -> None:
    spread = training_memory(MIXTRAL, 1, 4096, Sharding(expert=8), data_ranks=8, zero_stage=1)
    experts = MIXTRAL.layers * MIXTRAL.experts * MIXTRAL.expert_parameters
    rest = MIXTRAL.parameters - experts
    assert rank_parameters(MIXTRAL, Sharding(expert=8)) == MIXTRAL.parameters - experts * 7 / 8
    assert spread.weights == pytest.approx(2 * (rest + experts / 8))
    # Each expert is on one rank of the eight, so that none shares its moments.
    assert spread.optimizer == pytest.approx(12 * (rest / 8 + experts / 8))
    twice = training_memory(MIXTRAL, 1, 4096, Sharding(expert=8), data_ranks=16, zero_stage=1)
    assert twice.optimizer == pytest.approx(12 * (rest / 16 + experts / 16))


def test_a_layer_that_is_gathered_has_to_fit_beside_its_gradient_and_the_next_one() -> None:
    shared = training_memory(GPT, 1, 2048, data_ranks=1024, zero_stage=3)
    assert shared.gathered == pytest.approx(6 * 12 * 12288**2, rel=1e-3)
    assert training_memory(GPT, 1, 2048, data_ranks=1024, zero_stage=2).gathered == 0
    assert training_memory(GPT, 1, 2048, data_ranks=1, zero_stage=3).gathered == 0


@pytest.mark.parametrize(
    ("requested", "sentence"),
    [
        ({"zero_stage": 4}, "ZeRO has stages 0 to 3, but 4"),
        ({"data_ranks": 0}, "at least 1 data-parallel rank"),
        ({"stages": 33}, "32 layers cannot be cut into 33 stages"),
        ({"stages": 0}, "32 layers cannot be cut into 0 stages"),
        ({"sharding": Sharding(3)}, "TP over 3 ranks"),
        ({"recompute": "some"}, "cannot recompute 'some'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(requested: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        training_memory(LLAMA, 1, 8192, **requested)


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


def test_planning_takes_other_bytes_a_parameter_than_mixed_precision():
    model = SHAPES["gpt"].dimensions
    mixed, single = (training_memory(model, 1, 7, storage=storage) for storage in (MIXED, FLOAT32))
    assert (mixed.weights, mixed.gradients, mixed.optimizer) == tuple(n * model.parameters for n in (2, 4, 12))
    assert (single.weights, single.gradients, single.optimizer) == tuple(n * model.parameters for n in (4, 4, 8))
