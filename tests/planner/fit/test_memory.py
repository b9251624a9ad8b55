"""How fast memory is, fitted to the published tables: what is shipped comes out again, with its errors."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.planner.calibrate import error_percent
from pyperf_suite.planner.laws.calibration import shipped_calibration
from pyperf_suite.planner.laws.roofline import BLOCK, transferred_law, unpack_law
from pyperf_suite.planner.laws.transfers import (
    MEMORY_OF_OTHER_KERNELS,
    MEMORY_OF_SAME_KERNELS,
    MEMORY_PERCENT_OF_OTHER_KERNELS,
    MEMORY_PERCENT_OF_SAME_KERNELS,
)
from tools.fit.memory import fit_memory, left_out_bands, read_runs


@pytest.fixture(scope="module")
def blocks(measured_tables):
    return {gpu: blocks[BLOCK] for gpu, blocks in fit_memory(measured_tables).items()}


def test_what_is_shipped_comes_out_again_with_its_errors(blocks):
    assert blocks.keys() == {"A100 SXM", "B200 SXM", "H100 SXM", "H200 SXM", "L40S"}
    for gpu, block in blocks.items():
        shipped = shipped_calibration(gpu).block(BLOCK)
        assert shipped.arrays.keys() == block.arrays.keys()
        for name, value in block.arrays.items():
            np.testing.assert_allclose(shipped.arrays[name], value, rtol=1e-3, atol=1e-6)
        assert shipped.held_out["mape"] == pytest.approx(block.held_out["mape"], abs=0.05)
        assert shipped.fitted_range == block.fitted_range
        assert shipped.origin == block.origin
        assert block.held_out["mape"] < 21
        assert block.held_out["median"] < 16
        assert 87 <= block.held_out["coverage"] <= 93


def test_the_interval_of_a_gpu_left_out_covers_nine_of_ten(blocks, measured_tables):
    stated = {True: MEMORY_OF_SAME_KERNELS, False: MEMORY_OF_OTHER_KERNELS}
    for similar, band in left_out_bands(measured_tables, blocks).items():
        np.testing.assert_allclose(stated[similar].around(1.0, band.at)[0], np.exp(band.low), rtol=0.15)
        np.testing.assert_allclose(stated[similar].around(1.0, band.at)[1], np.exp(band.high), rtol=0.15)


def test_large_weights_are_streamed_within_a_few_percent(blocks, measured_tables):
    for name, block in blocks.items():
        gpu = find_gpu(name)
        nbytes, runs, _ = read_runs(measured_tables, gpu)
        seconds = np.nanmedian(runs, axis=0)
        large = nbytes > 64 * 2**20
        predicted = sum(unpack_law(block).parts(gpu, nbytes[large]).values())
        assert error_percent(predicted, seconds[large]).mean() < 7


def test_a_gpu_left_out_is_as_far_off_as_is_told_of_those_without_a_table(blocks, measured_tables):
    laws = {name: unpack_law(block) for name, block in blocks.items()}
    message = {MEMORY_PERCENT_OF_SAME_KERNELS: [], MEMORY_PERCENT_OF_OTHER_KERNELS: []}
    for name in laws:
        gpu = find_gpu(name)
        law = transferred_law(gpu, {other: law for other, law in laws.items() if other != name})
        nbytes, runs, _ = read_runs(measured_tables, gpu)
        seconds = np.nanmedian(runs, axis=0)
        message[law.error_percent].append(error_percent(sum(law.parts(gpu, nbytes).values()), seconds).mean())
    for said, errors in message.items():
        assert np.mean(errors) == pytest.approx(said, abs=0.1)
