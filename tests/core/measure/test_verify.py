from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.measure import verify
from pyperf_suite.measure.verify import Verification, verify_product
from pyperf_suite.workloads.operands import round_to, widen


def operands(m: int, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A, B, A·B) in float32, standard normal."""
    generator = np.random.default_rng(seed)
    a = generator.standard_normal((m, k), dtype=np.float32)
    b = generator.standard_normal((k, n), dtype=np.float32)
    return a, b, a @ b


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round to the nearest bfloat16, kept as float32."""
    return widen(round_to(np.ascontiguousarray(values, np.float32), "bfloat16"), "bfloat16")


@pytest.fixture(scope="module")
def large() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return operands(4096, 4096, 4096)


@pytest.fixture(scope="module")
def small() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return operands(160, 208, 96)


# The place in a product of 160 x 208, and what stands there instead.
FAULTS: dict[str, tuple[Any, Callable[[np.ndarray], Any]]] = {
    "element": (np.s_[83, 69], lambda old: old + 3.0),
    "rows swapped": (np.s_[[70, 71]], lambda old: old[::-1]),
    "columns swapped": (np.s_[:, [64, 65]], lambda old: old[:, ::-1]),
    "row not written": (np.s_[77], np.zeros_like),
    "column not written": (np.s_[:, 77], np.zeros_like),
    "tile not written": (np.s_[64:80, 48:64], np.zeros_like),
    "tile doubled": (np.s_[32:48, 96:112], lambda old: 2 * old),
    "edge of a tile wrong": (np.s_[63, 16:32], lambda old: old + 0.5),
    "last column shifted": (np.s_[:, -2:], lambda old: old[:, [0, 0]]),
    "not a number": (np.s_[99, 101], lambda old: np.nan),
    "infinite": (np.s_[99, 101], lambda old: -np.inf),
}
BUDGETS = {"full": 2e10, "sampled": 1e6}


def wrong(out: np.ndarray, fault: str) -> np.ndarray:
    place, change = FAULTS[fault]
    copy = out.copy()
    copy[place] = change(out[place])
    return copy


class Remembered:
    """Keeps what is computed once, and counts it; what `keep` is given."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.computed = 0

    def __call__(self, name: str, compute: Callable[[], Any]) -> Any:
        if name not in self.values:
            self.computed += 1
            self.values[name] = compute()
        return self.values[name]


def assert_found(verification: Verification, wrong_out: np.ndarray, right: np.ndarray) -> None:
    """It failed, and the element it names is one of those that were made wrong."""
    assert not verification.passed
    assert verification.worst_element_ratio > 1
    assert wrong_out[verification.worst_at] != right[verification.worst_at]
    row, column = verification.worst_at
    assert f"out[{row}, {column}]" in verification.message


@pytest.mark.parametrize(("method", "seed"), [("full", 0), *(("sampled", seed) for seed in range(5))])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_in_full_and_by_samples_whatever_the_seed(small, fault, method, seed):
    a, b, out = small
    faulty = wrong(out, fault)
    found = verify_product(faulty, a, b, "float32", "float32", flop_budget=BUDGETS[method], seed=seed)
    assert found.method == method
    assert_found(found, faulty, out)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_tensors_are_judged_on_their_device_as_arrays_are_on_the_host(small, fault, dtype):
    torch = pytest.importorskip("torch")
    a, b, out = small if dtype == "float32" else (to_bfloat16(each) for each in small)
    out = to_bfloat16(a @ b) if dtype == "bfloat16" else out
    faulty = wrong(out, fault) if fault else out
    tensors = [torch.from_numpy(each).to(getattr(torch, dtype)) for each in (faulty, a, np.ascontiguousarray(b.T))]
    on_host = verify_product(faulty, a, b, dtype, dtype)
    on_device = verify_product(tensors[0], tensors[1], tensors[2].t(), dtype, dtype, flop_budget=1.0)
    assert on_device.passed == on_host.passed == (fault is None)
    assert (on_device.method, on_device.worst_at) == ("full", on_host.worst_at)
    assert on_device.worst_element_ratio == pytest.approx(on_host.worst_element_ratio, rel=1e-4)
    assert on_device.relative_norm == pytest.approx(on_host.relative_norm, rel=1e-6)


def test_tensors_larger_than_a_block_are_compared_block_by_block(small, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(verify, "_DEVICE_ELEMENTS", 10_000)
    a, b, out = small
    faulty = out.copy()
    faulty[131, 157] += 1.0
    found = verify_product(*map(torch.from_numpy, (faulty, a, b)), "float32", "float32")
    assert found.worst_at == (131, 157)
    assert verify_product(*map(torch.from_numpy, small[::-1][:1] + small[:2]), "float32", "float32").passed


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [None, "element", "rows swapped", "columns swapped", "tile not written", "not a number", "transposed"]
)
def test_a_large_product_passes_with_its_norm_over_all_elements_and_a_fault_in_it_is_found(large, fault):
    a, b, out = large
    faulty = out.T if fault == "transposed" else wrong(out, fault) if fault else out
    verdict = verify_product(faulty, a, b, "float32", "float32")
    assert verdict.method == "sampled"
    if fault is None:
        assert verdict.passed
        assert 1e-8 < verdict.relative_norm < 2e-6
        return
    assert_found(verdict, faulty, out)
    assert fault != "transposed" or verdict.relative_norm == pytest.approx(np.sqrt(2), rel=0.01)


@pytest.mark.parametrize("fault", ["element", "rows swapped", "column not written", "tile not written", "tile doubled"])
@pytest.mark.parametrize("flop_budget", [2e10, 1e6])
def test_a_fault_is_found_under_the_rounding_of_bfloat16(fault, flop_budget):
    a, b, _ = operands(160, 208, 96)
    a, b = to_bfloat16(a), to_bfloat16(b)
    out = to_bfloat16(a @ b)
    assert verify_product(out, a, b, "bfloat16", "bfloat16", flop_budget).passed
    faulty = wrong(out, fault)
    assert_found(verify_product(faulty, a, b, "bfloat16", "bfloat16", flop_budget), faulty, out)


@pytest.mark.parametrize("flop_budget", [2e10, 1e4])
def test_a_single_element_is_found_from_a_few_times_its_limit_on(small, flop_budget):
    a, b, out = small
    faulty = out.copy()
    # The limit is 4·√96·2⁻²⁴ of |A|·|B|, near 61 here: 1.4e-4.
    faulty[31, 57] += 5e-4
    found = verify_product(faulty, a, b, "float32", "float32", flop_budget)
    assert not found.passed
    assert found.worst_at == (31, 57)


@pytest.mark.parametrize(
    "product",
    [lambda a, b: a[:, :-1] @ b[:-1], lambda a, b: to_bfloat16(a) @ to_bfloat16(b)],
    ids=["a term lost from every sum", "operands rounded"],
)
def test_what_is_wrong_everywhere_by_a_little_fails(small, product):
    a, b, _ = small
    assert not verify_product(product(a, b), a, b, "float32", "float32").passed


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.booleans(), st.integers(0, 2**31))
def test_correct_products_of_any_shape_and_strides_pass(m, n, k, in_full, seed):
    a, b, out = operands(m, n, k, seed)
    budget = 2e10 if in_full else 1.0
    padded = np.full((m, 2 * n), np.nan, dtype=np.float32)
    padded[:, ::2] = out
    strided_b = np.ascontiguousarray(b.T).T
    found = verify_product(padded[:, ::2], a, strided_b, "float32", "float32", budget, seed)
    assert found.passed, found.message
    assert found.method == ("full" if in_full else "sampled")


def test_thin_correct_products_pass_whatever_the_weights_of_the_check():
    # The sum of a row with random weights can come near zero while its elements and their rounding do not.
    for seed in range(400):
        a, b, out = operands(1, 30, 1, seed)
        found = verify_product(out, a, b, "float32", "float32", 1.0, seed)
        assert found.passed, (seed, found.message)


def test_zeros_times_zeros_are_zeros_and_nothing_else():
    zeros = np.zeros((8, 8), dtype=np.float32)
    assert verify_product(zeros, zeros, zeros, "float32", "float32").passed
    out = zeros.copy()
    out[2, 3] = 1e-30
    assert not verify_product(out, zeros, zeros, "float32", "float32").passed


def test_float64_is_held_to_float64():
    a, b, _ = (array.astype(np.float64) for array in operands(50, 60, 70))
    assert verify_product(a @ b, a, b, "float64", "float64").passed
    single = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)
    assert not verify_product(single, a, b, "float64", "float64").passed


def test_operands_that_are_not_finite_are_refused(small):
    a, b, out = small
    with pytest.raises(ValueError, match="operand b holds a NaN"):
        verify_product(out, a, np.where(b > 2, np.nan, b), "float32", "float32")


@pytest.fixture(scope="module")
def integers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A, B, A·B) of int8 as float32, and their product as float64."""
    generator = np.random.default_rng(0)
    a = generator.integers(-127, 128, (160, 96)).astype(np.float32)
    b = generator.integers(-127, 128, (96, 208)).astype(np.float32)
    return a, b, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("at", [(0, 0), (77, 101), (159, 207)])
@pytest.mark.parametrize("method", BUDGETS)
def test_a_product_of_integers_passes_and_one_that_is_off_by_one_is_found_wherever_it_stands(integers, method, at):
    a, b, out = integers
    right = verify_product(out, a, b, "int8", "int32", flop_budget=BUDGETS[method])
    assert right.passed, right.message
    faulty = out.copy()
    faulty[at] += 1
    found = verify_product(faulty, a, b, "int8", "int32", flop_budget=BUDGETS[method])
    assert_found(found, faulty, out)
    assert (found.method, found.worst_at) == (method, at)


def test_integers_summed_in_float32_are_found_where_sums_outgrow_its_digits():
    a, b = np.full((4, 4096), 127, np.float32), np.full((4096, 4), 127, np.float32)
    a[:, 0] = 1  # the sum is odd, and float32 has no odd integers of that size
    exact = a.astype(np.float64) @ b.astype(np.float64)
    rounded = exact.astype(np.float32).astype(np.float64)
    assert verify_product(exact, a, b, "int8", "int32").passed
    assert not verify_product(rounded, a, b, "int8", "int32").passed


def test_errors_add_up_to_a_norm_and_one_at_its_limit_is_no_fault():
    errors = verify.ElementComparison("c")
    assert (errors.norm, errors.faults(0.0)) == (0.0, [])
    out, reference, limit = np.array([[1.5, 4.0]]), np.array([[1.0, 4.0]]), np.array([[0.5, 1.0]])
    assert errors.compare(out, reference, limit, lambda row, column: (row + 7, column)).tolist() == [[0.5, 0.0]]
    assert (errors.worst_ratio, errors.worst_at, errors.norm) == (1.0, (7, 0), 0.5 / np.sqrt(17))
    assert errors.faults(errors.norm) == []
    [fault] = errors.faults(0.1)
    assert fault == "the relative norm of the error of c is 0.12 where 0.1 is allowed"
    errors.compare(out + 0.25, reference, limit, lambda row, column: (row, column))
    assert errors.faults(1.0) == ["c[0, 0] is 1.75 where 1 ± 0.5 is right"]


@pytest.mark.parametrize("cancels", [False, True])
def test_what_is_large_for_its_row_is_looked_at_and_not_what_is_large(monkeypatch, cancels):
    monkeypatch.setattr(verify, "_SAMPLED_LINES", 0)
    monkeypatch.setattr(verify, "_NOMINATIONS", 1)
    a, b, _ = operands(32, 64, 16)
    # One row's rounding is larger than the fault, and within its limit, which the sizes of its terms make.
    if cancels:
        b[1] = 1.1 * b[0]
        a[7, :2] = 1.1e5, -1e5
    else:
        a[7] *= 1e6
    out = a @ b
    out[5, 40] += 1e-3
    found = verify_product(out, a, b, "float32", "float32", 1.0)
    assert (found.passed, found.worst_at) == (False, (5, 40))
