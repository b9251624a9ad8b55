"""The tile/wave probe crosses every edge, and its findings tell the machine that made the records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from pyperf_suite.findings.data import Findings
from pyperf_suite.findings.rows import rows_of
from pyperf_suite.laws.tiling import Schedule, StaircaseLaw, Tile, critical_path, nonnegative_fit, relative_error
from pyperf_suite.probes.tile_wave import PROBE, TileWaveAxes, analyse, in_slots, settings_of
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.matmul import MatmulParameters
from tests.records import records, remarks

LAW = StaircaseLaw(overhead_s=10e-6, per_k_s=0.3e-6, per_tile_s=20e-6, per_partial_s=15e-6)


@dataclass(frozen=True)
class Machine:
    """A machine that obeys a law exactly, but for seeded noise; torch on it has no staircase."""

    law: StaircaseLaw = LAW
    noise: float = 0.0
    slots: int = 0

    def seconds(self, case: Case) -> float:
        p = case.parameters
        if p.tile is None:
            return 2.0 * p.m * p.n * p.k / 100e9
        handed_out = self.slots and p.schedule.policy in ("data_parallel", "split_k")
        schedule = replace(p.schedule, workers=self.slots) if handed_out else p.schedule
        return float(self.law.seconds(critical_path(p.m, p.n, p.k, p.tile, schedule)))

    def records(self, cases: list[Case], processes: int = 1) -> list[Record]:
        details = {"slots": self.slots} if self.slots else {}
        return records(cases, self.seconds, processes=processes, noise=self.noise, details=details)


@pytest.mark.parametrize(
    ("schedule", "workers"), [("data_parallel@132", 264), ("persistent@132", 132), ("stream_k@400", 264)]
)
def test_units_that_are_handed_out_fill_the_slots_and_workers_that_stay_are_no_more_than_there_are(
    schedule: str, workers: int
) -> None:
    requested = MatmulParameters(512, 512, 512, Schedule.parse(schedule), Tile(128, 128, 64), "bfloat16")
    (record,) = Machine(slots=264).records([Case("matmul", requested, "cuda_sm90")])
    (row,) = rows_of([record])
    assert in_slots(row).workers == workers


def axes(**changed: object) -> TileWaveAxes:
    usual = TileWaveAxes(
        implementation=("native",),
        library=("torch",),
        tile=(Tile(64, 64, 64),),
        schedule=("data_parallel", "split_k(2)", "stream_k"),
        workers=(2,),
        k=(512,),
        dtype=("float32",),
        layout=("NN",),
        along=("n",),
        across=(1,),
        waves=(4,),
        offset=(-1, 0, 1),
        inside=(0,),
    )
    return replace(usual, **changed)  # type: ignore[arg-type]


def findings(machine: Machine, processes: int = 1, **changed: object) -> Findings:
    return PROBE.findings(machine.records(list(PROBE.sweep(axes(**changed))), processes))


def test_the_picture_is_a_staircase_next_to_the_library_with_at_most_two_other_schedules_below() -> None:
    schedules = ("data_parallel", "persistent", "split_k(2)", "stream_k")
    (figure,) = findings(Machine(), schedule=schedules, inside=(8,)).figures
    assert figure.title.startswith("N = 129 takes 1.95 x the time of 128: native")
    (time, rate), others = figure.rows
    assert (time.title, time.y_label, rate.title, rate.y_label) == (
        "data_parallel@2",
        "time",
        "data_parallel@2",
        "rate",
    )
    for panel in (time, rate):
        measured, law, library = panel.series
        assert (measured.label, law.label, library.label) == ("measured", "wave law", "torch")
        assert list(measured.x) == list(library.x)
        assert all(law.y[law.x.index(x)] == pytest.approx(y) for x, y in zip(measured.x, measured.y, strict=True))
    assert time.strong_edges == (128, 256, 384, 512)
    assert [panel.title for panel in others] == ["split_k(2)@2", "stream_k@2"]
    assert all(len(panel.series) == 2 for panel in others)


def test_several_tiles_across_reach_the_same_waves_in_fewer_steps() -> None:
    wide = list(PROBE.sweep(axes(workers=(132,), across=(12,), offset=(0, 1), waves=(2,))))
    assert {case.parameters.m for case in wide} == {12 * 64}
    # 11 columns of 12 tiles fill one wave of 132 workers.
    assert {case.parameters.n // 64 for case in wide} == {1, 10, 11, 12, 21, 22}


def test_a_machine_that_obeys_the_law_is_explained_without_error_and_its_noise_is_the_laws_error() -> None:
    (law,) = remarks(findings(Machine()), "overhead")
    assert law.kind == "law"
    assert law.values["overhead"].value == pytest.approx(10e-6)
    assert law.values["step"].value == pytest.approx(0.3e-6 * 512 + 20e-6)
    assert law.values["count"] == law.values["fitted"] == 36
    assert law.values["median"].value == pytest.approx(0, abs=1e-9)
    (law,) = remarks(findings(Machine(noise=0.2)), "overhead")
    assert 0.05 < law.values["median"].value < 0.35 < law.values["worst"].value


def test_a_cliff_of_which_both_sides_overlap_is_noise() -> None:
    message = remarks(findings(Machine(noise=0.01), processes=3), "cost")
    assert message
    assert not any(each.is_noise for each in message)
    assert all(each.is_noise for each in remarks(findings(Machine(noise=1.0), processes=5), "cost"))


def test_on_an_h200_cublas_follows_the_least_area_of_tiles_and_ours_its_k_tiles_and_partial_results():
    run = Path(__file__).parents[3] / "bench_results" / "cuda-nvidia-h200-132sm-140gib" / "20261126T060756Z-19ae"
    rows = rows_of([record for record in read_journal(run / "records.jsonl") if record.probe == "tile_wave"])
    library, ours = remarks(analyse(rows), "overhead")
    assert library.values["count"] == 8
    assert library.values["worst"].value < 0.05
    assert ours.values["median"].value < 0.02
    # The library's result stands first: 144 x 128 tiles are full at N = 1448, our second wave at 2816.
    found = analyse(rows)
    [size] = remarks(found, "good")
    assert [size.values[name] for name in ("along", "size", "good", "ours", "slots")] == ["N", 1408, 1448, 2816, 132]
    assert found.remarks[0] is size
    lines = {each.label: each for each in found.figures[0].rows[0][0].series}
    law = lines["cublas law"]
    places = [law.x.index(row.p.n) for row in rows if row.p.tile is None and row.p.n in law.x]
    predicted = np.array([law.y[place] for place in places])
    measured = np.array([row.seconds for row in rows if row.p.tile is None and row.p.n in law.x])
    assert relative_error(predicted, measured).max() < 0.05
    # +17 % at N = 2696, inside two waves, is not explained: it is left out by name.
    [setting] = settings_of(rows)
    explained = [row for row in setting if row.p.n != 2696]
    paths = [critical_path(row.p.m, row.p.n, row.p.k, row.p.tile, in_slots(row)) for row in explained]
    seconds = np.array([row.seconds for row in explained])
    costs = np.array([[1.0, path.k_extent, path.partials] for path in paths], dtype=np.float64)
    error = relative_error(costs @ nonnegative_fit(costs, seconds), seconds)
    whole = np.array([row.p.schedule.policy == "data_parallel" and row.p.n >= 1408 for row in explained])
    streamed = np.array([row.p.schedule.policy == "stream_k" for row in explained])
    assert (error[whole].max() < 0.013, error[streamed].max() < 0.12) == (True, True)
