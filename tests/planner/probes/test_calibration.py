"""The calibration probe spreads few cases over all sizes, and holds what was measured against the shipped laws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.planner.probes import calibration
from pyperf_suite.planner.probes.calibration import (
    GPU_EXTENT,
    PROBE,
    Extent,
    spread_products,
)
from pyperf_suite.record.case import Case
from tests.records import a_record

GPU = Device("cuda")
H200 = {"kind": "cuda", "model": "NVIDIA H200", "multiprocessors": 132}


def a_millisecond_each(spec: object, cases: Sequence[Case]) -> np.ndarray:
    return np.full(len(cases), 1e-3)


def test_the_products_are_different_inside_their_extent_and_all_over_it() -> None:
    extent = Extent(m=(64, 8192), nk=(512, 8192), flop=1e11, elements=1e7)
    shapes = spread_products(50, extent)
    assert len(set(shapes)) == 50
    for shape in shapes:
        assert 64 <= shape.m <= 8192
        assert 512 <= shape.n <= 8192
        assert shape.n % 64 == shape.k % 64 == shape.m % 8 == 0
        assert 2 * shape.m * shape.n * shape.k <= 1e11
        assert shape.m * shape.k + shape.k * shape.n + shape.m * shape.n <= 1e7
    shapes = spread_products(72, GPU_EXTENT)
    for size, (low, high) in (("m", GPU_EXTENT.m), ("n", GPU_EXTENT.nk), ("k", GPU_EXTENT.nk)):
        place = [np.log(getattr(shape, size) / low) / np.log(high / low) for shape in shapes]
        assert min(np.histogram(place, bins=3, range=(0, 1.01))[0]) >= 9, "in every third of each size"


def test_the_shipped_law_is_held_against_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "predicted_seconds", a_millisecond_each)
    products = [case for case in PROBE.cases("quick", GPU) if case.operator == "matmul"][:4]
    records = [a_record(case, s, identity=H200) for case, s in zip(products, (1e-3, 1e-3, 0.8e-3, 0.5e-3), strict=True)]
    report = PROBE.findings(records)
    (law,) = [each for each in report.remarks if each.kind == "law"]
    message = {name: getattr(value, "value", value) for name, value in law.values.items()}
    assert message == {
        "gpu": "H200 SXM",
        "count": 4,
        "kind_of": "bfloat16 products",
        "mean": pytest.approx(1.25 / 4),
        "median": pytest.approx(0.25 / 2),
        "ratio": pytest.approx(2.25 / 2),
    }
    (table,) = report.tables
    assert [row[4].value for row in table.rows] == pytest.approx([2, 1.25, 1, 1])
    worst = table.rows[0]
    assert (worst[2].value, worst[3].value, worst[3].predicted) == (0.5e-3, 1e-3, True)
