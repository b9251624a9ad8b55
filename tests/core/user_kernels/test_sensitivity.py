"""How far rounding moves a result, measured on functions of which it is known."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.user_kernels import sensitivity

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def sparse() -> tuple[np.ndarray, np.ndarray]:
    """Two vectors of which the same eight values are not zero."""
    found = np.zeros((2, 1 << 16), np.float32)
    found[:, RNG.integers(0, 1 << 16, 8)] = normal(2, 8)
    return found[0], found[1]


def measured(function, *inputs, budget_s: float = 5.0):
    """Sizes and terms of the function's result."""
    wide = lambda each: each.astype(np.float64)  # noqa: E731
    return sensitivity.measure(
        lambda change: function(*[wide(change(each)) for each in inputs]),
        function(*map(wide, inputs)),
        inputs,
        budget_s,
        seed=0,
    )


@pytest.mark.parametrize(
    ("function", "inputs", "terms"),
    [
        (np.add, (normal(100_000), normal(100_000)), 2),
        (np.exp, (normal(300, 300),), 1),
        (lambda x: x.sum(-1), (normal(400, 512),), 512),
        (lambda x: x.sum(0), (normal(512, 400),), 512),
        (np.matmul, (normal(128, 256), normal(256, 128)), 512),
        (lambda x: x[:, :-1] - x[:, 1:], (normal(64, 1000),), 2),
        (np.dot, sparse(), 16),
    ],
    ids=["a sum of two", "a function of one", "rows", "columns", "a product", "differences", "few that are not zero"],
)
def test_an_element_has_as_many_terms_as_inputs_that_it_depends_on(function, inputs, terms):
    assert 0.4 < measured(function, *inputs)[1]["terms"] / terms < 2.5


def test_a_single_sum_has_at_most_as_many_terms_as_there_are_values_and_a_third_at_least():
    x = normal(1 << 14)
    assert len(x) / 3 <= measured(np.sum, x)[1]["terms"] <= len(x)


def test_the_size_of_a_dot_product_is_that_of_its_terms_however_much_cancels():
    x = normal(4096)
    y = np.concatenate([x[2048:], -x[:2048]])
    assert abs(np.dot(x.astype(float), y.astype(float))) < 1e-9
    found = float(measured(np.dot, x, y)[0]["out"])
    # Each product moves by both factors.
    assert 0.3 < found / float(np.sqrt(2 * np.sum((x * y) ** 2.0))) < 2.0


def test_two_terms_that_cancel_have_the_size_of_both_in_each_of_many_elements():
    x = np.abs(normal(20_000, 1)) * np.ones(2, np.float32)
    found = measured(lambda x: x[:, 0] - x[:, 1], x)[0]["out"] / (x[:, 0] * 2**0.5)
    assert 0.1 < found.min() < found.max() < 2.0
    assert np.sqrt(np.mean(found**2)) == pytest.approx(1.0, rel=0.02)


def test_each_element_has_its_own_size():
    x = normal(64, 256)
    x[5] *= 1000
    found = measured(lambda x: x.sum(-1), x)[0]["out"]
    assert found[5] / np.median(found) > 100


def test_a_derivative_that_vanishes_leaves_no_size():
    sizes, reported = measured(lambda x: np.full_like(x, 3.0), normal(1000))
    assert not sizes["out"].any()
    assert reported["pools"]["out"] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("function", "inputs"),
    [(np.argsort, (normal(100),)), (lambda words: words, ("abc",)), (lambda: 2.0, ()), (np.float64, (np.arange(9),))],
)
def test_what_holds_no_floating_point_values_has_no_sizes(function, inputs):
    assert sensitivity.measure(lambda change: function(*map(change, inputs)), function(*inputs), inputs) == ({}, {})


def test_results_in_containers_have_names_and_numbers_in_lists_move():
    values = [0.5, -0.25, 3.0]
    sizes, reported = sensitivity.measure(
        lambda change: {"sum": sum(change(values)), "all": (1, np.asarray(change(values)))},
        {"sum": sum(values), "all": (1, np.asarray(values))},
        [values],
        seed=0,
    )
    assert sorted(sizes) == ["out['all'][1]", "out['sum']"]
    assert reported["terms"] <= 3


def test_a_reference_that_needs_increasing_bins_is_changed_by_less():
    x, bins = RNG.random(1000), np.linspace(0, 1, 51)
    sizes, reported = measured(lambda x, bins: np.histogram(x, bins)[1], x, bins)
    assert 0 < reported["terms"] <= 1051
    assert sizes["out"] == pytest.approx(bins, rel=0.5)


def test_a_reference_that_refuses_all_other_inputs_has_no_sizes():
    weights = np.full(8, 0.125)

    def mean(values, weights):
        assert weights.sum() == 1
        return values @ weights

    assert measured(mean, normal(4, 8), weights) == ({}, {})


def test_tensors_of_16_bits_are_moved_by_more_than_they_are_rounded_by():
    torch = pytest.importorskip("torch")
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    sizes, reported = sensitivity.measure(lambda change: change(x).double().sum(-1), x.double().sum(-1), [x], seed=0)
    assert 0.5 < float(np.median(sizes["out"])) / 128**0.5 < 2
    assert 50 < reported["terms"] < 320


def test_results_whose_squares_float32_cannot_hold_have_a_size():
    x = np.full((1000, 2), [60.0, -1.0], "float32")
    sizes = measured(np.exp, x)[0]["out"].astype("float64")
    assert np.sqrt((sizes**2).mean(0)) == pytest.approx([60 * np.exp(60.0), np.exp(-1.0)], rel=0.05)


def test_an_element_that_a_move_takes_out_of_range_says_nothing_of_the_others():
    """The size of exp is x·eˣ; e^709.7827 is the largest that float64 holds."""
    x = np.concatenate([np.full(63, 2.0), [709.782]]).astype(np.float32)
    sizes, known = measured(np.exp, x, budget_s=0.0)
    assert sizes["out"][:63] == pytest.approx(2 * np.exp(2.0), rel=0.3)
    assert sizes["out"][63] == np.finfo(np.float32).max
    assert known["pools"]["out"][0] == pytest.approx(2 * np.exp(2.0), rel=0.1)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_a_reference_that_rounds_to_a_coarse_type_has_the_size_of_one_that_does_not(name):
    """A copy rounded to float8 seemed to amplify its input ten times: half as much again was right."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(normal(10_000))
    rounded = x.to(getattr(torch, name))
    sizes, _ = sensitivity.measure(lambda change: change(x).to(rounded.dtype), rounded, [x], 5.0, seed=0)
    assert np.sqrt((sizes["out"] ** 2).mean()) == pytest.approx(x.square().mean().sqrt().item(), rel=0.3)
