"""The group of all commands, each imported at first use; for an unknown name the nearest is offered."""

from __future__ import annotations

import importlib
import warnings

import click

from pyperf_suite.errors import UserError, offer
from pyperf_suite.extensions import extensions, load

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


class Suite(click.Group):
    """Commands whose names a person may get wrong."""

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
