"""`pyperf-suite watch`: a command run as it would be alone, sampled from outside, and what it waits for named."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
from pathlib import Path

import click

from pyperf_suite.cli.options import Finite, path_option, results_option
from pyperf_suite.errors import UserError, offer


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND]...")
@click.option(
    "--pid",
    type=click.IntRange(1),
    metavar="N",
    help="Watch a running process and all processes that it started. Example: --pid 4242.",
)
@click.option(
    "--for",
    "for_s",
    type=Finite(0, min_open=True),
    metavar="SECONDS",
    help="Stop watching --pid after this time. The default is until the process ends. Example: --for 60.",
)
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=Finite(0, 3600, min_open=True),
    metavar="SECONDS",
    help="Time between two samples.",
)
@click.option(
    "--step-pattern",
    metavar="REGEX",
    help="Regular expression of a line of output that ends a step. Its named groups are seconds, ms, tokens, step. "
    "Example: --step-pattern 'step (?P<step>\\d+)'.",
)
@click.option(
    "--flop-per-token",
    type=Finite(0, min_open=True),
    metavar="FLOP",
    help="FLOP of the model for one token. Without it FLOP/s and MFU are not reported. Example: --flop-per-token 42e9.",
)
@path_option("--config", help="A Hugging Face config.json that replaces --flop-per-token.")
@click.option("--seq", type=click.IntRange(1), metavar="N", help="Tokens of a sequence, for --config.")
@click.option(
    "--dtype", default="bf16", show_default=True, metavar="NAME", help="Dtype of the peak that MFU is a share of."
)
@click.option(
    "--live", is_flag=True, help="Show a view below the command's output. With --pid a terminal always has it."
)
@results_option("Folder that the record is written to.")
def watch(
    command: tuple[str, ...],
    pid: int | None,
    for_s: float | None,
    interval: float,
    step_pattern: str | None,
    flop_per_token: float | None,
    config: Path | None,
    seq: int | None,
    dtype: str,
    live: bool,
    results: Path,
) -> None:
    """Run COMMAND, or watch a running job, and report what it waits for: data, CPU, network, a slow rank.

    All its processes and their GPUs are sampled from outside, for at most 1 % of a core. The exit code is that of the
    command, and signals reach it. Steps come from pyperf_suite.watch_step(tokens=N) in the job, or --step-pattern.

    \b
    Examples:
      pyperf-suite watch -- python train.py
      pyperf-suite watch -- torchrun --nproc-per-node 8 train.py
      torchrun --nproc-per-node 8 -m pyperf_suite watch -- python train.py
      pyperf-suite watch --step-pattern 'step (?P<step>\\d+)' -- python train.py
      pyperf-suite watch --pid 4242 --for 60
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.hardware.catalogue import DTYPES
    from pyperf_suite.node.watch.command import TAKEN, Command, LogReader, marks_folder, require_readable, signals_taken
    from pyperf_suite.ranks.launch import ALONE, rank_environment

    if not sys.platform.startswith("linux"):
        raise UserError("watch reads /proc, which only Linux has.")
    if bool(command) == (pid is not None):
        raise UserError("watch takes either a command, as in `watch -- python train.py`, or a running job's --pid N.")
    if (pid is None and for_s) or (pid is not None and step_pattern):
        wrong, right = ("--for", "--pid") if pid is None else ("--step-pattern", "a command that watch starts")
        raise UserError(f"{wrong} goes with {right}.")
    if dtype not in DTYPES:
        raise UserError(f"There is no dtype {dtype[:40]!r}: {offer(dtype, DTYPES)}")
    if step_pattern is not None:
        LogReader(step_pattern)
    ranked = ALONE
    if pid is None:
        with contextlib.suppress(UserError):  # a job may have variables of its own that are no launcher's
            ranked = rank_environment()
    if config is not None:
        flop_per_token = _flop_per_token(config, seq)
    if pid is not None:
        require_readable(pid)
    # One watcher a node samples the ranks of all.
    watching = None
    if not ranked.local_rank:
        from pyperf_suite.node.watch.watcher import Watcher

        watching = Watcher(results, command, pid, interval, flop_per_token, dtype)
    top = pid or (os.getppid() if ranked.launched else os.getpid())
    with marks_folder(top, is_own=watching is not None) as marks, signals_taken() as taken:
        try:
            is_copied = watching is not None and (step_pattern is not None or live)
            running = None if pid else Command(command, marks, taken, ranked.launched, is_copied)
        except UserError:
            if watching is not None:
                watching.discard()
            raise
        if watching is None:
            assert running is not None
            while running.exit_code is None:
                running.receive(signal.sigtimedwait(TAKEN, 1.0))
            raise SystemExit(running.exit_code)
        with watching.shown(live or pid is not None):
            if running is not None:
                running.copy_output(functools.partial(watching.copy, step_pattern=step_pattern))
            watching.follow(top, marks, running, for_s or math.inf)
        watching.finish(running)


def _flop_per_token(config: Path, seq: int | None) -> float:
    from pyperf_suite.extensions import service

    offered = service("flop_per_token")
    if offered is None:
        raise UserError("--config needs the planner, which is not installed: leave it out.")
    return float(offered(config, seq))
