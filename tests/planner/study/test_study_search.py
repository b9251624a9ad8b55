"""The guides' procedure finds what the whole grid would, in few runs: on made-up machines that keep their times."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pyperf_suite.errors import OUT_OF_MEMORY
from pyperf_suite.hardware.devices import Device
from pyperf_suite.planner.study.grid import cases_of, search_axes
from pyperf_suite.planner.study.search import StudySearch, search_steps
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from tests.records import a_record, metric

AXES = replace(search_axes(Device("cpu")), data=(1, 2, 4), tensor=(1, 2), pipeline=(1, 2))
CASES = [case for case in cases_of(AXES) if case.parameters.ranks <= 4]

Seconds = Callable[[Any], float]


class Machine:
    """A machine on which a configuration takes the seconds that a test says; `holds` are a rank's bytes."""

    def __init__(self, seconds: Seconds, holds: Seconds = lambda _: 0.0, noise: float = 0.0, seed: int = 0) -> None:
        self.seconds, self.holds, self.noise, self.chance = seconds, holds, noise, random.Random(seed)
        self.records: list[Record] = []
        self.room = self.budget = self.limit = float("inf")

    def __call__(self, case: Case, experiment: int, note: Mapping[str, Any]) -> Any:
        if len(self.records) >= self.budget:
            return None
        seconds = self.seconds(case.parameters) * self.chance.lognormvariate(0, self.noise)
        fits = self.holds(case.parameters) <= self.room
        said = {} if fits else {"outcome": "failed", "reason": f"{OUT_OF_MEMORY}tried to allocate 2 GiB on rank 0"}
        details = {"resident_bytes": self.holds(case.parameters)}
        record = a_record(case, metric(seconds, samples=[seconds] * 5), process=experiment, details=details, **said)
        sampling = {"search": dict(note), "memory_limit_bytes": self.limit}
        self.records.append(replace(record, probe="study", sampling=sampling))
        return self.records[-1]


def scaling(micro: float, zero: float, cores: int) -> Seconds:
    """Ranks that share the work, an overhead a micro-batch, ZeRO that costs, and no more cores than there are."""

    def seconds(p: Any) -> float:
        shared = p.data**0.9 * p.tensor**0.5 * p.pipeline**0.6
        kept = 1.3 if p.checkpointing.kind != "none" else 1.0
        return (1 / shared + micro * p.micro_batches) * (1 + zero * p.zero_stage) * kept * max(1, p.ranks / cores)

    return seconds


@pytest.mark.parametrize("seed", range(5))
def test_a_search_comes_within_three_percent_of_the_grid_in_a_third_of_its_runs(seed: int) -> None:
    chance = random.Random(seed)
    seconds = scaling(chance.uniform(0, 0.05), chance.uniform(-0.03, 0.1), chance.choice([1, 2, 4]))
    machine = Machine(seconds, noise=0.01, seed=seed)
    search = StudySearch(CASES, machine, pairs=3)
    best = search.run()
    assert best is not None
    assert seconds(best.parameters) <= 1.03 * min(seconds(case.parameters) for case in CASES)
    assert search.runs == len(machine.records) <= len(CASES)  # of three experiments each: a third


def test_without_room_for_one_rank_the_smallest_cut_that_fits_is_taken() -> None:
    machine = Machine(scaling(0.01, 0.1, 4), holds=lambda p: p.batch / (p.tensor * p.pipeline))
    machine.room = 0.5
    search = StudySearch(CASES, machine, pairs=2)
    best = search.run()
    assert best is not None
    assert best.parameters.tensor * best.parameters.pipeline == 2
    steps = search_steps(machine.records)
    assert [each.verdict for each in steps[:2]] == ["does not fit", "fits"]
    assert steps[1].case.parameters.pipeline == 2, "the guides take a pipeline first"
    assert {each.verdict for each in steps if each.change.startswith("batch")} <= {"does not fit", ""}


def test_a_measured_limit_counts_as_memory_that_is_not_there() -> None:
    machine = Machine(scaling(0.05, 0.1, 4), holds=lambda p: 100.0 * p.batch)
    machine.limit = 250.0
    best = StudySearch(CASES, machine, pairs=2).run()
    assert best is not None
    assert best.parameters.batch == 2, "larger micro-batches are faster here, but hold more than the limit"


def test_a_step_is_kept_only_where_every_pair_agrees_and_its_speed_is_noted() -> None:
    machine = Machine(lambda p: 1.0 / p.data)
    axes = replace(AXES, data=(1, 2), tensor=(1,), pipeline=(1,), batch=(1,), zero_stage=(0,))
    StudySearch(cases_of(replace(axes, checkpointing=AXES.checkpointing[:1])), machine, pairs=3).run()
    start, doubled = search_steps(machine.records)
    assert (start.verdict, start.runs) == ("fits", 1)
    assert (doubled.change, doubled.verdict, doubled.runs) == ("data 1 to 2", "faster", 6)
    assert doubled.speed is not None
    assert (doubled.speed.value, doubled.speed.processes) == (pytest.approx(2.0), 3)
    # ABBA, the candidate first.
    assert [record.sampling["search"]["role"] for record in machine.records[1:5]] == [
        "candidate", "incumbent", "incumbent", "candidate",
    ]  # fmt: skip
