"""Finds the constants of training iterations on published ones: kernels' slowdown, the host's launches, the network.

Two of them are found on iterations over many nodes, the host's on small models in one node, where GPUs wait for it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.calibrate_laws import folds, site_numbers
from pyperf_suite.laws.calibration import CalibrationBlock
from pyperf_suite.laws.explained import KernelPrices
from pyperf_suite.laws.prices import Prices
from pyperf_suite.laws.training.step import MEASURED_GPU, ParallelPlan, StepConstants, pack_constants, step_time
from pyperf_suite.laws.transformer import ModelDimensions
from tools.fit.published import read_columns, rows_of

MULTI_NODE = "train_iteration_multi_node_a100"
SINGLE_NODE = "train_iteration_single_node_a100"
ORIGIN = "training iterations of GPT models on up to 512 A100, as published with vTrain (f8dda847)"
# The tables do not state it; Megatron-LM's padding of GPT-2's vocabulary.
VOCAB = 51200
# Where the search starts: kernels as alone, a launch's 10 us for each of some 60 kernels, HDR shared by two GPUs.
START = StepConstants(1.0, 0.6e-3, 12.5e9)
# A residual beyond this counts by its size, not its square: a few rows are off by half, and their neighbours are not.
ROBUST_SHARE = 0.05
# Of the single-node table one row in so many is fitted to: one constant is found on it.
EVERY = 9


@dataclass(frozen=True)
class Iteration:
    """One published iteration: what was trained, how, and the seconds that it took."""

    model: ModelDimensions
    plan: ParallelPlan
    seconds: float


def fit_step(tables_folder: Path, prices: KernelPrices | None = None) -> dict[str, CalibrationBlock]:
    """The block "step" of the A100; `prices` are by default the laws of `pyperf_suite.laws` on that GPU.

    The stated error is of iterations over many nodes, all those of one model and parallelism left out together; that of
    iterations in one node is stated too, on rows that were not fitted. Raises UserError where the folder has not
    both tables.
    """
    remembered = Remembered(prices or Prices(MEASURED_GPU))
    multi, single = (read_iterations(tables_folder, table) for table in (MULTI_NODE, SINGLE_NODE))
    constants = fit_constants(multi, single[::EVERY], remembered)
    errors = left_out_errors(multi, constants, remembered)
    unseen = [iteration for row, iteration in enumerate(single) if row % EVERY]
    in_node = relative_errors(unseen, constants, remembered)
    held_out: dict[str, float | int | str] = {
        "mape": round(float(np.mean(errors)) * 100, 2),
        "median": round(float(np.median(errors)) * 100, 2),
        "sites": len(np.unique(_sites(multi))),
        "how": "iterations over many nodes, all of one model and parallelism left out together, in five folds",
        "mape_in_one_node": round(float(np.mean(in_node)) * 100, 2),
        "median_in_one_node": round(float(np.median(in_node)) * 100, 2),
    }
    return {MEASURED_GPU: pack_constants(constants, held_out, ORIGIN)}


def read_iterations(tables_folder: Path, table: str) -> list[Iteration]:
    """The iterations of a table. Raises UserError where the folder has not got it.

    They are GPT-2's kind of model under Megatron-LM of 2022: attention not fused, activations recomputed.
    """
    return [
        Iteration(
            ModelDimensions(
                layers=row["layers"],
                hidden=row["hidden_size"],
                ffn=4 * row["hidden_size"],
                heads=row["attention_heads"],
                vocab=VOCAB,
                bias=True,
                tied=True,
                positions=row["sequence_length"],
            ),
            ParallelPlan(
                row["global_batch"],
                row["micro_batch"],
                row["sequence_length"],
                row["tensor_parallelism"],
                row["data_parallelism"],
                row["pipeline_parallelism"],
                recompute="layers",
                fused_attention=False,
            ),
            row["iteration_time_(ms)"] * 1e-3,
        )
        for row in rows_of(read_columns(tables_folder, table))
    ]


def fit_constants(
    multi_node: Sequence[Iteration], single_node: Sequence[Iteration], prices: KernelPrices
) -> StepConstants:
    """Slowdown and network from the former, then the host's time from the latter, by relative residuals."""
    from scipy.optimize import least_squares

    def found(iterations: Sequence[Iteration], start: StepConstants, *names: str) -> StepConstants:
        def given(logs: NDArray[np.float64]) -> StepConstants:
            return replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

        def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.log([_predicted(i, given(logs), prices) / i.seconds for i in iterations])

        first = np.log([getattr(start, name) for name in names])
        return given(least_squares(residuals, first, loss="soft_l1", f_scale=ROBUST_SHARE, diff_step=1e-2).x)

    loaded = found(multi_node, START, "slowdown", "network")
    return found(single_node, loaded, "host_s_per_layer") if single_node else loaded


def left_out_errors(multi_node: Sequence[Iteration], start: StepConstants, prices: KernelPrices) -> NDArray[np.float64]:
    """|predicted − measured| / measured over many nodes, each by constants that never saw its model and parallelism.

    The host's time stays as in `start`: it was found in other tables.
    """
    errors = np.empty(len(multi_node))
    for held_out in folds(_sites(multi_node)):
        seen = [iteration for iteration, out in zip(multi_node, held_out, strict=True) if not out]
        constants = replace(fit_constants(seen, (), prices), host_s_per_layer=start.host_s_per_layer)
        unseen = [iteration for iteration, out in zip(multi_node, held_out, strict=True) if out]
        errors[held_out] = relative_errors(unseen, constants, prices)
    return errors


def relative_errors(
    iterations: Sequence[Iteration], constants: StepConstants, prices: KernelPrices
) -> NDArray[np.float64]:
    """|predicted − measured| / measured of each iteration."""
    return np.abs([_predicted(i, constants, prices) / i.seconds - 1 for i in iterations])


class Remembered:
    """Prices that are asked for once for each shape: a fit asks for the same ones over and over."""

    def __init__(self, prices: KernelPrices) -> None:
        self.gemm: Any = functools.cache(prices.gemm)
        self.attention: Any = functools.cache(prices.attention)
        self.memory_bound: Any = functools.cache(prices.memory_bound)
        self.collective: Any = functools.cache(prices.collective)


def _predicted(iteration: Iteration, constants: StepConstants, prices: KernelPrices) -> float:
    return float(step_time(MEASURED_GPU, iteration.model, iteration.plan, constants, prices).seconds)


def _sites(iterations: Sequence[Iteration]) -> NDArray[np.intp]:
    """A number for each model and parallelism; micro-batches alone make no other site."""
    plans = [iteration.plan for iteration in iterations]
    return site_numbers(
        [iteration.model.hidden for iteration in iterations],
        [int(plan.tensor) for plan in plans],
        [int(plan.data) for plan in plans],
        [int(plan.pipeline) for plan in plans],
    )
