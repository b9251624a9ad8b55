"""The tile/wave probe crosses every edge, and its findings tell the machine that made the records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.cuda_driver import Gpu
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.laws.matmul.staircase import StaircaseLaw
from pyperf_suite.laws.matmul.tiling import Schedule, Tile, critical_path
from pyperf_suite.probes.tile_wave import PROBE, TileWaveAxes, in_slots
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.spec.discovery import all_probes, find_probe
from pyperf_suite.spec.findings import Findings, Remark
from pyperf_suite.spec.rows import rows_of
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.matmul import MatmulParameters

CPU = resolve("cpu")
LAW = StaircaseLaw(overhead_s=10e-6, per_k_s=0.3e-6, per_tile_s=20e-6, per_partial_s=15e-6)


@dataclass(frozen=True)
class Machine:
    """A machine that obeys a law exactly, but for seeded noise; torch on it has no staircase."""

    law: StaircaseLaw = LAW
    noise: float = 0.0
    slots: int = 0

    def seconds(self, case: Case, random: np.random.Generator) -> float:
        p = case.parameters
        if p.tile is None:
            exact = 2.0 * p.m * p.n * p.k / 100e9
        else:
            handed_out = self.slots and p.schedule.policy in ("data_parallel", "split_k")
            schedule = replace(p.schedule, workers=self.slots) if handed_out else p.schedule
            exact = float(self.law.seconds(critical_path(p.m, p.n, p.k, p.tile, schedule)))
        return exact * float(np.exp(self.noise * random.standard_normal()))

    def records(self, cases: list[Case], processes: int = 1) -> list[Record]:
        random = np.random.default_rng(0)
        made = []
        for process in range(processes):
            for position, case in enumerate(cases):
                t = self.seconds(case, random)
                work = find_workload(case.operator).work(case.parameters)
                made.append(
                    Record(
                        run_id="made-up",
                        kind="timing",
                        case=case.to_json(),
                        case_id=case.case_id,
                        process=process,
                        position=position,
                        started_at="",
                        outcome="ok",
                        probe="tile_wave",
                        metrics={"time": Metric("s", t, t, t, t, t, [t])},
                        work={"flop": work.flop, "bytes": work.bytes},
                        kernel={"details": {"slots": self.slots} if self.slots else {}},
                        quality={"converged": True},
                    )
                )
        return made


@pytest.mark.parametrize(
    ("schedule", "workers"), [("data_parallel@132", 264), ("persistent@132", 132), ("stream_k@400", 264)]
)
def test_units_that_are_handed_out_fill_the_slots_and_workers_that_stay_are_no_more_than_there_are(
    schedule: str, workers: int
) -> None:
    asked = MatmulParameters(512, 512, 512, Schedule.parse(schedule), Tile(128, 128, 64), "bfloat16")
    (record,) = Machine(slots=264).records([Case("matmul", asked, "cuda_sm90")])
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
    )
    return replace(usual, **changed)  # type: ignore[arg-type]


def findings(machine: Machine, processes: int = 1, **changed: object) -> Findings:
    return PROBE.findings(machine.records(list(PROBE.sweep(axes(**changed))), processes))


def remarks(found: Findings, value: str) -> list[Remark]:
    """Those that have a value of that name."""
    return [each for each in found.remarks if value in each.values]


def rows(found: Findings, title: str) -> list[dict[str, object]]:
    """The rows of a table by its columns."""
    (table,) = [table for table in found.tables if table.title.startswith(title)]
    return [{column.name: cell for column, cell in zip(table.columns, row, strict=True)} for row in table.rows]


def test_the_sweep_stands_on_both_sides_of_every_tile_and_wave_edge() -> None:
    sizes = {case.parameters.n for case in PROBE.sweep(axes())}
    assert sizes == {count * 64 + offset for count in range(1, 9) for offset in (-1, 0, 1)}


def test_a_step_of_several_elements_over_an_edge_is_a_cliff_too() -> None:
    first = rows(findings(Machine(), offset=(-8, 0, 8)), "Steps")[1]
    assert (first["step"], first["opens"], round(first["costs"].value, 2)) == ("128 -> 136", "a wave", 0.95)
    far = findings(Machine(), offset=(-32, 0))
    assert [table.title for table in far.tables] == ["Tile and wave cliffs"]
    assert remarks(far, "cost") == []


def test_on_many_workers_the_sweep_keeps_to_the_wave_edges() -> None:
    counts = {case.parameters.n // 64 for case in PROBE.sweep(axes(workers=(100,), offset=(0,), waves=(3,)))}
    assert counts == {1, 99, 100, 101, 199, 200, 201, 299, 300}


def test_several_tiles_across_reach_the_same_waves_in_fewer_steps() -> None:
    wide = list(PROBE.sweep(axes(workers=(132,), across=(12,), offset=(0, 1), waves=(2,))))
    assert {case.parameters.m for case in wide} == {12 * 64}
    assert {case.parameters.n // 64 for case in wide} == {1, 10, 11, 12, 21, 22}
    # 11 columns of 12 tiles fill one wave of 132 workers.
    assert remarks(PROBE.findings(Machine().records(wide)), "cost")[0].values["step"] == "704 -> 705"


def test_the_library_runs_each_shape_once_whatever_the_schedules() -> None:
    cases = list(PROBE.sweep(axes()))
    library = [case for case in cases if case.implementation == "torch"]
    assert len(library) == 24
    assert len({case.case_id for case in cases}) == len(cases) == 24 * 4


def test_a_machine_that_obeys_the_law_is_explained_without_error() -> None:
    (law,) = remarks(findings(Machine()), "overhead")
    assert law.kind == "law"
    assert law.values["overhead"].value == pytest.approx(10e-6)
    assert law.values["step"].value == pytest.approx(0.3e-6 * 512 + 20e-6)
    assert law.values["held_out"] == law.values["fitted"] == 36
    assert law.values["error"].value == pytest.approx(0, abs=1e-9)


def test_noise_of_the_machine_comes_out_as_the_laws_error() -> None:
    (law,) = remarks(findings(Machine(noise=0.2)), "overhead")
    assert 0.05 < law.values["error"].value < 0.35 < law.values["worst"].value


def test_the_first_wave_cliff_is_told_and_every_step_has_its_cost() -> None:
    found = findings(Machine())
    first = remarks(found, "cost")[0]
    # Two workers: the third tile opens the second wave, from 10 + 174 us to 10 + 347 us.
    assert (first.values["step"], first.effect) == ("128 -> 129", "cost")
    assert first.values["cost"].value == pytest.approx(173.6 / 183.6)
    steps = [row for row in rows(found, "Steps") if "data_parallel" in row["setting"]]
    waves = {row["step"]: round(row["costs"].value, 2) for row in steps if row["opens"] == "a wave"}
    assert waves == {"128 -> 129": 0.95, "256 -> 257": 0.49, "384 -> 385": 0.33, "512 -> 513": 0.25}
    assert {round(row["costs"].value, 9) for row in steps if row["opens"] == "a tile"} == {0}
    assert steps[1]["rate before"].value == pytest.approx(2 * 64 * 128 * 512 / 183.6e-6)
    sweep = next(row for row in rows(found, "Tile and wave") if row["schedule"] == "data_parallel@2")
    assert (sweep["largest cliff"], sweep["median inside a wave"].value) == ("128 -> 129", pytest.approx(0))


def test_a_cliff_of_which_both_sides_overlap_is_noise() -> None:
    told = remarks(findings(Machine(noise=0.01), processes=3), "cost")
    assert told
    assert not any(each.is_noise for each in told)
    assert all(each.is_noise for each in remarks(findings(Machine(noise=1.0), processes=5), "cost"))


def test_where_two_blocks_share_a_multiprocessor_waves_are_counted_in_slots() -> None:
    found = findings(Machine(slots=4))
    first = remarks(found, "cost")[0]
    assert (first.values["step"], round(first.values["cost"].value, 2)) == ("256 -> 257", 0.95)
    (law,) = remarks(found, "overhead")
    assert law.values["error"].value == pytest.approx(0, abs=1e-9)


def test_the_library_stands_beside_with_its_steps_and_the_tiles_that_it_chose() -> None:
    made = []
    for record in Machine().records(list(PROBE.sweep(axes()))):
        size = record.case["parameters"]["n"]
        tile = [128, 64] if size > 256 else [64, 64]
        details = {"tile": tile} if record.case["implementation"] == "torch" else {}
        made.append(replace(record, kernel={"details": details}))
    found = PROBE.findings(made)
    (library,) = remarks(found, "most")
    assert (library.values["implementation"], library.values["step"]) == ("torch", "64 -> 65")
    assert library.values["most"].value == pytest.approx(1 / 64)
    steps = [row for row in rows(found, "Steps") if "data_parallel" in row["setting"]]
    assert [row["in tiles of"] for row in steps] == ["64x64"] * 3 + ["128x64"] * 5
    assert steps[0]["costs the library"].value == pytest.approx(1 / 64)


def test_stream_k_has_the_smaller_cliff() -> None:
    costs = {row["schedule"]: row["costs"].value for row in rows(findings(Machine()), "Tile and wave")}
    assert costs["stream_k@2"] < costs["data_parallel@2"]


def test_both_directions_get_their_sweeps_and_pictures() -> None:
    found = findings(Machine(), along=("m", "n"))
    assert {row["along"] for row in rows(found, "Tile and wave")} == {"M", "N"}
    assert len(found.figures) == 2
    for figure in found.figures:
        assert [len(row) for row in figure.rows] == [3, 3]
        assert [{panel.y_unit for panel in row} for row in figure.rows] == [{"us"}, {"TFLOP/s"}]
        labels = {series.label for row in figure.rows for panel in row for series in panel.series}
        assert labels == {"measured", "wave law", "torch"}
        assert figure.rows[0][0].strong_edges == (128.0, 256.0, 384.0, 512.0)
        assert figure.rows[0][0].weak_edges == (64.0, 192.0, 320.0, 448.0)


@pytest.mark.parametrize("keep", [0, 1, 2, 5])
def test_few_or_no_records_are_told_without_a_traceback(keep: int) -> None:
    records = Machine().records(list(PROBE.sweep(axes())))[:keep]
    failed = [replace(record, outcome="failed", reason="a fuse blew", metrics={}) for record in records]
    for some in (records, failed):
        assert isinstance(PROBE.findings(some), Findings)


@pytest.mark.slow
@pytest.mark.parametrize("probe", all_probes(), ids=lambda probe: probe.name)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_of_every_probe_is_valid_on_this_machine(probe: object, profile: str) -> None:
    cases = find_probe(probe.name).cases(profile, CPU)  # type: ignore[attr-defined]
    assert cases
    assert len({case.case_id for case in cases}) == len(cases)
    assert len({case.label for case in cases}) == len(cases)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    ("capability", "multiprocessors", "across"), [((9, 0), 132, 12), ((8, 0), 108, 12), ((10, 0), 148, 4)]
)
def test_on_a_gpu_every_profile_is_valid_and_meets_the_edges_of_waves(
    profile: str, capability: tuple[int, int], multiprocessors: int, across: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(0, "a GPU", "GPU-0", capability, multiprocessors, 80 << 30)
    monkeypatch.setattr("pyperf_suite.probes._products.gpus", lambda: [gpu])
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


def test_each_schedule_of_a_sweep_is_under_a_heading_of_its_own() -> None:
    headings = {PROBE.group(case) for case in PROBE.sweep(axes())}
    assert len(headings) == 4
    assert "tile_wave torch library@2" in headings


@pytest.mark.parametrize(
    ("axis", "value", "said"),
    [
        ("along", "k", "choose from m, n"),
        ("workers", "0", "workers lies between"),
        ("waves", "9999", "waves lies between"),
    ],
)
def test_an_axis_that_cannot_be_is_refused_in_a_sentence(axis: str, value: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        PROBE.cases("quick", CPU, {axis: value})
