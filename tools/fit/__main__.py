"""`python -m tools.fit TABLES`: fit the laws that are shipped, and state the held-out error of each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from pyperf_suite.errors import UserError
from pyperf_suite.planner.calibrate import described
from pyperf_suite.planner.laws import calibration
from pyperf_suite.planner.laws.training.step import prices_of
from tools.fit.gemm import fit_gemm
from tools.fit.memory import judged_memory
from tools.fit.step import fit_step, judged_steps, stated_constants

Blocks = Mapping[str, Mapping[str, calibration.CalibrationBlock]]
# Blocks by GPU and name, from the folder of tables and what was fitted before, by GPU.
Fit = Callable[[Path, Mapping[str, calibration.Calibration]], Blocks]


# In the order in which they are made: iterations are predicted by the laws of kernels as they were just fitted.
FITS: Mapping[str, Fit] = {
    "gemm": lambda folder, _: fit_gemm(folder),
    "step": lambda folder, fitted: {
        calibration.POOLED: fit_step(folder, lambda gpu, dtype: prices_of(fitted.get(gpu.name, gpu), dtype))
    },
}


def save(calibrations: Mapping[str, calibration.Calibration], folder: Path | None = None) -> list[Path]:
    """Write a file a GPU, by default where those shipped lie. Raises UserError for one that cannot be."""
    paths = []
    for gpu, own in sorted(calibrations.items()):
        path = calibration.shipped_path(gpu) if folder is None else folder / calibration.shipped_path(gpu).name
        try:
            own.save(path)
        except OSError as error:
            raise UserError(
                f"{path} cannot be written ({error.strerror}): name another folder with --output."
            ) from None
        paths.append(path)
    return paths


def stated() -> Iterator[str]:
    """The held-out error of every shipped law as a table in Markdown: docs/laws.md has it."""
    yield f"| law, GPU | {' | '.join(calibration.LIBRARIES)} |"
    yield "|---" * (1 + len(calibration.LIBRARIES)) + "|"
    laws = sorted({name.partition(".")[0] for each in calibration.all_shipped() for name in each.blocks if "." in name})
    for law in laws:
        for each in calibration.all_shipped():
            blocks = [each.blocks.get(f"{law}.{library}") for library in calibration.LIBRARIES]
            if any(blocks):
                yield f"| {law}, {each.gpu} | {' | '.join(map(_cell, blocks))} |"


def _cell(block: calibration.CalibrationBlock | None) -> str:
    if block is None:
        return "-"
    coverage = f" / {block.held_out['coverage']:.0f}" if "coverage" in block.held_out else ""
    return f"{block.held_out['mape']:.1f} / {block.held_out['median']:.1f}{coverage}"


@click.command()
@click.argument("tables", type=click.Path(path_type=Path), required=False)
@click.option("--law", "laws", multiple=True, type=click.Choice(list(FITS)), help="Only this one; may be repeated.")
@click.option("--output", type=click.Path(path_type=Path), help="The folder to write to; by default the package's own.")
@click.option("--judge-steps", is_flag=True, help="Fit nothing: print how far off steps are whose runs were left out.")
@click.option("--judge-memory", is_flag=True, help="Fit the reserve of memory alone, and print what is left out says.")
def main(
    tables: Path | None, laws: tuple[str, ...], output: Path | None, judge_steps: bool, judge_memory: bool
) -> None:
    """Fit law by law and report each as soon as it is done; then write a file a GPU.

    Without TABLES print what the shipped laws state of their error.
    """
    if tables is None:
        click.echo("\n".join([*stated(), "", *stated_constants()]))
        return
    fitted: dict[str, calibration.Calibration] = {}
    try:
        if judge_steps or judge_memory:
            for line in judged_steps(tables) if judge_steps else judged_memory(tables):
                click.echo(line)
            return
        if not tables.is_dir():
            raise UserError(f"There is no folder {tables}: name the one that the published tables lie in.")
        # Blocks of other laws stay as they are shipped.
        for law in [law for law in FITS if not laws or law in laws]:
            for gpu, blocks in sorted(FITS[law](tables, fitted).items()):
                fitted.setdefault(gpu, calibration.shipped_calibration(gpu) or calibration.Calibration(gpu))
                for name, block in sorted(blocks.items()):
                    fitted[gpu] = fitted[gpu].with_block(name, block)
                    click.echo(f"{gpu}  {name}: held-out error {described(block.held_out)}")
        for path in save(fitted, output):
            click.echo(f"{path.stat().st_size / 1e3:6.1f} KB  {path}")
    except UserError as reason:
        click.echo(f"error: {reason}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
