"""Ranks that take steps of one case after the other in a single group: many cases for the price of one start.

`python -W error parallel_ranks.py COUNT FOLDER` reads JSON [[name, case, fault], …] from standard input and leaves
FOLDER/RANK.json: by name what each check said, and the kernel. Ranks are forked, so that torch is imported once.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
from torch import distributed

from pyperf_suite.planner.workloads import cuts
from pyperf_suite.planner.workloads.parallel_step import ParallelSteps, require_possible
from pyperf_suite.record.case import Case

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch.distributed.optim


def exchange_nothing(steps: ParallelSteps) -> None:
    """Each rank goes on with its own gradients."""
    steps.data.micro_batch = lambda is_last: steps.data.calls[0].no_sync()


def train_on_anothers_batch(steps: ParallelSteps) -> None:
    steps._batches = [steps._drawn(0, micro) for micro in range(len(steps._batches))]


def forget_a_micro_batch(steps: ParallelSteps) -> None:
    steps._all_tokens = steps._all_tokens.roll(1, 0)
    steps._all_targets = steps._all_targets.clone()
    steps._all_targets[0] = 0


def scatter_the_last_alone(steps: ParallelSteps) -> None:
    """FSDP2 that drops what earlier micro-batches left."""
    run, clear = steps.data.micro_batch, steps.data.clear

    def dropping(is_last: bool) -> Any:
        clear()
        return run(is_last)

    steps.data.micro_batch = dropping


def turn_an_elements_sign(steps: ParallelSteps) -> None:
    """Turn the sign of one element of the used gradient that is as large as half of all are."""
    finish = steps.data.finish

    def turning() -> None:
        finish()
        gradient = steps.data.weights[-1].grad.view(-1)
        gradient[gradient.abs().argsort()[3 * len(gradient) // 5]] *= -1

    steps.data.finish = turning


def update_otherwise(steps: ParallelSteps) -> None:
    """A rank whose weights drift."""
    finish = steps.data.finish

    def drifting() -> None:
        finish()
        if distributed.get_rank() == 1:
            with torch.no_grad():
                steps.data.weights[0].add_(1e-3)

    steps.data.finish = drifting


FAULTS: dict[str, Callable[[ParallelSteps], None]] = {
    each.__name__: each
    for each in (
        exchange_nothing,
        train_on_anothers_batch,
        forget_a_micro_batch,
        scatter_the_last_alone,
        turn_an_elements_sign,
        update_otherwise,
    )
}


def steps_of(case: Case, fault: str) -> ParallelSteps:
    """Made ready; "rows_as_they_are" cuts attention's fused matrix without regard to heads."""
    reordered = cuts.rows_by_rank
    if fault == "rows_as_they_are":
        cuts.rows_by_rank = lambda parameters: reordered(parameters).sort().values
    try:
        steps = ParallelSteps(case.parameters, distributed.get_rank(), None, "cpu")
    finally:
        cuts.rows_by_rank = reordered
    FAULTS.get(fault, lambda steps: None)(steps)
    return steps


def told_of(case: Case, fault: str) -> dict[str, Any]:
    """Return the verdict of a check at once, and again after several steps that changed weights and optimizer."""
    require_possible(case.parameters, "cpu")
    steps = steps_of(case, fault)
    checks = []
    for number in range(1 if fault else 2):
        steps.poison()
        steps.time(1 + 2 * number, 10.0)
        checks.append(dataclasses.asdict(steps.verify_last()))
        steps.time(1, 10.0)
    losses = [float(each.detach().sum()) for each in steps.data.weights[:1]]
    kernel = dataclasses.asdict(steps.kernel)
    steps.close()
    return {"checks": checks, "kernel": kernel, "finite": all(each == each for each in losses)}


def main(count: int, folder: Path) -> None:
    requested = json.loads(sys.stdin.read())
    gc.freeze()  # torch's own objects, through which each case would look for those that it left
    children, rank = [], 0
    for number in range(1, count):
        child = os.fork()
        if child == 0:
            rank, children = number, []
            break
        children.append(child)
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=count)
    message = {name: told_of(Case.from_json(case), fault) for name, case, fault in requested}
    (folder / f"{rank}.json").write_text(json.dumps(message))
    distributed.destroy_process_group()
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
