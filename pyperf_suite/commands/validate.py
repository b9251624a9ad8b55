"""`pyperf-suite validate`: hold the laws against measured tables."""

from __future__ import annotations

from pathlib import Path

import click

from pyperf_suite.commands.options import json_option, path_option, wide_option


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--gpu", metavar="NAME", help="Where it was measured, if neither a column nor the file's name says so.")
@click.option("--dtype", metavar="NAME", help="Of the operands, if nothing says so; bf16 else.")
@path_option("--calibration", help="Laws fitted by `calibrate`, on whose GPU these are held.")
@json_option()
@wide_option
def validate(
    files: tuple[Path, ...], gpu: str | None, dtype: str | None, calibration: Path | None, as_json: bool, wide: bool
) -> None:
    """Hold the laws against measured times in CSV or Parquet FILEs: error, bias, what the stated interval covers.

    Files are known by their columns: m, n, k for products, and so on for attention, mixtures of experts,
    collectives and training runs; times are in latency_us, or in a column of a library and version: docs/laws.md.

    \b
    Examples:
      pyperf-suite validate gemm_bf16_h100_sxm.parquet
      pyperf-suite validate my_products.csv --gpu H200 --dtype fp8 --json
      pyperf-suite validate training.csv
    """  # noqa: D301 - click keeps the lines below \b as they are
    import json

    from pyperf_suite.advise import validate as laws
    from pyperf_suite.laws.calibration import load_calibration

    fitted = None if calibration is None else load_calibration(calibration)
    found = [each for path in files for each in laws.validate(path, gpu, dtype, fitted)]
    if as_json:
        click.echo(json.dumps(laws.as_json(found), indent=1))
        return
    from pyperf_suite.render.terminal import console_for, print_told

    print_told(console_for(wide), laws.findings_of(found))
