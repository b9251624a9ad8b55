"""What a shell offers for a half-typed name: probes, axes, runs, machines, GPUs. It has to answer while a key is down.

Names are offered by what a parameter is called, so that commands need not know of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from pyperf_suite.commands import vocabulary

DEFAULT_RESULTS = "bench_results"
MOST_RUNS = 50

Names = Callable[[click.Context, str], Iterable[str]]


class Completed(click.types.StringParamType):
    """Text, for which a shell offers names. With `files`, whatever the shell knows of files beside them."""

    def __init__(self, names: Names, files: bool = False) -> None:
        self._names, self._files = names, files

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin as typed; none where they cannot be read, for a shell has nowhere to show an error."""
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


def _probes(ctx: click.Context, _: str) -> list[str]:
    chosen = _named_probes(ctx)
    return [name for name in vocabulary.AXES if name not in chosen]


def _axes(ctx: click.Context, incomplete: str) -> list[str]:
    """`tile=`, and after a probe's name and a dot its own: `baseline.tile=`."""
    probe, dot, _ = incomplete.rpartition(".")
    if dot:
        return [f"{probe}.{axis}=" for axis in (vocabulary.axes_of((probe,)) if probe in vocabulary.AXES else ())]
    chosen = _named_probes(ctx) or (("collectives",) if ctx.info_name == "collectives" else ())
    return [f"{axis}=" for axis in vocabulary.axes_of(chosen)]


def _gpus(*_: object) -> list[str]:
    from pyperf_suite.hardware.catalogue import all_gpus

    return [gpu.name for gpu in all_gpus()]


def _machines(ctx: click.Context, _: str) -> list[str]:
    results = _results(ctx)
    return sorted(entry.name for entry in os.scandir(results) if entry.is_dir() and not entry.name.startswith("."))


def _runs(ctx: click.Context, _: str) -> list[str]:
    """`latest`, then runs from the newest."""
    runs = {path.parent.name for path in _results(ctx).glob("*/*/run.json")}
    return ["latest", *sorted(runs, reverse=True)[:MOST_RUNS]]


def _compared_runs(ctx: click.Context, incomplete: str) -> list[str]:
    """`compare` alone knows the run before the latest by a name."""
    return ["latest~1", *_runs(ctx, incomplete)]


def _told_runs(ctx: click.Context, incomplete: str) -> list[str]:
    """`all` or runs, several with commas between them: the last is the one being typed."""
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in ("all", *_runs(ctx, incomplete))]


def _named_probes(ctx: click.Context) -> tuple[str, ...]:
    """Behind an option that waits for its value, click leaves the arguments unread in `args`."""
    return tuple(name for name in (*(ctx.params.get("probes") or ()), *ctx.args) if name in vocabulary.AXES)


def _results(ctx: click.Context) -> Path:
    """The folder that an option names, or an argument, which is unread as those of `_named_probes` are."""
    if ctx.args and any(isinstance(each, click.Argument) and each.name == "results" for each in ctx.command.params):
        return Path(ctx.args[0])
    return Path(ctx.params.get("results") or DEFAULT_RESULTS)


COMPLETED: dict[str | None, Any] = {
    "probes": Completed(_probes),
    "axes": Completed(_axes),
    "profile": Completed(lambda *_: vocabulary.PROFILES),
    "device": Completed(lambda *_: vocabulary.DEVICES),
    "gpu": Completed(_gpus),
    "machine": Completed(_machines),
    "resume": Completed(_runs),
}
# What `compare` and `ab` call OLD and NEW are runs for the one and revisions for the other.
COMPLETED_OF: dict[str | None, dict[str | None, Any]] = {
    "compare": {"old": Completed(_compared_runs, files=True), "new": Completed(_compared_runs, files=True)},
    "report": {"runs": Completed(_told_runs)},
}
