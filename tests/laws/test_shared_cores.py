"""Schedules of a pipeline on a machine's cores, against what can be said of them without playing them through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.training.engine_step import Action, interleaved, one_forward_one_backward, played_s

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
    assert played_s(orders, forward_1_backward_2, own_core) == pytest.approx((micro_batches + stages - 1) * 3)


@given(counts, counts)
def test_on_a_single_core_nothing_is_won_and_nothing_waited_for(stages, micro_batches):
    orders = [one_forward_one_backward(stage, stages, micro_batches) for stage in range(stages)]
    assert played_s(orders, forward_1_backward_2, one_core) == pytest.approx(3 * stages * micro_batches)


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 3))
def test_interleaved_stages_do_every_action_once_and_never_wait_for_ever(stages, chunks, rounds):
    micro_batches = stages * rounds
    orders = [interleaved(stage, stages, chunks, micro_batches) for stage in range(stages)]
    done = [action for order in orders for action in order]
    assert len(done) == len(set(done)) == 2 * stages * chunks * micro_batches
    assert {action.chunk % stages for action in orders[0]} == {0}
    alone = played_s(orders, forward_1_backward_2, own_core)
    work = 3 * chunks * micro_batches
    assert work < alone <= work + 3 * chunks * (stages - 1)


@given(st.integers(2, 4), st.integers(2, 3))
def test_more_chunks_make_the_bubble_smaller(stages, chunks):
    micro_batches = 2 * stages
    plain = [one_forward_one_backward(stage, stages, micro_batches) for stage in range(stages)]
    cut = [interleaved(stage, stages, chunks, micro_batches) for stage in range(stages)]
    whole_s = played_s(plain, forward_1_backward_2, own_core)
    assert played_s(cut, lambda action: forward_1_backward_2(action) / chunks, own_core) < whole_s


def test_orders_that_wait_for_each_other_are_told():
    orders = [[Action(True, 0, 0), Action(False, 0, 0)], [Action(False, 1, 0), Action(True, 1, 0)]]
    with pytest.raises(ValueError, match="wait for each other"):
        played_s(orders, forward_1_backward_2, own_core)
