"""The tile/wave probe crosses every edge, and its findings tell the machine that made the records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from pyperf_suite.hardware.cuda_driver import Gpu
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.laws.matmul.staircase import StaircaseLaw
from pyperf_suite.laws.matmul.tiling import Schedule, Tile, critical_path
from pyperf_suite.operators import find_operator
from pyperf_suite.operators.matmul import MatmulParameters
from pyperf_suite.probes.tile_wave.probe import TileWave, TileWaveAxes
from pyperf_suite.probes.tile_wave.staircases import in_slots
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.discovery import all_probes, find_probe
from pyperf_suite.spec.findings import Findings
from pyperf_suite.spec.rows import readings

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
                work = find_operator(case.operator).work(case.parameters)
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
    (reading,) = readings([record])
    assert in_slots(asked.schedule, reading).workers == workers


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


def findings(machine: Machine, **changed: object) -> Findings:
    probe = TileWave()
    return probe.findings(machine.records(probe.sweep(axes(**changed))))


def test_the_sweep_stands_on_both_sides_of_every_tile_and_wave_edge() -> None:
    sizes = {case.parameters.n for case in TileWave().sweep(axes())}
    assert sizes == {count * 64 + offset for count in range(1, 9) for offset in (-1, 0, 1)}


def test_a_step_of_several_elements_over_an_edge_is_a_cliff_too() -> None:
    assert "costs +95% time at N = 128 -> 136" in findings(Machine(), offset=(-8, 0, 8)).sentences[0]
    assert "no tile edge was measured on both sides" in findings(Machine(), offset=(-32, 0)).sentences[0]


def test_on_many_workers_the_sweep_keeps_to_the_wave_edges() -> None:
    counts = {case.parameters.n // 64 for case in TileWave().sweep(axes(workers=(100,), offset=(0,), waves=(3,)))}
    assert counts == {1, 99, 100, 101, 199, 200, 201, 299, 300}


def test_several_tiles_across_reach_the_same_waves_in_fewer_steps() -> None:
    probe = TileWave()
    wide = axes(workers=(132,), across=(12,), offset=(0, 1), waves=(2,))
    assert {case.parameters.m for case in probe.sweep(wide)} == {12 * 64}
    assert {case.parameters.n // 64 for case in probe.sweep(wide)} == {1, 10, 11, 12, 21, 22}
    said = probe.findings(Machine().records(probe.sweep(wide))).sentences[0]
    # 11 columns of 12 tiles fill one wave of 132 workers.
    assert f"at N = {11 * 64} -> {11 * 64 + 1}" in said


def test_the_library_runs_each_shape_once_whatever_the_schedules() -> None:
    cases = TileWave().sweep(axes())
    library = [case for case in cases if case.implementation == "torch"]
    assert len(library) == 24
    assert len({case.case_id for case in cases}) == len(cases) == 24 * 4


def test_a_machine_that_obeys_the_law_is_explained_without_error() -> None:
    (law_sentence,) = [text for text in findings(Machine()).sentences if text.startswith("Law")]
    assert "time = 10 us + waves x 174 us" in law_sentence
    assert "misses the 36 held-out ones by 0.0% (median" in law_sentence


def test_noise_of_the_machine_comes_out_as_the_laws_error() -> None:
    (law_sentence,) = [text for text in findings(Machine(noise=0.2)).sentences if text.startswith("Law")]
    error = float(law_sentence.split("held-out ones by ")[1].split("%")[0])
    assert 5 < error < 35


def test_the_sentence_of_a_sweep_names_the_wave_cliff_and_its_cost() -> None:
    said = findings(Machine()).sentences[0]
    # Two workers: the third tile opens the second wave, from 10 + 174 us to 10 + 347 us.
    assert said == (
        "data_parallel@2, tile 64x64x64, float32, along N: opening a wave costs +95% time at N = 128 -> 129 "
        "(0.046 -> 0.024 TFLOP/s), +49% at 256 -> 257, +33% at 384 -> 385; "
        "a tile edge inside a wave costs +0% (median of 4)."
    )


def test_where_two_blocks_share_a_multiprocessor_waves_are_counted_in_slots() -> None:
    found = findings(Machine(slots=4))
    assert "opening a wave costs +95% time at N = 256 -> 257" in found.sentences[0]
    (law_sentence,) = [text for text in found.sentences if text.startswith("Law")]
    assert "held-out ones by 0.0% (median" in law_sentence


def test_the_tiles_a_library_chose_are_told_where_it_changes_them() -> None:
    probe = TileWave()
    made = []
    for record in Machine().records(probe.sweep(axes())):
        size = record.case["parameters"]["n"]
        tile = [128, 64] if size > 256 else [64, 64]
        details = {"tile": tile} if record.case["implementation"] == "torch" else {}
        made.append(replace(record, kernel={"details": details}))
    (said,) = [text for text in probe.findings(made).sentences if text.startswith("torch on the same")]
    assert said.endswith("Tiles it chose, as its kernels' names tell: 64x64 from 63, 128x64 from 257.")


def test_stream_k_has_the_smaller_cliff() -> None:
    rows = {row[0]: row for row in findings(Machine()).tables[0].rows}
    assert float(rows["stream_k@2"][6].strip("+%")) < float(rows["data_parallel@2"][6].strip("+%"))


def test_both_directions_get_their_sweeps_and_pictures() -> None:
    found = findings(Machine(), along=("m", "n"))
    assert {row[2] for row in found.tables[0].rows} == {"M", "N"}
    assert len(found.figures) == 2
    for figure in found.figures:
        assert [len(row) for row in figure.rows] == [3, 3]
        labels = {series.label for row in figure.rows for panel in row for series in panel.series}
        assert labels == {"measured", "wave law", "torch"}


@pytest.mark.parametrize("keep", [0, 1, 2, 5])
def test_few_or_no_records_are_told_without_a_traceback(keep: int) -> None:
    probe = TileWave()
    records = Machine().records(probe.sweep(axes()))[:keep]
    failed = [replace(record, outcome="failed", reason="a fuse blew", metrics={}) for record in records]
    for some in (records, failed):
        assert isinstance(probe.findings(some), Findings)


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
    for probe in ("tile_wave.probe", "baseline"):
        monkeypatch.setattr(f"pyperf_suite.probes.{probe}.gpus", lambda: [gpu])
    own = "cuda_sm90" if capability == (9, 0) else "cuda_sm80"
    for name in ("tile_wave", "baseline"):
        cases = find_probe(name).cases(profile, Device("cuda"))
        assert {own, "cublas"} <= {case.implementation for case in cases}
        assert len({case.case_id for case in cases}) == len(cases)
        # TMA can take every size: rows are multiples of 16 bytes.
        assert all(case.parameters.n % 8 == 0 and case.parameters.m % 8 == 0 for case in cases)
    axes = TileWave().axes("quick", Device("cuda"))
    assert axes.across == (across,)
    assert axes.workers == (multiprocessors,)


def test_each_schedule_of_a_sweep_is_under_a_heading_of_its_own() -> None:
    probe = TileWave()
    headings = {probe.group(case) for case in probe.sweep(axes())}
    assert len(headings) == 4
    assert str(Schedule("library", 2)) in " ".join(headings)
