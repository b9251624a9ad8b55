"""Operators that only move bytes: parts that add up, rates that were measured, errors that are told."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import all_gpus, find_gpu
from pyperf_suite.laws.transformer import ModelDimensions, model_flop
from pyperf_suite.planner.laws.calibration import Calibration, CalibrationBlock
from pyperf_suite.planner.laws.roofline import MemoryLaw, memory_bound_time, transferred_law, utilization
from pyperf_suite.planner.sizing.step import resized

SIZES = np.logspace(0, 11, 200)
LAW = MemoryLaw(2e-6, 0.5, 2.0, (1e4, 1e9), 10.0, "made up")
CALIBRATION = Calibration(
    "L40S",
    {
        "memory": CalibrationBlock(
            {"launch_s": np.array(2e-6), "memory_share": np.array(0.5), "cache_share": np.array(2.0)},
            {"mape": 10.0},
            {"nbytes": (1e4, 1e9)},
            "made up",
        )
    },
)


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.slug)
def test_more_bytes_never_take_less_time_than_the_data_sheet_allows(gpu):
    seconds = memory_bound_time(gpu, SIZES).seconds
    assert (np.diff(seconds) >= 0).all()
    beyond_cache = gpu.l2_bytes < SIZES
    assert (seconds[beyond_cache] > SIZES[beyond_cache] / gpu.memory_bytes_per_s).all()
    # Nothing is launched in under a microsecond, and nothing takes ten.
    assert 1e-6 < seconds[0] < 1e-5


@pytest.mark.parametrize("gpu", ["H200", find_gpu("L40S"), CALIBRATION], ids=["name", "spec", "calibration"])
def test_the_causes_add_up_to_the_time_whatever_the_gpu_is_named_by(gpu):
    explained = memory_bound_time(gpu, SIZES)
    assert explained.parts.keys() == {"ideal", "bandwidth", "cache", "launch"}
    assert sum(explained.parts.values()) == pytest.approx(explained.seconds, rel=1e-12)
    assert explained.error_percent is not None
    assert explained.origin
    if gpu is CALIBRATION:  # without a band no interval is known
        assert explained.low is None
    else:
        assert (explained.low < explained.seconds).all()
        assert (explained.high >= 0.999 * explained.seconds).all()


def test_a_calibration_is_obeyed():
    gpu = find_gpu("L40S")
    large, small = memory_bound_time(CALIBRATION, [1e9, 1e6]).seconds
    assert large == pytest.approx(2e-6 + 1e9 / (0.5 * gpu.memory_bytes_per_s))
    assert small == pytest.approx(2e-6 + 1e6 / (2.0 * gpu.memory_bytes_per_s))


def test_sizes_beyond_those_fitted_are_marked():
    explained = memory_bound_time(CALIBRATION, [1e3, 1e6, 1e10])
    assert explained.extrapolated.tolist() == [True, False, True]


def test_a_gpu_that_was_not_measured_is_read_off_the_most_alike_and_another_architecture_less_surely():
    known = dict.fromkeys(("H200 SXM", "A100 SXM", "L40S"), LAW)
    law = transferred_law(find_gpu("A40"), known)
    assert law.transferred
    assert law.origin.startswith("read off L40S,")
    assert memory_bound_time("GH200", 1e6).extrapolated
    with pytest.raises(UserError, match="calibrate one"):
        transferred_law(find_gpu("A40"), {})
    same, other = (transferred_law(find_gpu(gpu), {"H200 SXM": LAW}) for gpu in ("H100", "V100"))
    assert other.error_percent > same.error_percent


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


def test_a_utilization_of_nothing_is_refused_in_one_sentence() -> None:
    for wrong in ((0.0, 1, 1e12), (1.0, 0, 1e12), (1.0, 1, 0.0), (float("nan"), 1, 1e12)):
        with pytest.raises(UserError, match="have to be above 0"):
            utilization(1e12, *wrong)
