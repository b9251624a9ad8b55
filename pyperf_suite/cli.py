"""`pyperf-suite`: the command line, a thin front end over runner, probes and report.

Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyperf_suite import __version__
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.runner.plan import Plan
    from pyperf_suite.runner.results import RunFolder
    from pyperf_suite.runner.session import Session

Command = TypeVar("Command", bound=Callable[..., Any])

PROFILE_NAMES = ("quick", "standard", "full")


class Spoken(click.ClickException):
    """An error that click prints as one sentence."""

    exit_code = 2


class SpokenErrors(click.Group):
    """A UserError from any command is one sentence on standard error and exit code 2, click's own for bad usage."""

    def invoke(self, ctx: click.Context) -> Any:
        warnings.showwarning = _speak_warning
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise Spoken(str(error)) from error


def _speak_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"Warning: {message}", err=True)


@click.group(cls=SpokenErrors, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="pyperf-suite")
def main() -> None:
    """Measure the laws that decide how fast a transformer trains on this machine."""


@main.command()
@click.argument("probes", nargs=-1, metavar="[PROBE]...")
@click.option("--list", "list_probes", is_flag=True, help="List the probes, with cases and time of each profile here.")
@click.option("--profile", default="quick", show_default=True, metavar="NAME", help=f"{', '.join(PROFILE_NAMES)}.")
@click.option("--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, or cuda:N.")
@click.option(
    "-a",
    "--axis",
    "axes",
    multiple=True,
    metavar="[PROBE.]AXIS=VALUE[,VALUE]",
    help="Replace an axis of the sweep, as in tile=64x64x256 or workers=1,2.",
)
@click.option(
    "--results", default="bench_results", show_default=True, type=click.Path(path_type=Path), metavar="FOLDER"
)
@click.option("--seed", default=0, show_default=True, help="Seed of the order in which cases are visited.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value="latest",
    metavar="[RUN]",
    help="Go on with the newest run of the same cases, or with RUN; what it holds is not measured again.",
)
@click.option(
    "--deadline",
    "deadline_s",
    default=120.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="For one case.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON instead of tables.")
def run(
    probes: tuple[str, ...],
    list_probes: bool,
    profile: str,
    device: str,
    axes: tuple[str, ...],
    results: Path,
    seed: int,
    resume: str | None,
    deadline_s: float,
    as_json: bool,
) -> None:
    """Measure PROBEs, or all that are timed, and tell what was found.

    \b
    Examples:
      pyperf-suite run tile_wave
      pyperf-suite run tile_wave -a tile=64x64x256 -a schedule=data_parallel,stream_k --profile standard
    """  # noqa: D301 - click keeps the lines below \b as they are
    from rich.console import Console

    from pyperf_suite.runner.session import Session

    if list_probes:
        _print_probes(Console(), device)
        return
    plan = _plan(probes, profile, device, axes, seed)
    plan.validate()
    folder = _folder(plan, results, resume)
    session = Session(plan, folder, deadline_s)
    _measure_all(session, Console(stderr=True))
    _tell(session, as_json)


def _plan(probes: tuple[str, ...], profile: str, device: str, axes: tuple[str, ...], seed: int) -> Plan:
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.probes import PROBES, find_probe
    from pyperf_suite.probes.axes import overrides_for, parse_overrides
    from pyperf_suite.runner.plan import Plan, PlannedCase, in_random_order
    from pyperf_suite.runner.profiles import find_profile

    chosen = find_profile(profile)
    where = resolve(device)
    overrides = parse_overrides(axes)
    cases = [
        PlannedCase(name, case)
        for name in dict.fromkeys(probes or (name for name, probe in PROBES.items() if probe.is_timed))
        for case in find_probe(name).cases(chosen.name, where, overrides_for(name, overrides))
    ]
    return Plan(in_random_order(cases, seed), chosen, where, seed)


def _folder(plan: Plan, results: Path, resume: str | None) -> RunFolder:
    from pyperf_suite.hardware.identity import identity
    from pyperf_suite.runner.results import create_run, find_run

    machine = identity(plan.device)
    return find_run(results, machine, plan, resume) if resume else create_run(results, machine, plan)


def _measure_all(session: Session, console: Any) -> None:
    """Measure every case under a progress bar; what is interrupted can be resumed."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from pyperf_suite.probes.following import follow_ups

    plan = session.plan
    console.print(f"{', '.join(plan.probes)}: {plan.outlook}", highlight=False, soft_wrap=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    try:
        session.open()
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=len(plan.cases))
            for planned in plan.cases:
                records = session.measure(planned)
                progress.update(task, advance=1, description=_speed(records[-1]))
            for count, planned in enumerate(follow_ups(plan, session.records), len(plan.cases) + 1):
                progress.update(task, total=count)
                records = session.measure(planned)
                progress.update(task, advance=1, description=f"following up: {_speed(records[-1])}")
        session.finish()
    except KeyboardInterrupt:
        raise UserError(
            f"Interrupted; {len(session.records)} records are kept in {session.folder.records_path}. "
            f"Go on with --resume {session.folder.run_id}."
        ) from None
    finally:
        session.close()


def _speed(record: Any) -> str:
    if record.outcome != "ok":
        return f"{record.outcome}: {record.reason}"[:60]
    flop = record.work.get("flop")
    return f"{flop / record.seconds / 1e12:.3f} TFLOP/s" if flop else record.kernel["name"]


def _tell(session: Session, as_json: bool) -> None:
    from rich.console import Console

    from pyperf_suite.report.run_report import report_run, run_as_json

    if as_json:
        click.echo(run_as_json(session.folder, session.records))
    else:
        report_run(Console(), session.folder, session.records)


def _print_probes(console: Any, device: str) -> None:
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.probes import PROBES
    from pyperf_suite.runner.plan import Plan, PlannedCase
    from pyperf_suite.runner.profiles import PROFILES

    where = resolve(device)
    for name, probe in PROBES.items():
        console.print(f"[bold]{name}[/bold]  {probe.question}", highlight=False, soft_wrap=True)
        for profile in PROFILES.values():
            cases = probe.cases(profile.name, where)
            plan = Plan(tuple(PlannedCase(name, case) for case in cases), profile, where)
            console.print(f"    {plan.outlook} ({profile.purpose})", highlight=False, soft_wrap=True)
    console.print("A case ends as soon as its median is known well enough, so most runs are shorter.", soft_wrap=True)
