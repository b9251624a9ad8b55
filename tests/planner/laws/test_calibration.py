"""Files of fits: read as written, small, and refused where they are something else."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.planner.laws.calibration import (
    VERSION,
    Calibration,
    CalibrationBlock,
    correction,
    correction_name,
    correction_of,
    fit_correction,
    load_calibration,
    shipped_calibration,
    stated,
)
from pyperf_suite.planner.laws.prices import check_form

BLOCK = CalibrationBlock(
    {"rates": np.arange(3.0), "step": np.array(0.5)}, {"mape": 4.2, "sites": 7}, {"m": (1.0, 64.0)}, "a table"
)


def test_a_calibration_is_read_as_it_was_saved(tmp_path):
    saved = Calibration("H200 SXM").with_block("gemm_bf16", BLOCK)
    read = load_calibration(saved.save(tmp_path / "h200.npz"))
    assert read.gpu == "H200 SXM"
    block = read.block("gemm_bf16")
    assert block.held_out == BLOCK.held_out
    assert block.fitted_range == BLOCK.fitted_range
    assert {name: array.tolist() for name, array in block.arrays.items()} == {"rates": [0.0, 1.0, 2.0], "step": 0.5}


def test_a_calibration_that_cannot_be_kept_leaves_nothing_behind(tmp_path):
    (tmp_path / "own.npz").mkdir()
    with pytest.raises(OSError, match="it is a folder"):
        Calibration("L4").with_block("memory", BLOCK).save(tmp_path / "own.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["own.npz"]


def array_entry(header: bytes) -> bytes:
    """An array as numpy keeps it, under a header of one's own."""
    return b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n"


def pickled() -> bytes:
    """An array of Python objects."""
    np.save(kept := io.BytesIO(), np.array([{}], dtype=object))
    return kept.getvalue()


@pytest.mark.parametrize(
    ("entry", "content", "sentence"),
    [
        *(
            ("header.json", header, "is not a calibration")
            for header in (b"[]", b"{", b'{"version": 2}', b"[" * 100_000, b'{"version": 2, "gpu": 1, "blocks": 2}')
        ),
        (
            "header.json",
            json.dumps({"gpu": "L4", "version": VERSION + 1, "blocks": {}}).encode(),
            f"version {VERSION + 1}, but this pyperf-suite reads version {VERSION}",
        ),
        ("memory/rates.npy", pickled(), "is not a calibration"),
        *(
            ("memory/rates.npy", array_entry(header), "is not a calibration")
            for header in (
                b"{'descr'\x1e: '<f8', 'shape': (), }        }",  # which numpy hands to Python's tokenizer
                b"{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999999,), }",
                b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"9" * 30 + b",), }",
                b"[" * 300,
            )
        ),
    ],
)
def test_an_archive_with_another_header_or_array_is_refused_in_one_sentence(tmp_path, entry, content, sentence):
    path = Calibration("L4").with_block("memory", BLOCK).save(tmp_path / "l4.npz")
    with zipfile.ZipFile(path) as good:
        entries = {name: good.read(name) for name in good.namelist()} | {entry: content}
    with zipfile.ZipFile(path, "w") as bad:
        for name, content in entries.items():
            bad.writestr(name, content)
    with pytest.raises(UserError, match=sentence):
        load_calibration(path)


def test_what_is_no_archive_or_not_there_is_told_apart(tmp_path):
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(UserError, match="is not a calibration"):
        load_calibration(tmp_path / "text.npz")
    with pytest.raises(UserError, match="There is no calibration at"):
        load_calibration(tmp_path / "absent.npz")


def with_array(block, name, value):
    return dataclasses.replace(block, arrays={**block.arrays, name: np.asarray(value)})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("gemm_bf16.trtllm", lambda block: dataclasses.replace(block, held_out={})),
        ("gemm_bf16.trtllm", lambda block: dataclasses.replace(block, held_out={"mape": float("nan")})),
        ("gemm_bf16.trtllm", lambda block: dataclasses.replace(block, held_out={"mape": "small"})),
        ("gemm_bf16.trtllm", lambda block: dataclasses.replace(block, arrays={})),
        ("gemm_bf16.trtllm", lambda block: with_array(block, "launch_s", float("nan"))),
        ("gemm_bf16.trtllm", lambda block: with_array(block, "launch_s", [1e-6, 2e-6])),
        ("gemm_bf16.trtllm", lambda block: with_array(block, "launch_s", "soon")),
        ("gemm_bf16.trtllm", lambda block: with_array(block, "launch_s", -1e-3)),
        ("gemm_fp8.sglang", lambda block: with_array(block, "launch_s", 1e300)),
        ("gemm_bf16.trtllm", lambda block: with_array(block, "overlap", 0.0)),
    ],
)
def test_a_block_that_gives_no_time_or_error_is_refused_in_one_sentence(name, wrong):
    good = shipped_calibration("H200 SXM")
    check_form(good, "own.npz")
    with pytest.raises(UserError, match=r"^own\.npz .* make it anew with `pyperf-suite calibrate`\.$"):
        check_form(good.with_block(name, wrong(good.block(name))), "own.npz")
    with pytest.raises(UserError, match="for its laws end in KeyError"):
        check_form(Calibration("L4").with_block("gemm_bf16_here", BLOCK), "own.npz")


RANDOM = np.random.default_rng(0)
SIZES = {name: np.exp(RANDOM.uniform(np.log(64), np.log(16384), 60)) for name in ("m", "n", "k")}


def block_of(log_ratio: np.ndarray, degree: int) -> CalibrationBlock:
    arrays, limits = fit_correction(log_ratio, SIZES, degree)
    return CalibrationBlock(arrays, {}, limits)


def test_slopes_in_the_sizes_are_found_by_the_first_degree_and_none_by_a_level() -> None:
    log_ratio = 0.1 + 0.05 * np.log(SIZES["m"]) - 0.02 * np.log(SIZES["k"])
    np.testing.assert_allclose(correction(block_of(log_ratio, 1), SIZES), np.exp(log_ratio), rtol=0.01)
    np.testing.assert_allclose(correction(block_of(log_ratio, 0), SIZES), np.exp(log_ratio.mean()))


@pytest.mark.parametrize("degree", [0, 1])
def test_beyond_what_was_measured_the_factor_stays_as_at_the_edge(degree: int) -> None:
    block = block_of(0.1 * np.log(SIZES["m"]), degree)
    edge = {name: size.max() for name, size in SIZES.items()}
    beyond = {name: 1000 * size.max() for name, size in SIZES.items()}
    assert correction(block, beyond) == correction(block, edge)


def test_a_calibration_corrects_the_law_that_was_measured_and_no_other() -> None:
    calibration = Calibration("H200 SXM").with_block(correction_name("gemm_bf16"), block_of(np.full(60, np.log(2)), 0))
    assert correction_of(calibration, "gemm_bf16", SIZES)[0] == pytest.approx(2)
    assert correction_of(calibration, "gemm_fp8", SIZES)[0] == 1
    # And the error and origin stated are those of the correction.
    corrected = CalibrationBlock({}, {"mape": 3.5}, origin="run 1 on this machine")
    calibration = Calibration("H200 SXM").with_block(correction_name("gemm_bf16"), corrected)
    assert stated(calibration, "gemm_bf16", 9.0, "tables") == (3.5, "tables; corrected by run 1 on this machine")
    assert stated(calibration, "gemm_fp8", 9.0, "tables") == (9.0, "tables")


@pytest.mark.parametrize(("rows", "degree"), [(0, 1), (60, 2), (60, -1)])
def test_what_cannot_be_fitted_is_refused(rows: int, degree: int) -> None:
    with pytest.raises(ValueError, match="cannot be fitted"):
        fit_correction(np.zeros(rows), {"m": np.ones(rows)}, degree)
