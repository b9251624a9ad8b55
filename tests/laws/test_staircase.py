"""The staircase law recovers constants that made the times, and says nothing negative."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.tiling import (
    CriticalPath,
    Schedule,
    StaircaseLaw,
    Tile,
    critical_path,
    judged_by_waves,
)


def paths() -> CriticalPath:
    n = np.arange(32, 2000, 37)
    parts = [
        critical_path(128, n, k, Tile(128, 128, 256), Schedule.parse(schedule))
        for schedule in ("data_parallel@3", "split_k(3)@3", "stream_k@3")
        for k in (700, 4096)
    ]
    return CriticalPath(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("k_extent", "tiles", "partials"))
    )


cost = st.floats(1e-3, 1.0)


@given(cost, cost, cost, cost)
def test_fitting_recovers_the_law_that_made_the_times(
    overhead: float, per_k: float, per_tile: float, partial: float
) -> None:
    truth = StaircaseLaw(overhead * 1e-5, per_k * 1e-7, per_tile * 1e-4, partial * 1e-4)
    path = paths()
    fitted = StaircaseLaw.fit(path, truth.seconds(path))
    np.testing.assert_allclose(fitted.seconds(path), truth.seconds(path), rtol=1e-6)


@given(st.integers(0, 2**32 - 1))
def test_no_cost_comes_out_negative_whatever_the_noise(seed: int) -> None:
    path = paths()
    law = StaircaseLaw.fit(path, np.random.default_rng(seed).uniform(1e-6, 1e-2, path.k_extent.size))
    assert min(law.overhead_s, law.per_k_s, law.per_tile_s, law.per_partial_s) >= 0


def test_a_law_cannot_be_fitted_to_nothing() -> None:
    nothing = CriticalPath(np.array([]), np.array([]), np.array([]))
    with pytest.raises(ValueError, match="no measurements"):
        StaircaseLaw.fit(nothing, [])


def test_a_law_is_judged_on_even_waves_that_it_was_not_fitted_to():
    law = StaircaseLaw(1e-6, 2e-9, 3e-6, 0.0)
    waves = np.arange(1, 9)
    cases = [critical_path(128, 128 * 2 * wave, 512, Tile(128, 128, 64), Schedule("persistent", 2)) for wave in waves]
    seconds = [
        float(law.seconds(case)) * (1.1 if wave % 2 == 0 else 1.0) for case, wave in zip(cases, waves, strict=True)
    ]
    judged = judged_by_waves(cases, seconds, waves)
    assert judged is not None
    assert (judged.fitted_on, judged.held_out) == (4, pytest.approx((1 - 1 / 1.1,) * 4))
    assert judged_by_waves(cases[:1], seconds[:1], waves[:1]) is None
