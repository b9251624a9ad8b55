"""The group of all commands, each imported when it is asked for, and what a shell offers for a half-typed name.

Where there is no command of a name, the nearest is offered. Completion has to answer while a key is down: names are
offered by what a parameter is called, so that commands need not know of it.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from pyperf_suite.commands.options import DEFAULT_RESULTS, PROFILE_NAMES
from pyperf_suite.errors import UserError, offer

# The module of each command that is not defined with the group itself.
MODULES = {
    "ab": "ab",
    "accept": "accept",
    "calibrate": "calibrate",
    "compare": "compare",
    "completion": "group",
    "doctor": "doctor",
    "explain": "size",
    "export": "history",
    "findings": "findings",
    "history": "history",
    "layout": "layout",
    "report": "report",
    "selfcheck": "selfcheck",
    "size": "size",
    "study": "study",
    "track": "compare",
    "validate": "calibrate",
    "watch": "watch",
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
  pyperf-suite run bench_softmax.py                                kernels of your own: docs/your_kernel.md
  pyperf-suite ab --old main --new . baseline                      is the new version slower? live pairs decide
  pyperf-suite track --confirm                                     each night: what got slower since when

Commands: --help. Probes: run --list. Pages: docs/README.md. Names: eval "$(pyperf-suite completion bash)", or zsh"""


class Suite(click.Group):
    """Commands whose names a person may get wrong, and whose parameters a shell completes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now and with names that a shell completes."""
        if cmd_name in MODULES and cmd_name not in self.commands:
            module = importlib.import_module(f"pyperf_suite.commands.{MODULES[cmd_name]}")
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        complete(cmd)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's, but for no arguments the map of first steps and exit code 0."""
        if not args and not ctx.resilient_parsing:
            click.echo(MAP)
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's, but a name that is no command is answered with the nearest, a probe's with how to run it."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            from pyperf_suite.spec.discovery import probe_names

            if name in probe_names():
                ctx.fail(f"{name} is a probe: `pyperf-suite run {name}` measures it.")
            ctx.fail(f"There is no command {name[:80]!r}: {offer(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


MOST_RUNS = 50
DEVICES = ("auto", "cpu", "cuda:0")
PROGRAM = "pyperf-suite"
VARIABLE = "_PYPERF_SUITE_COMPLETE"  # click's own name for it, by which the program knows that a shell asks

Names = Callable[[click.Context, str], Iterable[str]]


class Completed(click.types.StringParamType):
    """Text, for which a shell offers names; where there are none, with `files`, files."""

    def __init__(self, names: Names, files: bool = False) -> None:
        self._names, self._files = names, files

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin as typed; none if they cannot be read, for a shell has nowhere to show an error."""
        try:
            found = [CompletionItem(name) for name in self._names(ctx, incomplete) if name.startswith(incomplete)]
        except (OSError, ValueError):
            found = []
        return found or ([CompletionItem(incomplete, type="file")] if self._files else [])


def complete(command: click.Command) -> None:
    """Have a shell complete the parameters of a command whose names are known here."""
    known = COMPLETED | COMPLETED_OF.get(command.name, {})
    for param in command.params:
        if param.name in known and isinstance(param.type, click.types.StringParamType):
            param.type = known[param.name]


def axes_of(probes: Iterable[str]) -> list[str]:
    """The axes of those probes, of all if none is named, each once; unknown probes have none."""
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.spec.discovery import find_probe, probe_names

    known = [find_probe(name) for name in probes or probe_names() if name in probe_names()]
    axes = [probe.axes("quick", Device("cpu")) for probe in known]
    return list(dict.fromkeys(field.name for each in axes for field in dataclasses.fields(each)))


def _probes(ctx: click.Context, _: str) -> list[str]:
    from pyperf_suite.spec.discovery import probe_names

    chosen = _named_probes(ctx)
    return [name for name in probe_names() if name not in chosen]


def _named_probes(ctx: click.Context) -> tuple[str, ...]:
    """Behind an option that waits for its value, click leaves the arguments unread in `args`."""
    from pyperf_suite.spec.discovery import probe_names

    return tuple(name for name in (*(ctx.params.get("probes") or ()), *ctx.args) if name in probe_names())


def _axes(ctx: click.Context, incomplete: str) -> list[str]:
    """`tile=`, and after a probe's name and a dot its own: `baseline.tile=`."""
    probe, dot, _ = incomplete.rpartition(".")
    if dot:
        return [f"{probe}.{axis}=" for axis in axes_of((probe,))]
    chosen = _named_probes(ctx) or (("collectives",) if ctx.info_name == "collectives" else ())
    return [f"{axis}=" for axis in axes_of(chosen)]


def _gpus(*_: object) -> list[str]:
    from pyperf_suite.hardware.catalogue import all_gpus

    return [gpu.name for gpu in all_gpus()]


def _results(ctx: click.Context) -> Path:
    """The folder that an option names, or an argument, which is unread as those of `_named_probes` are."""
    if ctx.args and any(isinstance(each, click.Argument) and each.name == "results" for each in ctx.command.params):
        return Path(ctx.args[0])
    return Path(ctx.params.get("results") or DEFAULT_RESULTS)


def _machines(ctx: click.Context, _: str) -> list[str]:
    return sorted(each.name for each in os.scandir(_results(ctx)) if each.is_dir() and not each.name.startswith("."))


def _runs(ctx: click.Context, _: str) -> list[str]:
    """`latest`, then runs from the newest."""
    runs = {path.parent.name for path in _results(ctx).glob("*/*/run.json")}
    return ["latest", *sorted(runs, reverse=True)[:MOST_RUNS]]


def _several_runs(ctx: click.Context, incomplete: str) -> list[str]:
    """`all` or runs, several with commas between them: the last is the one being typed."""
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in ("all", *_runs(ctx, incomplete))]


COMPLETED: dict[str | None, Any] = {
    "probes": Completed(_probes),
    "axes": Completed(_axes),
    "profile": Completed(lambda *_: PROFILE_NAMES),
    "device": Completed(lambda *_: DEVICES),
    "gpu": Completed(_gpus),
    "machine": Completed(_machines),
    "resume": Completed(_runs),
}
# What `compare` and `ab` call OLD and NEW are runs for the one and revisions for the other.
_compared_run = Completed(lambda ctx, incomplete: ["latest~1", *_runs(ctx, incomplete)], files=True)
COMPLETED_OF: dict[str | None, dict[str | None, Any]] = {
    "compare": {"old": _compared_run, "new": _compared_run},
    "report": {"runs": Completed(_several_runs)},
}


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, probes, axes, runs, machines and GPUs.

    \b
    Examples:
      eval "$(pyperf-suite completion bash)"      # also zsh; in ~/.bashrc or ~/.zshrc to keep it
      pyperf-suite completion fish > ~/.config/fish/completions/pyperf-suite.fish
    """  # noqa: D301 - click keeps the lines below \b as they are
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise UserError(f"This version of click knows no completion for {shell}: update it.")
    click.echo(found(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())
