"""The baseline probe pairs our kernel with the library's on the same product, and says the ratio as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import Shape, replace_axes
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.kernels import gemm_sm90
from pyperf_suite.probes.baseline import PROBE
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from tests import records as made_up
from tests.commands import invoke

AXES = replace(
    PROBE.axes("quick", resolve("cpu")),
    shape=(Shape(64, 64, 64), Shape(128, 64, 32)),
    dtype=("float32", "bfloat16"),
    workers=(1,),
)


def records(cases: Iterable[Case] | None = None, seconds: Any = None, **fields: Any) -> list[Record]:
    """Ours takes 2 s in float32 and 3 s in bfloat16; torch takes 1 s."""
    usual = {("native", "float32"): 2.0, ("native", "bfloat16"): 3.0}
    seconds = seconds or (lambda case: usual.get((case.implementation, case.parameters.dtype), 1.0))
    details = {"tile": "64x64x64"}
    return made_up.records(cases or PROBE.sweep(AXES), seconds, **{"processes": 1, "details": details} | fields)


def test_the_ratio_is_speed_over_speed_and_dtypes_are_compared() -> None:
    report = PROBE.findings(records())
    library, dtypes, float32 = (each.values for each in report.remarks)
    assert (library["dtype"], library["mean"].value, library["schedule_workers"]) == (
        "bfloat16",
        pytest.approx(1 / 3),
        1,
    )
    assert (float32["dtype"], float32["mean"].value, float32["products"]) == ("float32", pytest.approx(1 / 2), 2)
    assert (dtypes["dtype"], dtypes["mean"].value, "float32" in dtypes["what"]) == (
        "bfloat16",
        pytest.approx(2 / 3),
        True,
    )
    assert {round(row[-1].value, 9) for row in report.tables[0].rows} == {0.5, round(1 / 3, 9)}


def test_widths_in_steps_of_8_are_asked_of_the_kernel_that_takes_them() -> None:
    axes = replace_axes(AXES, {"tile_n": "136,144", "tile": "128x128x64", "implementation": "cuda_sm90,triton"})
    tried = {case.implementation: set() for case in PROBE.sweep(axes)}
    for case in PROBE.sweep(axes):
        tried[case.implementation].add(str(case.parameters.tile))
        if case.implementation == "cuda_sm90":
            gemm_sm90.specialise(*(getattr(case.parameters.tile, side) for side in "mnk"))
    assert tried["triton"] == {"128x128x64"}
    assert tried["cuda_sm90"] == {"128x128x64", "128x136x64", "128x144x64:c2"}
    with pytest.raises(UserError, match="tile_n=140"):
        replace_axes(AXES, {"tile_n": "140"})


def test_of_several_tiles_the_fastest_counts() -> None:
    axes = replace(AXES, shape=(Shape(64, 64, 64),), dtype=("float32",), tile=("64x64x64", "32x64x64"))
    seconds = {"64x64x64": 4.0, "32x64x64": 2.0, "None": 1.0}
    made = records(PROBE.sweep(axes), lambda case: seconds[str(case.parameters.tile)])
    (row,) = PROBE.findings(made).tables[0].rows
    assert row[-1].value == 0.5


def test_the_peak_is_the_highest_that_any_product_of_the_same_cores_saw() -> None:
    # Each product is 2 * 64**3 FLOP in 2 s; somebody else ran when the peak was measured for the second.
    peaks = {64: 2 * 64**3.0, 128: 1000.0}
    made = records(details=lambda case: {"peak_flop_per_s": peaks[case.parameters.m]})
    table = PROBE.findings(made).tables[0]
    of_peak = [heading.name for heading in table.columns].index("ours / the peak")
    assert [row[of_peak].value for row in table.rows if row[2] == "float32"] == pytest.approx([0.5, 0.5])


def test_under_a_sustained_load_watts_and_joules_for_a_tflop_are_told_and_of_a_burst_neither() -> None:
    axes = replace(AXES, mode=("burst", "sustained"), dtype=("float32",), shape=(Shape(1000, 1000, 1000),))
    taken = records(PROBE.sweep(axes), metrics={"power": made_up.metric(700.0, "W")})
    report = PROBE.findings(taken)
    loads = [each for each in report.remarks if "joules" in each.values]
    # 2 GFLOP in 1 s by torch at 700 W, in 2 s by ours.
    assert [(each.values["implementation"], each.values["joules"].value) for each in loads] == [
        ("native", pytest.approx(700e3)),
        ("torch", pytest.approx(350e3)),
    ]
    assert {each.values["watts"].value for each in loads} == {700.0}
    rows = made_up.lines(report, "Our matmul and the library's")
    assert {(row["mode"], row["J/TFLOP"] and round(row["J/TFLOP"].value)) for row in rows} == {
        ("burst", None),
        ("sustained", 700_000),
    }
    assert not [each for each in PROBE.findings(records()).remarks if "joules" in each.values]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pyperf_suite._native") is None, reason="the native extension is not built")
def test_a_run_takes_the_instruction_set_asked_for(tmp_path: Path) -> None:
    arguments = "baseline -a shape=64x64x64 -a workers=1 -a implementation=native_portable,native_avx2"
    result = invoke("run", *arguments.split(), "--results", tmp_path)
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for path in tmp_path.rglob("records.jsonl") for line in path.read_text().splitlines()]
    ours = {each["case"]["implementation"] for each in records if each["case"]["implementation"].startswith("native")}
    assert ours == {"native_portable", "native_avx2"}
    message = [each["kernel"]["details"] for each in records if each["case"]["implementation"] == "native_portable"]
    assert {each["isa"] for each in message} == {"portable"}
    assert all(each["peak_flop_per_s"] > 0 for each in message)
