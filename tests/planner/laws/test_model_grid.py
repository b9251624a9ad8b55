"""Models of many sizes at once are counted as each of them is alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import ModelDimensions, Sharding, attention_call, products
from pyperf_suite.planner.sizing.step import ModelGrid, resized
from tests.models import models

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
