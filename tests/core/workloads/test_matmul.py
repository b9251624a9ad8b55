"""Products, plain and of experts: work, rounding, types that only some arithmetic has, padding, who gets which rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.record.case import Case
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.matmul import LAYOUTS, GroupedMatmulParameters, MatmulParameters
from pyperf_suite.workloads.operands import ELEMENT_TYPES, aligned_empty, not_a_number, round_to, widen
from pyperf_suite.workloads.workload import ExecutionContext
from tests.core.workloads.test_outputs import verified

CPU = resolve("cpu")


def of(dtype: str, m: int = 33, n: int = 65, k: int = 47, **changed: object) -> MatmulParameters:
    return MatmulParameters(m, n, k, Schedule("library", 1), dtype=dtype, **changed)


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), min_size=1, max_size=50))
def test_tfloat32_is_the_nearest_value_of_eleven_digits(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    rounded = widen(round_to(array, "tfloat32"), "tfloat32").astype(np.float64)
    fraction, exponent = np.frexp(array.astype(np.float64))
    # np.rint rounds ties to even, as IEEE 754 does.
    np.testing.assert_array_equal(rounded, np.ldexp(np.rint(fraction * 2.0**11), exponent - 11))


def padded(m: int, n: int, k: int, pad_to: int = 8, dtype: str = "float32", **changed: object) -> MatmulParameters:
    return of(dtype, m, n, k, pad_to=pad_to, **changed)


@pytest.mark.parametrize(("layout", "dtype"), list(zip(LAYOUTS, ["float32", "bfloat16"] * 2, strict=True)))
@pytest.mark.parametrize(
    ("shape", "operands", "slicing"),
    [
        ((33, 40, 48), ["a"], "view"),
        ((32, 41, 48), ["b"], "copy"),
        ((32, 40, 47), ["a", "b"], "none"),
        ((31, 39, 49), ["a", "b"], "copy"),
        ((1, 1, 1), ["a", "b"], "copy"),
        ((32, 40, 48), [], "none"),
    ],
    ids=str,
)
def test_a_padded_product_is_the_product_whatever_is_padded(
    shape: tuple[int, int, int], operands: list[str], slicing: str, layout: str, dtype: str
) -> None:
    launches = verified(Case("matmul", padded(*shape, dtype=dtype, layout=layout), "torch_padded"))
    assert launches.kernel.details["padded"] == operands
    assert launches.kernel.details["slice"] == slicing
    plain = verified(Case("matmul", of(dtype, *shape, layout=layout), "torch"))
    assert not {"multiplied", "padded", "slice"} & {*plain.kernel.details}
    launches.poison()
    assert np.isnan(widen(launches.outputs(0)["c"], dtype)).all()


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


GROUPED = find_workload("grouped_matmul")


def grouped(**changed: object) -> GroupedMatmulParameters:
    return GroupedMatmulParameters(**({"experts": 4, "rows": 70, "n": 24, "k": 16, "dtype": "float32"} | changed))


@pytest.mark.parametrize("skew", [0.0, 0.3, 1.0, 8.0])
@pytest.mark.parametrize(("experts", "rows"), [(1, 7), (4, 70), (8, 5), (64, 4096)])
def test_every_row_has_one_expert_and_none_has_fewer_than_a_later_one(experts, rows, skew):
    found = grouped(experts=experts, rows=rows, skew=skew).rows_of_experts
    assert (len(found), sum(found)) == (experts, rows)
    assert list(found) == sorted(found, reverse=True)
    if skew == 0:
        assert max(found) - min(found) <= 1


@pytest.mark.parametrize("way", ["loop", "padded", "grouped_mm"])
def test_one_wrong_element_and_a_launch_that_did_nothing_are_seen(way):
    launches = GROUPED.prepare(grouped(skew=1.0), way, ExecutionContext(CPU, sets=2))
    assert launches.check().passed
    kept = launches.snapshot(0)
    assert launches.matches(0, kept)
    (written,) = launches._bound[0].written()
    written.view(-1)[0] = 1e3
    assert not launches.matches(0, kept)
    verdict = launches.verify_last(0)
    assert not verdict.passed
    assert verdict.worst_at == (0, 0)
    assert "expert 0" in verdict.message
    launches.poison(0)
    assert not launches.verify_last(0).passed
