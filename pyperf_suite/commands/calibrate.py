"""`pyperf-suite calibrate`: fit the laws to this machine's own run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyperf_suite.commands.options import device_option, path_option, results_option
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from pyperf_suite.advise.calibrate.results import Corrected
    from pyperf_suite.hardware.catalogue import GpuSpec
    from pyperf_suite.runner.results import RunFolder


@click.command()
@click.argument("run", required=False, type=click.Path(path_type=Path), metavar="[RUN]")
@click.option("--gpu", metavar="NAME", help="What the run's GPU is like, where the catalogue does not know it.")
@path_option(
    "--output",
    metavar="PATH",
    help="The file to write, by default beside the machine's runs.",
)
@results_option()
@device_option("Whose newest run: auto, cpu or cuda:N.")
def calibrate(
    run: Path | None,
    gpu: str | None,
    output: Path | None,
    results: Path,
    device: str,
) -> None:
    """Fit the laws to RUN, by default this machine's newest of `run calibration`, and state their held-out error.

    On a CPU, prices of a training step are fitted to RUN of `run step_calibration`.

    \b
    Examples:
      pyperf-suite run calibration && pyperf-suite calibrate
      pyperf-suite run step_calibration --device cpu && pyperf-suite calibrate --device cpu
    """  # noqa: D301 - click keeps the lines below \b as they are
    from rich.console import Console

    _from_run(Console(emoji=False), _run_folder(run, results, device), gpu, output)


def _run_folder(run: Path | None, results: Path, device: str) -> RunFolder:
    from pyperf_suite.advise.calibrate.results import newest_run
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.hardware.machine import identity
    from pyperf_suite.runner.results import open_run

    if run is not None:
        return open_run(run)
    machine = identity(resolve(device))
    return newest_run(results, machine.slug, "step_calibration" if machine.kind == "cpu" else "calibration")


def _from_run(console: Console, folder: RunFolder, gpu: str | None, output: Path | None) -> None:
    from pyperf_suite.advise.calibrate.results import FILE, calibrated, corrections, origin_of

    records = folder.records()
    if gpu is None and "cores" in folder.manifest.get("identity", {}):
        _from_cpu_run(console, folder, output)
        return
    spec = _gpu_of(folder, gpu)
    found = corrections(spec, records, origin_of(folder))
    path = output or folder.path.parent / FILE
    try:
        calibrated(spec, found).save(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): name another file with --output.") from None
    for each in found:
        _say(console, _sentence(each))
    _say(console, f"Written to {path}: take it for sizes with `pyperf-suite size --calibration {path}`.")


def _from_cpu_run(console: Console, folder: RunFolder, output: Path | None) -> None:
    from pyperf_suite.advise.calibrate.cpu import calibrated_cpu
    from pyperf_suite.advise.calibrate.cross_validation import described
    from pyperf_suite.advise.calibrate.results import FILE, origin_of

    identity = folder.manifest["identity"]
    calibration = calibrated_cpu(str(identity["model"]), int(identity["cores"]), folder.records(), origin_of(folder))
    path = output or folder.path.parent / FILE
    try:
        calibration.save(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): name another file with --output.") from None
    for name, block in calibration.blocks.items():
        _say(console, f"{name}: held-out error {described(block.held_out)}")
    _say(console, f"Written to {path}: take it for a study with `pyperf-suite study --calibration {path}`.")


def _gpu_of(folder: RunFolder, named: str | None) -> GpuSpec:
    """The GPU of a run by the catalogue, or what it was said to be like."""
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


def _sentence(corrected: Corrected) -> str:
    from pyperf_suite.advise.calibrate.cross_validation import described

    after = described(corrected.after.to_json())
    if corrected.block is None:
        return f"{corrected.law}: the law fits this machine as it is, with an error of {after}; nothing was changed."
    return (
        f"{corrected.law}: an error of {after} on this machine, where the law alone has "
        f"{corrected.before.mape:.1f} % (median {corrected.before.median:.1f} %)."
    )


def _say(console: Console, line: str) -> None:
    """One line, whatever is in it, and however narrow the terminal."""
    console.print(line, highlight=False, soft_wrap=True, markup=False)
