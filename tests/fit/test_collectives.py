"""Curves of collectives fitted to published tables: their held-out errors, and what is inferred from few curves."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.laws.calibration import CalibrationBlock, load_calibration, shipped_path
from pyperf_suite.laws.collectives import BLOCK
from tools.fit import collectives
from tools.fit.collectives import Curve, fit_collectives, infer_logs, left_out_logs, read_curves
from tools.fit.published import SAMPLE

pytestmark = pytest.mark.slow

GPUS = ("A100 SXM", "B200 SXM", "H100 SXM", "H200 SXM")


@pytest.fixture(scope="module")
def blocks() -> dict[str, CalibrationBlock]:
    """What the published table gives."""
    return fit_collectives(SAMPLE)


def effect(curve: Curve) -> float:
    """A made-up log time that adds up from architecture, operation and ranks."""
    gpu, operation, ranks = curve
    return (
        {"A100 SXM": 0.8, "B200 SXM": 0.3}.get(gpu, 0.5)
        + collectives.OPERATIONS.index(operation) / 5
        + np.log(ranks) / 2
        - 10
    )


def test_curves_left_out_whole_are_told_within_eight_percent(blocks: dict[str, CalibrationBlock]) -> None:
    measured = read_curves(SAMPLE)
    curves = sorted(measured)
    log_s = np.log([list(measured[curve].values()) for curve in curves])
    assert np.median(np.abs(np.expm1(left_out_logs(curves, log_s)))) < 0.06
    for gpu in GPUS:
        assert float(blocks[gpu].held_out["median"]) < 8


def test_sizes_left_out_are_told_within_eight_percent_on_every_gpu(blocks: dict[str, CalibrationBlock]) -> None:
    assert all(float(block.held_out["median_of_sizes"]) < 8 for block in blocks.values())


def test_what_is_shipped_is_what_the_tables_give(blocks: dict[str, CalibrationBlock]) -> None:
    for gpu, block in blocks.items():
        shipped = load_calibration(shipped_path(gpu)).block(BLOCK)
        assert dict(shipped.held_out) == dict(block.held_out)
        for name, array in block.arrays.items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(shipped.arrays[name], array, rtol=1e-6, atol=1e-18)
            else:
                np.testing.assert_array_equal(shipped.arrays[name], array)


def test_a_gpu_left_out_is_no_further_off_than_is_stated_for_its_kind(blocks: dict[str, CalibrationBlock]) -> None:
    from pyperf_suite.laws import collectives as laws

    errors = {
        gpu: float(np.median(error)) * 100 for gpu, error in collectives.left_out_gpu_errors(blocks, SAMPLE).items()
    }
    assert max(errors["H100 SXM"], errors["H200 SXM"]) <= laws.ERROR_PERCENT_SAME_ARCHITECTURE + 0.5
    assert max(errors["A100 SXM"], errors["B200 SXM"]) <= laws.ERROR_PERCENT_OTHER_NVLINK + 0.5
    assert errors["L40S"] <= laws.ERROR_PERCENT_OTHER_LINK + 0.5


def test_a_missing_curve_is_inferred_from_what_it_shares_with_others() -> None:
    curves = [Curve(*key) for key in product(GPUS, collectives.OPERATIONS, collectives.RANKS)]
    missing = [Curve("H200 SXM", "all_gather", 8), Curve("A100 SXM", "all_reduce", 2)]
    seen = [curve for curve in curves if curve not in missing]
    inferred = infer_logs(seen, np.array([[effect(curve)] for curve in seen]), missing)
    np.testing.assert_allclose(inferred[:, 0], [effect(curve) for curve in missing], atol=0.05)


def test_leaving_a_curve_out_in_closed_form_is_inferring_it_from_the_others() -> None:
    curves = [Curve(*key) for key in product(GPUS[:2], collectives.OPERATIONS, (2, 8))]
    log_s = np.random.default_rng(3).normal(-10, 1, (len(curves), 2))
    residuals = left_out_logs(curves, log_s)
    for row in (0, 7):
        others = np.arange(len(curves)) != row
        seen = [curve for curve, kept in zip(curves, others, strict=True) if kept]
        [inferred] = infer_logs(seen, log_s[others], [curves[row]])
        np.testing.assert_allclose(residuals[row], inferred - log_s[row], atol=1e-8)


def test_a_folder_without_the_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no collectives\.parquet"):
        fit_collectives(tmp_path)
