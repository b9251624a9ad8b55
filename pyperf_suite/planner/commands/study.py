"""`pyperf-suite study`: the same training step cut over ranks in many ways, each run, ranked by samples per second."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.cli.options import Finite, Gibibytes, margin_option, options, path_option, run_options
from pyperf_suite.errors import UserError
from pyperf_suite.planner.commands.model_options import count_options

if TYPE_CHECKING:
    from pyperf_suite.runner.results import RunFolder

# Options by the axis that each replaces.
MODEL_OPTIONS = {
    "hidden": "Width of the residual stream.",
    "heads": "Of the queries.",
    "layers": "",
    "seq": "Tokens of a sequence.",
    "vocab": "",
    "kv_heads": "By default as many as heads.",
    "ffn": "Width of the MLP; by default 4 x hidden.",
}
GRID_OPTIONS = {
    "global_batch": "Sequences of an iteration over all ranks.",
    "batch": "Sequences of a micro-batch.",
    "data": "Data-parallel ranks.",
    "tensor": "Tensor-parallel ranks, with sequence parallelism.",
    "pipeline": "Stages of a pipeline.",
    "chunks": "Groups of layers a stage; above 1 is the interleaved schedule.",
    "zero_stage": "0 is DDP, 1 ZeroRedundancyOptimizer, 2 and 3 FSDP2.",
    "attention": "flash, math or explicit.",
    "checkpointing": "none, every:K or selective.",
    "offload": "none or cpu, which is FSDP2's CPUOffloadPolicy, or DeepSpeed's.",
    "engine": "torch or deepspeed, where that is installed.",
    "dtype": "float32 or bfloat16.",
    "implementation": "gloo or nccl.",
}
# How each configuration is run.
RUN_OPTIONS = {
    "steps": "Timed in each experiment.",
    "warm_up": "Steps before those.",
    "experiments": "Of each configuration, each in fresh processes.",
    "seed": "Of the order of the configurations.",
}
# Options that say what is studied.
ASKED = (*MODEL_OPTIONS, "gated", *GRID_OPTIONS, *RUN_OPTIONS, "ranks")


def _numbers(texts: dict[str, str]) -> list[Any]:
    return count_options({name.replace("_", "-"): text for name, text in texts.items()})


_of_job = partial(click.option, help="Of the SLURM job.", metavar="NAME", default="")
study_options = options(
    path_option("--grid", "same_grid", metavar="GRID.toml", help="The same as the argument."),
    *_numbers(MODEL_OPTIONS),
    click.option("--gated/--not-gated", default=None, help="SwiGLU and RMSNorm, or GELU and LayerNorm."),
    *(
        click.option(
            f"--{name.replace('_', '-')}",
            *(["--zero"] if name == "zero_stage" else []),
            metavar="A,B,...",
            help=text,
        )
        for name, text in GRID_OPTIONS.items()
    ),
    *_numbers(RUN_OPTIONS),
    click.option("--ranks", metavar="N,...", help="Only configurations of so many ranks."),
    click.option("--only", metavar="K,...", help="Only configurations of these numbers; RUN may be new then."),
    click.option("--list", "list_them", is_flag=True, help="Number the configurations, and end."),
    click.option("--tell", is_flag=True, help="Measure nothing; report what RUN of --resume, or the newest, holds."),
    click.option("--search", is_flag=True, help="Run the guides' procedure instead of the whole grid; see below."),
    click.option(
        "--budget", "budget_s", type=Finite(0, min_open=True), metavar="SECONDS", help="End in order within so many."
    ),
    click.option(
        "--memory-limit", "limit_gib", type=Gibibytes(), metavar="GiB", help="What a rank may hold; more does not fit."
    ),
    click.option("--again", metavar="RUN", help="Repeat that study, or the latest, and say what came out as before."),
    margin_option,
    path_option("--calibration", help="Predict by these laws, not by this machine's."),
    run_options,
    click.option("--print-slurm", is_flag=True, help="Print an sbatch script that runs the study, and end."),
    _of_job("--nodes", type=int, default=1, show_default=True, metavar="N"),
    _of_job("--gpus-per-node", type=int, default=8, show_default=True, metavar="N"),
    _of_job("--time", metavar="HH:MM:SS"),
    _of_job("--partition"),
    _of_job("--account"),
)


@click.command()
@click.argument("grid", required=False, type=click.Path(path_type=Path), metavar="[GRID.toml]")
@study_options
def study(
    grid: Path | None,
    same_grid: Path | None,
    list_them: bool,
    print_slurm: bool,
    search: bool,
    again: str | None,
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
      pyperf-suite study --again latest                     # the same once more: what is reproduced, and the order
      pyperf-suite study GRID.toml --print-slurm --nodes 4 --gpus-per-node 8 > study.sbatch
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.planner.commands.study_run import Allocation, Asked, listed, run_study, script_of

    earlier = None
    if again is None and named["margin"] is not None:
        raise UserError("--margin is for --again: say which study to repeat, or leave it out.")
    if again is not None:
        earlier = _earlier(again, device, results)
        before = study.make_context("study", list(earlier.manifest["asked"])).params
        grid, search, limit_gib = before["grid"], before["search"], before["limit_gib"]
        named |= {name: before[name] for name in named if name in ASKED}
    if grid and same_grid:
        raise UserError(f"Two grids were given, {grid} and {same_grid}: give one.")
    if search and (print_slurm or named["only"]):
        raise UserError("--search chooses what to run next itself: leave --only and --print-slurm out.")
    if limit_gib is not None and not 0 < limit_gib < math.inf:
        raise UserError(f"--memory-limit {limit_gib:g} was requested: give a size above 0, in GiB.")
    limit_bytes = None if limit_gib is None else limit_gib * 2**30
    how = {"search": search, "budget_s": budget_s, "limit_bytes": limit_bytes}
    requested = Asked.of(grid or same_grid, {name: named[name] for name in ASKED if named[name] is not None}, **how)
    if print_slurm:
        allocation = Allocation(**{each.name: named[each.name] for each in fields(Allocation)})
        click.echo(script_of(requested, allocation, device, results, deadline_s), nl=False)
    elif list_them:
        click.echo(listed(requested, device))
    else:
        more = ("only", "tell", "calibration", "resume", "as_json", "wide", "margin")
        run_study(requested, device, results, deadline_s, earlier=earlier, **{name: named[name] for name in more})


def _earlier(name: str, device: str, results: Path) -> RunFolder:
    """The run to repeat. Raises UserError where there is none, and for options of a grid, which are that run's."""
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.hardware.machine import identity
    from pyperf_suite.planner.study.again import find_study

    context = click.get_current_context()
    for option in ("grid", "same_grid", "search", "limit_gib", "tell", "print_slurm", *ASKED):
        if context.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE:
            raise UserError(f"--again repeats {name} as it was requested: leave {option.replace('_', '-')} out.")
    return find_study(name, results, identity(resolve(device)).slug)
