"""Bytes of published formulas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.traffic import (
    BUCKET_BYTES,
    PARALLELISMS,
    StepTransfer,
    Traffic,
    TrainingWorkload,
    expert_parallel,
    pipeline_parallel,
    tensor_parallel,
)
from tests.models import KINDS, MODELS, models

ddp, zero_1, zero_2, zero_3 = (PARALLELISMS[name] for name in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"))
LLAMA = MODELS["llama-2-7b"]
WORK = TrainingWorkload(seq=4096, micro_batch=2, micro_batches=4)

works = st.builds(
    TrainingWorkload, seq=st.integers(1, 8192), micro_batch=st.integers(1, 8), micro_batches=st.integers(1, 16)
)
ranks_of_data = st.integers(2, 1024)
TINY = ModelDimensions(layers=3, hidden=8, ffn=32, heads=4, vocab=10, experts=4, top_k=2)
SHORT = TrainingWorkload(seq=5, micro_batch=2, micro_batches=3)  # 10 tokens of 8 x 2 bytes are 160 bytes


@pytest.mark.parametrize(
    ("parallelism", "ranks", "transfers"),
    [
        (
            "TP",
            2,
            [
                *[("all_reduce", 2 * 3 * 3, 160, 2, None)] * 2,
                ("all_reduce", 2 * 3, 160, 2, None),
                ("all_reduce", 3 * 3, 40, 2, None),
            ],
        ),
        (
            "TP+SP",
            2,
            [
                *[("reduce_scatter", 18, 160, 2, None), ("all_gather", 18, 160, 2, None)] * 2,
                *[("reduce_scatter", 6, 160, 2, None), ("all_gather", 6, 160, 2, None)],
                ("all_reduce", 9, 40, 2, None),
                ("all_gather", 18, 160, 2, "backward"),
            ],
        ),
        ("PP", 3, [("send_receive", 3, 160, 2, "forward"), ("send_receive", 3, 160, 2, "backward")]),
        ("EP", 4, [("all_to_all", 2 * 3 * 3, 320, 4, None)] * 2),
    ],
)
def test_what_a_small_model_sends_is_counted_by_hand(parallelism, ranks, transfers):
    found = PARALLELISMS[parallelism](TINY, SHORT, ranks)
    assert [(each.operation, each.calls, each.size_bytes, each.ranks, each.behind) for each in found] == transfers


def test_a_transfer_that_is_sent_once_overlaps_one_micro_batch():
    assert {each.share for each in zero_1(TINY, SHORT, 2)} == {1 / 3}
    assert {each.share for each in zero_3(TINY, SHORT, 2)} == {1.0}
    assert StepTransfer("", "all_reduce", 3, 100.0, 4).bus_bytes == 3 * 100 * 1.5
    work = TrainingWorkload(seq=1)
    assert (work.micro_batch, work.micro_batches, work.element_bytes, work.gradient_bytes) == (1, 1, 2, 2)
    assert BUCKET_BYTES == 26_214_400  # 25 MiB, bucket_cap_mb of DistributedDataParallel
    [gradients] = ddp(TINY, work, 2)
    assert (gradients.calls, gradients.size_bytes, gradients.share) == (1, TINY.parameters * 2, 1.0)


def sent(traffic: Traffic, operation: str) -> float:
    """Bytes of all calls of one operation."""
    return sum(t.calls * t.size_bytes for t in traffic if t.operation == operation)


@given(models | st.sampled_from([*KINDS.values()]), works, ranks_of_data)
def test_data_parallel_traffic_is_that_of_the_zero_paper(model, work, ranks):
    # In units of the bytes of all parameters: DDP and ZeRO-1 move 2, ZeRO-3 moves 3 for each micro-batch.
    psi = model.parameters * 2 * (ranks - 1) / ranks
    m = work.micro_batches
    expected = {ddp: 2, zero_1: 2, zero_2: m + 1, zero_3: 3 * m}
    for parallelism, times in expected.items():
        assert sum(each.bus_bytes for each in parallelism(model, work, ranks)) == pytest.approx(times * psi)


def test_gradients_travel_in_buckets_and_layers_one_by_one_those_without_experts_apart():
    [gradients] = ddp(LLAMA, WORK, 8)
    assert gradients.size_bytes <= BUCKET_BYTES
    assert gradients.calls * gradients.size_bytes == pytest.approx(LLAMA.parameters * 2)
    layers = [t for t in zero_3(LLAMA, WORK, 8) if "layers" in t.purpose]
    assert {t.size_bytes for t in layers} == {LLAMA.layer_parameters * 2}
    assert {t.calls for t in layers} == {32 * 4}
    model = ModelDimensions(6, 512, 2048, 8, 1000, gated=True, experts=4, top_k=2, expert_ffn=256, dense_layers=2)
    traffic = zero_3(model, WORK, 8)
    [dense] = [t for t in traffic if t.purpose == "parameters of dense layers, forward"]
    assert (dense.calls, dense.size_bytes) == (2 * 4, model.dense_layer_parameters * 2)
    assert sent(traffic, "all_gather") == 4 * 2 * model.parameters * 2
    assert {t.calls for t in expert_parallel(model, WORK, 4)} == {2 * 4 * 4}
    work = TrainingWorkload(seq=1, gradient_bytes=4)
    assert sent(ddp(LLAMA, work, 8), "all_reduce") == pytest.approx(LLAMA.parameters * 4)
    assert sent(zero_1(LLAMA, work, 8), "all_gather") == pytest.approx(LLAMA.parameters * 2)


def test_one_stage_sends_nothing_and_one_micro_batch_leaves_nothing_to_hide_behind():
    assert pipeline_parallel(LLAMA, WORK, stages=1) == ()
    assert {t.behind for t in pipeline_parallel(LLAMA, TrainingWorkload(seq=1), 2)} == {None}


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: tensor_parallel(LLAMA, WORK, 3), "TP over 3 ranks cannot divide heads = 32"),
        (lambda: pipeline_parallel(LLAMA, WORK, 64), "32 layers cannot be cut into 64 stages"),
        (lambda: expert_parallel(LLAMA, WORK, 8), "1 experts cannot be spread over 8 ranks"),
        (lambda: ddp(LLAMA, WORK, 0)[0].bus_bytes, "at least 1 rank"),
        (lambda: TrainingWorkload(seq=0), "sizes of at least 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(ask, sentence):
    with pytest.raises(UserError, match=sentence):
        ask()
