"""Shipped calibrations were fitted by the command that anybody can run again on the published tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.planner.laws.calibration import (
    POOLED,
    Calibration,
    CalibrationBlock,
    all_shipped,
    load_calibration,
    shipped_calibration,
    shipped_path,
)
from tools.fit import __main__ as tables
from tools.fit.__main__ import FITS, main, save
from tools.fit.gemm import fit_gemm
from tools.fit.published import SAMPLE
from tools.fit.step import fit_step


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def test_a_law_fitted_again_leaves_the_others_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = CalibrationBlock({"one": np.ones(1)}, {"mape": 5.0})
    monkeypatch.setitem(FITS, "gemm", lambda folder, _: {"H100 SXM": {"gemm_bf16.vllm": block}})
    done = invoke(str(SAMPLE), "--law", "gemm", "--output", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "H100 SXM  gemm_bf16.vllm: held-out error 5.0 %" in done.output
    (written,) = map(load_calibration, tmp_path.glob("*.npz"))
    assert written.blocks.keys() == shipped_calibration("H100 SXM").blocks.keys()
    assert list(written.block("gemm_bf16.vllm").arrays) == ["one"]


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


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="name another folder with --output"):
        save({"H100 SXM": Calibration("H100 SXM")}, tmp_path / "file" / "folder")


def test_iterations_are_fitted_on_the_laws_of_kernels_just_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration = Calibration("A100 SXM")
    requested = []
    monkeypatch.setattr(
        tables, "fit_step", lambda folder, prices: requested.append(prices(find_gpu("A100"), "bf16").gpu) or {}
    )
    assert list(FITS)[-1] == "step"
    FITS["step"](tmp_path, {"A100 SXM": calibration})
    assert requested == [calibration]


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
