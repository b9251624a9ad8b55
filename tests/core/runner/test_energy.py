"""A record has the joules of a launch where the device counts them, and else the reason; findings show them."""

from __future__ import annotations

import time
import weakref
from dataclasses import replace
from typing import Any

import pytest

from pyperf_suite.findings.data import Remark
from pyperf_suite.findings.probe import Probe, RowTable
from pyperf_suite.findings.rows import Column
from pyperf_suite.hardware.devices import Device, Unavailable, driver
from pyperf_suite.hardware.nvml import nvml
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.measure.stopwatch import garbage_collector_at_rest
from pyperf_suite.measure.telemetry import EnergyMeter, energy_meter
from pyperf_suite.render.run_report import _why_no_energy
from pyperf_suite.runner import timing
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.operator import Launches, Operator
from tests.records import a_record, cells

CPU = Device("cpu")
BRIEF = Effort(SteadyRule(min_time_s=0.0, time_cap_s=0.01), StopRule(time_cap_s=0.02))
SMALL = Case("matmul", MatmulParameters(64, 64, 64, Schedule("library", 1)), "torch")


class FiftyWatts:
    name = "fifty watts"

    def joules(self) -> float:
        return 50.0 * time.perf_counter()


def measured(monkeypatch: pytest.MonkeyPatch, meter: EnergyMeter | Unavailable) -> dict:
    monkeypatch.setattr(timing, "energy_meter", lambda device: meter)
    found = measure_case(SMALL, BRIEF, CPU)
    assert found["outcome"] == "ok", found.get("reason")
    return found


def test_energy_is_of_launches_of_the_same_case(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, EnergyMeter(FiftyWatts(), 1e-3))
    metrics, how = found["metrics"], found["quality"]["energy"]
    assert (metrics["energy"]["unit"], metrics["power"]["unit"]) == ("J", "W")
    assert metrics["power"]["value"] == pytest.approx(50, rel=0.02)
    assert metrics["energy"]["value"] * how["launches"] == pytest.approx(50 * how["stretch_s"], rel=0.02)
    assert metrics["energy"]["low"] < metrics["energy"]["value"] < metrics["energy"]["high"]
    assert how["counter"] == "fifty watts"


@pytest.mark.parametrize("meter", [EnergyMeter(FiftyWatts(), 1e-3), Unavailable("nobody counts here")])
def test_what_a_case_held_is_free_once_it_is_over(
    monkeypatch: pytest.MonkeyPatch, meter: EnergyMeter | Unavailable
) -> None:
    held = []

    def prepare(operator: Operator, *arguments: Any) -> Launches:
        held.append(weakref.ref(launches := prepare_launches(operator, *arguments)))
        return launches

    prepare_launches = Operator.prepare
    monkeypatch.setattr(Operator, "prepare", prepare)
    with garbage_collector_at_rest():
        measured(monkeypatch, meter)
        assert [launches() for launches in held] == [None]


def test_a_reason_that_is_kept_keeps_nobodys_frames() -> None:
    for found in (driver(), nvml(), energy_meter(CPU)):
        if isinstance(found, Unavailable):
            assert (found.__traceback__, found.__context__) == (None, None)


def test_without_a_counter_the_record_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, Unavailable("nobody counts here"))
    assert found["metrics"].keys() == {"time"}
    record = a_record(SMALL, quality=found["quality"])
    assert _why_no_energy([record]) == "nobody counts here"
    assert _why_no_energy([a_record(SMALL)]) == ""


def test_findings_have_energy_beside_time_and_an_efficiency_over_sizes() -> None:
    table = RowTable("Products", (Column("m"), Column("time", "seconds", "us")))
    probe = Probe("some", "What?", "kernels", lambda *_: None, lambda _: [], order=lambda row: row.m, tables=(table,))
    cases = [replace(SMALL, parameters=replace(SMALL.parameters, m=64 * size)) for size in (1, 2, 4)]
    joules = {64: 1e-3, 128: 1e-3, 256: 4e-3}
    records = [a_record(each, metrics={"energy": joules[each.parameters.m], "power": 50.0}) for each in cases]
    found = probe.findings(records)
    flop = 2 * 64**3
    rows = cells(found.tables[0])
    assert [row["energy"].value for row in rows] == [1e-3, 1e-3, 4e-3]
    assert rows[1]["energy/TFLOP"].value == pytest.approx(1e-3 / (2 * flop))
    (curve,) = found.figures[0].rows[0][0].series
    assert curve.x == [flop, 2 * flop, 4 * flop]
    assert curve.y == pytest.approx([flop / 1e-3, 2 * flop / 1e-3, flop / 1e-3])
    (said,) = [each for each in found.remarks if isinstance(each, Remark)]
    assert (said.values["efficiency"].value, said.values["power"].value) == (pytest.approx(2 * flop / 1e-3), 50.0)
    plain = probe.findings([a_record(each) for each in cases])
    assert (plain.figures, plain.remarks) == ((), ())
    assert [column.name for column in plain.tables[0].columns] == ["m", "time"]
