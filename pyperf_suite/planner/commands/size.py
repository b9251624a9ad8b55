"""`pyperf-suite size` and `pyperf-suite explain`: which dimensions are faster on a GPU, and what one product costs."""

from __future__ import annotations

import re
from typing import Any

import click

from pyperf_suite.cli.options import Finite, all_option, json_option, options
from pyperf_suite.errors import UserError
from pyperf_suite.planner.commands.model_options import answer, gpu_options, model_options, value_options

dtype_option = click.option(
    "--dtype",
    type=click.Choice(("bf16", "fp16", "fp8", "tf32", "fp32")),
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
            ("--ep", "Number of data-parallel GPUs of a node that share the experts (EP). Example: --ep 8."),
            ("--shards", "Number of data-parallel GPUs that share the states (ZeRO-3, FSDP). Example: --shards 8."),
        )
    ),
    dtype_option,
    gpu_options,
    *value_options(
        {
            "vary NAME,...": "Dimensions to change: hidden, heads, kv_heads, ffn, vocab, layers, micro_batch, tp. "
            "Default: all. Example: --vary heads,vocab."
        }
    ),
    *(
        click.option(name, type=Finite(0, 100), default=default, show_default=True, metavar="PERCENT", help=text)
        for name, default, text in (
            ("--parameter-change", 2.0, "Largest change of the number of parameters. Example: --parameter-change 5."),
            ("--reach", 15.0, "Largest change of each width. Example: --reach 30."),
        )
    ),
    json_option(),
    all_option,
)
def size(
    as_json: bool, everything: bool, vary: str | None, parameter_change: float, reach: float, **options: Any
) -> None:
    """Say which nearby dimensions of a model train faster on a GPU, by how much, and why.

    \b
    Examples:
      pyperf-suite size --config config.json --gpu H200 --tp 8
      pyperf-suite size --layers 32 --hidden 2560 --heads 32 --ffn 10240 --vocab 50257 --not-gated --gpu A100
      pyperf-suite size --config config.json --gpu H100 --vary heads,vocab --json
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.planner.functions import size as sized

    names = None if vary is None else tuple(name.strip().replace("-", "_") for name in vary.split(","))
    found = sized(vary=names, parameter_change=parameter_change / 100, reach=reach / 100, **options)
    answer("size", found.findings, as_json, everything)


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
@json_option()
@all_option
def explain(sizes: tuple[str, ...], as_json: bool, everything: bool, **options: Any) -> None:
    """Explain the time of one product C[M,N] = A[M,K] B[K,N]: tiles, waves, alignment, bound, better sizes nearby.

    \b
    Examples:
      pyperf-suite explain 4096 50257 4096 --gpu H200
      pyperf-suite explain 4096x4096x50257 --gpu H200 --layout NN --dtype fp8 --json
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.planner.functions import explain as explained

    parts = sizes[0].lower().split("x") if len(sizes) == 1 else sizes
    if len(parts) != 3 or not all(re.fullmatch("-?[0-9]{1,12}", part.strip()) for part in parts):
        raise UserError(
            f"{' '.join(sizes)[:80]!r} is no product: write M N K, as in 4096 50257 2560 or 4096x50257x2560."
        )
    m, n, k = map(int, parts)
    answer("explain", explained(m, n, k, **options).findings, as_json, everything)
