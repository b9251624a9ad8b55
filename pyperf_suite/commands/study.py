"""`pyperf-suite study`: the same training step cut over ranks in many ways, each run, ranked by samples per second."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.commands.measuring import (
    folder_of,
    kept_when_interrupted,
    progress_on,
    workers_of_the_launcher,
)
from pyperf_suite.commands.options import run_options
from pyperf_suite.commands.slurm_script import Allocation, sbatch_script
from pyperf_suite.commands.study_options import Asked, chosen, study_options
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.probes.study.results import Predictor
    from pyperf_suite.runner.case import Case
    from pyperf_suite.runner.plan import Plan, PlannedCase
    from pyperf_suite.runner.record import Record
    from pyperf_suite.runner.results import RunFolder
    from pyperf_suite.runner.session import Session

FILE = click.Path(path_type=Path)
# Steps are taken back to back for so long before ranks are asked whether all goes well; a part of the deadline.
BLOCK_SHARE = 0.25
PROBE = "study"


@click.command()
@click.argument("grid", required=False, type=FILE, metavar="[GRID.toml]")
@click.option("--grid", "same_grid", type=FILE, metavar="GRID.toml", help="The same as the argument.")
@study_options
@click.option("--only", metavar="K,...", help="Only configurations of these numbers; RUN of --resume may be new then.")
@click.option("--list", "list_them", is_flag=True, help="Number the configurations, and end.")
@click.option("--tell", is_flag=True, help="Measure nothing; show what RUN of --resume, or the newest, holds.")
@click.option("--calibration", type=FILE, metavar="FILE", help="Predict by these laws, not by this machine's.")
@run_options
def study(
    grid: Path | None,
    same_grid: Path | None,
    only: str | None,
    list_them: bool,
    tell: bool,
    calibration: Path | None,
    print_slurm: bool,
    device: str,
    results: Path,
    resume: str | None,
    deadline_s: float,
    as_json: bool,
    **named: Any,
) -> None:
    """Train a small GPT cut over ranks in every way of a grid, and rank the ways by samples per second.

    \b
    Examples:
      pyperf-suite study                                    # 11 ways over 1 to 4 ranks of this machine
      pyperf-suite study --data 1,2,4 --zero 0,1,3 --steps 20 --experiments 5
      pyperf-suite study GRID.toml --resume                 # go on where it was interrupted
      pyperf-suite study GRID.toml --print-slurm --nodes 4 --gpus-per-node 8 > study.sbatch
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.spec.discovery import find_probe

    if grid and same_grid:
        raise UserError(f"Two grids were given, {grid} and {same_grid}: give one.")
    allocation = Allocation(**{each.name: named.pop(each.name) for each in fields(Allocation)})
    asked = Asked.of(grid or same_grid, named)
    if print_slurm:
        click.echo(_script(asked, allocation, device, results, deadline_s), nl=False)
        return
    where = resolve(device)
    cases = asked.cases(find_probe(PROBE).axes("", where))
    if list_them:
        _list(cases)
        return
    wanted = chosen(cases, only)
    plan = _plan(cases, asked, where, deadline_s)
    if calibration is not None:
        _predictor(where, results, calibration)  # a file that is no calibration is no reason to lose an hour
    if tell:
        folder: RunFolder | None = folder_of(plan, results, resume or "latest")
    else:
        folder = _measure(plan, wanted, results, resume, only is not None, deadline_s)
    if folder is not None:
        _tell(folder, as_json, _predictor(where, results, calibration))


def _predictor(device: Device, results: Path, calibration: Path | None) -> Predictor | None:
    """By a file's laws or by what was measured here; None, after saying why, where there is neither.

    Raises UserError for a file that holds no laws.
    """
    from pyperf_suite.advise.study.prediction import find_calibration, predictor
    from pyperf_suite.hardware.identity import identity
    from pyperf_suite.laws.calibration import load_calibration

    if calibration is not None:
        return predictor(load_calibration(calibration), device.kind)
    try:
        return predictor(find_calibration(results, identity(device).slug), device.kind)
    except UserError as reason:
        click.echo(f"no predictions: {reason}", err=True)
        return None


def _plan(cases: Sequence[Case], asked: Asked, device: Device, deadline_s: float) -> Plan:
    from pyperf_suite.runner.plan import Plan, PlannedCase, in_random_order
    from pyperf_suite.runner.profiles import fixed_steps

    run = asked.run
    profile = fixed_steps(run.steps, run.warm_up, run.experiments, BLOCK_SHARE * deadline_s)
    planned = in_random_order([PlannedCase(PROBE, case) for case in cases], run.seed)
    return Plan(planned, profile, device, run.seed, tuple(asked.arguments()))


def _measure(
    plan: Plan, wanted: Sequence[Case], results: Path, resume: str | None, may_begin: bool, deadline_s: float
) -> RunFolder | None:
    """Visit what is wanted in every experiment; None in ranks of a launcher other than the first."""
    from pyperf_suite.advise.study.fit import refusals
    from pyperf_suite.ranks.environment import rank_environment
    from pyperf_suite.runner.session import Session
    from pyperf_suite.runner.sparing_workers import SparingWorkers
    from pyperf_suite.runner.worker_pool import WorkerPool

    workers: Any = None
    launched = rank_environment().launched
    if launched:
        workers = workers_of_the_launcher(str(plan.device), deadline_s)
        if workers is None:
            return None
    try:
        here = _of_this_world(wanted) if launched else wanted
        refused = refusals([each.case for each in plan.cases], plan.device)
        runnable = tuple(each for each in plan.cases if each.case.case_id not in refused)
        if not runnable:
            raise UserError(next(iter(refused.values())))
        replace(plan, cases=runnable).validate()
        for reason in dict.fromkeys(refused.values()):
            click.echo(f"not run: {reason}", err=True)
        folder = _begun(plan, results, resume) if may_begin else folder_of(plan, results, resume)
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


def _visit(session: Session, wanted: Sequence[PlannedCase], launched: bool) -> None:
    """One experiment of all configurations after the other, so that what drifts drifts for all of them."""
    from rich.console import Console

    from pyperf_suite.runner.outlook import Outlook

    plan, console = session.plan, Console(stderr=True)
    experiments = range(plan.profile.processes)
    visits = [
        (each, number)
        for number in experiments
        for each in random.Random(plan.seed + number).sample(wanted, len(wanted))
    ]
    if launched:
        visits = [(each, _next_experiment(session, each, experiments)) for each in wanted]
        plan = replace(plan, profile=replace(plan.profile, processes=1))
    ahead = Outlook(replace(plan, cases=tuple(wanted))).line
    console.print(f"study: {ahead}", highlight=False, soft_wrap=True)
    with kept_when_interrupted(session):
        session.open()
        with progress_on(console, len(visits)) as show:
            session.visit_all(visits, show, lambda planned, record: _told(planned.case, record))
        session.finish()


def _next_experiment(session: Session, planned: PlannedCase, experiments: range) -> int:
    """A launcher's processes are one experiment: the first that nobody has begun, else one that failed, else any."""
    begun = {r.process: r for r in session.records if (r.probe, r.case_id) == (PROBE, planned.case.case_id)}
    fresh = [number for number in experiments if number not in begun]
    failed = [number for number, record in begun.items() if record.outcome == "failed"]
    return (fresh or failed or [0])[0]


def _told(case: Case, record: Record) -> str:
    if record.outcome != "ok":
        return f"{case.parameters.name}: {record.outcome}: {record.reason}"[:90]
    return f"{case.parameters.name}: {case.parameters.global_batch / record.seconds:.4g} samples/s"


def _of_this_world(wanted: Sequence[Case]) -> list[Case]:
    """What a launcher's ranks can run. Raises UserError where that is nothing."""
    from pyperf_suite.probes.study.grid import of_worlds
    from pyperf_suite.ranks.environment import rank_environment

    found = of_worlds(wanted, [rank_environment().count])
    if len(found) < len(wanted):
        left = len(wanted) - len(found)
        click.echo(f"{left} of {len(wanted)} configurations take other numbers of ranks: start those apart.", err=True)
    return found


def _begun(plan: Plan, results: Path, resume: str | None) -> RunFolder:
    """The run of that name, or a new one: of several launches of a job none knows whether it is the first."""
    from pyperf_suite.hardware.identity import identity
    from pyperf_suite.runner.results import create_run

    machine = identity(plan.device)
    if resume is None or resume == "latest" or (results / machine.slug / resume).exists():
        return folder_of(plan, results, resume)
    return create_run(results, machine, plan, resume)


def _tell(folder: RunFolder, as_json: bool, predictor: Predictor | None) -> None:
    from rich.console import Console

    from pyperf_suite.probes.study.findings import analyse
    from pyperf_suite.report.run_report import report_run, run_as_json
    from pyperf_suite.spec.discovery import find_probe, replace_probe

    # This process tells once and ends.
    replace_probe(replace(find_probe(PROBE), analyse=partial(analyse, predictor=predictor)))
    if as_json:
        click.echo(run_as_json(folder, folder.records()))
    else:
        report_run(Console(), folder, folder.records())


def _list(cases: Sequence[Case]) -> None:
    for number, case in enumerate(cases, 1):
        p = case.parameters
        ranks = "1 rank" if p.ranks == 1 else f"{p.ranks} ranks"
        cut = f"{ranks}, micro-batches {p.micro_batches} x {p.batch}, {case.implementation}"
        click.echo(f"{number:{len(str(len(cases)))}}  {p.name}  ({cut})")


def _script(asked: Asked, allocation: Allocation, device: str, results: Path, deadline_s: float) -> str:
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.probes.study.grid import default_axes

    if not asked.cuts_itself:
        raise UserError(
            "--print-slurm needs a grid that says how steps are cut, for the default one depends on the machine: give "
            "a GRID.toml, or options such as --data 8,16 --zero 1,3."
        )
    kind: Any = "cpu" if device == "cpu" else "cuda"
    worlds = [case.parameters.ranks for case in asked.cases(default_axes(Device(kind)))]
    options = [f"--device={kind}", f"--deadline={deadline_s:g}", f"--results={results}"]
    return sbatch_script(allocation, worlds, asked.run.experiments, [*asked.arguments(), *options])
