"""Operators that only move bytes: parts that add up, rates that were measured, errors that are told."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import all_gpus, find_gpu
from pyperf_suite.laws.transformer import ModelDimensions, model_flop
from pyperf_suite.planner.laws.calibration import Calibration
from pyperf_suite.planner.laws.roofline import MEASURED, memory_bound_time, utilization
from pyperf_suite.planner.sizing.step import resized
from tools.fit.published import SAMPLE, read_columns

SIZES = np.logspace(0, 11, 200)


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.slug)
def test_more_bytes_never_take_less_time_than_the_data_sheet_allows(gpu):
    predicted = memory_bound_time(gpu, SIZES)
    assert (np.diff(predicted.seconds) >= 0).all()
    assert (predicted.seconds > SIZES / gpu.memory_bytes_per_s).all()
    # Nothing is launched in under a microsecond, and nothing takes ten.
    assert 1e-6 < predicted.seconds[0] < 1e-5
    assert sum(predicted.parts.values()) == pytest.approx(predicted.seconds, rel=1e-12)
    assert (predicted.low < predicted.high).all()


def test_nine_of_ten_published_products_of_few_rows_lie_in_the_interval():
    inside, errors = [], []
    for name in MEASURED:
        columns = read_columns(SAMPLE, f"gemm_bf16_{find_gpu(name).slug}")
        column = "sglang_0.5.10" if name == "A100 SXM" else "sglang_0.5.14"
        m, n, k, measured = (columns[each].astype(float) for each in ("m", "n", "k", column))
        few = (m >= 1) & (m <= 16) & np.isfinite(measured)
        nbytes, seconds = (2 * (m * n + n * k + m * k))[few], measured[few] * 1e-6
        predicted = memory_bound_time(name, nbytes)
        inside.append(np.mean((predicted.low <= seconds) & (seconds <= predicted.high)))
        large = nbytes > 64 * 2**20
        assert np.abs(predicted.seconds / seconds - 1)[large].mean() < 0.1
        errors.append(np.abs(predicted.seconds / seconds - 1).mean())
    assert 0.8 < np.mean(inside) < 0.99
    assert 100 * np.mean(errors) == pytest.approx(predicted.error_percent, rel=0.35)


def test_a_gpu_that_was_not_measured_and_sizes_beyond_are_marked():
    own, same, other = (memory_bound_time(gpu, 1e6) for gpu in (Calibration("H200 SXM"), "GH200", "V100"))
    assert [bool(each.extrapolated) for each in (own, same, other)] == [False, True, True]
    assert memory_bound_time("H200", [1e3, 1e6, 1e10]).extrapolated.tolist() == [True, False, True]
    with pytest.raises(UserError, match="cannot move -1 bytes"):
        memory_bound_time("H200", -1)


PALM = ModelDimensions(
    layers=118,
    hidden=18432,
    ffn=73728,
    heads=48,
    kv_heads=1,
    head_dim=256,
    vocab=256000,
    gated=True,
    tied=True,
    norms=1,
)


def test_palm_made_the_published_use_of_its_chips() -> None:
    # Chowdhery et al. 2022, appendix B: 238.3 thousand tokens/s on 6144 TPU v4 of 275 TFLOP/s, 46.2 % with attention
    # and 45.7 % without.
    assert PALM.parameters == pytest.approx(540.35e9, rel=1e-4)
    per_token = model_flop(resized(PALM, causal=False), 1, 2048) / 2048
    assert utilization(per_token * 238.3e3, 1.0, 6144, 275e12) == pytest.approx(0.462, abs=5e-4)
    assert utilization(6 * PALM.parameters * 238.3e3, 1.0, 6144, 275e12) == pytest.approx(0.457, abs=5e-4)
