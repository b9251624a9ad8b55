"""`pyperf-suite completion`: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click

from pyperf_suite.errors import UserError

PROGRAM = "pyperf-suite"
VARIABLE = "_PYPERF_SUITE_COMPLETE"  # click's own name for it, by which the program knows that a shell asks


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
