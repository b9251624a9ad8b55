"""`tools/validate.py` compares every row of a table with the law of its kind, or says why not."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from pyperf_suite.planner.laws.gemm import gemm_time
from tests.records import printed_lines
from tools.validate import main, validate

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


def test_charts_of_attention_are_predicted_within_fifteen_percent_and_the_interval(measured_tables):
    path = measured_tables / "kernels_2026.csv"
    if not path.exists():
        pytest.skip("no charts of kernels among the tables")
    found = {each.gpu: each for each in validate(path)}
    for gpu in ("A100 SXM", "H100 SXM"):
        assert found[gpu].mape < 10
        assert found[gpu].coverage > 85
        assert found[gpu].refused == 0
