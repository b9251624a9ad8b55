"""A study as requested on a command line, measured and reported; under a launcher by the ranks that it started."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pyperf_suite.errors import OUT_OF_MEMORY, UserError
from pyperf_suite.findings.axes import read_axes
from pyperf_suite.findings.summary import exit_code
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.devices import Device, gpus, resolve
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.planner.study import PROBE
from pyperf_suite.planner.study.grid import (
    AXES,
    MOST_SEARCHED,
    RunSettings,
    StudyAxes,
    cases_of,
    read_study,
    search_axes,
)
from pyperf_suite.planner.study.search import StudySearch, rule_of
from pyperf_suite.ranks.launch import rank_environment, ranks_here
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from pyperf_suite.render.run_report import report_run, run_as_json
from pyperf_suite.render.terminal import console_for
from pyperf_suite.run import Run, RunRequest, open_run
from pyperf_suite.runner.plan import Outlook, PlannedCase, in_random_order
from pyperf_suite.runner.profiles import Effort, Profile
from pyperf_suite.runner.session import Session
from pyperf_suite.runner.workers import Answers, Workers
from pyperf_suite.workloads.on_ranks import DTYPES

# Steps are taken back to back for so long before ranks report whether all goes well; a part of the deadline.
BLOCK_SHARE = 0.25


@dataclass(frozen=True)
class StudyRequest:
    """A study as requested: options that were given, and what the file says otherwise.

    With `search` its grid is searched; no rank may hold more than `limit_bytes`; it ends within `budget_s`.
    """

    path: Path | None
    options: Mapping[str, Any]
    of_file: Mapping[str, tuple[Any, ...]]
    axes: Mapping[str, tuple[Any, ...]]
    run: RunSettings
    search: bool
    limit_bytes: float
    budget_s: float

    @classmethod
    def of(cls, path: Path | None, options: Mapping[str, Any], *how: Any) -> StudyRequest:
        """Read options and the file. Raises UserError for what a study does not know."""
        of_file, run = ({}, RunSettings()) if path is None else read_study(path)
        axes = read_axes(StudyAxes, {name: str(value) for name, value in options.items() if name in AXES})
        run = replace(run, **{name: value for name, value in options.items() if name in vars(run)})
        return cls(path, options, of_file, axes, run, *how)

    def cases_here(self, device: Device) -> list[Case]:
        """Every configuration requested, in the grid's order. Raises UserError for what cannot be.

        What a search has by default takes no more ranks than there are GPUs.
        """
        if not self.search:
            return cases_of(PROBE.axes("", device).given(self.of_file).given(self.axes))
        given = {*self.of_file, *self.axes}
        defaults = search_axes(device, ranks_here((max(1, len(gpus())),))[0])
        cases = cases_of(defaults.given(self.of_file).given(self.axes), MOST_SEARCHED, given)
        if {"data", "tensor", "pipeline", "configuration"} & given:
            return cases
        return [each for each in cases if each.parameters.ranks <= max(defaults.data)]

    @property
    def arguments(self) -> list[str]:
        """The same study on a command line."""
        words = [] if self.path is None else [str(self.path)]
        for name, value in self.options.items():
            gated = "--gated" if value else "--not-gated"
            words.append(gated if name == "gated" else f"--{name.replace('_', '-')}={value}")
        words += ["--search"] if self.search else []
        return words + ([f"--memory-limit={self.limit_bytes / 2**30:g}"] if math.isfinite(self.limit_bytes) else [])


def chosen(cases: Sequence[Case], only: str) -> list[Case]:
    """Pick configurations by their numbers from 1. Raises UserError for one there is not."""
    numbers = dict.fromkeys(only.split(","))
    if not all(number.isdecimal() and 1 <= int(number) <= len(cases) for number in numbers):
        raise UserError(f"--only {only:.60} was requested, but configurations are numbered 1 to {len(cases)} (--list).")
    return [cases[int(number) - 1] for number in numbers]


def listed(requested: StudyRequest, device: str) -> str:
    """Each configuration with its number, a line each."""
    cases = requested.cases_here(resolve(device))
    lines = []
    for number, case in enumerate(cases, 1):
        p = case.parameters
        ranks = "1 rank" if p.ranks == 1 else f"{p.ranks} ranks"
        cut = f"{ranks}, micro-batches {p.micro_batches} x {p.batch}, {case.implementation}"
        lines.append(f"{number:{len(str(len(cases)))}}  {p.name}  ({cut})")
    return "\n".join(lines)


def run_study(
    requested: StudyRequest,
    device: str,
    results: Path,
    deadline_s: float,
    only: str | None,
    tell: bool,
    resume: str | None,
    as_json: bool,
    everything: bool,
) -> None:
    """Measure the study, unless `tell` asks for what a run holds already, and report it.

    Raises UserError for what cannot be measured here.
    """
    where = resolve(device)
    cases = requested.cases_here(where)
    wanted = cases if only is None else chosen(cases, only)
    steps = requested.run
    if requested.search:
        rule_of(steps.experiments)
    profile = Profile(
        # A search is a run of another kind: it is not resumed by who asks for the whole grid. Experiments can be added.
        f"{'search, ' if requested.search else ''}{steps.steps} steps after {steps.warm_up}",
        processes=steps.experiments,
        effort=Effort(SteadyRule(launches=steps.warm_up), StopRule.exactly(steps.steps, BLOCK_SHARE * deadline_s)),
        purpose="throughput over a given number of steps",
    )
    request = RunRequest(
        profile=profile,
        device=device,
        axes=tuple(requested.arguments),
        seed=steps.seed,
        budget_s=requested.budget_s,
        results=results,
        resume=resume or ("latest" if tell else None),
        # No launch of a job knows whether it is the first: a run of a name may be new.
        may_begin=only is not None and not tell,
        deadline_s=deadline_s,
        cases=in_random_order([PlannedCase(PROBE.name, case) for case in cases], steps.seed),
    )
    if tell:
        folder = request.folder(request.plan())
    else:
        run = _measured(requested, request, wanted, where)
        if run is None:
            return
        folder = run.session.folder
    if as_json:
        click.echo(run_as_json(folder, folder.records()), nl=False)
    else:
        report_run(console_for(everything), folder, folder.records(), everything)
    # To take more memory than there is is an answer, and other configurations may be other launches'.
    own = {case.case_id for case in wanted}
    records = [each for each in folder.records() if each.case_id in own and not each.reason.startswith(OUT_OF_MEMORY)]
    raise SystemExit(exit_code(records))


def _measured(requested: StudyRequest, request: RunRequest, wanted: Sequence[Case], device: Device) -> Run | None:
    """Measure what is wanted in every experiment; None in ranks of a launcher other than the first."""
    launched = rank_environment().launched
    refused = refusals([each.case for each in request.cases], device)

    def noting(workers: Workers) -> StudyWorkers:
        nonlocal wanted
        wanted = of_this_world(wanted) if launched else wanted
        if all(each.case.case_id in refused for each in request.cases):
            raise UserError(next(iter(refused.values())))
        for reason in () if requested.search else dict.fromkeys(refused.values()):
            click.echo(f"not run: {reason}", err=True)
        return StudyWorkers(workers, refused, requested.limit_bytes)

    run = open_run(request, around=noting, refused=refused)
    if run is None:
        return None
    names = {case.case_id for case in wanted}
    chosen_here = [each for each in run.plan.cases if each.case.case_id in names]
    if requested.search:
        _search(run, chosen_here)
        return run
    # One experiment of all configurations after the other, so that what drifts drifts for all of them.
    plan, experiments = run.plan, range(run.plan.profile.processes)
    order = [
        (number, random.Random(plan.seed + number).sample(chosen_here, len(chosen_here))) for number in experiments
    ]
    trials = [(each, number) for number, shuffled in order for each in shuffled]
    if launched:
        trials = [(each, _next_experiment(run.session, each, experiments)) for each in chosen_here]
        plan = replace(plan, profile=replace(plan.profile, processes=1))
    run.measure("study", trials, Outlook(replace(plan, cases=tuple(chosen_here))))
    return run


def of_this_world(wanted: Sequence[Case]) -> list[Case]:
    """Keep what a launcher's ranks can run. Raises UserError where that is nothing."""
    count = rank_environment().count
    cases = [case for case in wanted if case.parameters.ranks == count]
    if not cases:
        there = ", ".join(map(str, sorted({case.parameters.ranks for case in wanted})))
        raise UserError(
            f"No configuration takes {count} ranks (data x tensor x pipeline): those requested take {there}."
        )
    if others := len(wanted) - len(cases):
        click.echo(
            f"{others} of {len(wanted)} configurations take other numbers of ranks: start those apart.", err=True
        )
    return cases


def refusals(cases: Iterable[Case], device: Device) -> dict[str, str]:
    """Reasons of configurations that cannot run on this machine, by case id."""
    reasons = {case.case_id: (case.parameters.name, _why_refused(case, device)) for case in cases}
    return {case_id: f"{name}: {reason}" for case_id, (name, reason) in reasons.items() if reason}


def _why_refused(case: Case, device: Device) -> str:
    launched, p = rank_environment().launched, case.parameters
    try:
        case.validate()
        held_bytes = 2 * DTYPES[p.dtype] * p.dimensions.parameters * (1 if p.is_sharded else p.data)
    except UserError as reason:
        return str(reason)
    if not launched and device.kind == "cuda" and p.ranks > len(gpus()):
        return f"It takes {p.ranks} GPUs, but this machine has {len(gpus())}: start it by torchrun on more nodes."
    # A GPU refuses what it has no room for, which is an outcome; Linux ends processes for it.
    free_bytes = memory.available_bytes()
    if not launched and device.kind == "cpu" and held_bytes > free_bytes:
        return (
            f"Weights and gradients take {held_bytes / 1e9:.1f} GB, but {free_bytes / 1e9:.1f} GB of memory are free: "
            "ask for a smaller model."
        )
    return ""


class StudyWorkers(Workers):
    """Workers that skip cases known not to run here, whose reasons are in `refused` by case id.

    Records keep, under `sampling`, the limit on memory and the note of a search.
    """

    def __init__(self, workers: Workers, refused: Mapping[str, str], limit_bytes: float) -> None:
        self._workers, self._refused, self.limit_bytes = workers, refused, limit_bytes
        self.note: Mapping[str, Any] | None = None

    def measure_by_turns(self, process: int, cases: Sequence[Case], effort: Any) -> Answers:
        reasons = {number: self._refused.get(case.case_id) for number, case in enumerate(cases)}
        left = [number for number, reason in reasons.items() if reason is None]
        refused = [(number, {"outcome": "unsupported", "reason": why}) for number, why in reasons.items() if why]
        measured = self._workers.measure_by_turns(process, [cases[each] for each in left], effort) if left else ()
        for number, answer in chain(refused, ((left[each], found) for each, found in measured)):
            noted: dict[str, Any] = {"search": dict(self.note)} if self.note else {}
            noted |= {"memory_limit_bytes": self.limit_bytes} if math.isfinite(self.limit_bytes) else {}
            yield number, answer | {"sampling": {**answer.get("sampling", {}), **noted}}

    def close(self) -> None:
        self._workers.close()


def _search(run: Run, wanted: Sequence[PlannedCase]) -> None:
    """The grid searched: a line for each experiment on standard error, the path in the records."""
    session, workers = run.session, run.session.workers[0]
    assert isinstance(workers, StudyWorkers)
    console, by_case = Console(stderr=True, emoji=False), {each.case.case_id: each for each in wanted}

    def measure(case: Case, experiment: int, note: Mapping[str, Any]) -> Record | None:
        for planned, process in session.within_budget([(by_case[case.case_id], experiment)]):
            workers.note = note
            record = session.measure_trial(planned, process)
            workers.note = None
            p = case.parameters
            outcome = f"{p.name}: {record.outcome}: {record.reason}"[:90]
            if record.outcome == "ok":
                outcome = f"{p.name}: {p.global_batch / record.seconds:.4g} samples/s"
            console.print(f"step {note['step']}: {outcome}", highlight=False, markup=False, soft_wrap=True)
            return record
        return None

    pairs = session.plan.profile.processes
    search = StudySearch([each.case for each in wanted], measure, pairs)
    with run.begun():
        search.run()
    if session.cut_short:
        click.echo(session.cut_short, err=True)


def _next_experiment(session: Session, planned: PlannedCase, experiments: range) -> int:
    """A launcher's processes are one experiment: the first that nobody has begun, else one that failed, else any."""
    begun = {r.process: r for r in session.records if (r.probe, r.case_id) == (PROBE.name, planned.case.case_id)}
    fresh = [number for number in experiments if number not in begun]
    failed = [number for number, record in begun.items() if record.outcome == "failed"]
    return (fresh or failed or [0])[0]
