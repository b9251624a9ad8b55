"""Iterations on torch's engines over ranks that share cores: what must hold whatever the prices are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta
from pyperf_suite.planner.laws.traffic import AlphaBetaOverRanks
from pyperf_suite.planner.laws.training.engine_step import (
    ATTENTIONS,
    KERNELS,
    CpuPrices,
    EngineConstants,
    engine_step,
    fit_line,
    line_errors,
    product_features,
    simulated_schedule_s,
)
from pyperf_suite.planner.laws.training.held_by_rank import Action, interleaved, one_forward_one_backward
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.workloads.training import TransformerShape

MODEL = TransformerShape(hidden=64, heads=4, layers=4, seq=32, vocab=128, tied=False).dimensions
LINES = dict.fromkeys(KERNELS, (1e-06, 1e-11, 1e-10)) | dict.fromkeys(("pass", "copy", "update"), (1e-06, 1e-10))
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_receive")
COLLECTIVES = {
    op: AlphaBetaOverRanks(op, {ranks: PiecewiseAlphaBeta(1e-4 * ranks, (), (1e-9 * ranks,)) for ranks in (2, 4)})
    for op in OPERATIONS
}
PRICES = CpuPrices(LINES, COLLECTIVES)
CONSTANTS = EngineConstants(
    slowdown=1.2,
    host_s_per_layer=2e-4,
    host_s_at_ends=3e-4,
    crowd=((1, 1.0), (2, 1.1), (4, 2.2)),
    ddp_s=1e-3,
    broadcast_s=1e-5,
    gather_s=4e-4,
    scatter_s=5e-4,
    dtensor_s_per_layer=4e-3,
    action_s=5e-4,
)


def plan(**cuts):
    return ParallelPlan(
        global_batch=8,
        micro_batch=1,
        seq=32,
        gradient_bytes=4,
        element_bytes=4,
        sequence_parallel=cuts.get("tensor", 1) > 1,
        **cuts,
    )


def step(cores=2, constants=CONSTANTS, **cuts):
    return engine_step(MODEL, plan(**cuts), PRICES, constants, cores)


@given(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.integers(0, 3), st.integers(1, 4)
)
def test_parts_add_up_and_none_is_below_nothing(data, tensor, pipeline, zero_stage, cores):
    found = step(cores, data=data, tensor=tensor, pipeline=pipeline, zero_stage=zero_stage)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert min(found.parts.values()) >= -1e-12


@pytest.mark.parametrize(
    ("constant", "cuts"),
    [
        ("ddp_s", {"data": 2}),
        ("broadcast_s", {"data": 2, "zero_stage": 1}),
        ("gather_s", {"data": 2, "zero_stage": 3}),
        ("scatter_s", {"data": 2, "zero_stage": 2}),
        ("dtensor_s_per_layer", {"tensor": 2}),
        ("action_s", {"pipeline": 2}),
    ],
)
def test_a_constant_is_of_its_engine_alone(constant, cuts):
    more = replace(CONSTANTS, **{constant: 2 * getattr(CONSTANTS, constant)})
    assert step(constants=more, **cuts).seconds > step(**cuts).seconds
    assert step(constants=more).seconds == step().seconds


def test_ranks_beyond_the_cores_take_turns():
    assert CONSTANTS.crowded(3, 2) == pytest.approx(1.65)
    assert CONSTANTS.crowded(8, 2) == pytest.approx(4.4)
    assert CONSTANTS.crowded(8, 16) == pytest.approx(2.2)


def test_a_line_is_found_again_and_a_stranger_is_missed():
    features = [product_features(m, 64, 128) for m in (16, 64, 256, 1024)]
    seconds = [1e-6 + 2e-11 * flop + 3e-10 * nbytes for _, flop, nbytes in features]
    predicted = [sum(p * f for p, f in zip(fit_line(features, seconds), row, strict=True)) for row in features]
    assert predicted == pytest.approx(seconds, rel=1e-6)
    assert max(line_errors(features, [*seconds[:-1], 3 * seconds[-1]])) > 0.5


def test_what_was_not_measured_is_said_in_a_sentence():
    bare = CpuPrices({}, {})
    with pytest.raises(UserError, match="all_gather was not measured"):
        bare.collective("all_gather", 8.0, 2, 2, None)
    with pytest.raises(UserError, match="product_TN was not measured"):
        bare.gemm("TN", 1, 1, 1)
    for kind in ATTENTIONS:
        assert PRICES.of_attention(kind).attention_kind == kind
    with pytest.raises(UserError, match="by cudnn was not measured"):
        PRICES.of_attention("cudnn")


counts = st.integers(1, 6)


def own_core(_active):
    return 1.0


def one_core(active):
    return float(active)


def forward_1_backward_2(action):
    return 2.0 if action.backward else 1.0


@given(counts, counts)
def test_on_cores_of_their_own_stages_take_as_long_as_the_formula_of_the_bubble_says(stages, micro_batches):
    orders = [one_forward_one_backward(stage, stages, micro_batches) for stage in range(stages)]
    assert simulated_schedule_s(orders, forward_1_backward_2, own_core) == pytest.approx(
        (micro_batches + stages - 1) * 3
    )


@given(counts, counts)
def test_on_a_single_core_nothing_is_won_and_nothing_waited_for(stages, micro_batches):
    orders = [one_forward_one_backward(stage, stages, micro_batches) for stage in range(stages)]
    assert simulated_schedule_s(orders, forward_1_backward_2, one_core) == pytest.approx(3 * stages * micro_batches)


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 3))
def test_interleaved_stages_do_every_action_once_and_never_wait_for_ever(stages, chunks, rounds):
    micro_batches = stages * rounds
    orders = [interleaved(stage, stages, chunks, micro_batches) for stage in range(stages)]
    done = [action for order in orders for action in order]
    assert len(done) == len(set(done)) == 2 * stages * chunks * micro_batches
    assert {action.chunk % stages for action in orders[0]} == {0}
    alone = simulated_schedule_s(orders, forward_1_backward_2, own_core)
    work = 3 * chunks * micro_batches
    assert work < alone <= work + 3 * chunks * (stages - 1)


def test_orders_that_wait_for_each_other_are_told():
    orders = [[Action(True, 0, 0), Action(False, 0, 0)], [Action(False, 1, 0), Action(True, 1, 0)]]
    with pytest.raises(ValueError, match="wait for each other"):
        simulated_schedule_s(orders, forward_1_backward_2, own_core)
