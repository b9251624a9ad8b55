"""Cost of rows that start off 16 and 32 bytes, against the cliffs that were published."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.planner.laws.alignment import (
    ALIGNED_BYTES,
    ON_ADA,
    ON_HOPPER,
    aligned_bytes,
    alignment_penalty,
    cliffs_of,
)

ROOT = Path(__file__).resolve().parents[3]
H100, ADA = find_gpu("H100"), find_gpu("RTX 4090")
DIMENSIONS = st.integers(1, 1 << 20)
LAYOUTS = st.sampled_from(("TN", "NN", "NT", "TT"))
both_families = pytest.mark.parametrize("gpu", [H100, ADA], ids=str)


@both_families
@given(m=DIMENSIONS, n=DIMENSIONS, k=DIMENSIONS, layout=LAYOUTS, dtype=st.sampled_from(("fp32", "tf32", "bf16", "fp8")))
def test_a_factor_is_at_least_one_and_within_its_range_and_multiples_of_32_cost_nothing(gpu, m, n, k, layout, dtype):
    factor, low, high = alignment_penalty(gpu, m, n, k, dtype, layout)
    assert 1 <= low <= factor <= high
    assert alignment_penalty(gpu, 32 * m, 32 * n, 32 * k, dtype, layout) == (1, 1, 1)


def test_a_dimension_that_lies_side_by_side_nowhere_does_not_count():
    odd, even = 4097, 4096
    assert alignment_penalty(H100, odd, even, even, layout="TN")[0] == 1
    assert alignment_penalty(H100, even, even, odd, layout="NT")[0] == 1
    assert alignment_penalty(H100, odd, even, even, layout="NT")[0] > 1
    assert alignment_penalty(H100, even, even, odd, layout="TN")[0] > 1
    assert all(alignment_penalty(H100, even, odd, even, layout=layout)[0] > 1 for layout in ("TN", "NN", "NT", "TT"))


def test_bytes_of_the_worst_row_are_counted_in_the_dtype():
    assert aligned_bytes(1, 4096, [4095, 4094, 4092, 4088, 4080], "bf16").tolist() == [2, 4, 8, 16, ALIGNED_BYTES]
    assert aligned_bytes(1, 4095, 4096, "fp32") == 4
    assert aligned_bytes(1, 4094, 4088, "fp8") == 2


def test_what_only_takes_whole_16_bytes_is_priced_as_padded():
    assert alignment_penalty(H100, 4097, 1001, 4096, "fp8") == (pytest.approx(1008 / 1001),) * 3


@pytest.mark.parametrize(
    ("name", "cliffs"), [("B200", ON_HOPPER), ("A100", ON_ADA), ("RTX 5090", ON_ADA), ("MI300X", ON_ADA)]
)
def test_gpus_without_cliffs_of_their_own_take_those_of_their_instructions(name, cliffs):
    assert cliffs_of(find_gpu(name)) is cliffs


def published(folder):
    """TFLOP/s by source's first word and size, from the table of published cliffs."""
    rates: dict[str, dict[int, float]] = {"H100": {}, "RTX4090": {}}
    with (folder / "alignment_cliffs.csv").open(encoding="utf-8") as table:
        for row in csv.DictReader(table):
            if row["dim"] != "head_dim":
                rates[row["gpu"]][int(row["value"])] = float(row["tflops"])
    return rates


def test_hoppers_cliff_is_the_one_that_was_published(measured_tables):
    rates = published(measured_tables)["H100"]
    aligned = [rate for size, rate in rates.items() if size % ALIGNED_BYTES == 0]
    measured = [function(aligned) / rates[10922] for function in (np.median, min, max)]
    assert measured == pytest.approx(ON_HOPPER[4], abs=0.01)
    assert max(aligned) / min(aligned) < 1.01


def test_hoppers_rows_of_16_bytes_cost_no_more_than_was_measured_on_silicon():
    """Four sizes of cuBLAS on an H200 against the next multiple of 128, by clock cycles, in a run that is kept here."""
    cycles = {}
    (journal,) = ROOT.glob("bench_results/*h200*/20261126T060756Z-19ae/records.jsonl")
    for line in journal.read_text("utf-8").splitlines():
        record = json.loads(line)
        sizes = record["case"]["parameters"]
        if record["case"]["implementation"] == "cublas" and (sizes["m"], sizes["k"]) == (1536, 2048):
            metrics = record["metrics"]
            cycles[sizes["n"]] = metrics["time"]["value"] * metrics["sm_clock"]["value"]
    ratios = [cycles[n] / cycles[n - 8] for n in (1416, 1544, 2696, 2824)]
    assert max(ratios) == pytest.approx(ON_HOPPER[16][2], abs=0.005)
    assert min(ratios) < ON_HOPPER[16][0]


def test_adas_cliffs_are_those_published_without_what_tiles_explain(measured_tables):
    rates = published(measured_tables)["RTX4090"]
    raw = {size: rates[2040] / rate for size, rate in rates.items()}
    tiles = {size: (size / (-(-size // 128) * 128)) ** 2 for size in rates}
    factors = {size: raw[size] * tiles[size] / tiles[2040] for size in rates}
    for at_bytes, sizes in ((2, [size for size in rates if size % 2]), (16, [2040, 2056, 2072])):
        factor, _, high = ON_ADA[at_bytes]
        assert np.exp(np.mean([np.log(factors[size]) for size in sizes])) == pytest.approx(factor, abs=0.005)
        assert max(raw[size] for size in sizes) == pytest.approx(high, abs=0.01)
