"""Bytes of torch's engines, against what they allocate: each rank of a group that only pretends to send."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.training.engine_memory import FLOAT32, MIXED, Held, held_by_rank
from pyperf_suite.laws.training.gpt_weights import Weight, gpt_weights
from pyperf_suite.laws.training.memory import training_memory
from pyperf_suite.workloads.training import TransformerShape

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


def allocated(shape: TransformerShape, engine: str, rank: int, ranks: int) -> Held:
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
        return Held(*(bytes_of(local(tensors)) for tensors in found))
    finally:
        dist.destroy_process_group()


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
    assert held == Held(2 * elements, 4 * elements, 12 * elements + 4 * len(weights))
    assert held.total == 18 * elements + 4 * len(weights)


def test_planning_takes_other_bytes_a_parameter_than_mixed_precision():
    model = SHAPES["gpt"].dimensions
    mixed, single = (training_memory(model, 1, 7, storage=storage) for storage in (MIXED, FLOAT32))
    assert (mixed.weights, mixed.gradients, mixed.optimizer) == tuple(n * model.parameters for n in (2, 4, 12))
    assert (single.weights, single.gradients, single.optimizer) == tuple(n * model.parameters for n in (4, 4, 8))
