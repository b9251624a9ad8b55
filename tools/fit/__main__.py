"""`python -m tools.fit TABLES`: fit the laws that are shipped, and state the held-out error of each."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pyperf_suite.advise.calibrate_laws import described
from pyperf_suite.errors import UserError
from pyperf_suite.laws.calibration import Calibration
from tools.fit.tables import FITS, calibrate_tables, is_as_shipped, save


@click.command()
@click.argument("tables", type=click.Path(path_type=Path))
@click.option("--law", "laws", multiple=True, type=click.Choice(list(FITS)), help="Only this one; may be repeated.")
@click.option("--output", type=click.Path(path_type=Path), help="The folder to write to; by default the package's own.")
def main(tables: Path, laws: tuple[str, ...], output: Path | None) -> None:
    """Fit law by law and report each as soon as it is done; then write a file a GPU."""
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
