"""Latent attention: what it is asked, refuses and states, and how it holds against a sample of tables."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.planner import laws
from pyperf_suite.planner.laws.calibration import Band, CalibrationBlock, ResidualGrid, all_shipped, shipped_calibration
from pyperf_suite.planner.laws.latent_attention import (
    GRIDS,
    LAW,
    SummedLaw,
    latent_sizes,
    latent_work,
    mla_time,
    pack_laws,
    unpack_law,
)
from tools.fit.latent import Rows, held_out, latent_rows
from tools.fit.published import GPUS, SAMPLE, read_columns


def test_sites_left_out_are_predicted_within_the_target_and_covered():
    blocks = {
        (calibration.gpu, name): block
        for calibration in all_shipped()
        for name, block in calibration.blocks.items()
        if name.startswith(LAW)
    }
    assert len({gpu for gpu, _ in blocks}) == len(GPUS)
    for key, block in blocks.items():
        assert block.held_out["mape"] <= 12.0, key
        assert 87 <= block.held_out["coverage"] <= 93, key
        assert (np.asarray(block.arrays["coverage"]) >= 87).all(), key


@pytest.mark.parametrize("gpu", GPUS)
def test_the_sample_is_predicted_and_covered(gpu):
    columns, spec = read_columns(SAMPLE, f"{LAW}_{gpu}"), find_gpu(gpu)
    errors, covered = [], []
    for library in shipped_calibration(spec.name).libraries(LAW):
        for kind, rows in latent_rows(columns, spec, library)[0].items():
            scope = kind.split()[0].rstrip(",")
            gemm = kind.split()[2] if scope == "module" else "bf16"
            batch, length, heads = (rows.sizes[name] for name in ("batch", "length", "heads"))
            found = mla_time(spec, batch, length, length, heads, scope, gemm, library)
            errors.append(100 * np.abs(found.seconds / rows.seconds - 1))
            covered.append((found.low <= rows.seconds) & (rows.seconds <= found.high))
    assert np.concatenate(errors).mean() < 9
    assert np.concatenate(covered).mean() > 0.82


def test_a_gpu_without_tables_is_read_off_one_with_the_same_kernels_or_stated_wide():
    def width(gpu):
        found = mla_time(gpu, 4, 4096, 4096, 32)
        return float(np.log(found.high / found.low)), found

    own, _ = width("B200")
    twin, _ = width("GH200")
    similar, found = width("B300")
    other, far = width("RTX PRO 6000")
    assert found.origin.startswith("read off B200 SXM")
    assert own < twin < similar < other
    # Those three were found to take 1 / 0.63 to 1 / 0.56 of the time that B200's law says.
    for gpu in ("B300", "GB200", "GB300"):
        assert width(gpu)[1].high / width(gpu)[1].seconds > 1 / 0.56
        assert width(gpu)[1].extrapolated
    # Compute capability 12.0 has not the kernels of 10.0.
    assert far.origin.startswith("read off L40S")
    assert other > 1.5


def test_sizes_beyond_the_table_are_marked():
    found = mla_time("H100", [8, 8, 5000], [4096, 10**6, 4096], [4096, 10**6, 4096], 32)
    assert found.extrapolated.tolist() == [False, True, True]


def test_a_library_without_a_kind_leaves_it_to_the_next():
    assert mla_time("L40S", 4, 1024, 1024, 16, scope="module").library == "vllm"
    assert mla_time("L40S", 4, 1024, 1024, 16).library == "trtllm"
    assert laws.mla_time("L40S", 4, 1024, 1024, 16) > 0


def test_packed_laws_come_back_within_a_step():
    nodes = {name: np.array([1.0, 4.0, 16.0]) for names in GRIDS for name in names}

    def grids(seed):
        random = np.random.default_rng(seed)
        return tuple(
            ResidualGrid(tuple(nodes[name] for name in names), random.normal(0, 0.3, [3] * len(names)))
            for names in GRIDS
        )

    band = Band(np.array([1e-5]), np.array([-0.1]), np.array([0.2]))
    packed = {kind: SummedLaw(np.array([1.0, i]), grids(i), band) for i, kind in enumerate("ab")}
    block = CalibrationBlock(pack_laws(packed), {})
    for kind, law in packed.items():
        back = unpack_law(block, kind)
        for grid, kept in zip(law.grids, back.grids, strict=True):
            np.testing.assert_allclose(kept.values, grid.values, atol=0.0075)
        assert back.costs.tolist() == law.costs.tolist()


def test_fitting_finds_a_smooth_factor_at_sites_that_it_never_saw():
    spec, rng = find_gpu("H100"), np.random.default_rng(0)
    batch, heads, length = (
        each.ravel().astype(float) for each in np.meshgrid(2 ** np.arange(8), 2 ** np.arange(8), 2 ** np.arange(6, 14))
    )
    requested = (batch, length, length, heads)
    work, sizes = latent_work(spec, "", *requested), latent_sizes(*requested)
    factor = np.exp(0.3 * np.sin(np.log2(length) / 2) + 0.1 * np.log2(heads))
    seconds = (1e-5 + 1.2 * work["ideal"] + 2e-6 * work["blocks"]) * factor * np.exp(rng.normal(0, 0.02, batch.size))
    error, band = held_out(Rows(work, sizes, seconds, (np.log2(heads) * 32 + np.log2(length)).astype(int)), 3)
    assert error.mape < 6
    assert 85 < error.coverage < 95
    assert band.high.max() < 0.2
