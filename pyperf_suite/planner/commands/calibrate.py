"""`pyperf-suite calibrate`: fit the laws to this machine's own run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyperf_suite.cli.options import device_option, json_option, path_option, results_option
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.hardware.catalogue import GpuSpec
    from pyperf_suite.planner.laws.calibration import Calibration
    from pyperf_suite.runner.results import RunFolder


@click.command()
@click.argument("run", required=False, type=click.Path(path_type=Path), metavar="[RUN]")
@click.option(
    "--gpu",
    metavar="NAME",
    help="GPU of the catalogue that the run's GPU is like. Default: the run's own. Example: --gpu H100.",
)
@path_option(
    "--runs",
    help="Table of training runs to fit the constants of a step to, in place of a RUN. Example: --runs training.csv.",
)
@path_option(
    "--output", metavar="PATH", help="File to write. Default: next to the machine's runs. Example: --output laws.npz."
)
@results_option()
@device_option("Device whose newest run is fitted: auto, cpu or cuda:N. Example: --device cpu.")
@json_option()
def calibrate(
    run: Path | None, gpu: str | None, runs: Path | None, output: Path | None, results: Path, device: str, as_json: bool
) -> None:
    """Fit the laws to RUN, by default this machine's newest of `run calibration`, and state their held-out error.

    \b
    Examples:
      pyperf-suite run calibration && pyperf-suite calibrate
      pyperf-suite calibrate --runs training.csv --gpu H100
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.hardware.machine import identity
    from pyperf_suite.planner.calibrate import FILE, calibrated, corrections, described, newest_run
    from pyperf_suite.render.text import as_text
    from pyperf_suite.runner.results import read_run

    if runs is not None:
        if run is not None:
            raise UserError("--runs is a table of training runs: leave RUN out, or --runs.")
        _of_runs(runs, gpu, output, as_json)
        return
    folder = newest_run(results, identity(resolve(device)).slug) if run is None else read_run(run)
    spec = _gpu_of(folder, gpu)
    origin = f"own run {folder.run_id} on {folder.manifest['identity']['model']}"
    corrected = corrections(spec, folder.records(), origin)
    path = _saved(calibrated(spec, corrected), output or folder.path.parent / FILE)
    if as_json:
        made = {"calibration": str(path), "gpu": spec.name, "run_id": folder.run_id}
        click.echo(as_text({**made, "laws": [each.to_json() for each in corrected]}), nl=False)
        return
    for correction in corrected:
        after = described(correction.after.to_json())
        if correction.block is None:
            fits = "the law fits this machine as it is"
            click.echo(f"{correction.law}: {fits}, with an error of {after}; nothing was changed.")
        else:
            alone = f"{correction.before.mape:.1f} % (median {correction.before.median:.1f} %)"
            click.echo(f"{correction.law}: an error of {after} on this machine, where the law alone has {alone}.")
    click.echo(f"Written to {path}: take it for sizes with `pyperf-suite size --calibration {path}`.")


def _saved(calibration: Calibration, path: Path) -> Path:
    try:
        return calibration.save(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): name another file with --output.") from None


def _of_runs(table: Path, gpu: str | None, output: Path | None, as_json: bool) -> None:
    from pyperf_suite.hardware.catalogue import find_gpu
    from pyperf_suite.planner.training_runs import refitted
    from pyperf_suite.render.text import as_text

    calibration, refits, refused = refitted(table, None if gpu is None else find_gpu(gpu).name)
    path = _saved(calibration, output or table.with_suffix(".npz")) if calibration.blocks else None
    if as_json:
        frameworks = [
            {
                "framework": each.framework,
                "runs": each.rows,
                "error_percent": {"before": each.before, "after": each.after},
                "changed": each.block is not None,
            }
            for each in refits
        ]
        where = None if path is None else str(path)
        click.echo(as_text({"calibration": where, "frameworks": frameworks, "refused": list(refused)}), nl=False)
        return
    for each in refits:
        kept = "; the published constants stay" if each.block is None else ""
        click.echo(
            f"{each.framework}, {each.rows} runs: an error of {each.after:.1f} % on runs that the fit did not see, "
            f"{each.before:.1f} % by the published constants{kept}."
        )
    if refused:
        click.echo(f"{len(refused)} rows were left out, the first at {refused[0]}")
    if path is not None:
        click.echo(f"Written to {path}: take it with `pyperf-suite layout --calibration {path}`.")


def _gpu_of(folder: RunFolder, named: str | None) -> GpuSpec:
    """The GPU of a run by the catalogue, or the one it is said to be like."""
    from pyperf_suite.hardware.catalogue import find_gpu

    if named is not None:
        return find_gpu(named)
    identity = folder.manifest.get("identity", {})
    if "multiprocessors" not in identity:
        raise UserError(
            f"Run {folder.run_id} was taken on {identity.get('model', 'no GPU')}, but the laws that are calibrated are "
            "of GPUs: name a run taken on one."
        )
    try:
        return find_gpu(str(identity["model"]))
    except UserError as reason:
        raise UserError(f"{str(reason).rstrip('.')}; say with --gpu which known one it is like.") from None
