"""`python -m tools.fit TABLES`: fit the laws that are shipped, and state the held-out error of each."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from pyperf_suite.advise.calibrate_laws import described
from pyperf_suite.advise.validate import Validated, findings_of, validate
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws import calibration
from pyperf_suite.laws.calibration import LIBRARIES, Calibration, CalibrationBlock, all_shipped, shipped_path
from pyperf_suite.render.terminal import console_for, print_findings
from tools.fit.tables import FITS, calibrate_tables, is_as_shipped, save


def stated() -> Iterator[str]:
    """The held-out error of every shipped law as a table in Markdown: docs/laws.md has it."""
    yield f"| law, GPU | {' | '.join(LIBRARIES)} |"
    yield "|---" * (1 + len(LIBRARIES)) + "|"
    laws = sorted({name.partition(".")[0] for each in all_shipped() for name in each.blocks if "." in name})
    for law in laws:
        for each in all_shipped():
            blocks = [each.blocks.get(f"{law}.{library}") for library in LIBRARIES]
            if any(blocks):
                yield f"| {law}, {each.gpu} | {' | '.join(map(_cell, blocks))} |"


def _cell(block: CalibrationBlock | None) -> str:
    if block is None:
        return "-"
    coverage = f" / {block.held_out['coverage']:.0f}" if "coverage" in block.held_out else ""
    return f"{block.held_out['mape']:.1f} / {block.held_out['median']:.1f}{coverage}"


def read_off_others(tables: Path, gpu: str) -> list[Validated]:
    """A GPU's tables against laws that are read off the other GPUs, as if none of its own were shipped.

    What was read before stays in caches, so this is asked once a process. Raises UserError where there is no table.
    """
    name, slug = find_gpu(gpu).name, find_gpu(gpu).slug
    with tempfile.TemporaryDirectory() as folder:
        for each in calibration.SHIPPED.glob("*.npz"):
            if each != shipped_path(name):
                shutil.copy(each, folder)
        calibration.SHIPPED = Path(folder)
        own = [path for path in sorted(tables.glob("*")) if path.stem.endswith((f"_{slug}", "collectives"))]
        found = [each for path in own for each in validate(path) if each.gpu == name]
    if not found:
        raise UserError(f"{tables} has no table of {name}: name the folder of the published tables, or a measured GPU.")
    return found


@click.command()
@click.argument("tables", type=click.Path(path_type=Path), required=False)
@click.option("--law", "laws", multiple=True, type=click.Choice(list(FITS)), help="Only this one; may be repeated.")
@click.option("--output", type=click.Path(path_type=Path), help="The folder to write to; by default the package's own.")
@click.option("--left-out", metavar="GPU", help="Fit nothing: hold this GPU's tables against the laws of the others.")
def main(tables: Path | None, laws: tuple[str, ...], output: Path | None, left_out: str | None) -> None:
    """Fit law by law and report each as soon as it is done; then write a file a GPU.

    Without TABLES print what the shipped laws state of their error.
    """
    if tables is None:
        click.echo("\n".join(stated()))
        return
    fitted: dict[str, Calibration] = {}
    try:
        if left_out is not None:
            found = findings_of(read_off_others(tables, left_out))
            print_findings(console_for(wide=True), {"left out": found}, [])
            return
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
