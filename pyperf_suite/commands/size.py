"""`pyperf-suite size` and `pyperf-suite explain`: which dimensions are faster on a GPU, and what one product costs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.commands.model_options import asked_gpu, asked_model, gpu_options, model_options
from pyperf_suite.commands.options import (
    Percent,
    device_option,
    json_option,
    path_option,
    profile_option,
    results_option,
    wide_option,
)
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.advise.sizing.candidates import Bounds
    from pyperf_suite.advise.sizing.measured import MeasuredSizing
    from pyperf_suite.advise.sizing.prices import LawPrices
    from pyperf_suite.advise.sizing.report import Sizing
    from pyperf_suite.hardware.catalogue import GpuSpec
    from pyperf_suite.laws.calibration import Calibration

DTYPES = ("bf16", "fp16", "fp8", "tf32", "fp32", "int8")


@click.command()
@model_options
@click.option("--micro-batch", type=int, default=1, show_default=True, metavar="N")
@click.option("--tp", type=int, default=1, show_default=True, metavar="N", help="Tensor-parallel GPUs.")
@click.option(
    "--shards", type=int, default=1, show_default=True, metavar="N", help="Data-parallel GPUs (ZeRO-3, FSDP)."
)
@click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True)
@gpu_options
@click.option(
    "--vary", metavar="NAME,...", help="Only these: hidden, heads, kv_heads, ffn, vocab, layers, micro_batch, tp."
)
@click.option(
    "--parameter-change",
    type=Percent(),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="Of parameters, at most.",
)
@click.option(
    "--reach", type=Percent(), default=15.0, show_default=True, metavar="PERCENT", help="Of each width, at most."
)
@click.option("--head-dims", metavar="N,...", help="Head dimensions that candidates may have.")
@click.option("--measure", is_flag=True, help="Run the best candidates beside the model on the GPU in this machine.")
@profile_option("How thoroughly to measure.", "standard")
@device_option("Where to measure: auto or cuda:N.")
@results_option("For the records of what is measured.")
@path_option("--output", metavar="FOLDER", help="For the heat maps and a page.")
@json_option()
@wide_option
def size(
    config: Path | None,
    gpu: str | None,
    calibration: Path | None,
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
    from pyperf_suite.advise.sizing.report import sizing
    from pyperf_suite.advise.sizing.setting import Setting
    from pyperf_suite.runner.profiles import find_profile

    spec, laws = asked_gpu(gpu, calibration)
    spec.peak(dtype)
    find_profile(profile)
    if measure:
        from pyperf_suite.advise.validation.validation import require_gpu
        from pyperf_suite.hardware.devices import resolve

        require_gpu(spec, resolve(device))
    model, asked, notes = asked_model(config, seq, dimensions)
    setting = Setting(model, asked, micro_batch, tp, shards, dtype)
    prices = _prices(laws, dtype)
    found = sizing(spec, setting, _bounds(spec, vary, parameter_change, reach, head_dims), prices, notes)
    measured = _measured(found, prices, profile, device, results) if measure else None
    _present(found, prices, output, as_json, wide, measured)


def _measured(found: Sizing, prices: LawPrices, profile: str, device: str, results: Path) -> MeasuredSizing:
    """Run the best candidates beside the present model, under a progress bar."""
    from rich.console import Console
    from rich.progress import Progress

    from pyperf_suite.advise.sizing.measured import SizingRun
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.runner.plan import Outlook
    from pyperf_suite.runner.profiles import find_profile

    run = SizingRun.of(found.gpu, found.search, resolve(device), find_profile(profile))
    console = Console(stderr=True, emoji=False)
    console.print(f"measuring: {Outlook(run.plan).line}", highlight=False, soft_wrap=True)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(run.plan.cases))
        return run.measured(prices, results, lambda _: progress.advance(task))


def _present(
    found: Sizing, prices: LawPrices, output: Path | None, as_json: bool, wide: bool, measured: MeasuredSizing | None
) -> None:
    """Print the answer; pictures and a page only into a folder that was named."""
    from pyperf_suite.advise.sizing.as_json import sizing_as_json
    from pyperf_suite.advise.sizing.report import findings_of_sizing
    from pyperf_suite.render.findings_json import answer
    from pyperf_suite.render.terminal import console_for, escape, print_findings

    findings = {"size": findings_of_sizing(found, prices)}
    records = []
    if measured is not None:
        findings["measured"] = measured.findings
        records = measured.folder.records()
    written = []
    if output is not None:
        from pyperf_suite.render.markdown import page
        from pyperf_suite.render.run_report import draw_all

        try:
            output.mkdir(parents=True, exist_ok=True)
            pictures = draw_all(findings, output)
            text = output / "sizing.md"
            text.write_text(page(f"Sizes on {found.gpu.name}", findings, records, pictures), encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"{output} cannot be written ({error.strerror}): name another folder with --output."
            ) from None
        written = [*pictures, text]
    if as_json:
        told = sizing_as_json(found, [str(path) for path in written])
        click.echo(answer(findings, told | ({} if measured is None else {"measured": measured.to_json()})), nl=False)
        return
    console = console_for(wide)
    print_findings(console, findings, records)
    if measured is not None:
        console.print(f"records   {escape(str(measured.folder.records_path))}", highlight=False, soft_wrap=True)
    for path in written:
        kind = "picture" if path.suffix == ".png" else "text"
        console.print(f"{kind:9} {escape(str(path))}", highlight=False, soft_wrap=True)


@click.command()
@click.argument("sizes", nargs=-1, required=True, metavar="M N K")
@click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True)
@click.option("--layout", default="TN", show_default=True, metavar="XY", help="TN fprop, NN dgrad, NT wgrad, or TT.")
@gpu_options
@json_option()
@wide_option
def explain(
    sizes: tuple[str, ...],
    dtype: str,
    layout: str,
    gpu: str | None,
    calibration: Path | None,
    as_json: bool,
    wide: bool,
) -> None:
    """Explain the time of one product C[M,N] = A[M,K] B[K,N]: tiles, waves, alignment, bound, better sizes nearby.

    \b
    Examples:
      pyperf-suite explain 4096 50257 4096 --gpu H200
      pyperf-suite explain 4096 4096 50257 --gpu H200 --layout NN --dtype fp8 --json
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.advise.product import (
        check_product,
        explain_product,
        findings_of_product,
        likely_tile,
        product_as_json,
    )
    from pyperf_suite.render.findings_json import answer
    from pyperf_suite.render.terminal import console_for, print_findings

    m, n, k = _sizes(sizes)
    spec, laws = asked_gpu(gpu, calibration)
    check_product(m, n, k, layout.upper())
    tiled = likely_tile(laws, dtype, m, n, k)
    product = explain_product(spec, _prices(laws, dtype), tiled, m, n, k, dtype, layout.upper())
    findings = {"explain": findings_of_product(product)}
    if as_json:
        click.echo(answer(findings, product_as_json(product)), nl=False)
    else:
        print_findings(console_for(wide), findings, [])


def _sizes(words: tuple[str, ...]) -> tuple[int, int, int]:
    """M, N and K, also where they are written as one word: 4096x50257x2560."""
    parts = words[0].lower().split("x") if len(words) == 1 else words
    if len(parts) != 3 or not all(re.fullmatch("-?[0-9]{1,12}", part.strip()) for part in parts):
        raise UserError(
            f"{' '.join(words)[:80]!r} is no product: write M N K, as in 4096 50257 2560 or 4096x50257x2560."
        )
    return int(parts[0]), int(parts[1]), int(parts[2])


def _prices(laws: GpuSpec | Calibration, dtype: str) -> LawPrices:
    from pyperf_suite.advise.sizing.prices import LawPrices

    return LawPrices(laws, dtype)


def _bounds(spec: GpuSpec, vary: str | None, parameter_change: float, reach: float, head_dims: str | None) -> Bounds:
    from pyperf_suite.advise.sizing.candidates import AXES, HEAD_DIMS, Bounds
    from pyperf_suite.laws.training.memory import USABLE_SHARE

    return Bounds(
        vary=AXES if vary is None else tuple(name.strip().replace("-", "_") for name in vary.split(",")),
        parameter_change=parameter_change / 100,
        reach=reach / 100,
        head_dims=HEAD_DIMS if head_dims is None else _numbers(head_dims),
        memory_bytes=USABLE_SHARE * spec.memory_bytes,
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{text!r} are no head dimensions: write numbers, as in 64,128.") from None
