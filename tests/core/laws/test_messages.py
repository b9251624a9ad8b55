"""Bytes of published formulas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.training.messages import BUCKET_BYTES, PARALLELISMS, StepTransfer
from pyperf_suite.laws.transformer import ModelDimensions
from tests.models import KINDS, MODELS, models

LLAMA = MODELS["llama-2-7b"]
TINY = ModelDimensions(layers=3, hidden=8, ffn=32, heads=4, vocab=10, experts=4, top_k=2)


# 10 tokens of 8 x 2 bytes are 160 bytes.
@pytest.mark.parametrize(
    ("parallelism", "ranks", "transfers"),
    [
        ("TP", 2, [("all_reduce", 4 * 3 + 2, 160, 2, None), ("all_reduce", 3, 40, 2, None)]),
        (
            "TP+SP",
            2,
            [
                *[("reduce_scatter", 14, 160, 2, None), ("all_gather", 14, 160, 2, None)],
                *[("all_reduce", 3, 40, 2, None), ("all_gather", 6, 160, 2, "backward")],
            ],
        ),
        ("PP", 3, [("send_receive", 2, 160, 2, None)]),
        ("EP", 4, [("all_to_all", 4 * 3, 320, 4, None)]),
    ],
)
def test_what_a_small_model_sends_is_counted_by_hand(parallelism, ranks, transfers):
    found = PARALLELISMS[parallelism](TINY, 10, ranks)
    assert [(each.operation, each.calls, each.size_bytes, each.ranks, each.behind) for each in found] == transfers


@given(models | st.sampled_from([*KINDS.values()]), st.integers(2, 1024))
def test_data_parallel_traffic_is_that_of_the_zero_paper(model, ranks):
    # In units of the bytes of all parameters.
    psi = model.parameters * 2 * (ranks - 1) / ranks
    for parallelism, times in {"DDP": 2, "ZeRO-1": 2, "ZeRO-2": 2, "ZeRO-3": 3}.items():
        assert sum(each.bus_bytes for each in PARALLELISMS[parallelism](model, 1, ranks)) == pytest.approx(times * psi)


def test_gradients_travel_in_buckets_and_layers_one_by_one_those_without_experts_apart():
    [gradients] = PARALLELISMS["DDP"](LLAMA, 1, 8)
    assert gradients.size_bytes <= BUCKET_BYTES == 26_214_400  # 25 MiB, bucket_cap_mb of DistributedDataParallel
    assert gradients.calls * gradients.size_bytes == pytest.approx(LLAMA.parameters * 2)
    model = ModelDimensions(6, 512, 2048, 8, 1000, gated=True, experts=4, top_k=2, expert_ffn=256, dense_layers=2)
    gathered = [each for each in PARALLELISMS["ZeRO-3"](model, 1, 8) if each.operation == "all_gather"]
    assert [(each.calls, each.size_bytes) for each in gathered[:3]] == [
        *[(4, model.layer_parameters * 2), (2, model.dense_layer_parameters * 2), (1, model.outer_parameters * 2)],
    ]
    assert StepTransfer("all_reduce", 3, 100.0, 4).bus_bytes == 3 * 100 * 1.5
