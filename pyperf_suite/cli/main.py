"""`pyperf-suite`: the command line, a thin front end; what is heavy is imported inside the command that needs it."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite import __version__
from pyperf_suite.cli.options import Finite, append_markdown, audit_option, markdown_option, measuring_options
from pyperf_suite.cli.parts import Parts
from pyperf_suite.errors import Interrupted, UserError, ending_of, offer, printable
from pyperf_suite.extensions import extensions, load

if TYPE_CHECKING:
    from pyperf_suite.findings.probe import Probe

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

# The module of each command of the core that is not defined with the group itself; other parts bring theirs.
MODULES = {
    "ab": "ab",
    "compare": "compare",
    "export": "history",
    "findings": "history",
    "history": "history",
    "init": "init",
    "report": "history",
    "track": "compare",
}

MAP = """\
pyperf-suite measures the laws that decide how fast a transformer trains on a machine, and says what to do about it.

Begin with
  pyperf-suite doctor                                              is this machine fit for measuring?
  pyperf-suite run tile_wave                                       a first picture, within a minute
  pyperf-suite report                                              all that was measured here, on one page for a browser
You design a model (no GPU needed)
  pyperf-suite size --config config.json --gpu H200                nearby sizes that train faster, and why
  pyperf-suite explain 4096 50257 2560 --gpu H100                  one matrix product: tiles, waves, alignment
  pyperf-suite layout --config config.json --gpu H100 --gpus 64 --global-batch 512    DP, TP, PP, ZeRO, ranked
You train on this machine
  pyperf-suite run memory block checkpointing                      what takes memory, what time, what can be dropped
  pyperf-suite run precision optimizer input_pipeline              which settings are worth changing here
  pyperf-suite watch -- python train.py                            what does this job wait for?
  pyperf-suite study                                               DDP, ZeRO, TP, PP in live steps, by samples/s
You accept a cluster
  pyperf-suite accept                                              is every part of this node as fast as its kind?
  torchrun --nproc-per-node=8 -m pyperf_suite collectives --profile standard          busbw, stragglers, verdicts
You own kernels
  pyperf-suite init                                                a bench file of your own: docs/your_kernel.md
  pyperf-suite ab --old main --new . baseline                      is the new version slower? live pairs decide
  pyperf-suite track --confirm                                     each night: what got slower since when

Commands: --help. Probes: run --list. Pages: docs/README.md."""


class Speaking(click.Command):
    """A UserError, or a package that is broken, is one sentence on standard error and its exit code.

    A command that a signal ended exits with 128 and the signal's number, as shells expect: 130 after Ctrl-C.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _spoken([]):  # help is written here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        warnings.showwarning = _speak_warning
        received: list[int] = []
        with _spoken(received), _signals_interrupt(received):
            return super().invoke(ctx)


class CommandLine(Speaking, click.Group):
    """All commands, each imported at first use, whose names a person may get wrong."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *MODULES, *extensions("commands")})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; one of another package that cannot be imported is named in a warning."""
        if cmd_name in MODULES and cmd_name not in self.commands:
            module = importlib.import_module(f"pyperf_suite.cli.{MODULES[cmd_name]}")
            self.add_command(getattr(module, cmd_name))
        elif cmd_name in extensions("commands") and cmd_name not in self.commands:
            try:
                self.add_command(load("commands", cmd_name))
            except UserError as error:
                warnings.warn(str(error), stacklevel=2)
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's, but for no arguments the map of first steps and exit code 0."""
        if not args and not ctx.resilient_parsing:
            names, lines = self.list_commands(ctx), [(line, line.split()) for line in MAP.splitlines()]
            # Commands of parts that are not installed are left out.
            there = [line for line, words in lines if not line.startswith("  pyperf-suite ") or words[1] in names]
            click.echo("\n".join(there))
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's, but a name that is no command is answered with the nearest, a probe's with how to run it."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            from pyperf_suite.probes import probe_names

            if name in probe_names():
                ctx.fail(f"{name} is a probe: `pyperf-suite run {name}` measures it.")
            ctx.fail(f"There is no command {name[:80]!r}: {offer(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@contextmanager
def _spoken(received: list[int]) -> Iterator[None]:
    """End the command as `ending_of` says; `received` are the numbers of signals."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if _is_unread(error):
            _drop_output()
            raise SystemExit(128 + signal.SIGPIPE) from None
        if isinstance(error, SystemExit) or (ending := ending_of(error)) is None:
            raise
        if isinstance(error, OSError) and error.filename is None:
            _drop_output()
        spoken = click.ClickException(printable(str(ending)))
        spoken.exit_code = ending.exit_code  # type: ignore[misc]  # click reads it from the instance
        if isinstance(ending, Interrupted):
            spoken.exit_code = 128 + (received[-1] if received else signal.SIGINT)  # type: ignore[misc]
        raise spoken from error


def _is_unread(error: BaseException) -> bool:
    """True if standard output's reader is gone, as `head` goes. rich then ends with 1, which is "slower" here."""
    if isinstance(error, SystemExit):
        return isinstance(error.__context__, BrokenPipeError)
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no poll, or no descriptor
        poll = select.poll()
        poll.register(sys.stdout, 0)
        return isinstance(error, BrokenPipeError) and bool(poll.poll(0))
    return False


def _drop_output() -> None:
    """Drop what standard output still holds, which Python would write once more as it ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


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
    signals = [each for each in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(each) is signal.SIG_DFL]
    for caught in signals:
        signal.signal(caught, interrupt)
    try:
        yield
    finally:
        for caught in signals:
            signal.signal(caught, signal.SIG_DFL)


def _speak_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"Warning: {printable(str(message))}", err=True)


@click.group(cls=CommandLine, context_settings=HELP)
@click.version_option(__version__, prog_name="pyperf-suite")
@click.pass_context
def main(context: click.Context) -> None:
    """Measure the laws that decide how fast a transformer trains on this machine."""
    context.obj = Parts()


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
@markdown_option
@measuring_options
def run(
    probes: tuple[str, ...],
    list_probes: bool,
    shape: str | None,
    axes: tuple[str, ...],
    device: str,
    as_json: bool,
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
    if shape is not None:
        from pyperf_suite.probes import all_probes, expanded, find_probe

        shaped = tuple(probe.name for probe in all_probes() if probe.shaped)
        if others := [name for name in expanded(probes) if not find_probe(name).shaped]:
            raise UserError(f"{others[0]} trains none of the guides' models: --shape is for {', '.join(shaped)}.")
        probes, axes = probes or shaped, (*axes, f"shape={shape}")
    if list_probes:
        (_list_as_json if as_json else _print_probes)(probes, device, axes)
        return
    _run(probes, axes, as_json, device=device, **options)


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
    help="Judge whether the network is fast enough to train this model in parallel. "
    "Example: --model layers=12,hidden=768,ffn=3072,heads=12,vocab=50257,compute_ms=90.",
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
    _run(("collectives",), axes, soak_min=soak_min, model=model, **options)


def _run(
    probes: tuple[str, ...],
    axes: tuple[str, ...],
    as_json: bool,
    everything: bool,
    markdown: Path | None = None,
    **options: Any,
) -> None:
    """Measure and report; in ranks other than the first of a launcher's, do what the first one asks."""
    from pyperf_suite.render.terminal import console_for
    from pyperf_suite.run import RunRequest, open_run

    run = open_run(RunRequest(probes, axes=axes, **options), find=Parts().find_probe)
    if run is None:
        return
    run.measure(", ".join(run.plan.probes))
    if as_json:
        click.echo(run.as_json(), nl=False)
    else:
        run.report(console_for(everything), everything)
    if markdown is not None:
        append_markdown(markdown, run.as_markdown())
    raise SystemExit(run.exit_code)


def _list_as_json(names: tuple[str, ...], device: str, axes: tuple[str, ...]) -> None:
    """All probes with their questions; of those that are named each profile's cases, seconds and axes as well."""
    from pyperf_suite.probes import expanded, find_probe, listed
    from pyperf_suite.render.text import as_text

    found: list[dict[str, Any]] = [each._asdict() for each in ([] if names else listed())]
    for probe in map(find_probe, expanded(names)):
        profiles = list(_profiles(probe, device, axes))
        found.append({"topic": probe.topic, "name": probe.name, "question": probe.question, "profiles": profiles})
    click.echo(as_text({"probes": found}), nl=False)


def _print_probes(names: tuple[str, ...], device: str, axes: tuple[str, ...]) -> None:
    """Every probe's question by topic; of those that are named their axes, and what each profile takes here."""
    from rich.console import Console
    from rich.markup import escape

    from pyperf_suite.probes import expanded, find_probe, listed

    console = Console(emoji=False)

    def line(text: str, bold: str = "") -> None:
        console.print(f"[bold]{escape(bold)}[/bold]{escape(text)}", highlight=False, soft_wrap=True)

    if not names:
        probes = listed()
        width = max(len(probe.name) for probe in probes)
        for topic, members in itertools.groupby(probes, key=lambda probe: probe.topic):
            line("", bold=topic)
            for each in members:
                line(f"  {each.name:{width}}  {each.question}")
        line("\nAxes, values and how long each profile takes here: pyperf-suite run --list PROBE")
    for probe in [find_probe(name) for name in expanded(names)]:
        line(f"  {probe.question}", bold=probe.name)
        before: dict[str, str] = {}
        for profile in _profiles(probe, device, axes):
            line(f"  {profile['ahead']} ({profile['purpose']})")
            for name, values in profile["axes"].items():
                if before.get(name) != values:  # as those of the profile before it
                    line(f"    -a {name}={values}")
            before = profile["axes"]


def _profiles(probe: Probe, device: str, axes: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Each profile of a probe: its cases, seconds they are expected to take here, and values of its axes as text."""
    from pyperf_suite.findings.axes import overrides_for, parse_overrides, replace_axes
    from pyperf_suite.run import RunRequest
    from pyperf_suite.runner.plan import Outlook
    from pyperf_suite.runner.profiles import PROFILES

    replaced = overrides_for(probe.name, parse_overrides(axes))
    for profile in PROFILES.values():
        plan = RunRequest((probe.name,), profile.name, device, axes).plan()
        own = replace_axes(probe.axes(profile.name, plan.device), replaced)
        values = {field.name: ",".join(map(str, getattr(own, field.name))) for field in fields(own)}
        ahead = Outlook(plan)
        yield {
            "profile": profile.name,
            "purpose": profile.purpose,
            "ahead": ahead.line,
            "cases": len(plan.cases),
            "seconds": ahead.run_s(),
            "axes": values,
        }
