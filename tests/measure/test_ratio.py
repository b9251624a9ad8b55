"""A ratio with an interval over processes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyperf_suite.measure.estimates import Ratio, ratio_over_processes


def test_the_interval_is_students_on_the_logarithms() -> None:
    ratio = ratio_over_processes([1.0, 2.0, 4.0])
    # Logarithms to base 2: mean 1, standard error 1/sqrt(3), and Student's t of 2 degrees of freedom is 4.3027.
    half_width = 4.3027 / math.sqrt(3)
    assert ratio.value == pytest.approx(2)
    assert ratio.low == pytest.approx(2 ** (1 - half_width), rel=1e-4)
    assert ratio.high == pytest.approx(2 ** (1 + half_width), rel=1e-4)


def test_the_true_ratio_lies_within_in_19_of_20_cases() -> None:
    random = np.random.default_rng(0)
    drawn = np.exp(math.log(1.3) + 0.1 * random.standard_normal((2000, 3)))
    within = [ratio.low <= 1.3 <= ratio.high for ratio in map(ratio_over_processes, drawn.tolist())]
    assert 0.935 < np.mean(within) < 0.965


def test_a_single_process_tells_by_its_own_samples() -> None:
    assert ratio_over_processes([3.0], within=0.25) == Ratio(
        pytest.approx(3.0), pytest.approx(3.0 / 1.25), pytest.approx(3.0 * 1.25), processes=1
    )


def test_the_inverse_has_its_ends_turned_round() -> None:
    ratio = Ratio(2.0, 1.0, 4.0)
    assert ratio.inverse == Ratio(0.5, 0.25, 1.0)
    assert ratio * 3 == Ratio(6.0, 3.0, 12.0)
    assert str(ratio) == "2.00 [1.00, 4.00]"


def test_no_process_is_no_ratio() -> None:
    with pytest.raises(ValueError, match="at least one process"):
        ratio_over_processes([])
