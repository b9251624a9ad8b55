"""`python -m tools.fit TABLES`: fit the laws that are shipped, and state the held-out error of each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from pyperf_suite.advise.calibrate_laws import described
from pyperf_suite.errors import UserError
from pyperf_suite.laws.calibration import LIBRARIES, Calibration, CalibrationBlock, all_shipped
from tools.fit.tables import FITS, calibrate_tables, is_as_shipped, save


def stated() -> Iterator[str]:
    """The held-out error of every shipped law as a table in Markdown: docs/laws.md has it."""
    yield f"| law, GPU | {' | '.join(LIBRARIES)} |"
    yield "|---" * (1 + len(LIBRARIES)) + "|"
    laws = sorted({name.partition(".")[0] for each in all_shipped() for name in each.blocks if "." in name})
    for law in laws:
        for calibration in all_shipped():
            blocks = [calibration.blocks.get(f"{law}.{library}") for library in LIBRARIES]
            if any(blocks):
                yield f"| {law}, {calibration.gpu} | {' | '.join(map(_cell, blocks))} |"


def _cell(block: CalibrationBlock | None) -> str:
    if block is None:
        return "-"
    coverage = f" / {block.held_out['coverage']:.0f}" if "coverage" in block.held_out else ""
    return f"{block.held_out['mape']:.1f} / {block.held_out['median']:.1f}{coverage}"


@click.command()
@click.argument("tables", type=click.Path(path_type=Path), required=False)
@click.option("--law", "laws", multiple=True, type=click.Choice(list(FITS)), help="Only this one; may be repeated.")
@click.option("--output", type=click.Path(path_type=Path), help="The folder to write to; by default the package's own.")
def main(tables: Path | None, laws: tuple[str, ...], output: Path | None) -> None:
    """Fit law by law and report each as soon as it is done; then write a file a GPU.

    Without TABLES print what the shipped laws state of their error.
    """
    if tables is None:
        click.echo("\n".join(stated()))
        return
    fitted: dict[str, Calibration] = {}
    try:
        for gpu, name, block, fitted[gpu] in calibrate_tables(tables, laws):
            known = ", as shipped" if is_as_shipped(gpu, name, block) else ""
            click.echo(f"{gpu}  {name}: held-out error {described(block.held_out)}{known}")
        for path in save(fitted, output):
            click.echo(f"{path.stat().st_size / 1e3:6.1f} KB  {path}")
    except UserError as reason:
        click.echo(f"error: {reason}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
