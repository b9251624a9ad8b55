"""The bound of a pipeline of loaders and a model: its slowest stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.training.data_parallel import InputPipeline

SECONDS = st.floats(1e-6, 10.0)
COUNTS = st.integers(1, 64)


def test_without_loaders_nothing_overlaps():
    pipeline = InputPipeline(load_s=0.003, step_s=0.005, cores=8)
    assert pipeline.seconds(0) == pytest.approx(0.008)
    assert pipeline.starved(0) == pytest.approx(3 / 8)


def test_the_slowest_stage_binds():
    pipeline = InputPipeline(load_s=0.012, step_s=0.005, cores=8)
    assert (pipeline.binds(1), pipeline.seconds(1)) == ("the loaders", pytest.approx(0.012))
    assert (pipeline.binds(3), pipeline.seconds(3)) == ("the model", pytest.approx(0.005))
    assert pipeline.enough(8) == 3
    assert pipeline.enough(2) is None


def test_more_loaders_than_cores_give_nothing():
    pipeline = InputPipeline(load_s=0.012, step_s=0.001, cores=2)
    assert pipeline.seconds(64) == pytest.approx(0.006)
    assert pipeline.binds(64) == "the cores"


def test_a_model_on_the_host_takes_cores_from_its_loaders():
    beside = InputPipeline(load_s=0.012, step_s=0.008, cores=2)
    on_host = InputPipeline(load_s=0.012, step_s=0.008, cores=2, on_host=True)
    assert beside.seconds(2) == pytest.approx(0.008)
    assert on_host.seconds(2) == pytest.approx(0.010)


@given(SECONDS, SECONDS, COUNTS, st.booleans(), COUNTS)
def test_a_loader_more_never_makes_it_slower_and_never_faster_than_the_model(load_s, step_s, cores, on_host, loaders):
    pipeline = InputPipeline(load_s, step_s, cores, on_host)
    assert step_s <= pipeline.seconds(loaders + 1) <= pipeline.seconds(loaders)
    assert 0 <= pipeline.starved(loaders) <= 1


@given(SECONDS, SECONDS, COUNTS)
def test_loading_beside_the_model_is_never_slower_than_loading_in_turns(load_s, step_s, cores):
    assert InputPipeline(load_s, step_s, cores).seconds(1) <= InputPipeline(load_s, step_s, cores).seconds(0)


def test_a_model_that_takes_no_time_never_stops_waiting():
    assert InputPipeline(0.001, 0.0, cores=4).starved(4) == 1
    assert InputPipeline(0.0, 0.0, cores=4).starved(4) == 0


def test_fewer_than_no_loaders_are_refused():
    with pytest.raises(ValueError, match="-1 loaders"):
        InputPipeline(1.0, 1.0, 1).seconds(-1)
