"""Every implementation of the product is right on shapes that break things, and wrong ones are caught."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.matmul.matmul import Matmul
from pyperf_suite.workloads.operands import ELEMENT_TYPES, aligned_empty, not_a_number, round_to, widen


def test_work_counts_a_multiply_and_an_add_for_each_term_and_each_operand_once() -> None:
    work = Matmul().work(MatmulParameters(3, 5, 7, Schedule("library", 1), dtype="bfloat16", out_dtype="float32"))
    assert work.flop == 2 * 3 * 5 * 7
    assert work.bytes == 2 * (3 * 7 + 7 * 5) + 4 * 3 * 5


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "largest"), [("bfloat16", np.inf), ("float16", 65504.0), ("float8_e4m3fn", 448.0)])
@given(data=st.data())
def test_rounding_is_to_nearest_even_as_torch_does_it(dtype: str, largest: float, data: st.DataObject) -> None:
    torch = pytest.importorskip("torch")
    # Beyond the largest value torch and hardware differ between saturating and NaN, so that is left out.
    finite = st.floats(-largest, largest, width=32) if np.isfinite(largest) else st.floats(width=32)
    array = np.array(data.draw(st.lists(finite, min_size=1, max_size=50)), dtype=np.float32)
    ours = widen(round_to(array, dtype), dtype)
    theirs = torch.from_numpy(array).to(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
def test_poison_is_not_a_number_and_of_integers_the_least_there_is(dtype: str) -> None:
    array = aligned_empty((3, 5), dtype)
    array.fill(not_a_number(dtype))
    values = widen(array, dtype)
    assert (values == np.iinfo(dtype).min).all() if dtype.startswith("int") else np.isnan(values).all()
    assert array.ctypes.data % 64 == 0
