"""The group of all commands: a map where nothing is asked, the nearest name where there is no such command."""

from __future__ import annotations

import click

from pyperf_suite.commands import first_use, vocabulary
from pyperf_suite.commands.completions import complete
from pyperf_suite.nearest import offer


class Suite(click.Group):
    """Commands whose names a person may get wrong, and whose parameters a shell completes."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        complete(cmd)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's, but for no arguments the map of first steps and exit code 0."""
        if not args and not ctx.resilient_parsing:
            click.echo(first_use.MAP)
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's, but a name that is no command is answered with the nearest, a probe's with how to run it."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            if name in vocabulary.AXES:
                ctx.fail(f"{name} is a probe: `pyperf-suite run {name}` measures it.")
            ctx.fail(f"There is no command {name[:80]!r}: {offer(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)
