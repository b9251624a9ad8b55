"""`tools/validate.py` compares every row of a table with the law of its kind, or says why not."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from pyperf_suite.errors import UserError
from pyperf_suite.planner.laws.calibration import CalibrationBlock, fit_correction, shipped_calibration
from pyperf_suite.planner.laws.gemm import gemm_time
from tests.records import printed_lines
from tools.fit.published import SAMPLE
from tools.validate import FORMATS, main, validate

SIZES = [(m, n, k) for m in (512, 4096) for n in (1024, 8192) for k in (2048, 12288)]


def written(path, header, rows):
    with path.open("w", newline="") as lines:
        csv.writer(lines).writerows([header, *rows])
    return path


def products(path, factor=1.0, extra=()):
    rows = [(*size, 1e6 * factor * float(gemm_time("H100", *size).seconds)) for size in SIZES]
    return written(path / "gemm_bf16_h100_sxm.csv", ("m", "n", "k", "latency_us"), [*rows, *extra])


def test_errors_bias_and_coverage_are_those_of_the_rows(tmp_path):
    (right,) = validate(products(tmp_path))
    assert (right.gpu, right.dtype, right.law, right.rows) == ("H100 SXM", "bf16", "GEMM", len(SIZES))
    assert (right.mape, right.bias, right.coverage) == (pytest.approx(0, abs=1e-3), pytest.approx(0, abs=1e-3), 100)
    (slow,) = validate(products(tmp_path, factor=2.0))
    assert (slow.mape, slow.median, slow.bias) == pytest.approx((50, 50, -50), abs=1e-3)
    assert slow.coverage == 0


def test_every_row_is_accounted_for(tmp_path):
    odd = [(0, 1024, 1024, 5.0), (64, 1024, 1024, ""), (64, 0, 1024, 5.0), ("word", 64, 64, 5.0)]
    (found,) = validate(products(tmp_path, extra=odd))
    assert (found.rows, found.blank, found.refused) == (len(SIZES), 1, 3)
    assert sum(found.reasons.values()) == len(found.reasons) == 3


def test_a_table_of_no_known_kind_names_the_columns_of_each(tmp_path):
    with pytest.raises(UserError) as refused:
        validate(written(tmp_path / "other.csv", ("size", "latency_us"), [(1, 2)]))
    assert all(form.law in str(refused.value) for form in FORMATS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gemm.csv", "m,n,k,latency_us\n64,64,64,1\n"),  # no GPU
        ("gemm_h100.csv", "m,n,k\n64,64,64\n"),  # no times
        ("gemm_h100.csv", "m,n,k,latency_us\n64,64\n"),  # a row that is cut off
        ("gemm_h100.csv", ""),
        ("gemm_h100.parquet", "no parquet"),
        ("gemm_h100.csv", "m,n,k,latency_us\n"),
        ("gemm_h100.csv", "m,n,k,latency_us\n64,64,64,word\n"),
    ],
)
def test_what_is_no_table_ends_in_one_sentence(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    ended = CliRunner().invoke(main, [str(tmp_path / name)])
    assert ended.exit_code == 2
    assert "Error: " in ended.output
    assert name in ended.output


def test_the_command_prints_a_row_a_library_and_the_same_as_json(tmp_path):
    path = str(products(tmp_path, extra=[(0, 1, 1, 5.0)]))
    shown = CliRunner().invoke(main, [path, "--all"])
    assert shown.exit_code == 0
    assert "H100 SXM" in shown.output
    (row,) = printed_lines(json.loads(CliRunner().invoke(main, [path, "--json"]).output), "Predicted")
    assert row["rows"] == len(SIZES)
    assert row["refused"] == 1
    assert np.isfinite(row["MAPE"])


def test_laws_of_ones_own_are_held_on_their_gpu(tmp_path):
    own = shipped_calibration("H100 SXM")
    sizes = {"m": np.array([m for m, _, _ in SIZES]), "n": np.array([n for _, n, _ in SIZES])}
    arrays, limits = fit_correction(np.full(len(SIZES), np.log(2.0)), sizes, 0)
    corrected = own.with_block("gemm_bf16_here", CalibrationBlock(arrays, {"mape": 1.0}, limits, "own run"))
    saved = corrected.save(tmp_path / "own.npz")
    path = str(products(tmp_path, factor=2.0))
    shown = CliRunner().invoke(main, [path, "--calibration", str(saved), "--json"])
    (row,) = printed_lines(json.loads(shown.output), "Predicted")
    assert row["MAPE"] == pytest.approx(0, abs=1e-6)
    assert validate(products(tmp_path, factor=2.0))[0].mape == pytest.approx(50)


def test_rows_with_a_cache_in_fp8_are_refused_and_the_others_are_compared(tmp_path):
    columns = {"batch_size": 1, "isl": 4096, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    rows = [(*columns.values(), cache, 500.0) for cache in ("bfloat16", "fp8")]
    path = written(tmp_path / "attention_bf16_h100_sxm.csv", (*columns, "kv_cache_dtype", "latency_us"), rows)
    compared, refused = validate(path)
    assert (compared.rows, compared.refused, refused.rows, refused.refused) == (1, 0, 0, 1)
    assert list(refused.reasons) == ["Attention with a cache in fp8 is not priced, only with one in 16 bits."]


def test_the_power_and_the_memory_of_a_card_are_columns(tmp_path):
    """Cards of 500 W and 2.4 TB/s (torchtitan's and torchao's): without the columns the law is far too fast."""
    with (SAMPLE / "training_cards.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    columns = [name for name in rows[0] if name not in ("power_w", "memory_gb_s")]
    path = written(tmp_path / "as_usual.csv", columns, [[row[name] for name in columns] for row in rows])
    with_them, without = (
        np.average([each.mape for each in found], weights=[each.rows for each in found])
        for found in (validate(SAMPLE / "training_cards.csv"), validate(path))
    )
    assert with_them < 10 < with_them + 6 < without


def test_charts_of_attention_are_predicted_within_fifteen_percent_and_the_interval(measured_tables):
    path = measured_tables / "kernels_2026.csv"
    if not path.exists():
        pytest.skip("no charts of kernels among the tables")
    found = {each.gpu: each for each in validate(path)}
    for gpu in ("A100 SXM", "H100 SXM"):
        assert found[gpu].mape < 10
        assert found[gpu].coverage > 85
        assert found[gpu].refused == 0
