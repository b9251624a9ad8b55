"""`pyperf-suite study`: the same training step cut over ranks in many ways, each run, ranked by samples per second."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from pyperf_suite.cli.options import Finite, options, run_options
from pyperf_suite.errors import UserError
from pyperf_suite.planner.commands.model_options import Gibibytes, value_options

# Options by the axis that each replaces.
MODEL_OPTIONS = {
    "hidden": "Width of the residual stream. Default: 128, on GPUs 2048. Example: --hidden 256.",
    "heads": "Number of query heads. Default: 4, on GPUs 16. Example: --heads 8.",
    "layers": "Number of layers. Default: 4, on GPUs 16. Example: --layers 8.",
    "seq": "Tokens of a sequence. Default: 128, on GPUs 2048. Example: --seq 256.",
    "vocab": "Size of the vocabulary. Default: 512, on GPUs 50304. Example: --vocab 1024.",
    "kv_heads": "Number of key-value heads. Default: as many as --heads. Example: --kv-heads 2.",
    "ffn": "Width of the MLP. Default: 4 x hidden. Example: --ffn 512.",
}
GRID_OPTIONS = {
    "global_batch": "Sequences of an iteration over all ranks. Default: 8, on GPUs 16. Example: --global-batch 8,16.",
    "batch": "Sequences of a micro-batch. Default: 2, on GPUs 1. Example: --batch 1,2.",
    "data": "Data-parallel ranks. Default: those of the study's own grid. Example: --data 1,2,4.",
    "tensor": "Tensor-parallel ranks, with sequence parallelism. Default: the own grid's. Example: --tensor 1,2.",
    "pipeline": "Stages of a pipeline. Default: the own grid's. Example: --pipeline 1,2.",
    "chunks": "Groups of layers a stage; above 1 is the interleaved schedule. Default: the own grid's. Example: "
    "--chunks 1,2.",
    "zero_stage": "Stage of ZeRO: 0 is DDP, 1 ZeroRedundancyOptimizer, 2 and 3 FSDP2. Default: the own grid's. "
    "Example: --zero 0,1,3.",
    "attention": "Attention: flash, math or explicit. Default: flash. Example: --attention flash,math.",
    "checkpointing": "Activation checkpointing: none, every:K or selective. Default: none. Example: --checkpointing "
    "none,every:2.",
    "offload": "Offload: none or cpu, which is FSDP2's CPUOffloadPolicy, or DeepSpeed's. Default: none. Example: "
    "--offload none,cpu.",
    "engine": "Engine: torch, or deepspeed where that is installed. Default: torch. Example: --engine torch,deepspeed.",
    "dtype": "Dtype: float32 or bfloat16. Default: float32, on GPUs bfloat16. Example: --dtype bfloat16.",
    "implementation": "Backend: gloo or nccl. Default: gloo, on GPUs nccl. Example: --implementation gloo.",
}
# How each configuration is run.
RUN_OPTIONS = {
    "steps": "Number of steps that are timed in each experiment. Default: 10. Example: --steps 20.",
    "warm_up": "Number of steps before those. Default: 2. Example: --warm-up 2.",
    "experiments": "Number of experiments of each configuration, each in fresh processes. Default: 3. "
    "Example: --experiments 5.",
    "seed": "Seed of the order of the configurations. Default: 0. Example: --seed 1.",
}
ONLY = (
    "Run only configurations of these numbers, as --list has them; RUN may be new then. Default: all. "
    "Example: --only 1,3."
)
# Options that say what is studied.
STUDIED = (*MODEL_OPTIONS, "gated", *GRID_OPTIONS, *RUN_OPTIONS)


study_options = options(
    *value_options({f"{name.replace('_', '-')} N": text for name, text in MODEL_OPTIONS.items()}, int),
    click.option(
        "--gated/--not-gated",
        default=None,
        help="Whether the model has SwiGLU and RMSNorm, or GELU and LayerNorm. Default: --not-gated.",
    ),
    *(
        click.option(
            f"--{name.replace('_', '-')}", *(["--zero"] if name == "zero_stage" else []), metavar="A,B,...", help=text
        )
        for name, text in GRID_OPTIONS.items()
    ),
    *value_options({f"{name.replace('_', '-')} N": text for name, text in RUN_OPTIONS.items()}, int),
    *value_options({"only K,...": ONLY}),
    *(
        click.option(f"--{name}", variable, is_flag=True, help=f"{text} Default: off.")
        for name, variable, text in (
            ("list", "list_them", "Number the configurations, and end."),
            ("tell", "tell", "Measure nothing; report what RUN of --resume, or the newest, holds."),
            ("search", "search", "Search the grid as the guides do, instead of running all of it."),
        )
    ),
    click.option(
        "--budget",
        "budget_s",
        type=Finite(0, min_open=True),
        metavar="SECONDS",
        help="End the study in order within so many seconds. Default: no limit. Example: --budget 600.",
    ),
    click.option(
        "--memory-limit",
        "limit_gib",
        type=Gibibytes(),
        metavar="GiB",
        help="Memory that a rank may hold; more does not fit. Default: the device's. Example: --memory-limit 2.",
    ),
    run_options,
)


@click.command()
@click.argument("grid", required=False, type=click.Path(path_type=Path), metavar="[GRID.toml]")
@study_options
def study(
    grid: Path | None,
    list_them: bool,
    search: bool,
    budget_s: float | None,
    limit_gib: float | None,
    device: str,
    results: Path,
    deadline_s: float,
    **named: Any,
) -> None:
    """Train a small GPT cut over ranks in every way of a grid, and rank the ways by samples per second.

    \b
    Examples:
      pyperf-suite study                                    # 11 ways over 1 to 4 ranks of this machine
      pyperf-suite study --data 1,2,4 --zero 0,1,3 --steps 20 --experiments 5
      pyperf-suite study GRID.toml --resume                 # go on where it was interrupted
      pyperf-suite study --search --memory-limit 2          # only what the guides' procedure tries, step by step
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.planner.commands.study_run import StudyRequest, listed, run_study

    if search and named["only"]:
        raise UserError("--search chooses what to run next itself: leave --only out.")
    given = {name: named[name] for name in STUDIED if named[name] is not None}
    requested = StudyRequest.of(grid, given, search, (limit_gib or math.inf) * 2**30, budget_s or math.inf)
    if list_them:
        click.echo(listed(requested, device))
    else:
        more = ("only", "tell", "resume", "as_json", "everything")
        run_study(requested, device, results, deadline_s, **{name: named[name] for name in more})
