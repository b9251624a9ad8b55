"""A study as asked for on a command line, measured and reported: imported when one is asked for."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console

from pyperf_suite.advise.study.fit import refusals
from pyperf_suite.advise.study.grid_file import RunSettings, StudyFile, read_study
from pyperf_suite.advise.study.prediction import find_calibration, predictor
from pyperf_suite.commands.measuring import folder_of, kept_when_interrupted, progress_on, workers_of_the_launcher
from pyperf_suite.commands.slurm_script import Allocation, sbatch_script
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.hardware.identity import identity
from pyperf_suite.laws.calibration import load_calibration
from pyperf_suite.probes.study import PROBE
from pyperf_suite.probes.study.findings import analyse
from pyperf_suite.probes.study.grid import AXES, CUTS, StudyAxes, cases_of, default_axes, of_worlds
from pyperf_suite.probes.study.results import Predictor
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.render.run_report import report_run, run_as_json
from pyperf_suite.render.terminal import console_for
from pyperf_suite.runner.plan import Outlook, Plan, PlannedCase, in_random_order
from pyperf_suite.runner.profiles import fixed_steps
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.runner.results import RunFolder, create_run
from pyperf_suite.runner.session import Session
from pyperf_suite.runner.workers import SparingWorkers, WorkerPool
from pyperf_suite.spec.axes import read_axes
from pyperf_suite.spec.discovery import replace_probe

# Steps are taken back to back for so long before ranks are asked whether all goes well; a part of the deadline.
BLOCK_SHARE = 0.25


@dataclass(frozen=True)
class Asked:
    """A study as asked for: options that were given, and what the file says beside them."""

    path: Path | None
    file: StudyFile
    given: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]]
    run: RunSettings

    @classmethod
    def of(cls, path: Path | None, given: Mapping[str, Any]) -> Asked:
        """Read options and the file. Raises UserError for what a study does not know."""
        file = StudyFile() if path is None else read_study(path)
        axes = read_axes(StudyAxes, {name: str(value) for name, value in given.items() if name in AXES})
        run = replace(file.run, **{name: value for name, value in given.items() if name in vars(file.run)})
        run.validate()
        return cls(path, file, given, axes, run)

    def cases(self, defaults: StudyAxes) -> list[Case]:
        """Every configuration asked for, in the grid's order. Raises UserError for what cannot be."""
        ranks = _numbers("ranks", self.given.get("ranks", ""))
        cases = cases_of(self.file.over(defaults).given(self.axes))
        return of_worlds(cases, ranks) if ranks else cases

    @property
    def arguments(self) -> list[str]:
        """The same study on a command line."""
        words = [] if self.path is None else [str(self.path)]
        for name, value in self.given.items():
            gated = "--gated" if value else "--not-gated"
            words.append(gated if name == "gated" else f"--{name.replace('_', '-')}={value}")
        return words


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError:
        raise UserError(f"--{name} {text[:60]!r} was asked for, but takes whole numbers, as in 1,2,4.") from None


def chosen(cases: Sequence[Case], only: str) -> list[Case]:
    """Those configurations by their numbers from 1. Raises UserError for one there is not."""
    numbers = dict.fromkeys(_numbers("only", only))
    if not numbers or not all(1 <= number <= len(cases) for number in numbers):
        raise UserError(f"--only {only:.60} was asked for, but configurations are numbered 1 to {len(cases)} (--list).")
    return [cases[number - 1] for number in numbers]


def listed(asked: Asked, device: str) -> str:
    """Each configuration with its number, a line each."""
    cases = asked.cases(PROBE.axes("", resolve(device)))
    lines = []
    for number, case in enumerate(cases, 1):
        p = case.parameters
        ranks = "1 rank" if p.ranks == 1 else f"{p.ranks} ranks"
        cut = f"{ranks}, micro-batches {p.micro_batches} x {p.batch}, {case.implementation}"
        lines.append(f"{number:{len(str(len(cases)))}}  {p.name}  ({cut})")
    return "\n".join(lines)


def script_of(asked: Asked, allocation: Allocation, device: str, results: Path, deadline_s: float) -> str:
    """An sbatch script that runs the study. Raises UserError for a grid that depends on the machine."""
    if not asked.file.configurations and not any(name in CUTS for name in (*asked.file.axes, *asked.axes)):
        raise UserError(
            "--print-slurm needs a grid that says how steps are cut, for the default one depends on the machine: give "
            "a GRID.toml, or options such as --data 8,16 --zero 1,3."
        )
    kind: Literal["cpu", "cuda"] = "cpu" if device == "cpu" else "cuda"
    worlds = [case.parameters.ranks for case in asked.cases(default_axes(Device(kind)))]
    options = [f"--device={kind}", f"--deadline={deadline_s:g}", f"--results={results}"]
    return sbatch_script(allocation, worlds, asked.run.experiments, [*asked.arguments, *options])


def run_study(
    asked: Asked,
    device: str,
    results: Path,
    deadline_s: float,
    only: str | None,
    tell: bool,
    calibration: Path | None,
    resume: str | None,
    as_json: bool,
    wide: bool,
) -> None:
    """Measure the study, unless `tell` asks for what a run holds already, and report it.

    Raises UserError for what cannot be measured here.
    """
    where = resolve(device)
    cases = asked.cases(PROBE.axes("", where))
    wanted = cases if only is None else chosen(cases, only)
    run = asked.run
    profile = fixed_steps(run.steps, run.warm_up, run.experiments, BLOCK_SHARE * deadline_s)
    planned = in_random_order([PlannedCase(PROBE.name, case) for case in cases], run.seed)
    plan = Plan(planned, profile, where, run.seed, tuple(asked.arguments))
    if calibration is not None:
        _predictor(where, results, calibration)  # a file that is no calibration is no reason to lose an hour
    if tell:
        folder: RunFolder | None = folder_of(plan, results, resume or "latest")
    else:
        folder = _measure(plan, wanted, results, resume, only is not None, deadline_s)
    if folder is None:
        return
    # This process reports once and ends.
    analysis = partial(analyse, predictor=_predictor(where, results, calibration))
    replace_probe(replace(PROBE, analyse=analysis))
    if as_json:
        click.echo(run_as_json(folder, folder.records()), nl=False)
    else:
        report_run(console_for(wide), folder, folder.records())


def _predictor(device: Device, results: Path, calibration: Path | None) -> Predictor | None:
    """By a file's laws or by what was measured here; None, after saying why, where there is neither.

    Raises UserError for a file that holds no laws.
    """
    if calibration is not None:
        return predictor(load_calibration(calibration), device.kind)
    try:
        return predictor(find_calibration(results, identity(device).slug), device.kind)
    except UserError as reason:
        click.echo(f"no predictions: {reason}", err=True)
        return None


def _measure(
    plan: Plan, wanted: Sequence[Case], results: Path, resume: str | None, may_begin: bool, deadline_s: float
) -> RunFolder | None:
    """Visit what is wanted in every experiment; None in ranks of a launcher other than the first."""
    workers: Any = None
    launched = rank_environment().launched
    if launched:
        workers = workers_of_the_launcher(str(plan.device), deadline_s)
        if workers is None:
            return None
    try:
        here = of_this_world(wanted) if launched else wanted
        refused = refusals([each.case for each in plan.cases], plan.device)
        runnable = tuple(each for each in plan.cases if each.case.case_id not in refused)
        if not runnable:
            raise UserError(next(iter(refused.values())))
        replace(plan, cases=runnable).validate()
        for reason in dict.fromkeys(refused.values()):
            click.echo(f"not run: {reason}", err=True)
        machine = identity(plan.device)
        # Of several launches of a job none knows whether it is the first: a run of a name may be new.
        begins = may_begin and resume not in (None, "latest") and not (results / machine.slug / f"{resume}").exists()
        folder = create_run(results, machine, plan, resume) if begins else folder_of(plan, results, resume)
        workers = workers or WorkerPool(plan.device, deadline_s)
        session = Session(plan, folder, deadline_s, SparingWorkers(workers, refused))
    except UserError:
        # Nothing is wrong with the other ranks: they go, and only this one's sentence is heard.
        if workers is not None:
            workers.close()
        raise
    names = {case.case_id for case in here}
    _visit(session, [each for each in plan.cases if each.case.case_id in names], launched)
    return folder


def of_this_world(wanted: Sequence[Case]) -> list[Case]:
    """What a launcher's ranks can run. Raises UserError where that is nothing."""
    found = of_worlds(wanted, [rank_environment().count])
    if others := len(wanted) - len(found):
        click.echo(
            f"{others} of {len(wanted)} configurations take other numbers of ranks: start those apart.", err=True
        )
    return found


def _visit(session: Session, wanted: Sequence[PlannedCase], launched: bool) -> None:
    """One experiment of all configurations after the other, so that what drifts drifts for all of them."""
    plan, console = session.plan, Console(stderr=True, emoji=False)
    experiments = range(plan.profile.processes)
    order = [(number, random.Random(plan.seed + number).sample(wanted, len(wanted))) for number in experiments]
    visits = [(each, number) for number, shuffled in order for each in shuffled]
    if launched:
        visits = [(each, _next_experiment(session, each, experiments)) for each in wanted]
        plan = replace(plan, profile=replace(plan.profile, processes=1))
    ahead = Outlook(replace(plan, cases=tuple(wanted))).line
    console.print(f"study: {ahead}", highlight=False, soft_wrap=True)
    with kept_when_interrupted(session):
        session.open()
        with progress_on(console, len(visits)) as show:
            session.visit_all(visits, show, _told)
        session.finish()


def _next_experiment(session: Session, planned: PlannedCase, experiments: range) -> int:
    """A launcher's processes are one experiment: the first that nobody has begun, else one that failed, else any."""
    begun = {r.process: r for r in session.records if (r.probe, r.case_id) == (PROBE.name, planned.case.case_id)}
    fresh = [number for number in experiments if number not in begun]
    failed = [number for number, record in begun.items() if record.outcome == "failed"]
    return (fresh or failed or [0])[0]


def _told(planned: PlannedCase, record: Record) -> str:
    p = planned.case.parameters
    if record.outcome != "ok":
        return f"{p.name}: {record.outcome}: {record.reason}"[:90]
    return f"{p.name}: {p.global_batch / record.seconds:.4g} samples/s"
