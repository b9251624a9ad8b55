from dataclasses import replace

import pytest

from pyperf_suite.laws.training.data_parallel import (
    DataParallelLaw,
    GradientExchange,
    InputPipelineLaw,
    fit_data_parallel,
    held_out_step_errors,
    tail_s,
)

MB = 1e6


def all_reduce_s(size_bytes: float) -> float:
    return 100e-6 + size_bytes / 1e9


def exchanges() -> list[GradientExchange]:
    """Two models in buckets from many to one, after backward, and over several micro-batches."""
    drawn = []
    for compute_s, total in ((20e-3, 12 * MB), (50e-3, 40 * MB)):
        for count in (1, 3, 12):
            drawn.append(GradientExchange(compute_s, (total / count,) * count))
        drawn.append(GradientExchange(compute_s, (total,), overlapped=False))
        drawn.append(GradientExchange(2 * compute_s, (total / 3,) * 3, micro_batches=2, every_micro_batch=True))
    return drawn


def test_buckets_go_in_order_as_soon_as_they_are_full():
    # Four quarters of a backward of 4 s are full at 1, 2, 3 and 4 s; each takes 0.5 s, or 2 s one behind the other.
    assert tail_s((1, 1, 1, 1), [0.5] * 4, 4.0) == pytest.approx(0.5)
    assert tail_s((1, 1, 1, 1), [2.0] * 4, 4.0) == pytest.approx(5.0)
    # The first is full late, and what follows it waits for it.
    assert tail_s((3, 1), [2.0, 0.1], 4.0) == pytest.approx(1.1)


def test_one_bucket_hides_nothing_and_a_perfect_network_all_but_the_last():
    law = DataParallelLaw(all_reduce_s, 1.0, 1.0)
    single = GradientExchange(20e-3, (12 * MB,))
    assert law.seconds(single) == pytest.approx(law.seconds(replace(single, overlapped=False)))
    law = DataParallelLaw(all_reduce_s, 1.0, 1.0)
    step = GradientExchange(300e-3, (1 * MB,) * 12)
    assert law.exposed_s(step) == pytest.approx(all_reduce_s(1 * MB))


def test_exchanging_in_each_micro_batch_costs_as_many_exchanges():
    law = DataParallelLaw(all_reduce_s, 1.0, 0.5)
    last = GradientExchange(80e-3, (4 * MB,) * 3, micro_batches=4)
    assert law.exposed_s(replace(last, every_micro_batch=True)) == pytest.approx(4 * law.exposed_s(last))


@pytest.mark.parametrize(("slowdown", "hidden"), [(1.0, 0.9), (2.5, 0.3), (0.7, 0.0), (4.0, 1.0)])
def test_constants_are_found_again(slowdown, hidden):
    true = DataParallelLaw(all_reduce_s, slowdown, hidden)
    found = fit_data_parallel(all_reduce_s, exchanges(), [true.seconds(each) for each in exchanges()])
    assert found.slowdown == pytest.approx(slowdown, rel=0.01)
    assert found.hidden == pytest.approx(hidden, abs=0.02)


def test_a_disturbed_step_does_not_bend_the_law_and_a_group_is_left_out_as_a_whole():
    true = DataParallelLaw(all_reduce_s, 2.0, 0.5)
    measured = [true.seconds(each) for each in exchanges()]
    measured[3] *= 2
    found = fit_data_parallel(all_reduce_s, exchanges(), measured)
    assert found.slowdown == pytest.approx(2.0, rel=0.1)
    true = DataParallelLaw(all_reduce_s, 2.0, 0.5)
    measured = [true.seconds(each) for each in exchanges()]
    measured[:5] = [2 * seconds for seconds in measured[:5]]
    errors = held_out_step_errors(all_reduce_s, exchanges(), measured, [0] * 5 + [1] * 5)
    assert min(errors[:5]) > 0.3


def test_without_loaders_nothing_overlaps_else_the_slowest_stage_or_the_cores_bind():
    pipeline = InputPipelineLaw(load_s=0.003, step_s=0.005, cores=8)
    assert pipeline.seconds(0) == pytest.approx(0.008)
    assert pipeline.starved(0) == pytest.approx(3 / 8)
    pipeline = InputPipelineLaw(load_s=0.012, step_s=0.005, cores=8)
    assert (pipeline.binds(1), pipeline.seconds(1)) == ("the loaders", pytest.approx(0.012))
    assert (pipeline.binds(3), pipeline.seconds(3)) == ("the model", pytest.approx(0.005))
    assert pipeline.enough(8) == 3
    assert pipeline.enough(2) is None
    pipeline = InputPipelineLaw(load_s=0.012, step_s=0.001, cores=2)
    assert pipeline.seconds(64) == pytest.approx(0.006)
    assert pipeline.binds(64) == "the cores"
    off_host = InputPipelineLaw(load_s=0.012, step_s=0.008, cores=2)
    on_host = InputPipelineLaw(load_s=0.012, step_s=0.008, cores=2, on_host=True)
    assert off_host.seconds(2) == pytest.approx(0.008)
    assert on_host.seconds(2) == pytest.approx(0.010)


def test_a_model_that_takes_no_time_never_stops_waiting_and_fewer_than_no_loaders_are_refused():
    assert InputPipelineLaw(0.001, 0.0, cores=4).starved(4) == 1
    assert InputPipelineLaw(0.0, 0.0, cores=4).starved(4) == 0
    with pytest.raises(ValueError, match="-1 loaders"):
        InputPipelineLaw(1.0, 1.0, 1).seconds(-1)
