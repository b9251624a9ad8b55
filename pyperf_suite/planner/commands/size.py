"""`pyperf-suite size` and `pyperf-suite explain`: which dimensions are faster on a GPU, and what one product costs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.cli.options import (
    Percent,
    device_option,
    json_option,
    options,
    path_option,
    profile_option,
    results_option,
    wide_option,
)
from pyperf_suite.errors import UserError
from pyperf_suite.planner.commands.model_options import (
    gpu_options,
    model_options,
    requested_gpu,
    requested_model,
    value_options,
)

if TYPE_CHECKING:
    from pyperf_suite.findings.data import Findings
    from pyperf_suite.hardware.catalogue import GpuSpec
    from pyperf_suite.planner.laws.calibration import Calibration
    from pyperf_suite.planner.laws.explained import KernelPrices
    from pyperf_suite.planner.sizing.report import Sizing
    from pyperf_suite.runner.plan import Plan
    from pyperf_suite.runner.results import RunFolder

dtype_option = click.option(
    "--dtype",
    type=click.Choice(("bf16", "fp16", "fp8", "tf32", "fp32", "int8")),
    default="bf16",
    show_default=True,
    help="Dtype of the products. Example: --dtype fp8.",
)


@click.command()
@model_options
@options(
    *(
        click.option(name, type=int, default=1, show_default=True, metavar="N", help=text)
        for name, text in (
            ("--micro-batch", "Sequences that a GPU computes at a time. Example: --micro-batch 2."),
            ("--tp", "Number of GPUs that share each layer (tensor parallelism). Example: --tp 8."),
            ("--shards", "Number of data-parallel GPUs that share the states (ZeRO-3, FSDP). Example: --shards 8."),
        )
    ),
    dtype_option,
    gpu_options,
    *value_options(
        {
            "vary NAME,...": "Dimensions to change: hidden, heads, kv_heads, ffn, vocab, layers, micro_batch, tp. "
            "Default: all. Example: --vary heads,vocab.",
            "head-dims N,...": "Head dimensions that candidates may have. Default: 64,96,128,192,256.",
        }
    ),
    *(
        click.option(name, type=Percent(), default=default, show_default=True, metavar="PERCENT", help=text)
        for name, default, text in (
            ("--parameter-change", 2.0, "Largest change of the number of parameters. Example: --parameter-change 5."),
            ("--reach", 15.0, "Largest change of each width. Example: --reach 30."),
        )
    ),
    click.option(
        "--measure",
        is_flag=True,
        help="Measure the model and the best candidates on the GPU in this machine. Default: off.",
    ),
    profile_option("Profile to measure with: how thoroughly. Example: --profile quick.", "standard"),
    device_option("Device to measure on: auto or cuda:N. Example: --device cuda:1."),
    results_option("Folder for the records of what is measured. Example: --results /tmp/results."),
    path_option(
        "--output",
        metavar="FOLDER",
        help="Folder for the heat maps and a page. Default: none are written. Example: --output sizes.",
    ),
    json_option(),
    wide_option,
)
def size(
    config: Path | None,
    gpu: str | None,
    calibration: Path | None,
    library: str | None,
    output: Path | None,
    as_json: bool,
    wide: bool,
    seq: int | None,
    micro_batch: int,
    tp: int,
    shards: int,
    dtype: str,
    vary: str | None,
    parameter_change: float,
    reach: float,
    head_dims: str | None,
    measure: bool,
    profile: str,
    device: str,
    results: Path,
    **dimensions: Any,
) -> None:
    """Say which nearby dimensions of a model train faster on a GPU, by how much, and why.

    \b
    Examples:
      pyperf-suite size --config config.json --gpu H200 --tp 8
      pyperf-suite size --layers 32 --hidden 2560 --heads 32 --ffn 10240 --vocab 50257 --not-gated --gpu A100
      pyperf-suite size --config config.json --gpu H100 --vary heads,vocab --output sizes --json
      pyperf-suite size --config config.json --measure
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.laws.training.memory import USABLE_SHARE
    from pyperf_suite.planner.sizing.report import sizing
    from pyperf_suite.planner.sizing.search import AXES, HEAD_DIMS, Bounds
    from pyperf_suite.planner.sizing.step import Setting
    from pyperf_suite.runner.profiles import find_profile

    spec, laws = requested_gpu(gpu, calibration)
    spec.peak(dtype)
    find_profile(profile)
    if measure:
        from pyperf_suite.hardware.devices import resolve
        from pyperf_suite.planner.sizing import measured as sizing_measured

        sizing_measured.require_gpu(spec, resolve(device))
    model, length, notes = requested_model(config, seq, dimensions)
    bounds = Bounds(
        vary=AXES if vary is None else tuple(name.strip().replace("-", "_") for name in vary.split(",")),
        parameter_change=parameter_change / 100,
        reach=reach / 100,
        head_dims=HEAD_DIMS if head_dims is None else _numbers(head_dims),
        memory_bytes=USABLE_SHARE * spec.memory_bytes,
    )
    setting = Setting(model, length, micro_batch, tp, shards, dtype)
    found = sizing(laws, setting, bounds, _prices(laws, dtype, library), notes)
    measured = _measured(found, _prices(laws, dtype, library, "burst"), profile, device, results) if measure else None
    _report(found, output, as_json, wide, measured)


Measured = tuple["Findings", "RunFolder"]


def _prices(laws: GpuSpec | Calibration, dtype: str, library: str | None, mode: Any = "sustained") -> KernelPrices:
    from pyperf_suite.planner.laws.prices import Prices

    return Prices(laws, dtype, mode, library)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{text!r} are no head dimensions: write numbers, as in 64,128.") from None


def _measured(found: Sizing, prices: KernelPrices, profile: str, device: str, results: Path) -> Measured:
    """Measure the present model and the best candidates with a progress bar: findings, and the run."""
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.planner.sizing.measured import SizingRun, validation_findings
    from pyperf_suite.runner.profiles import find_profile

    run = SizingRun.of(found.gpu, found.search, resolve(device), find_profile(profile))
    folder = run_of(run.plan, results)
    found_here = run.judged(prices, folder.records())
    return validation_findings(run.names, found_here), folder


def run_of(plan: Plan, results: Path) -> RunFolder:
    """The plan measured into a run's folder of its own. Raises UserError if the results folder cannot be written."""
    from pyperf_suite.cli.measuring import folder_of, measure_all
    from pyperf_suite.runner.session import Session

    session = Session(plan, folder_of(plan, results, None))
    measure_all(session, "measuring")
    return session.folder


def _report(found: Sizing, output: Path | None, as_json: bool, wide: bool, measured: Measured | None) -> None:
    """Print the answer; pictures and a page only into a folder that was named."""
    from pyperf_suite.findings.summary import exit_code, failures_of
    from pyperf_suite.planner.sizing.report import findings_of_sizing
    from pyperf_suite.render.terminal import console_for, escape, print_findings, print_summary
    from pyperf_suite.render.text import answer

    findings = {"size": findings_of_sizing(found)}
    records, files = [], []
    if measured is not None:
        findings["measured"], folder = measured
        records = folder.records()
        files.append(("records", folder.records_path))
    if output is not None:
        from pyperf_suite.render.run_report import draw_all
        from pyperf_suite.render.text import markdown_page

        try:
            output.mkdir(parents=True, exist_ok=True)
            pictures = draw_all(findings, output)
            text = output / "sizing.md"
            text.write_text(markdown_page(f"Sizes on {found.gpu.name}", findings, records, pictures), encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"{output} cannot be written ({error.strerror}): name another folder with --output."
            ) from None
        files += [*(("picture", path) for path in pictures), ("text", text)]
    if as_json:
        click.echo(answer(findings), nl=False)
    else:
        console = console_for(wide)
        print_summary(console, failures_of(records))
        print_findings(console, findings, records)
        for kind, path in files:
            console.print(f"{kind:9} {escape(str(path))}", highlight=False, soft_wrap=True)
    if measured is not None:
        raise SystemExit(exit_code(records))


@click.command()
@click.argument("sizes", nargs=-1, required=True, metavar="M N K")
@dtype_option
@click.option(
    "--layout",
    default="TN",
    show_default=True,
    metavar="XY",
    help="Layout of the operands: TN fprop, NN dgrad, NT wgrad, or TT. Example: --layout NN.",
)
@gpu_options
@click.option(
    "--cpu",
    "on_cpu",
    is_flag=True,
    help="Measure the product on this machine by our own CPU kernel, in about a second. Default: off.",
)
@click.option(
    "--isa",
    metavar="NAME",
    help="Instruction set of the kernel, with --cpu. Default: the best there is. Example: --isa avx2.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of cores, with --cpu. Default: all. Example: --workers 4.",
)
@json_option()
@wide_option
def explain(
    sizes: tuple[str, ...],
    dtype: str,
    layout: str,
    on_cpu: bool,
    isa: str | None,
    workers: int | None,
    gpu: str | None,
    calibration: Path | None,
    library: str | None,
    as_json: bool,
    wide: bool,
) -> None:
    """Explain the time of one product C[M,N] = A[M,K] B[K,N]: tiles, waves, alignment, bound, better sizes nearby.

    \b
    Examples:
      pyperf-suite explain 4096 50257 4096 --gpu H200
      pyperf-suite explain 4096x4096x50257 --gpu H200 --layout NN --dtype fp8 --json
      pyperf-suite explain 1000 1000 1000 --cpu --dtype fp32
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.planner import product_explained
    from pyperf_suite.render.terminal import console_for, print_findings
    from pyperf_suite.render.text import answer

    parts = sizes[0].lower().split("x") if len(sizes) == 1 else sizes
    if len(parts) != 3 or not all(re.fullmatch("-?[0-9]{1,12}", part.strip()) for part in parts):
        raise UserError(
            f"{' '.join(sizes)[:80]!r} is no product: write M N K, as in 4096 50257 2560 or 4096x50257x2560."
        )
    m, n, k = map(int, parts)
    product_explained.check_product(m, n, k, layout.upper())
    if on_cpu:
        if gpu or calibration or library:
            raise UserError("--cpu measures here, --gpu, --calibration and --library ask laws of a GPU: leave one out.")
        from pyperf_suite.planner import product_on_cpu

        measured = product_on_cpu.measure_product(m, n, k, dtype, layout.upper(), isa, workers)
        findings = {"explain": product_on_cpu.findings_of_product(measured)}
        if as_json:
            click.echo(answer(findings), nl=False)
        else:
            print_findings(console_for(wide), findings, [])
        return
    if isa or workers:
        raise UserError("--isa and --workers are of a CPU: add --cpu to measure the product here.")
    spec, laws = requested_gpu(gpu, calibration)
    tiled = product_explained.likely_tile(laws, dtype, m, n, k, library)
    others = product_explained.other_libraries(laws, dtype, m, n, k, library)
    prices = _prices(laws, dtype, library)
    product = product_explained.explain_product(spec, prices, tiled, k, dtype, layout.upper(), others)
    findings = {"explain": product_explained.findings_of_product(product)}
    if as_json:
        click.echo(answer(findings), nl=False)
    else:
        print_findings(console_for(wide), findings, [])
