"""The baseline probe pairs our kernel with the library's on the same product, and says the ratio as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.findings.axes import Shape
from pyperf_suite.hardware.devices import resolve
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
