"""Shipped calibrations were fitted by the command that anybody can run again on the published tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.planner.laws.calibration import (
    POOLED,
    all_shipped,
    shipped_calibration,
    shipped_path,
)
from tools.fit.gemm import fit_gemm
from tools.fit.step import fit_step


def test_every_shipped_calibration_is_small_and_each_block_states_its_own_error_and_where_it_comes_from() -> None:
    shipped = [*all_shipped(), shipped_calibration(POOLED)]
    assert len(shipped) >= 6
    assert [each.gpu for each in shipped].count(POOLED) == 1
    assert shipped_calibration("a GPU nobody measured") is None
    for calibration in shipped:
        assert shipped_path(calibration.gpu).stat().st_size <= 600_000
        assert calibration.gpu == POOLED or find_gpu(calibration.gpu).name == calibration.gpu
        for name, block in calibration.blocks.items():
            # Runs of FSDP2 without compile were published of one model alone: nothing could be left out.
            assert name == "step.fsdp2" or 0 < block.held_out["mape"] < 32, (calibration.gpu, name)
            assert block.held_out["how"]
            assert block.origin


@pytest.mark.parametrize(
    ("fit", "sentence"),
    [
        (fit_gemm, "no gemm_"),
        (fit_step, "has no training_"),
    ],
)
def test_a_folder_without_tables_is_refused_in_a_sentence(
    tmp_path: Path, fit: Callable[[Path], object], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        fit(tmp_path)
