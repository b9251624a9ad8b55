"""Alarms about shapes: what moved is told once, what only wavers is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.history.changes.shapes import shape_alarms
from pyperf_suite.history.exit_code import NOMINATED
from pyperf_suite.laws.matmul.staircase import StaircaseLaw
from pyperf_suite.laws.matmul.tiling import Tile, critical_path
from pyperf_suite.probes import alignment, tile_wave
from pyperf_suite.probes.alignment.sizes import Base
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.workloads import find_workload

LAW = StaircaseLaw(overhead_s=10e-6, per_k_s=0.3e-6, per_tile_s=20e-6, per_partial_s=15e-6)
Seconds = Callable[[Case], float]

WAVES = list(
    tile_wave.PROBE.sweep(
        tile_wave.TileWaveAxes(
            implementation=("native",),
            library=(),
            tile=(Tile(64, 64, 64),),
            schedule=("data_parallel",),
            workers=(2,),
            k=(512,),
            dtype=("float32",),
            layout=("NN",),
            along=("n",),
            across=(1,),
            waves=(4,),
            offset=(-1, 0, 1),
        )
    )
)
LADDER = list(
    alignment.PROBE.sweep(
        replace(
            alignment.PROBE.axes("quick", resolve("cpu")),
            base=(Base.parse("fprop:256x1024x1024"),),
            along=("k",),
            ladder=(1, 2, 4, 8, 16, 64),
            workers=(1,),
        )
    )
)


def run(probe: str, cases: Sequence[Case], seconds: Seconds, seed: int, noise: float = 0.01) -> list[Record]:
    """A run of three processes on a machine on which a case takes so long."""
    random = np.random.default_rng(seed)
    made = []
    for process in range(3):
        for case in cases:
            t = seconds(case) * float(np.exp(noise * random.standard_normal()))
            made.append(
                Record(
                    run_id=f"run{seed}",
                    kind="timing",
                    case=case.to_json(),
                    case_id=case.case_id,
                    process=process,
                    position=len(made),
                    started_at="",
                    outcome="ok",
                    probe=probe,
                    metrics={"time": Metric("s", t, t, t, t, t, [t])},
                    work={"flop": find_workload(case.operator).work(case.parameters).flop},
                    kernel={"name": "made up", "path": "16-byte", "details": {}},
                    quality={"converged": True},
                )
            )
    return made


def by_law(case: Case) -> float:
    p = case.parameters
    return float(LAW.seconds(critical_path(p.m, p.n, p.k, p.tile, p.schedule)))


def cliff_at_256(case: Case) -> float:
    """As by law, but the step over 128 is gone and the next one is twice as high."""
    return (
        by_law(replace(case, parameters=replace(case.parameters, n=128))) if case.parameters.n < 257 else by_law(case)
    )


def test_a_cliff_that_moved_is_told_with_both_places():
    runs = [run("tile_wave", WAVES, by_law, seed) for seed in range(3)]
    runs.append(run("tile_wave", WAVES, cliff_at_256, 3))
    [alarm] = [each for each in shape_alarms("tile_wave", runs) if each.details["shape"] == "cliff"]
    assert alarm.verdict == "undecided"
    assert "moved from 128 -> 129" in alarm.sentence
    assert "to 256 -> 257" in alarm.sentence


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_shapes_that_only_waver_raise_no_alarm(noise):
    runs = [run("tile_wave", WAVES, by_law, seed, noise) for seed in range(4)]
    assert shape_alarms("tile_wave", runs) == []
    runs = [run("alignment", LADDER, eights_are_fast, seed, noise) for seed in range(4)]
    assert shape_alarms("alignment", runs) == []


def test_a_new_shape_is_told_once():
    moved = [run("tile_wave", WAVES, cliff_at_256, seed) for seed in (3, 4)]
    runs = [run("tile_wave", WAVES, by_law, seed) for seed in range(3)] + moved
    assert shape_alarms("tile_wave", runs) == []


def test_two_runs_before_must_agree_before_there_is_an_alarm():
    runs = [run("tile_wave", WAVES, by_law, 0), run("tile_wave", WAVES, cliff_at_256, 1)]
    assert shape_alarms("tile_wave", runs) == []


def test_a_law_that_misses_by_more_than_before_is_told():
    def bent(case: Case) -> float:
        return by_law(case) * (1.6 if case.parameters.n > 256 else 1.0)

    runs = [run("tile_wave", WAVES, by_law, seed) for seed in range(3)] + [run("tile_wave", WAVES, bent, 3)]
    [alarm] = [each for each in shape_alarms("tile_wave", runs) if each.details["shape"] == "law"]
    assert "misses held-out cases" in alarm.sentence
    assert alarm.details["after"] > max(alarm.details["before"]) + 0.03


def by_work(case: Case) -> float:
    p = case.parameters.padded
    return 2.0 * p.m * p.n * p.k / 100e9


def eights_are_fast(case: Case) -> float:
    """What divides by 8 takes a fast path, all else one of half its speed."""
    return by_work(case) * (1.0 if case.parameters.padded.k % 8 == 0 else 2.0)


def test_a_step_at_8_that_is_gone_as_the_fast_sizes_got_slow_is_told_as_slower():
    def all_slow(case: Case) -> float:
        return 2 * by_work(case)

    runs = [run("alignment", LADDER, eights_are_fast, seed) for seed in range(3)]
    alarms = shape_alarms("alignment", [*runs, run("alignment", LADDER, all_slow, 3)])
    assert alarms
    for alarm in alarms:
        assert "÷8 step is gone" in alarm.sentence
        assert alarm.details["divisor"] == 8
        assert alarm.details[NOMINATED] == "slower"


def test_a_step_at_8_that_is_gone_as_the_slow_sizes_got_fast_is_not_told_as_slower():
    runs = [run("alignment", LADDER, eights_are_fast, seed) for seed in range(3)]
    alarms = shape_alarms("alignment", [*runs, run("alignment", LADDER, by_work, 3)])
    assert alarms
    assert not any(NOMINATED in alarm.details for alarm in alarms)
    assert all("the others got faster" in alarm.sentence for alarm in alarms)


def test_a_probe_without_shapes_has_no_alarm():
    assert shape_alarms("baseline", [[], [], [], []]) == []
    assert shape_alarms("tile_wave", [[], [], [], []]) == []
