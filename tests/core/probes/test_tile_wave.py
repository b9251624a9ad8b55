"""The tile/wave probe crosses every edge, and its findings tell the machine that made the records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from pyperf_suite.findings.data import Findings
from pyperf_suite.findings.rows import rows_of
from pyperf_suite.hardware.devices import Device, Gpu, resolve
from pyperf_suite.laws.tiling import Schedule, StaircaseLaw, Tile, critical_path, nonnegative_fit, relative_error
from pyperf_suite.probes import find_probe
from pyperf_suite.probes.tile_wave import PROBE, TileWaveAxes, analyse, in_slots, settings_of
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.record import Record
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.workloads.matmul import MatmulParameters
from tests.records import lines, records, remarks

CPU = resolve("cpu")
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


def test_the_sweep_stands_on_both_sides_of_every_tile_and_wave_edge() -> None:
    sizes = {case.parameters.n for case in PROBE.sweep(axes())}
    assert sizes == {count * 64 + offset for count in range(1, 9) for offset in (-1, 0, 1)}


def test_a_step_of_several_elements_over_an_edge_is_a_cliff_too() -> None:
    first = lines(findings(Machine(), offset=(-8, 0, 8)), "Steps")[1]
    assert (first["step"], first["opens"], round(first["costs"].value, 2)) == ("128 -> 136", "a wave", 0.95)
    far = findings(Machine(), offset=(-32, 0))
    assert [table.title for table in far.tables] == ["Tile and wave cliffs"]
    assert remarks(far, "cost") == []


def test_on_many_workers_the_sweep_keeps_to_the_wave_edges() -> None:
    counts = {case.parameters.n // 64 for case in PROBE.sweep(axes(workers=(100,), offset=(0,), waves=(3,)))}
    assert counts == {1, 99, 100, 101, 199, 200, 201, 299, 300}


def test_the_quick_profile_has_eight_sizes_inside_each_tile_in_no_more_than_60_cases() -> None:
    cases = find_probe("tile_wave").cases("quick", CPU)
    by_schedule: dict[str, set[int]] = {}
    for case in cases:
        by_schedule.setdefault(case.parameters.schedule.policy, set()).add(case.parameters.n)
    width = next(case.parameters.tile.n for case in cases if case.parameters.tile)
    for policy in ("data_parallel", "library"):
        for tile in range(2):
            edges = {tile * width + 1, (tile + 1) * width - 1}
            inside = {n for n in by_schedule[policy] if tile * width < n < (tile + 1) * width} - edges
            assert len(inside) >= 8, (policy, tile)
    edges = {count * width + offset for count in (1, 2) for offset in (-1, 0, 1)}
    assert by_schedule.keys() == {"data_parallel", "stream_k", "library"}
    assert by_schedule["stream_k"] == edges < by_schedule["data_parallel"]
    assert len(cases) <= 60


def test_sizes_inside_a_wave_are_aligned_and_not_next_to_those_at_its_edges() -> None:
    wide = {case.parameters.n for case in PROBE.sweep(axes(workers=(132,), across=(12,), offset=(0, 8), inside=(8,)))}
    assert all(size % 8 == 0 for size in wide)
    first = sorted(size for size in wide if 64 < size < 704)
    # 80 and 624 would lie next to the edges at 64 and 640.
    assert first == [72, 160, 232, 312, 392, 472, 544, 640, 648]


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


def test_a_picture_whose_first_wave_is_hidden_by_noise_promises_nothing() -> None:
    (figure, *_) = findings(Machine(noise=1.0), processes=5).figures
    assert figure.title.startswith("Tile and wave quantization: ")


def test_several_tiles_across_reach_the_same_waves_in_fewer_steps() -> None:
    wide = list(PROBE.sweep(axes(workers=(132,), across=(12,), offset=(0, 1), waves=(2,))))
    assert {case.parameters.m for case in wide} == {12 * 64}
    assert {case.parameters.n // 64 for case in wide} == {1, 10, 11, 12, 21, 22}
    # 11 columns of 12 tiles fill one wave of 132 workers.
    assert remarks(PROBE.findings(Machine().records(wide)), "cost")[0].values["step"] == "704 -> 705"


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


def test_where_two_blocks_share_a_multiprocessor_waves_are_counted_in_slots() -> None:
    found = findings(Machine(slots=4))
    first = remarks(found, "cost")[0]
    assert (first.values["step"], round(first.values["cost"].value, 2)) == ("256 -> 257", 0.95)
    (law,) = remarks(found, "overhead")
    assert law.values["median"].value == pytest.approx(0, abs=1e-9)


def test_a_rate_relative_to_the_library_has_the_interval_that_marks_noise() -> None:
    for noise in (0.001, 1.0):
        row = lines(findings(Machine(noise=noise), processes=3), "Tile and wave")[0]
        share = row["of the library's"]
        assert share.low < share.value < share.high
        assert (share.high / share.low > 2) == (noise == 1.0)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    ("capability", "multiprocessors", "across"), [((9, 0), 132, 12), ((8, 0), 108, 12), ((10, 0), 148, 4)]
)
def test_on_a_gpu_every_profile_is_valid_and_meets_the_edges_of_waves(
    profile: str, capability: tuple[int, int], multiprocessors: int, across: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(0, "a GPU", "GPU-0", capability, multiprocessors, 80 << 30)
    for module in ("probes.baseline", "findings.axes"):
        monkeypatch.setattr(f"pyperf_suite.{module}.gpus", lambda: [gpu])
    own = "cuda_sm90" if capability == (9, 0) else "cuda_sm80"
    for name in ("tile_wave", "baseline"):
        cases = find_probe(name).cases(profile, Device("cuda"))
        assert {own, "cublas"} <= {case.implementation for case in cases}
        assert len({case.case_id for case in cases}) == len(cases)
        # TMA can take every size: rows are multiples of 16 bytes.
        assert all(case.parameters.n % 8 == 0 and case.parameters.m % 8 == 0 for case in cases)
    axes = PROBE.axes("quick", Device("cuda"))
    assert axes.across == (across,)
    assert axes.workers == (multiprocessors,)


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
