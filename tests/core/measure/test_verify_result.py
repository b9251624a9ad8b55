"""Results of any function: honest arithmetic passes, that of a narrower type does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyperf_suite.measure.verify_result import Pool, Tolerance, compare

RNG = np.random.default_rng(1)
N = 4096


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def halved(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def judged(found, right, tolerance: Tolerance):
    """The verdict on an array that was found, given the right one."""
    trees = [
        {"kind": "array", "dtype": str(each.dtype), "shape": list(each.shape), "values": each}
        for each in map(np.asarray, (found, right))
    ]
    return compare(*trees, lambda _, spec: spec["values"], tolerance)


def sums(x: np.ndarray) -> Tolerance:
    """What rows that are summed may be off by."""
    return Tolerance(terms=x.shape[1], sizes={"out": np.sqrt((x.astype(float) ** 2).sum(-1))})


@pytest.mark.parametrize("offset", [0.0, 3.0], ids=["that cancel", "of one sign"])
def test_rows_that_are_summed_in_any_order_pass(offset):
    x = normal(64, N) + np.float32(offset)
    right = x.astype(float).sum(-1)
    for found in (x.sum(-1), np.cumsum(x, -1)[:, -1], np.cumsum(x[:, ::-1], -1)[:, -1]):
        assert judged(found, right, sums(x)).passed


def test_rows_of_half_precision_do_not_pass_as_float32():
    x = normal(64, 128)
    verdict = judged(halved(x).sum(-1), x.astype(float).sum(-1), sums(x))
    assert not verdict.passed
    assert verdict.reason == "precision"


@pytest.mark.parametrize("count", [1 << 10, 1 << 20])
def test_an_elementwise_sum_in_half_precision_is_seen_however_long_it_is(count):
    x, y = normal(count), normal(count)
    right = x.astype(float) + y
    pool = Tolerance(terms=2, pools={"out": Pool(1.41, 1.41, 3.0)})
    assert judged(x + y, right, pool).passed
    assert judged(halved(halved(x) + halved(y)), right, pool).reason == "precision"


def test_one_wrong_element_of_many_is_seen():
    x = normal(1 << 16)
    found = x.copy()
    found[77] += np.float32(1e-3)
    verdict = judged(found, x.astype(float), Tolerance(terms=1))
    assert not verdict.passed
    assert verdict.worst_at == (77,)


def test_what_is_beyond_the_type_is_compared_only_on_usual_inputs():
    right = np.array([1.0, 1e300])
    found = np.array([1.0, math.inf], np.float32)
    assert judged(found, right, Tolerance()).reason == "not finite"
    assert judged(found, right, Tolerance(unusual=True)).passed
    wrong = np.array([2.0, math.inf], np.float32)
    assert not judged(wrong, right, Tolerance(unusual=True)).passed


def test_a_tolerance_that_is_given_counts_alone():
    x = normal(1000)
    assert judged(halved(x), x.astype(float), Tolerance(relative=1e-3)).passed
    assert not judged(x * np.float32(1.0001), x.astype(float), Tolerance(relative=0.0)).passed
    assert judged(x, x.astype(float), Tolerance(relative=0.0)).passed


def test_zeros_have_to_be_zeros():
    assert judged(np.zeros(9, np.float32), np.zeros(9), Tolerance()).passed
    assert not judged(np.full(9, 1e-6, np.float32), np.zeros(9), Tolerance()).passed
