"""Piecewise lines through the times of collectives: what they recover, what they refuse, and their error elsewhere."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.laws.collectives import AlphaBetaOverRanks, PiecewiseAlphaBeta, held_out_errors, seconds_of
from tools.fit.published import read_columns

SIZES = 2.0 ** np.arange(3, 34)
CURVE = ("gpu", "file", "lib", "lib_version", "kernel_source", "op_name", "dtype")


@pytest.fixture(scope="module")
def measured(measured_tables: Path) -> dict[tuple[Any, ...], np.ndarray]:
    """Bytes, ranks and seconds of each library's operation on each GPU, as published."""
    columns = read_columns(measured_tables, "collectives")
    curves = defaultdict(list)
    for row, key in enumerate(zip(*(columns[name] for name in CURVE), strict=True)):
        curves[key].append((columns["bytes"][row], columns["num_gpus"][row], columns["latency_us"][row] * 1e-6))
    # One in six, over the whole table: as many as take a few seconds.
    return {key: np.array(curve) for key, curve in list(curves.items())[::6]}


@pytest.mark.slow
def test_the_law_errs_by_less_than_a_tenth_at_measured_sizes_that_it_has_not_seen(measured) -> None:
    errors = []
    for curve in measured.values():
        for ranks in np.unique(curve[:, 1]):
            size, _, seconds = curve[curve[:, 1] == ranks].T
            errors.append(held_out_errors(size, seconds))
            assert np.median(errors[-1]) < 0.1
    assert len(errors) > 40
    assert np.median(np.concatenate(errors)) < 0.04


@pytest.mark.slow
def test_one_straight_line_misses_the_same_sizes_by_more_than_twice_as_much(measured) -> None:
    piecewise, straight = [], []
    for curve in list(measured.values())[::4]:
        size, _, seconds = curve[curve[:, 1] == curve[0, 1]].T
        piecewise.append(held_out_errors(size, seconds))
        straight.append(held_out_errors(size, seconds, most_segments=1))
    assert np.median(np.concatenate(straight)) > 2 * np.median(np.concatenate(piecewise))


@pytest.mark.slow
def test_curves_of_two_and_eight_ranks_tell_most_of_the_curve_of_four(measured) -> None:
    errors = []
    for key, curve in measured.items():
        if key[0] == "l40s" or set(np.unique(curve[:, 1])) != {2, 4, 8}:
            continue  # over PCIe, the step from one socket to two is between those
        size, ranks, seconds = curve[curve[:, 1] != 4].T
        held_out = curve[curve[:, 1] == 4]
        law = AlphaBetaOverRanks.fit({"alltoall": "all_to_all"}.get(key[5], key[5]), size, ranks, seconds)
        errors.append(np.abs(law.seconds(held_out[:, 0], 4) / held_out[:, 2] - 1))
    assert len(errors) >= 5
    assert np.median(np.concatenate(errors)) < 0.12


@pytest.mark.slow
@settings(max_examples=25)
@given(st.floats(1e-6, 1e-4), st.floats(1e9, 1e12))
def test_a_straight_line_is_recovered_with_one_segment(alpha_s: float, bytes_per_s: float) -> None:
    law = PiecewiseAlphaBeta.fit(SIZES, alpha_s + SIZES / bytes_per_s)
    [segment] = law.segments()
    np.testing.assert_allclose([segment.alpha_s, 1 / segment.beta_s_per_byte], [alpha_s, bytes_per_s], rtol=1e-4)
    assert law.held_out_error == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_more_bytes_never_take_less_time_whatever_the_noise(seed: int) -> None:
    law = PiecewiseAlphaBeta.fit(SIZES, np.random.default_rng(seed).uniform(1e-6, 1e-2, SIZES.size))
    seconds = law.seconds(np.concatenate([[0.0], np.geomspace(1, 1e12, 200)]))
    assert np.all(np.diff(seconds) >= 0)
    assert seconds[0] >= 0


def test_the_segments_are_joined_and_together_are_the_law() -> None:
    seconds = np.maximum(10e-6, 8e-6 + SIZES / 20e9) + np.maximum(0, SIZES - 2**22) / 100e9
    law = PiecewiseAlphaBeta.fit(SIZES, seconds)
    segments = law.segments()
    assert len(segments) > 1
    assert segments[0].from_bytes == 0
    assert segments[-1].to_bytes == np.inf
    for segment, following in pairwise(segments):
        end = segment.to_bytes
        assert end == following.from_bytes
        at_end = [part.alpha_s + part.beta_s_per_byte * end for part in (segment, following)]
        np.testing.assert_allclose(at_end, float(law.seconds(end)), rtol=1e-9)


def test_one_outlier_bends_nothing() -> None:
    seconds = 10e-6 + SIZES / 100e9
    seconds[12] *= 5
    law = PiecewiseAlphaBeta.fit(SIZES, seconds)
    others = np.arange(SIZES.size) != 12
    np.testing.assert_allclose(law.seconds(SIZES[others]), seconds[others], rtol=0.05)


def test_the_stated_error_is_of_sizes_that_were_left_out() -> None:
    seconds = (10e-6 + SIZES / 100e9) * np.random.default_rng(5).lognormal(0, 0.1, SIZES.size)
    law = PiecewiseAlphaBeta.fit(SIZES, seconds)
    seen = np.median(np.abs(law.seconds(SIZES) / seconds - 1))
    assert law.held_out_error is not None
    assert law.held_out_error >= seen
    assert law.held_out_error == np.median(held_out_errors(SIZES, seconds))


def test_too_few_sizes_give_a_line_that_states_no_error() -> None:
    law = PiecewiseAlphaBeta.fit([8, 1024, 2**20], [1e-5, 1e-5, 2e-5])
    assert len(law.segments()) == 1
    assert law.held_out_error is None
    assert PiecewiseAlphaBeta.fit([1024], [3e-6]).seconds(1024) == pytest.approx(3e-6)


def test_between_measured_numbers_of_ranks_the_time_lies_between_theirs() -> None:
    law = AlphaBetaOverRanks.fit(
        "all_reduce", np.tile(SIZES, 2), np.repeat([2, 8], SIZES.size), np.repeat([1e-5, 3e-5], SIZES.size)
    )
    np.testing.assert_allclose([law.seconds(64, ranks) for ranks in (1, 2, 4, 8)], [0, 1e-5, 2e-5, 3e-5], rtol=1e-6)


def test_beyond_measured_ranks_as_many_bytes_on_the_bus_take_as_long() -> None:
    law = AlphaBetaOverRanks.fit("all_reduce", SIZES, np.full(SIZES.size, 8), 1e-5 + SIZES / 100e9)
    # 2(n-1)/n is 7/4 for 8 ranks and 1 for 2: a message of 7 MB among 2 loads the bus as one of 4 MB among 8.
    np.testing.assert_allclose(law.seconds(7e6, 2), law.seconds(4e6, 8), rtol=1e-9)
    assert law.seconds(4e6, 1024) > law.seconds(4e6, 8)


@pytest.mark.parametrize(
    ("size_bytes", "seconds", "sentence"),
    [
        ([], [], "no measurements"),
        ([-1], [1e-6], "at least 0 bytes"),
        ([8], [0.0], "above 0 seconds"),
        ([8], [np.nan], "above 0 seconds"),
    ],
)
def test_what_is_no_measurement_is_refused(size_bytes: list[float], seconds: list[float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PiecewiseAlphaBeta.fit(size_bytes, seconds)


def test_a_law_over_ranks_needs_two_ranks_at_least() -> None:
    with pytest.raises(ValueError, match="No times of all_gather"):
        AlphaBetaOverRanks.fit("all_gather", [8], [1], [1e-6])


def test_an_operation_without_a_law_is_refused_with_those_that_have_one() -> None:
    law = AlphaBetaOverRanks.fit("broadcast", SIZES, np.full(SIZES.size, 2), 1e-5 + SIZES / 1e9)
    seconds = seconds_of({"broadcast": law})
    assert seconds("broadcast", 1e9, 2) == pytest.approx(1, rel=1e-3)
    with pytest.raises(UserError, match="all_to_all was not measured, only broadcast"):
        seconds("all_to_all", 1e9, 2)
