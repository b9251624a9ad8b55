"""Models of many sizes at once are counted as each of them is alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import LARGEST, ModelDimensions, Sharding, attention_call, products
from pyperf_suite.planner.sizing.step import ModelGrid, resized
from tests.models import LLAMA, MODELS, models

grids = st.fixed_dictionaries(
    {
        "hidden": st.lists(st.integers(1, 64).map(lambda n: 64 * n), min_size=3, max_size=3),
        "heads": st.lists(st.integers(1, 40), min_size=3, max_size=3),
        "layers": st.lists(st.integers(1, 40), min_size=3, max_size=3),
        "vocab": st.lists(st.integers(1, 50_000), min_size=3, max_size=3),
    }
)


def refused(model: ModelDimensions, changes: dict[str, int]) -> bool:
    try:
        resized(model, **changes)
    except UserError:
        return True
    return False


@given(models, grids, st.sampled_from([1, 2, 4]))
def test_a_grid_counts_every_model_as_it_is_counted_alone(
    model: ModelDimensions, changes: dict[str, list[int]], ranks: int
) -> None:
    grid, sharding = ModelGrid.around(model, **changes), Sharding(ranks)
    priced = products(grid, 4096, sharding)
    divides = np.broadcast_to(sharding.divides(grid), 3)
    for i in range(3):
        one = {name: values[i] for name, values in changes.items()}
        assert bool(np.broadcast_to(grid.valid, 3)[i]) is not refused(model, one)
        if not grid.valid[i]:
            continue
        alone = resized(model, **one)
        assert np.broadcast_to(grid.parameters, 3)[i] == alone.parameters
        assert divides[i] == sharding.divides(alone)
        if divides[i]:
            flops = [np.broadcast_to(product.flop, 3)[i] for product in priced]
            assert flops == [product.flop for product in products(alone, 4096, sharding)]
            assert np.broadcast_to(attention_call(grid, 1, 512, sharding).flop(), 3)[i] == (
                attention_call(alone, 1, 512, sharding).flop()
            )


def test_the_largest_dimensions_of_a_grid_are_counted_in_64_bits() -> None:
    sizes = {name: most for name, most in LARGEST.items() if name not in ("norms", "head_dim")}
    largest = ModelDimensions(**sizes, head_dim=LARGEST["head_dim"], norms=16, gated=True, rope_head_dim=1, bias=True)
    grid = ModelGrid.around(largest, layers=[largest.layers])
    assert grid.valid.all()
    assert np.asarray(grid.parameters).tolist() == [largest.parameters]


def test_what_no_grid_can_have_is_refused() -> None:
    with pytest.raises(UserError, match="heads of at least 1"):
        ModelGrid.around(LLAMA, heads=[0, 1])
    with pytest.raises(ValueError, match="experts is one for all"):
        ModelGrid.around(LLAMA, experts=[1, 8])
    with pytest.raises(UserError, match="no dimension width"):
        resized(LLAMA, width=1)


def test_a_resized_model_keeps_what_followed_from_its_dimensions() -> None:
    wider = resized(MODELS["gpt2"], hidden=1024, heads=16, ffn=4096)
    assert (wider.kv_heads, wider.head_dim, wider.expert_ffn) == (16, 64, 4096)
    assert resized(LLAMA, heads=16).kv_heads == 8
    assert resized(LLAMA, head_dim=64).head_dim == 64
    assert str(resized(LLAMA, heads=64)) == (
        "layers=32, hidden=4096, ffn=14336, heads=64, vocab=128256, kv_heads=8, head_dim=64, gated=True, "
        "expert_ffn=14336, value_head_dim=64"
    )
