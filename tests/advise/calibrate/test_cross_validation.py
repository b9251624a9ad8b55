"""Whole sites are held out: what a law is told it has never seen, not even at another m."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyperf_suite.advise.calibrate_laws import cross_validate, described, folds, site_numbers, summary


def test_rows_of_one_weight_are_one_site() -> None:
    n, k = [512, 512, 1024, 512], [256, 512, 256, 256]
    assert site_numbers(n, k).tolist() == [0, 1, 2, 0]


@given(st.lists(st.integers(0, 20), min_size=2, max_size=60).filter(lambda sites: len(set(sites)) > 1))
def test_every_row_is_held_out_once_and_its_whole_site_with_it(sites: list[int]) -> None:
    masks = list(folds(sites))
    assert np.sum(masks, axis=0).tolist() == [1] * len(sites)
    for mask in masks:
        held_out = set(np.array(sites)[mask])
        assert held_out.isdisjoint(np.array(sites)[~mask])


def test_the_folds_are_the_same_each_time() -> None:
    sites = np.repeat(np.arange(40), 3)
    first, second = (np.stack(list(folds(sites))) for _ in range(2))
    assert (first == second).all()


def test_a_single_site_cannot_be_held_out() -> None:
    with pytest.raises(ValueError, match="at least two sites"):
        list(folds([7, 7, 7]))


def test_a_site_without_like_is_told_by_its_error() -> None:
    """Ten sites run at one speed and two at double: a law of one speed, fitted to the ten, misses the two by half."""
    sites = np.repeat(np.arange(12), 5)
    measured = np.where(sites < 10, 1.0, 2.0)

    def fit(rows: NDArray[np.intp]):
        speed = float(np.median(measured[rows]))
        return lambda unseen: np.full(unseen.size, speed)

    found = cross_validate(fit, measured, sites)
    assert found.mape == pytest.approx(100 * 0.5 * 2 / 12)
    assert found.median == 0
    assert (found.rows, found.sites) == (60, 12)


def test_an_error_that_remembers_its_rows_is_not_flattered() -> None:
    sites = np.repeat(np.arange(20), 4)
    measured = np.random.default_rng(1).uniform(1, 2, 20)[sites]

    def remember(rows: NDArray[np.intp]):
        known = dict(zip(sites[rows], measured[rows], strict=True))
        return lambda unseen: np.array([known.get(site, 1.0) for site in sites[unseen]])

    assert cross_validate(remember, measured, sites).mape > 10


def test_an_error_is_described_as_its_block_keeps_it() -> None:
    held_out = summary([1.1, 1.0, 0.8], [1.0, 1.0, 1.0], 3, "made up").to_json()
    assert described(held_out) == "10.0 % (median 10.0 %) on 3 sites, made up"
    assert described({}) == "not held out"
