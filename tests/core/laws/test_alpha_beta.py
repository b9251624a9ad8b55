import math

import numpy as np
import pytest

from pyperf_suite.laws.alpha_beta import PiecewiseAlphaBeta, held_out_errors

BENT = PiecewiseAlphaBeta(10e-6, (1000.0, 5000.0), (1e-9, 2e-9, 4e-9))
POWERS = 2.0 ** np.arange(21)


def line(start_s: float, gb_per_s: float) -> PiecewiseAlphaBeta:
    return PiecewiseAlphaBeta(start_s, (), (1e-9 / gb_per_s,))


def test_each_segment_adds_its_own_seconds_a_byte():
    found = BENT.seconds([0, 500, 1000, 3000, 5000, 6000])
    assert found == pytest.approx([10e-6, 10.5e-6, 11e-6, 15e-6, 19e-6, 23e-6])
    assert line(1e-6, 2).seconds(4000) == pytest.approx(3e-6)


@pytest.mark.parametrize(
    "true",
    [
        line(5e-6, 20),
        PiecewiseAlphaBeta(5e-6, (1024.0,), (1e-9, 20e-9)),
        PiecewiseAlphaBeta(5e-6, (1024.0,), (0.0, 1e-9)),
    ],
    ids=["one segment", "two", "a flat one"],
)
def test_a_law_that_made_the_times_is_found_again_with_as_many_segments(true):
    # Two segments from 1 to 2^20 bytes meet at 2^10.
    found = PiecewiseAlphaBeta.fit(POWERS, true.seconds(POWERS))
    assert found.bends_bytes == pytest.approx(true.bends_bytes)
    assert found.start_s == pytest.approx(true.start_s)
    assert found.betas_s_per_byte == pytest.approx(true.betas_s_per_byte)
    assert found.held_out_error == pytest.approx(0.0, abs=1e-9)


def test_bytes_beyond_a_middle_segment_are_of_the_next_one_alone():
    # Three segments from 1 to 2^21 bytes meet at 2^7 and 2^14.
    sizes, true = 2.0 ** np.arange(22), PiecewiseAlphaBeta(5e-6, (2.0**7, 2.0**14), (1e-9, 20e-9, 4e-9))
    found = PiecewiseAlphaBeta.fit(sizes, true.seconds(sizes), 3)
    assert found.bends_bytes == pytest.approx(true.bends_bytes)
    assert found.betas_s_per_byte == pytest.approx(true.betas_s_per_byte)


def test_so_many_segments_are_the_most_however_bent_the_times_are():
    steep = np.exp(np.linspace(0, 12, 21) ** 1.5 / 3) * 1e-6
    assert [len(PiecewiseAlphaBeta.fit(POWERS, steep, most).betas_s_per_byte) for most in (1, 2, 3)] == [1, 2, 3]
    assert len(PiecewiseAlphaBeta.fit(POWERS, steep).betas_s_per_byte) <= 8
    # Two sizes a segment at least.
    assert len(PiecewiseAlphaBeta.fit(POWERS[:7], steep[::3]).betas_s_per_byte) <= 3


@pytest.mark.parametrize("at", [0, 10, 20])
def test_an_outlier_counts_by_its_size_and_not_by_its_square(at):
    true = line(5e-6, 20)
    times = true.seconds(POWERS)
    times[at] *= 10
    found = PiecewiseAlphaBeta.fit(POWERS, times, 1)
    others = np.delete(found.seconds(POWERS) / true.seconds(POWERS), at)
    assert others == pytest.approx(np.ones(20), rel=0.02)


def test_what_scatters_by_less_than_two_percent_is_fitted_by_least_squares():
    # Two values of one size: the least squares of relative residuals are at (1/a + 1/b) / (1/a^2 + 1/b^2).
    found = PiecewiseAlphaBeta.fit([0.0, 0.0, 0.0], [1.0, 1.0, 1.02], 1)
    assert found.start_s == pytest.approx((2 + 1 / 1.02) / (2 + 1 / 1.02**2), rel=1e-12)
    # The long one of ten alike and one that is twice as long counts so little that the others are hardly moved.
    found = PiecewiseAlphaBeta.fit([0.0] * 11, [1.0] * 10 + [2.0], 1)
    weight = 1.345 * 0.02 / (1 - found.start_s / 2)
    assert found.start_s == pytest.approx((10 + weight / 2) / (10 + weight / 4), rel=1e-5)


def test_what_scatters_by_more_counts_in_full_up_to_huber_s_share_of_its_median_residual():
    times = np.array([0.95, 0.97, 1.03, 1.05, 2.0])
    start = PiecewiseAlphaBeta.fit([0.0] * 5, times, 1).start_s
    # The median of residuals is that of 1.05; 1.4826 of it are a standard deviation of normal ones.
    bound = 1.345 * 1.4826 * (1 - start / 1.05)
    weights = np.array([1, 1, 1, 1, bound / (1 - start / 2)])
    # Four reweightings come so near; a standard deviation taken a quarter larger moves the start by 0.004.
    assert start == pytest.approx((weights / times).sum() / (weights / times**2).sum(), abs=3e-4)


def test_sizes_are_left_out_in_five_turns_and_fewer_than_five_are_not():
    times = line(5e-6, 20).seconds(POWERS)
    assert held_out_errors(POWERS, times) == pytest.approx(np.zeros(21), abs=1e-9)
    assert held_out_errors(POWERS[:5], times[:5]).size == 5
    assert held_out_errors(POWERS[:4], times[:4]).size == 0
    assert PiecewiseAlphaBeta.fit(POWERS[:4], times[:4]).held_out_error is None
    # A size is left out as a whole: the repeated one is predicted by a line through the others, 1.1 to 1.
    sizes, seconds = [1, 2, 3, 4, 5, 5], [1.0, 1.0, 1.0, 1.0, 1.1, 1.1]
    assert held_out_errors(sizes, seconds)[-2:] == pytest.approx([1 - 1 / 1.1] * 2)


@pytest.mark.parametrize(
    ("sizes", "seconds", "words"),
    [
        ([], [], "no measurements"),
        ([-1.0], [1.0], "at least 0 bytes"),
        ([1.0], [0.0], "above 0 seconds"),
        ([1.0], [math.inf], "above 0 seconds"),
        ([1.0], [math.nan], "above 0 seconds"),
    ],
)
def test_times_that_are_none_are_refused(sizes, seconds, words):
    for fit in (PiecewiseAlphaBeta.fit, held_out_errors):
        with pytest.raises(ValueError, match=words):
            fit(sizes, seconds)
