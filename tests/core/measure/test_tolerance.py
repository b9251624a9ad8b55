from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.measure.tolerance import TABLE, element_limit, relative_norm_limit

dtypes = st.sampled_from(sorted(TABLE))


@pytest.mark.parametrize(
    ("dtype", "digits"), [("float64", np.float64), ("float32", np.float32), ("float16", np.float16)]
)
def test_rounding_is_the_unit_roundoff_of_the_dtype(dtype, digits):
    assert TABLE[dtype].rounding == float(np.finfo(digits).eps) / 2


@given(dtypes, dtypes, st.integers(1, 10**6))
def test_every_pair_of_dtypes_has_limits_between_rounding_and_nonsense(dtype, out_dtype, inner):
    norm = relative_norm_limit(dtype, out_dtype, inner)
    assert TABLE[out_dtype].rounding < norm < 1
    assert element_limit(dtype, out_dtype, inner).accumulation >= TABLE[dtype].accumulation


@given(dtypes.filter(lambda dtype: not dtype.startswith("int")), dtypes, st.integers(1, 10**6))
def test_longer_sums_of_what_is_rounded_may_err_more(dtype, out_dtype, inner):
    shorter, longer = element_limit(dtype, out_dtype, inner), element_limit(dtype, out_dtype, 2 * inner)
    assert shorter.accumulation < longer.accumulation


def test_the_limit_of_short_sums_is_above_the_certain_bound():
    for inner in range(1, 16):
        assert element_limit("float32", "float32", inner).accumulation >= inner * 2.0**-24


def test_a_result_in_bfloat16_is_not_excused_by_the_size_of_what_cancelled():
    limit = element_limit("bfloat16", "bfloat16", 4096)
    # Typical of standard normal operands: |A|·|B| near 2600 and ref near 64, where bfloat16 steps by 0.5.
    assert float(limit.of(np.array(2600.0), np.array(64.0))) < 0.5


@pytest.mark.parametrize("inner", [1, 4096, 10**6])
def test_integers_may_not_differ_by_one_however_long_the_sum(inner):
    limit = element_limit("int8", "int32", inner)
    assert 0 < float(limit.of(np.array(1e9), np.array(1e9))) < 1
    assert relative_norm_limit("int8", "int32", inner) < 1e-14


def test_an_unknown_dtype_and_an_empty_sum_are_refused():
    with pytest.raises(ValueError, match=r"'int7'.*bfloat16"):
        element_limit("int7", "float32", 8)
    with pytest.raises(ValueError, match="at least one term"):
        relative_norm_limit("float32", "float32", 0)
