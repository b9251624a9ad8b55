"""What a burst does not show: products that run on end are held down by the power cap."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.hardware.catalogue import all_gpus, find_gpu
from pyperf_suite.laws.gemm import MAMF_TFLOP_PER_S, UNCAPPED_UTILIZATION, sustained_slowdown
from tools.fit.published import read_columns

UTILIZATIONS = np.linspace(0, 1, 101)


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.slug)
def test_the_busier_a_gpu_the_more_it_is_held_down(gpu):
    slowdown = sustained_slowdown(gpu, UTILIZATIONS)
    assert (np.diff(slowdown) >= 0).all()
    assert (slowdown[UTILIZATIONS <= UNCAPPED_UTILIZATION] == 1).all()
    assert slowdown.max() < 1.25


@pytest.mark.parametrize("name", MAMF_TFLOP_PER_S)
def test_the_fastest_product_sustains_the_rate_that_was_published(name):
    gpu, (burst, sustained) = find_gpu(name), MAMF_TFLOP_PER_S[name]
    utilization = burst * 1e12 / gpu.peak("bf16")
    assert burst / sustained_slowdown(gpu, utilization) == pytest.approx(sustained)


def test_a_gpu_without_a_figure_has_that_of_its_architecture_or_none():
    h100, h200, l40s = find_gpu("H100"), find_gpu("H200"), find_gpu("L40S")
    assert (sustained_slowdown(h100, UTILIZATIONS) == sustained_slowdown(h200, UTILIZATIONS)).all()
    assert (sustained_slowdown(l40s, UTILIZATIONS) == 1).all()


def test_a_gpu_with_more_power_than_the_measured_one_is_not_held_down_by_its_cap():
    sxm, pcie = find_gpu("A100 SXM"), find_gpu("A100 PCIe 40GB")
    assert (sustained_slowdown(sxm, UTILIZATIONS) == 1).all()
    assert sustained_slowdown(pcie, UTILIZATIONS).max() > 1


@pytest.mark.parametrize(("name", "within"), [("H200", 0.04), ("B200", 0.08)])
def test_a_second_of_products_is_as_much_slower_as_was_measured(measured_tables, name, within):
    gpu, names = find_gpu(name), ("m", "n", "k", "vllm_0.22.0", "trtllm_1.3.0rc20", "sglang_0.5.14")
    columns = read_columns(measured_tables, f"gemm_bf16_{gpu.slug}")
    m, n, k, long_us, *short = (columns[name].astype(float) for name in names)
    known = np.isfinite(long_us) & np.isfinite(short).all(axis=0)
    burst_us = np.mean(short, axis=0)
    utilization = 2 * m * n * k / (burst_us * 1e-6) / gpu.peak("bf16")
    for low in (0.5, 0.6, 0.7):
        band = known & (utilization >= low) & (utilization < low + 0.1)
        assert band.sum() > 100
        measured = np.median(long_us[band] / burst_us[band])
        assert np.median(sustained_slowdown(gpu, utilization[band])) == pytest.approx(measured, abs=within)
