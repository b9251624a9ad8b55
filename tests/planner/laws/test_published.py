"""The shipped laws against the sample of published tables in tests/data: their accuracy, in every clone."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.planner.laws.gemm import gemm_time
from pyperf_suite.planner.laws.prices import Prices
from pyperf_suite.planner.laws.training.framework import found_constants
from pyperf_suite.planner.laws.training.step import step_time
from pyperf_suite.planner.laws.transfers import sustained_slowdown
from tools.fit.gemm import GemmTable, gemm_tables
from tools.fit.published import GPUS, SAMPLE, read_columns
from tools.fit.step import MULTI_NODE, SINGLE_NODE, Remembered, read_iterations


@pytest.fixture(scope="module")
def products() -> dict[tuple[str, str, str], GemmTable]:
    """By GPU, dtype and library."""
    return {(table.gpu.slug, table.dtype, table.library): table for table in gemm_tables(SAMPLE)}


@pytest.fixture(params=GPUS)
def gpu(request):
    return find_gpu(request.param)


def percent(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    return 100 * np.abs(predicted / measured - 1)


@pytest.mark.parametrize("library", ["trtllm", "sglang", "vllm"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_products_are_predicted_within_nine_percent_on_several_nodes_and_interval(products, gpu, dtype, library):
    if (gpu.slug, dtype, library) not in products:
        pytest.skip("no such table")
    table = products[gpu.slug, dtype, library]
    price = gemm_time(gpu, table.m, table.n, table.k, dtype=dtype, library=library)
    assert table.m.size > 250
    assert percent(price.seconds, table.seconds).mean() < price.error_percent
    assert ((price.low <= table.seconds) & (table.seconds <= price.high)).mean() > 0.88
    assert not price.extrapolated.any()


def test_a_second_of_products_is_as_much_slower_as_was_measured_on_an_h200():
    gpu, columns = find_gpu("H200"), read_columns(SAMPLE, "gemm_bf16_h200_sxm")
    names = ("m", "n", "k", "trtllm_1.3.0rc20", "sglang_0.5.14", "vllm_0.22.0")
    m, n, k, one, other, long_us = (columns[name].astype(float) for name in names)
    burst_us = (one + other) / 2
    share = 2 * m * n * k / (burst_us * 1e-6) / gpu.peak("bf16")
    for low in (0.5, 0.6, 0.7):
        band = np.isfinite(long_us) & (share >= low) & (share < low + 0.1)
        assert band.sum() > 50
        measured = np.median(long_us[band] / burst_us[band])
        assert np.median(sustained_slowdown(gpu, share[band])) == pytest.approx(measured, abs=0.04)


@pytest.mark.slow
def test_iterations_of_training_are_predicted_within_nine_percent_on_several_nodes():
    found, prices = found_constants("A100 SXM"), Remembered(Prices("A100 SXM"))
    for table, every, worst in ((MULTI_NODE, 1, 9.0), (SINGLE_NODE, 10, 14.0)):
        iterations = read_iterations(SAMPLE, table)[::every]
        seconds = [
            float(step_time("A100 SXM", each.model, each.plan, found.constants, prices).seconds) for each in iterations
        ]
        assert (
            100 * np.mean(np.abs([a / each.seconds - 1 for a, each in zip(seconds, iterations, strict=True)])) < worst
        )
