"""The baseline probe pairs our kernel with the library's on the same product, and says the ratio as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.probes.baseline import HOPPER_TILES, PROBE
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.spec.axes import Shape
from pyperf_suite.spec.findings import Findings
from pyperf_suite.workloads import find_workload

AXES = replace(
    PROBE.axes("quick", resolve("cpu")),
    shape=(Shape(64, 64, 64), Shape(128, 64, 32)),
    dtype=("float32", "bfloat16"),
    workers=(1,),
)


def a_record(case: Case, seconds: float) -> Record:
    work = find_workload(case.operator).work(case.parameters)
    return Record(
        run_id="made-up",
        kind="timing",
        case=case.to_json(),
        case_id=case.case_id,
        process=0,
        position=0,
        started_at="",
        outcome="ok",
        metrics={"time": Metric("s", seconds, seconds, seconds, seconds, seconds, [seconds])},
        work={"flop": work.flop, "bytes": work.bytes},
        kernel={"details": {"tile": "64x64x64"}},
        quality={"converged": True},
    )


def records() -> list[Record]:
    """Ours takes 2 s in float32 and 3 s in bfloat16; torch takes 1 s."""
    seconds = {("native", "float32"): 2.0, ("native", "bfloat16"): 3.0}
    return [
        a_record(case, seconds.get((case.implementation, case.parameters.dtype), 1.0))
        for case in list(PROBE.sweep(AXES))
    ]


def test_every_product_stands_beside_the_librarys() -> None:
    cases = list(PROBE.sweep(AXES))
    assert len(cases) == 8
    ours, theirs = (
        {replace(case.parameters, schedule=None) for case in cases if case.implementation == name}
        for name in ("native", "torch")
    )
    assert ours == theirs


def test_the_ratio_is_speed_over_speed_and_dtypes_are_compared() -> None:
    found = PROBE.findings(records())
    library, dtypes, other = (each.values for each in found.remarks)
    assert (library["dtype"], library["mean"].value, library["workers"]) == ("bfloat16", pytest.approx(1 / 3), 1)
    assert (other["dtype"], other["mean"].value, other["products"]) == ("float32", pytest.approx(1 / 2), 2)
    assert (dtypes["dtype"], dtypes["mean"].value, "float32" in dtypes["what"]) == (
        "bfloat16",
        pytest.approx(2 / 3),
        True,
    )
    assert {round(row[-1].value, 9) for row in found.tables[0].rows} == {0.5, round(1 / 3, 9)}


def test_a_mean_has_an_interval_over_processes_and_the_bounds_of_its_products() -> None:
    made = []
    for case in PROBE.sweep(AXES):
        seconds = 2.0 if case.implementation == "native" else 1.0
        for process in range(3):
            slow = 1.25 if case.implementation == "native" and process == 2 else 1.0
            larger = 1.5 if case.implementation == "native" and case.parameters.m == 128 else 1.0
            made.append(replace(a_record(case, seconds * slow * larger), process=process))
    values = PROBE.findings(made).remarks[0].values
    assert (values["mean"].processes, values["mean"].low < values["mean"].value < 0.5) == (3, True)
    assert (values["least"].value, values["most"].value) == (pytest.approx(1 / 3), 0.5)


def test_a_tile_for_a_cluster_is_asked_of_kernels_that_launch_clusters_alone() -> None:
    axes = replace(
        AXES,
        shape=(Shape(512, 512, 64),),
        dtype=("bfloat16",),
        tile=HOPPER_TILES,
        implementation=("cuda_sm90", "triton"),
    )
    cases = list(PROBE.sweep(axes))
    asked = {
        name: [str(case.parameters.tile) for case in cases if case.implementation == name]
        for name in axes.implementation
    }
    assert asked == {"cuda_sm90": list(HOPPER_TILES), "triton": ["128x256x64", "128x128x64"]}


def test_of_several_tiles_the_fastest_counts() -> None:
    axes = replace(AXES, shape=(Shape(64, 64, 64),), dtype=("float32",), tile=("64x64x64", "32x64x64"))
    seconds = {"64x64x64": 4.0, "32x64x64": 2.0, "None": 1.0}
    made = [a_record(case, seconds[str(case.parameters.tile)]) for case in list(PROBE.sweep(axes))]
    (row,) = PROBE.findings(made).tables[0].rows
    assert row[-1].value == 0.5


def test_sustained_speed_is_compared_with_sustained_speed() -> None:
    axes = replace(AXES, shape=(Shape(64, 64, 64),), dtype=("float32",), mode=("burst", "sustained"))
    seconds = {
        ("native", "burst"): 2.0,
        ("torch", "burst"): 1.0,
        ("native", "sustained"): 4.0,
        ("torch", "sustained"): 3.0,
    }
    made = [a_record(case, seconds[case.implementation, case.mode]) for case in list(PROBE.sweep(axes))]
    burst, sustained = (each.values for each in PROBE.findings(made).remarks)
    assert (burst["mode"], burst["mean"].value) == ("burst", pytest.approx(0.5))
    assert (sustained["mode"], sustained["mean"].value) == ("sustained", pytest.approx(0.75))


def test_a_product_that_one_side_lacks_takes_no_part() -> None:
    without_torch = [record for record in records() if record.case["implementation"] == "native"]
    found = PROBE.findings(without_torch)
    assert found == Findings()


@pytest.mark.parametrize("text", ["", "1x2", "1x2x3x4", "axbxc", "1.5x2x3"])
def test_what_is_not_a_shape_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="is not a shape"):
        Shape.parse(text)
