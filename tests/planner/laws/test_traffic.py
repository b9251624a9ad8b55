"""Bytes of published formulas, and verdicts that follow the curve they are given."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws.traffic import (
    BUCKET_BYTES,
    PARALLELISMS,
    AlphaBetaOverRanks,
    NetworkVerdict,
    StepTransfer,
    Traffic,
    TrainingWorkload,
    bound_below_s,
    expert_parallel,
    pipeline_parallel,
    seconds_of,
    tensor_parallel,
    verdict,
)
from pyperf_suite.planner.laws.training.step import exposed_exchange_s
from tests.models import KINDS, MODELS, models

ddp, zero_1, zero_2, zero_3 = (PARALLELISMS[name] for name in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"))
LLAMA = MODELS["llama-2-7b"]
WORK = TrainingWorkload(seq=4096, micro_batch=2, micro_batches=4)

ACTIVATION_BYTES = 2 * 4096 * 4096 * 2

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
    assert [
        (each.operation, each.calls, each.size_bytes, each.ranks, each.behind) for each in found.transfers
    ] == transfers
    assert found.parallelism == parallelism
    assert found.seconds(lambda operation, size_bytes, ranks: 0.5) == 0.5 * sum(calls for _, calls, *_ in transfers)


def test_a_transfer_that_is_sent_once_overlaps_one_micro_batch():
    assert {each.share for each in zero_1(TINY, SHORT, 2).transfers} == {1 / 3}
    assert {each.share for each in zero_3(TINY, SHORT, 2).transfers} == {1.0}
    assert StepTransfer("", "all_reduce", 3, 100.0, 4).bus_bytes == 3 * 100 * 1.5
    work = TrainingWorkload(seq=1)
    assert (work.micro_batch, work.micro_batches, work.element_bytes, work.gradient_bytes) == (1, 1, 2, 2)
    assert BUCKET_BYTES == 26_214_400  # 25 MiB, bucket_cap_mb of DistributedDataParallel
    [gradients] = ddp(TINY, work, 2).transfers
    assert (gradients.calls, gradients.size_bytes, gradients.share) == (1, TINY.parameters * 2, 1.0)
    assert [
        (parallelism, each(TINY, work, 1).seconds(lambda *_: 1.0)) for parallelism, each in PARALLELISMS.items()
    ] == [(parallelism, 0.0) for parallelism in PARALLELISMS]


def sent(traffic: Traffic, operation: str) -> float:
    """Bytes of all calls of one operation."""
    return sum(t.calls * t.size_bytes for t in traffic.transfers if t.operation == operation)


@given(models | st.sampled_from([*KINDS.values()]), works, ranks_of_data)
def test_data_parallel_traffic_is_that_of_the_zero_paper(model, work, ranks):
    # In units of the bytes of all parameters: DDP and ZeRO-1 move 2, ZeRO-3 moves 3 for each micro-batch.
    psi = model.parameters * 2 * (ranks - 1) / ranks
    m = work.micro_batches
    expected = {ddp: 2, zero_1: 2, zero_2: m + 1, zero_3: 3 * m}
    for parallelism, times in expected.items():
        assert parallelism(model, work, ranks).bus_bytes == pytest.approx(times * psi)


def test_gradients_travel_in_buckets_and_layers_one_by_one_those_without_experts_apart():
    [gradients] = ddp(LLAMA, WORK, 8).transfers
    assert gradients.size_bytes <= BUCKET_BYTES
    assert gradients.calls * gradients.size_bytes == pytest.approx(LLAMA.parameters * 2)
    layers = [t for t in zero_3(LLAMA, WORK, 8).transfers if "layers" in t.purpose]
    assert {t.size_bytes for t in layers} == {LLAMA.layer_parameters * 2}
    assert {t.calls for t in layers} == {32 * 4}
    model = ModelDimensions(6, 512, 2048, 8, 1000, gated=True, experts=4, top_k=2, expert_ffn=256, dense_layers=2)
    traffic = zero_3(model, WORK, 8)
    [dense] = [t for t in traffic.transfers if t.purpose == "parameters of dense layers, forward"]
    assert (dense.calls, dense.size_bytes) == (2 * 4, model.dense_layer_parameters * 2)
    assert sent(traffic, "all_gather") == 4 * 2 * model.parameters * 2
    assert {t.calls for t in expert_parallel(model, WORK, 4).transfers} == {2 * 4 * 4}
    work = TrainingWorkload(seq=1, gradient_bytes=4)
    assert sent(ddp(LLAMA, work, 8), "all_reduce") == pytest.approx(LLAMA.parameters * 4)
    assert sent(zero_1(LLAMA, work, 8), "all_gather") == pytest.approx(LLAMA.parameters * 2)


def test_tensor_parallelism_reduces_four_times_a_layer_stages_send_on_and_tokens_go_to_experts_and_back():
    traffic = tensor_parallel(LLAMA, WORK, 8)
    activations = [t for t in traffic.transfers if t.size_bytes == ACTIVATION_BYTES]
    # 4 in each of 32 layers, 2 for the embedding and the output, for each of 4 micro-batches.
    assert sum(t.calls for t in activations) == (4 * 32 + 2) * 4
    assert {t.behind for t in traffic.transfers} == {None}
    traffic = pipeline_parallel(LLAMA, WORK, stages=4)
    assert [(t.operation, t.calls, t.size_bytes) for t in traffic.transfers] == [
        ("send_receive", 4, ACTIVATION_BYTES),
        ("send_receive", 4, ACTIVATION_BYTES),
    ]
    assert pipeline_parallel(LLAMA, WORK, stages=1).bus_bytes == 0
    assert {t.behind for t in pipeline_parallel(LLAMA, TrainingWorkload(seq=1), 2).transfers} == {None}
    mixtral = MODELS["mixtral-8x7b"]
    traffic = expert_parallel(mixtral, WORK, 8)
    assert sent(traffic, "all_to_all") == 4 * 32 * 4 * 2 * ACTIVATION_BYTES


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: tensor_parallel(LLAMA, WORK, 3), "TP over 3 ranks cannot divide heads = 32"),
        (lambda: pipeline_parallel(LLAMA, WORK, 64), "32 layers cannot be cut into 64 stages"),
        (lambda: expert_parallel(LLAMA, WORK, 8), "1 experts cannot be spread over 8 ranks"),
        (lambda: ddp(LLAMA, WORK, 0), "at least 1 rank"),
        (lambda: TrainingWorkload(seq=0), "sizes of at least 1"),
        (lambda: verdict(ddp(LLAMA, WORK, 8), -1.0, lambda *_: 0.0), "cannot compute for -1.0 s"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(ask, sentence):
    with pytest.raises(UserError, match=sentence):
        assert ask().bus_bytes


def over_a_link(gb_per_s: float):
    """The curve of a link of that busbw and no latency."""

    def seconds_of(operation: str, size_bytes: float, ranks: int) -> float:
        return StepTransfer("", operation, 1, size_bytes, ranks).bus_bytes / (gb_per_s * 1e9)

    return seconds_of


def test_a_slow_network_is_not_enough_and_only_what_is_longer_than_the_pass_it_overlaps_is_exposed():
    traffic = zero_3(LLAMA, TrainingWorkload(seq=4096), 64)
    fast, slow = (verdict(traffic, 1.0, over_a_link(gb_per_s)) for gb_per_s in (400, 5))
    assert not fast.network_bound
    assert fast.exposed_s == 0
    assert slow.network_bound
    assert slow.exposed_s == pytest.approx(slow.communication_s - 1.0)
    traffic = Traffic(
        "made up",
        (
            StepTransfer("during forward", "broadcast", 1, 0.5e9, 2, "forward"),
            StepTransfer("during backward", "broadcast", 1, 0.5e9, 2, "backward"),
            StepTransfer("waited for", "broadcast", 2, 0.1e9, 2),
        ),
    )
    judged = verdict(traffic, 0.9, over_a_link(1.0))
    # Forward takes 0.3 s and hides 0.3 of 0.5 s; backward takes 0.6 s and hides all; 0.2 s are waited for.
    assert judged.exposed_s == pytest.approx(0.4)
    assert judged.step_s == pytest.approx(1.3)
    assert judged.communication_s == pytest.approx(1.2)
    assert ddp(LLAMA, WORK, 1).seconds(over_a_link(1.0)) == 0
    assert not verdict(tensor_parallel(LLAMA, WORK, 1), 0.0, over_a_link(1.0)).network_bound


@pytest.mark.parametrize("stage", range(4))
def test_a_verdict_exposes_what_the_law_of_the_exchange_says(stage: int) -> None:
    # 4 micro-batches: what is sent once has one pass of them, and what is sent in each has each.
    traffic, compute_s, link = list(PARALLELISMS.values())[stage](LLAMA, WORK, 64), 2.0, over_a_link(20)
    sent_s: dict[str, float] = {}
    for each in traffic.transfers:
        if each.behind == "backward" or each.operation != "all_gather" or stage < 3:
            times = 4 if each.share == 1 else 1
            sent_s[each.operation] = sent_s.get(each.operation, 0.0) + each.seconds(link) / times
    passes_s = {"forward": compute_s / 3 / 4, "backward": compute_s * 2 / 3 / 4}
    exposed = exposed_exchange_s(stage, sent_s, passes_s)
    due = sum(seconds * (4 if each else 1) for (_, each), seconds in exposed.items())
    assert verdict(traffic, compute_s, link).exposed_s == pytest.approx(due)
    assert due > 0


def test_below_its_bound_of_computing_a_step_is_network_bound_and_above_it_is_not():
    sent = ddp(ModelDimensions(layers=2, hidden=64, ffn=256, heads=4, vocab=100), TrainingWorkload(seq=8), 4)

    def seconds(operation, size_bytes, ranks):
        return 1e-5 + size_bytes / 1e9

    bound_s = bound_below_s(sent, seconds)
    assert verdict(sent, 0.99 * bound_s, seconds).network_bound
    assert not verdict(sent, 1.01 * bound_s, seconds).network_bound
    # 0.3 s behind a backward of 2/3 c: a tenth of the step is exposed where 0.9 (0.3 - 2/3 c) = 0.1 c.
    one = Traffic("made up", (StepTransfer("", "broadcast", 1, 1.0, 2, "backward"),))
    assert bound_below_s(one, lambda *_: 0.3) == pytest.approx(0.27 / 0.7, rel=1e-3)
    assert [NetworkVerdict("", 1 - each, each, each).network_bound for each in (0.1, 0.11)] == [False, True]
    assert NetworkVerdict("", 0.0, 0.0, 0.0).exposed_share == 0
    assert bound_below_s(sent, lambda *_: 0.0) == 0
    assert bound_below_s(sent, lambda *_: 1e9) == math.inf


def line(start_s: float, gb_per_s: float) -> PiecewiseAlphaBeta:
    return PiecewiseAlphaBeta(start_s, (), (1e-9 / gb_per_s,))


LAW = AlphaBetaOverRanks("all_reduce", {2: line(10e-6, 1), 8: line(30e-6, 3)})


@pytest.mark.parametrize(
    ("ranks", "seconds"),
    [
        (1, 0.0),
        (2, 11e-6),
        (8, 30e-6 + 1e-6 / 3),
        (4, (11e-6 + 30e-6 + 1e-6 / 3) / 2),  # halfway over log n
        (16, 30e-6 + (2 * 15 / 16) / (2 * 7 / 8) * 1e-6 / 3),  # the bytes on the bus, 1.875 to 1.75
    ],
)
def test_between_ranks_times_are_straight_over_log_n_and_beyond_them_bytes_on_the_bus_count(ranks, seconds):
    assert LAW.seconds(1000, ranks) == pytest.approx(seconds)
    below = AlphaBetaOverRanks("all_gather", {4: line(10e-6, 1)})
    assert below.seconds(1000, 2) == pytest.approx(10e-6 + 1e-6 * (1 / 2) / (3 / 4))


def test_an_operation_that_was_not_measured_is_refused_with_those_that_were():
    asked = seconds_of({"all_reduce": LAW})
    assert asked("all_reduce", 1000, 2) == pytest.approx(11e-6)
    with pytest.raises(UserError, match="broadcast was not measured, only all_reduce"):
        asked("broadcast", 1000, 2)
    with pytest.raises(UserError, match="only nothing"):
        seconds_of({})("broadcast", 1000, 2)
