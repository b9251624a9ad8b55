import numpy as np
import pytest

from pyperf_suite.measure.tolerance import (
    TABLE,
    ElementLimit,
    element_limit,
    first_not_finite,
    relative_norm_limit,
)

# By IEEE 754, OCP's 8-bit floating point and DeepSeek-V3's report: bits of sums, of the stored result, least exponent.
BITS = {
    "float64": (53, 53, 1022),
    "float32": (24, 24, 126),
    "tfloat32": (24, 24, 126),
    "bfloat16": (24, 8, 126),
    "float16": (24, 11, 24),
    "float8_e4m3fn": (13, 4, 9),
    "float8_e5m2": (13, 3, 16),
    "float8_e4m3fnuz": (13, 4, 10),
    "float8_e5m2fnuz": (13, 3, 17),
    "float8_e8m0fnu": (13, 1, 127),
}


def test_each_dtype_rounds_as_its_bits_say_and_integers_not_at_all():
    for dtype, bits in BITS.items():
        precision = TABLE[dtype]
        assert (precision.accumulation, precision.rounding, precision.smallest) == tuple(2.0**-each for each in bits)
    for dtype in TABLE.keys() - BITS.keys():
        assert (TABLE[dtype].accumulation, TABLE[dtype].rounding, TABLE[dtype].smallest) == (0, 0, 0.5)


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "inner", "limit", "norm"),
    [
        # Four times the root of the terms, in units of the sums: those of float32 unless the result is wider.
        ("float32", "float32", 1, ElementLimit(4 * 2.0**-24, 2.0**-24, 2.0**-126), 5 * 2.0**-24),
        ("bfloat16", "bfloat16", 4096, ElementLimit(2.0**-16, 2.0**-8, 2.0**-126), 2.0**-16 + 2.0**-8),
        ("float64", "float32", 4, ElementLimit(2.0**-21, 2.0**-24, 2.0**-126), 2.0**-21 + 2.0**-24),
        ("float64", "float64", 4, ElementLimit(2.0**-50, 2.0**-53, 2.0**-1022), 2.0**-50 + 2.0**-53),
        ("float8_e4m3fn", "bfloat16", 64, ElementLimit(2.0**-8, 2.0**-8, 2.0**-126), 2.0**-7),
        ("int8", "int32", 1, ElementLimit(0.0, 0.0, 0.5), 2.0**-50),
        ("int8", "int32", 10**6, ElementLimit(0.0, 0.0, 0.5), 2.0**-50),  # off by one, however long the sum
    ],
)
def test_limits_are_four_times_the_root_of_the_terms_and_the_storing_once(dtype, out_dtype, inner, limit, norm):
    assert element_limit(dtype, out_dtype, inner) == limit
    assert relative_norm_limit(dtype, out_dtype, inner) == norm


def test_the_limit_of_an_element_is_of_its_terms_and_of_itself():
    limit = ElementLimit(0.5, 0.25, 8.0)
    assert limit.of(np.array([2.0, 4.0]), np.array([-4.0, 0.0])).tolist() == [10.0, 10.0]
    # Typical of standard normal operands: |A|·|B| near 2600 and ref near 64, where bfloat16 steps by 0.5.
    assert element_limit("bfloat16", "bfloat16", 4096).of(2600.0, 64.0) == pytest.approx(0.29, abs=0.01)


def test_an_unknown_dtype_and_an_empty_sum_are_refused():
    with pytest.raises(ValueError, match=r"'int7'.*bfloat16"):
        element_limit("int7", "float32", 8)
    with pytest.raises(ValueError, match="at least one term"):
        relative_norm_limit("float32", "float32", 0)


@pytest.mark.parametrize("most_elements", [1, 6, 9, 1 << 22])
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_the_first_that_is_not_finite_is_found_panel_by_panel(kind, most_elements):
    convert = (lambda values: values) if kind == "array" else pytest.importorskip("torch").from_numpy
    values = np.zeros((2, 5, 3), np.float32)
    assert first_not_finite(convert(values), most_elements) is None
    values[1, 4, 1] = np.inf
    assert first_not_finite(convert(values), most_elements) == (1, 4, 1)
    values[1, 2, 2] = np.nan
    assert first_not_finite(convert(values), most_elements) == (1, 2, 2)
