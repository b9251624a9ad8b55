import math
from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.measure import verify_result
from pyperf_suite.measure.verify import Verification
from pyperf_suite.measure.verify_result import Pool, Tolerance, compare, number_type

RNG = np.random.default_rng(1)
N = 4096


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def halved(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def judged(result, right, tolerance: Tolerance):
    """The verdict on an array that was found, given the right one."""
    trees = [
        {"kind": "array", "dtype": str(each.dtype), "shape": list(each.shape), "values": each}
        for each in map(np.asarray, (result, right))
    ]
    return compare(*trees, lambda _, spec: spec["values"], tolerance)


def sums(x: np.ndarray) -> Tolerance:
    """Tolerance of summed rows."""
    return Tolerance(terms=x.shape[1], sizes={"out": np.sqrt((x.astype(float) ** 2).sum(-1))})


@pytest.mark.parametrize("offset", [0.0, 3.0], ids=["that cancel", "of one sign"])
def test_rows_that_are_summed_in_any_order_pass(offset):
    x = normal(64, N) + np.float32(offset)
    right = x.astype(float).sum(-1)
    for found in (x.sum(-1), np.cumsum(x, -1)[:, -1], np.cumsum(x[:, ::-1], -1)[:, -1]):
        assert judged(found, right, sums(x)).passed


@pytest.mark.parametrize("count", [1 << 10, 1 << 20])
def test_an_elementwise_sum_in_half_precision_is_seen_however_long_it_is(count):
    x, y = normal(count), normal(count)
    right = x.astype(float) + y
    pool = Tolerance(terms=2, pools={"out": Pool(1.41, 1.41, 3.0)})
    assert judged(x + y, right, pool).passed
    assert judged(halved(halved(x) + halved(y)), right, pool).reason == "precision"


def test_what_is_beyond_the_type_is_compared_only_on_usual_inputs():
    right = np.array([1.0, 1e300])
    found = np.array([1.0, math.inf], np.float32)
    assert judged(found, right, Tolerance()).reason == "not finite"
    verdict = judged(found, right, Tolerance(unusual=True))
    assert (verdict.passed, verdict.relative_norm) == (True, 0.0)
    assert verdict.relative_norm_limit == pytest.approx(4 * (16 + math.sqrt(2)) * SINGLE)
    wrong = np.array([2.0, math.inf], np.float32)
    assert not judged(wrong, right, Tolerance(unusual=True)).passed


def test_a_tolerance_that_is_given_counts_alone():
    x = normal(1000)
    assert judged(halved(x), x.astype(float), Tolerance(relative=1e-3)).passed
    assert not judged(x * np.float32(1.0001), x.astype(float), Tolerance(relative=0.0)).passed
    assert judged(x, x.astype(float), Tolerance(relative=0.0)).passed


SINGLE, HALF = 2.0**-24, 2.0**-11  # unit roundoffs
EVERY_ROW, FIRST = slice(None), 0


@pytest.mark.parametrize(
    ("dtype", "at", "off", "unit", "tolerance"),
    [
        # Sigma is (16 + sqrt(2 K)) units of 1, and an element may be off by 4 (sigma + 16 units): 17.4 and 133.7.
        ("float32", EVERY_ROW, 16, SINGLE, Tolerance()),
        ("float32", FIRST, 132, SINGLE, Tolerance()),
        ("float32", EVERY_ROW, 56, SINGLE, Tolerance(terms=800)),
        ("float32", EVERY_ROW, 224, SINGLE, Tolerance(terms=800, unusual=True)),  # four times that
        ("float32", EVERY_ROW, 52, SINGLE, Tolerance(sizes={"out": np.full(100, 3.0)})),
        ("float32", EVERY_ROW, 68, SINGLE, Tolerance(pools={"out": Pool(1.0, 1.0, 2.0)})),  # of size 2 x 1 x (1 + 1/1)
        ("float32", EVERY_ROW, 24, SINGLE, Tolerance(terms=0.1, sizes={"out": np.full(100, 1.4)})),  # K is 1 at least
        # Two units of 16 bits, and sums in float32: 2 and 16.
        ("float16", EVERY_ROW, 2, HALF, Tolerance()),
        ("float16", FIRST, 16, HALF, Tolerance()),
        ("float64", EVERY_ROW, 16, 2.0**-53, Tolerance()),
        # The author's tolerance: the norm, and of an element ten times that and that of the root mean square.
        ("float32", EVERY_ROW, 2.0**14, SINGLE, Tolerance(relative=2.0**-10)),
        ("float32", FIRST, 10 * 2.0**14, SINGLE, Tolerance(relative=2.0**-10)),
    ],
)
def test_errors_are_allowed_up_to_the_limit_and_not_by_a_step_more(dtype, at, off, unit, tolerance):
    for steps, passed in ((0, True), (2, False)):
        found = np.ones(100, dtype)
        found[at] += (off + steps) * unit
        assert judged(found, np.ones(100, dtype), tolerance).passed is passed, steps


@pytest.mark.parametrize(
    ("at", "off", "reason"),
    [
        (EVERY_ROW, 0.04, "precision"),
        (EVERY_ROW, 0.06, "wrong values"),
        (FIRST, 0.09, "precision"),
        (FIRST, 0.11, "wrong values"),
    ],
)
def test_up_to_a_twentieth_an_error_looks_like_a_narrower_type(at, off, reason):
    found = np.ones(10_000, np.float32)
    found[at] += np.float32(off)
    assert judged(found, np.ones(10_000), Tolerance()).reason == reason


def wrong(at, message, reason):
    return Verification(False, "full", math.inf, 0.0, math.inf, at, message, reason)


def plain(value):
    return {"kind": "plain", "value": value}


def array(*values, dtype="float32"):
    return {"kind": "array", "dtype": dtype, "shape": [len(values)], "values": np.array(values, dtype)}


def tuple_of(*items):
    return {"kind": "tuple", "items": list(items)}


@pytest.mark.parametrize(
    ("result", "expected", "reason"),
    [
        (plain("a"), plain("a"), ""),
        (plain("a"), plain("b"), "wrong values"),
        (plain([1, 2.0]), plain([1.0, 2.0 + 1e-15]), ""),
        (plain([1, 2.0]), plain([1.0, 2.9]), "wrong values"),
        (plain([1, 2]), plain([1, 3]), "wrong values"),
        (plain([1, 2]), plain([1, 2, 3]), "wrong shape"),
        (plain([True]), plain([1.0 + 1e-16]), ""),
        (plain(["a", 1.0]), plain(["a", 1.5]), "wrong values"),
        (plain(None), array(1.0), "nothing returned"),
        (array(1.0, 2.0), array(1.0), "wrong shape"),
        (array(1.0), array(1, dtype="int32"), "wrong dtype"),
        (array(1, dtype="int8"), array(1, dtype="int64"), ""),
        (array(1, 3, dtype="int64"), array(1, 2, dtype="int64"), "wrong values"),
        (array(1.0, dtype="complex64"), array(1.0), ""),
        (array(1.0), array(1.0, dtype="complex64"), "wrong dtype"),
        (array(1, dtype="int32"), array(1.0), "wrong dtype"),
        (array(True, dtype="bool"), array(False, dtype="bool"), "wrong values"),
        (array(True, dtype="bool"), array(1, dtype="int8"), "wrong dtype"),
        (array(2.0**-126), array(0.0), ""),  # the least that float32 holds well
        (array(2.0**-125), array(0.0), "wrong values"),
        (array(), array(), ""),
        (array(math.nan), array(math.nan), ""),
        (array(math.inf), array(math.inf), ""),
        (array(-math.inf), array(math.inf), "not finite"),
        (array(math.nan), array(1.0), "not finite"),
        (tuple_of(plain(1), array(2.0)), tuple_of(plain(1), array(2.0)), ""),
        (tuple_of(plain(1), array(2.0)), tuple_of(plain(1), array(3.0)), "wrong values"),
        (tuple_of(plain(1)), tuple_of(plain(1), plain(2)), "wrong shape"),
        (tuple_of(), tuple_of(), ""),
        (tuple_of(plain(1)), plain(1), "wrong shape"),
        ({"kind": "dict", "items": {"a": plain(1)}}, {"kind": "dict", "items": {"b": plain(1)}}, "wrong shape"),
    ],
    ids=str,
)
def test_results_of_any_kind_are_compared_item_by_item(result, expected, reason):
    verdict = compare(result, expected, lambda _, spec: spec["values"], Tolerance())
    assert (verdict.reason, verdict.passed) == (reason, not reason), verdict.message


# The largest finite values of IEEE 754 and of OCP's 8-bit floating point; what is beyond is infinite, or saturates.
LARGEST = {"float16": 65504.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float32": (2 - 2.0**-23) * 2.0**127}


@pytest.mark.parametrize(("dtype", "largest"), (LARGEST | {"bfloat16": LARGEST["float32"]}).items())
def test_on_unusual_inputs_what_is_beyond_the_type_is_not_compared(dtype, largest):
    found = array(-largest, dtype="float64") | {"dtype": dtype}
    for value, passed in ((largest, False), (np.nextafter(largest, math.inf), True)):
        expected = array(value, dtype="float64")
        assert compare(found, expected, lambda _, spec: spec["values"], Tolerance(unusual=True)).passed is passed
    pair = array(largest, 2.0, dtype="float64") | {"dtype": dtype}, array(largest, 1.0, dtype="float64")
    norm = compare(*pair, lambda _, spec: spec["values"], Tolerance(unusual=True)).relative_norm
    assert norm == pytest.approx(1 / math.hypot(largest, 1.0)), "the largest counts"


@pytest.mark.parametrize(("dtype", "off"), [("float64", 1e-9), ("float32", 1e-7), ("bfloat16", 4e-3)])
def test_a_number_of_python_is_as_exact_as_its_inputs(dtype, off):
    tolerance = Tolerance(number=number_type([dtype, "int64", "float64"]))
    for found, right in ((plain(1 + off), plain(1.0)), (plain([1 + off, 2]), plain([1.0, 2.0]))):
        verdict = compare(found, right, None, tolerance)
        assert verdict.passed is (dtype != "float64")
        assert compare(right, right, None, tolerance).passed


@pytest.mark.parametrize(
    ("wrong", "by", "edges", "relative", "passed"),
    [
        (1, 1, 0.0, None, False),  # nothing moves
        (1, 1, 10.0, None, True),  # four times 10 · 16 units of float32 of 1000: one
        (2, 1, 10.0, None, False),
        (1, 2, 10.0, None, False),
        (50, 1, 10.0, 0.05, True),
        (1, 400, 0.0, 0.05, False),
        (1, 1, 0.0, 0.0, False),
    ],
)
def test_whole_numbers_near_an_edge_may_be_off_by_one(wrong, by, edges, relative, passed):
    right = np.full(1000, 100, np.int32)
    found = right.copy()
    found[:wrong] += by
    tolerance = Tolerance(relative, number="float32", edges={"out": edges})
    assert judged(found, right, tolerance).passed is passed
    assert judged(found[:10], right[:10], replace(tolerance, relative=None)).passed is False


@pytest.mark.parametrize("kind", [np.int8, np.uint64])
def test_what_wraps_around_is_not_off_by_one(kind):
    right = np.full(1000, np.iinfo(kind).max, kind)
    found = right.copy()
    found[3] = np.iinfo(kind).min
    assert not judged(found, right, Tolerance(number="float32", edges={"out": 10.0})).passed
    assert not judged(right, found, Tolerance(number="float32", edges={"out": 10.0})).passed


def test_whole_numbers_of_python_are_exact_among_floats_but_for_a_tolerance():
    for found, right in ((plain([0.5, 1001]), plain([0.5, 1000])), (plain(1001), plain(1000))):
        assert not compare(found, right, None, Tolerance(number="bfloat16")).passed
        assert not compare(found, right, None, Tolerance(relative=0.0)).passed
        assert compare(found, right, None, Tolerance(relative=0.01)).passed
    assert compare(plain([0.5, 3.0]), plain([0.5, 3]), None, Tolerance()).passed
    assert not compare(plain([0.5]), plain([0.5, 3]), None, Tolerance()).passed


def test_a_relative_tolerance_of_nothing_allows_nothing():
    assert not judged(np.full(1, 1e-45, np.float32), np.zeros(1), Tolerance(relative=0.0)).passed


def test_long_arrays_are_compared_block_by_block_to_the_same_figures(monkeypatch):
    x = np.sort(np.abs(normal(100))) * np.float32(3)  # each block has larger values than the one before
    result = x + np.float32(1e-5)
    whole = judged(result, x.astype(float), Tolerance())
    monkeypatch.setattr(verify_result, "_BLOCK", 7)
    parts = judged(result, x.astype(float), Tolerance())
    assert parts.worst_at == whole.worst_at
    for figure in ("relative_norm", "relative_norm_limit", "worst_element_ratio"):
        assert getattr(parts, figure) == pytest.approx(getattr(whole, figure))
    rms = math.sqrt(np.mean(x.astype(float) ** 2))
    assert parts.relative_norm == pytest.approx(math.sqrt(np.mean((result - x.astype(float)) ** 2)) / rms)
    # The sizes of a pool follow an element's own: 2 x 1.5 x (1 + |r| / 0.5), and sigma is that in 17.4 units.
    pooled = judged(result, x.astype(float), Tolerance(pools={"out": Pool(1.5, 0.5, 2.0)}))
    sigma = (16 + math.sqrt(2)) * SINGLE * 3 * (1 + np.abs(x.astype(float)) / 0.5)
    assert pooled.relative_norm_limit == pytest.approx(math.sqrt(np.mean(sigma**2)) / rms)
