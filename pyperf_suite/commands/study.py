"""`pyperf-suite study`: the same training step cut over ranks in many ways, each run, ranked by samples per second."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.commands.measuring import (
    folder_of,
    kept_when_interrupted,
    progress_on,
    run_options,
    workers_of_the_launcher,
)
from pyperf_suite.commands.slurm_script import Allocation, sbatch_script
from pyperf_suite.commands.study_options import Asked, chosen, slurm_options, study_options
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.probes.study.axes import StudyAxes
    from pyperf_suite.probes.study.results import Predictor
    from pyperf_suite.runner.case import Case
    from pyperf_suite.runner.plan import Plan, PlannedCase
    from pyperf_suite.runner.record import Record
    from pyperf_suite.runner.results import RunFolder
    from pyperf_suite.runner.session import Session

# Steps are taken back to back for so long before ranks are asked whether all goes well; a part of the deadline.
BLOCK_SHARE = 0.25
PROBE = "study"


@click.command()
@click.argument("grid", required=False, type=click.Path(path_type=Path), metavar="[GRID.toml]")
@study_options
@click.option("--only", metavar="K,...", help="Only configurations of these numbers; RUN of --resume may be new then.")
@click.option("--list", "list_them", is_flag=True, help="Number the configurations, and end.")
@click.option("--tell", is_flag=True, help="Measure nothing; tell what RUN of --resume, or the newest, holds.")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Predict by these laws, not by this machine's.",
)
@run_options
@slurm_options
def study(
    grid: Path | None,
    only: str | None,
    list_them: bool,
    tell: bool,
    device: str,
    results: Path,
    resume: str | None,
    deadline_s: float,
    as_json: bool,
    wide: bool,
    calibration: Path | None,
    print_slurm: bool,
    nodes: int,
    gpus_per_node: int,
    time_limit: str,
    partition: str,
    account: str,
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
    asked = Asked.of(grid, named)
    if print_slurm:
        allocation = Allocation(nodes, gpus_per_node, time_limit, partition, account)
        click.echo(_script(asked, allocation, device, results, deadline_s), nl=False)
        return
    from pyperf_suite.hardware.devices import resolve

    where = resolve(device)
    cases = asked.cases(_defaults(where))
    if list_them:
        _list(cases)
        return
    wanted = chosen(cases, only)
    plan = _plan(cases, asked, where, deadline_s)
    if calibration is not None:
        _predictor(where, results, calibration)  # a file that is no calibration is no reason to lose an hour
    if tell:
        folder = folder_of(plan, results, resume or "latest")
        _tell(folder, folder.records(), as_json, wide, _predictor(where, results, calibration))
        return
    session = _measure(plan, wanted, results, resume, only is not None, deadline_s)
    if session is not None:
        _tell(session.folder, list(session.records), as_json, wide, _predictor(where, results, calibration))


def _defaults(device: Device) -> StudyAxes:
    """The grid by default: over the ranks that a launcher started, or over this machine's GPUs."""
    from pyperf_suite.hardware.cuda_driver import gpus
    from pyperf_suite.probes.study.axes import default_axes
    from pyperf_suite.ranks.environment import rank_environment

    found = rank_environment()
    return default_axes(device, found.count if found.launched else max(1, len(gpus())))


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
) -> Session | None:
    """Visit what is wanted in every experiment; None in ranks of a launcher other than the first."""
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
        if launched:
            wanted = _of_this_world(wanted, rank_environment().count)
        refused = _refused(plan)
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
    names = {case.case_id for case in wanted}
    _visit(session, [each for each in plan.cases if each.case.case_id in names], launched)
    return session


def _visit(session: Session, wanted: Sequence[PlannedCase], launched: bool) -> None:
    """One experiment of all configurations after the other, so that what drifts drifts for all of them."""
    from rich.console import Console

    plan, console = session.plan, Console(stderr=True)
    experiments = range(plan.profile.processes)
    visits = [(planned, number) for number in experiments for planned in _shuffled(wanted, plan.seed + number)]
    if launched:
        visits = [(planned, _next_experiment(session, planned, experiments)) for planned in wanted]
    count, times = len(wanted), 1 if launched else len(experiments)
    console.print(
        f"study: {count} configuration{'s' if count > 1 else ''} x {times} experiment{'s' if times > 1 else ''} of "
        f"{plan.profile.name} of warm-up on {plan.device}",
        highlight=False,
        soft_wrap=True,
    )
    with kept_when_interrupted(session):
        session.open()
        with progress_on(console, len(visits)) as show:
            session.visit_all(visits, show, lambda planned, record: _told(planned.case, record))
        session.finish()


def _shuffled(wanted: Sequence[PlannedCase], seed: int) -> list[PlannedCase]:
    return random.Random(seed).sample(list(wanted), len(wanted))


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


def _of_this_world(wanted: Sequence[Case], ranks: int) -> list[Case]:
    """What a launcher's ranks can run. Raises UserError where that is nothing."""
    from pyperf_suite.probes.study.grid import worlds_of

    found = [case for case in wanted if case.parameters.ranks == ranks]
    if not found:
        raise UserError(
            f"The launcher started {ranks} ranks, but the configurations asked for take "
            f"{', '.join(map(str, worlds_of(wanted)))}: start as many as one of them takes."
        )
    if len(found) < len(wanted):
        others = ", ".join(str(world) for world in worlds_of(wanted) if world != ranks)
        click.echo(f"{len(wanted) - len(found)} configurations take {others} ranks and wait for a launch.", err=True)
    return found


def _refused(plan: Plan) -> Mapping[str, str]:
    """Why configurations cannot run on this machine, by case id. Raises UserError where none is left."""
    found: dict[str, str] = {}
    for planned in plan.cases:
        reason = _why_refused(planned.case, plan.device)
        if reason:
            found[planned.case.case_id] = f"{planned.case.parameters.name}: {reason}"
    if len(found) == len(plan.cases):
        raise UserError(next(iter(found.values())))
    kept = tuple(planned for planned in plan.cases if planned.case.case_id not in found)
    replace(plan, cases=kept).validate()
    return found


def _why_refused(case: Case, device: Device) -> str:
    from pyperf_suite.advise.study.fit import room_of, why_not
    from pyperf_suite.hardware.cuda_driver import gpus
    from pyperf_suite.ranks.environment import rank_environment

    launched, ranks = rank_environment(), case.parameters.ranks
    try:
        case.validate()
    except UserError as reason:
        return str(reason)
    if not launched.launched and device.kind == "cuda" and ranks > len(gpus()):
        return f"It takes {ranks} GPUs, but this machine has {len(gpus())}: start it by torchrun on more nodes."
    here = -(-ranks // launched.nodes) if launched.launched else ranks
    return why_not(case.parameters, device.kind, room_of(device, here))


def _begun(plan: Plan, results: Path, resume: str | None) -> RunFolder:
    """The run of that name, or a new one: of several launches of a job none knows whether it is the first."""
    from pyperf_suite.hardware.identity import identity
    from pyperf_suite.runner.results import create_run

    machine = identity(plan.device)
    if resume is None or resume == "latest" or (results / machine.slug / resume).exists():
        return folder_of(plan, results, resume)
    return create_run(results, machine, plan, resume)


def _tell(folder: RunFolder, records: Sequence[Record], as_json: bool, wide: bool, predictor: Predictor | None) -> None:
    from pyperf_suite.probes.study.data import as_data
    from pyperf_suite.probes.study.probe import Study
    from pyperf_suite.probes.study.results import results_of
    from pyperf_suite.render.run_report import report_run, run_as_json
    from pyperf_suite.render.terminal import console_for
    from pyperf_suite.spec.discovery import replace_probe

    # This process tells once and ends.
    replace_probe(Study(predictor))
    if as_json:
        click.echo(run_as_json(folder, records, {"study": as_data(results_of(records, predictor))}), nl=False)
    else:
        report_run(console_for(wide), folder, records)


def _list(cases: Sequence[Case]) -> None:
    width = len(str(len(cases)))
    for number, case in enumerate(cases, 1):
        p = case.parameters
        ranks = "1 rank" if p.ranks == 1 else f"{p.ranks} ranks"
        micro_batches = f"{p.micro_batches} micro-batches of {p.batch}"
        click.echo(f"{number:{width}}  {p.name}  ({ranks}, {micro_batches}, {case.implementation})")


def _script(asked: Asked, allocation: Allocation, device: str, results: Path, deadline_s: float) -> str:
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.probes.study.axes import default_axes

    if not asked.cuts_itself:
        raise UserError(
            "--print-slurm needs a grid that says how steps are cut, for the default one depends on the machine: give "
            "a GRID.toml, or options such as --data 8,16 --zero 1,3."
        )
    kind: Any = "cpu" if device == "cpu" else "cuda"
    cases = asked.cases(default_axes(Device(kind)))
    arguments = [*asked.arguments(), f"--device={'cpu' if kind == 'cpu' else 'cuda'}", f"--deadline={deadline_s:g}"]
    worlds = [case.parameters.ranks for case in cases]
    return sbatch_script(allocation, worlds, asked.run.experiments, arguments, str(results))
