"""`pyperf-suite`: the command line, a thin front end over runner, probes and report.

Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import functools
import itertools
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite import __version__
from pyperf_suite.cli.group import Suite
from pyperf_suite.cli.measuring import folder_of, measure_all, workers_of_the_launcher
from pyperf_suite.cli.options import Finite, audit_option, measuring_options
from pyperf_suite.errors import Interrupted, UserError, ending_of, printable

if TYPE_CHECKING:
    from pyperf_suite.findings.probe import Probe
    from pyperf_suite.runner.plan import Plan, Progress
    from pyperf_suite.runner.session import Session

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Speaking(click.Command):
    """A UserError, or a package that is broken, is one sentence on standard error and its exit code.

    A command that a signal ended exits with 128 and the signal's number, as shells expect: 130 after Ctrl-C.
    """

    def invoke(self, ctx: click.Context) -> Any:
        warnings.showwarning = _speak_warning
        received: list[int] = []
        try:
            with _signals_interrupt(received):
                return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            if (ending := ending_of(error)) is None:
                raise
            spoken = click.ClickException(printable(str(ending)))
            spoken.exit_code = ending.exit_code  # type: ignore[misc]  # click reads it from the instance
            if isinstance(ending, Interrupted):
                spoken.exit_code = 128 + (received[-1] if received else signal.SIGINT)  # type: ignore[misc]
            raise spoken from error


class CommandLine(Speaking, Suite):
    """All commands."""


@contextmanager
def _signals_interrupt(received: list[int]) -> Iterator[None]:
    """SIGTERM, as batch systems send it, and SIGHUP of a closed terminal end a command as Ctrl-C does.

    By default they end this process at once, and its workers and ranks work on alone until their case is over. A signal
    that is ignored, as under nohup, stays so. `received` gets the number of what came.
    """

    def interrupt(number: int, _: Any) -> None:
        received.append(number)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    taken = [each for each in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(each) is signal.SIG_DFL]
    for each in taken:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)


def _speak_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"Warning: {printable(str(message))}", err=True)


@click.group(cls=CommandLine, context_settings=HELP)
@click.version_option(__version__, prog_name="pyperf-suite")
def main() -> None:
    """Measure the laws that decide how fast a transformer trains on this machine."""


@main.command()
@click.argument("probes", nargs=-1, metavar="[PROBE]...")
@click.option(
    "--list",
    "list_probes",
    is_flag=True,
    help="List all probes. With PROBE: list its axes and how long each profile takes. Example: run --list tile_wave.",
)
@click.option(
    "--shape",
    metavar="NAME[,NAME]",
    help="Use the shapes of a model: bert-base, bert-large or gpt2. Default: the shapes of the profile. Without "
    "PROBE all probes with such shapes are run. Example: --shape gpt2.",
)
@audit_option
@measuring_options
def run(
    probes: tuple[str, ...],
    list_probes: bool,
    shape: str | None,
    axes: tuple[str, ...],
    device: str,
    **options: Any,
) -> None:
    """Measure PROBEs, or all that are timed, and report what was found.

    FILE.py, FILE.py:FUNCTION and PACKAGE.MODULE:FUNCTION are kernels of your own: docs/your_kernel.md. The exit code is
    0 if nothing failed, 2 if what was requested cannot be, 3 if a case failed or nothing was measured.

    \b
    Examples:
      pyperf-suite run tile_wave
      pyperf-suite run bench_softmax.py --profile standard
      pyperf-suite run block precision --shape bert-base
      pyperf-suite run tile_wave -a tile=64x64x256 -a schedule=data_parallel,stream_k --profile standard
    """  # noqa: D301 - click keeps the lines below \b as they are
    if list_probes:
        from rich.console import Console

        _print_probes(Console(emoji=False), probes, device)
        return
    if shape is not None:
        probes, axes = _of_shape(probes), (*axes, f"shape={shape}")
    _run(probes, axes=axes, device=device, **options)


def _of_shape(probes: tuple[str, ...]) -> tuple[str, ...]:
    """Those requested, or all that train the guides' models. Raises UserError for one that does not."""
    from pyperf_suite.probes import all_probes, expanded, find_probe

    those = tuple(probe.name for probe in all_probes() if probe.shaped)
    if others := [name for name in expanded(probes) if not find_probe(name).shaped]:
        raise UserError(f"{others[0]} trains none of the guides' models: --shape is for {', '.join(those)}.")
    return probes or those


@main.command()
@click.option(
    "--ranks",
    type=click.IntRange(1),
    metavar="N",
    help="Number of processes on this machine. Default: those of the profile. Example: --ranks 2.",
)
@click.option(
    "--soak",
    "soak_min",
    default=0.0,
    type=Finite(0),
    metavar="MINUTES",
    show_default=True,
    help="Repeat the cases for this time afterwards, to see how stable a shared network is. Example: --soak 30.",
)
@click.option(
    "--model",
    metavar="NAME=NUMBER,...",
    help="Judge whether the network is fast enough to train this model in parallel. Default: 32 layers of "
    "hidden size 4096. Example: --model layers=12,hidden=768,ffn=3072,heads=12,vocab=50257,compute_ms=90.",
)
@measuring_options
def collectives(ranks: int | None, soak_min: float, model: str | None, axes: tuple[str, ...], **options: Any) -> None:
    """Measure raw collective bandwidth: `run collectives`, and what torchrun and SLURM start.

    \b
    Examples:
      pyperf-suite collectives --ranks 2 -a op=all_reduce -a size=1KiB,1MiB
      torchrun --nproc-per-node=8 -m pyperf_suite collectives --profile standard
    """  # noqa: D301 - click keeps the lines below \b as they are
    if ranks is not None:
        axes = (*axes, f"ranks={ranks}")
    if model is not None:
        _judge_training_of(model, options["device"])
    _run(("collectives",), axes=axes, soak_min=soak_min, **options)


def _judge_training_of(model: str, device: str) -> None:
    """Have the probe of this process, which measures once and ends, judge that model."""
    from pyperf_suite.extensions import service
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.probes import replace_probe
    from pyperf_suite.probes.collectives import PROBE, analyse

    judge_of = service("network_judge")
    if judge_of is None:
        raise UserError("--model is judged by the planner, which is not installed: leave it out.")
    judge = judge_of(resolve(device).kind, model)
    replace_probe(replace(PROBE, analyse=lambda rows: analyse(rows, judge)))


def _run(
    probes: tuple[str, ...],
    profile: str,
    device: str,
    axes: tuple[str, ...],
    results: Path,
    seed: int,
    resume: str | None,
    deadline_s: float,
    as_json: bool,
    everything: bool,
    budget_s: float | None = None,
    soak_min: float = 0.0,
) -> None:
    """Measure and report; in ranks other than the first of a launcher's, do what the first one asks."""
    from pyperf_suite.findings.summary import exit_code
    from pyperf_suite.ranks.launch import rank_environment
    from pyperf_suite.render.run_report import report_run, run_as_json
    from pyperf_suite.render.terminal import console_for
    from pyperf_suite.runner.plan import most_informative_first
    from pyperf_suite.runner.session import Session

    workers = None
    if rank_environment().launched:
        workers = workers_of_the_launcher(device, deadline_s)
        if workers is None:
            return
    try:
        plan = _plan(probes, profile, device, axes, seed)
        plan.validate()
        if budget_s is not None:
            plan = replace(plan, cases=most_informative_first(plan.cases, seed))
        budget_s = budget_s or math.inf
        session = Session(plan, folder_of(plan, results, resume), deadline_s, workers, budget_s)
    except UserError:
        # Nothing is wrong with the other ranks: they go, and only this one's sentence is heard.
        if workers is not None:
            workers.close()
        raise
    measure_all(
        session,
        ", ".join(plan.probes),
        describe=lambda _, record: _speed(record),
        afterwards=functools.partial(_follow_up_and_soak, session, soak_min),
    )
    records = list(session.records)  # read once from the disk
    if as_json:
        click.echo(run_as_json(session.folder, records), nl=False)
    else:
        report_run(console_for(everything), session.folder, records, everything)
    raise SystemExit(exit_code(records))


def _plan(probes: tuple[str, ...], profile: str, device: str, axes: tuple[str, ...], seed: int) -> Plan:
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.probes import planned_cases
    from pyperf_suite.ranks.launch import rank_environment
    from pyperf_suite.runner.plan import Plan, in_random_order
    from pyperf_suite.runner.profiles import find_profile

    chosen, where = find_profile(profile), resolve(device)
    cases = planned_cases(probes, chosen.name, where, axes)
    if rank_environment().launched:
        # Fresh processes are the launcher's to start, so each case gets one trial.
        chosen = replace(chosen, processes=1)
    return Plan(in_random_order(cases, seed), chosen, where, seed, axes)


def _follow_up_and_soak(session: Session, soak_min: float, show: Progress, done: int) -> None:
    """Measure what the probes request after the plan, then repeat the plan's cases for so long."""
    from pyperf_suite.probes import follow_ups

    followed = follow_ups(session.plan, session.records)
    trials = session.within_budget((planned, n) for planned in followed for n in session.processes(planned))
    for number, trial in enumerate(trials, done + 1):
        show(number, number, f"following up: {_speed(session.measure_trial(*trial))}", lambda: 0.0)
    end = time.monotonic() + 60 * soak_min
    for number, planned in enumerate(itertools.cycle(session.plan.cases), done + 1):
        if time.monotonic() >= end:
            break
        show(number, number, f"soaking: {_speed(session.measure_again(planned))}", lambda: 0.0)


def _speed(record: Any) -> str:
    if record.outcome != "ok":
        return printable(f"{record.outcome}: {record.reason}"[:60])
    flop = record.work.get("flop")
    return f"{flop / record.seconds / 1e12:.3f} TFLOP/s" if flop else record.kernel["name"]


def _print_probes(console: Any, names: tuple[str, ...], device: str) -> None:
    """Every probe's question by topic; of those that are named their axes, and what each profile takes here."""
    from pyperf_suite.probes import expanded, find_probe, listed

    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    if not names:
        probes = listed()
        width = max(len(probe.name) for probe in probes)
        for topic, members in itertools.groupby(probes, key=lambda probe: probe.topic):
            line(f"[bold]{topic}[/bold]")
            for each in members:
                line(f"  {each.name:{width}}  {each.question}")
        line("\nAxes, values and how long each profile takes here: pyperf-suite run --list PROBE")
    for probe in [find_probe(name) for name in expanded(names)]:
        line(f"[bold]{probe.name}[/bold]  {probe.question}")
        _print_profiles(line, probe, device)


def _print_profiles(line: Callable[[str], None], probe: Probe, device: str) -> None:
    """What each profile takes here, and the values of its axes where they differ from those of the one before."""
    from rich.markup import escape

    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.runner.plan import Outlook, Plan, PlannedCase
    from pyperf_suite.runner.profiles import PROFILES

    where = resolve(device)
    before: dict[str, str] = {}
    for profile in PROFILES.values():
        plan = Plan(tuple(PlannedCase(probe.name, case) for case in probe.cases(profile.name, where)), profile, where)
        line(f"  {Outlook(plan).line} ({profile.purpose})")
        axes = probe.axes(profile.name, where)
        for field in fields(axes):
            values = ",".join(map(str, getattr(axes, field.name)))
            if before.get(field.name) != values:
                before[field.name] = values
                line(f"    -a {field.name}={escape(values)}")
