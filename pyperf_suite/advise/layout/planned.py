"""The fastest ways to cut a training over a cluster: every layout that divides, its time and memory by the laws.

Predictions throughout; `laws/training/step.py` says how a time is made up and how far off it was where it was
measured.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.layout.grid import (
    SPLIT,
    WRITTEN,
    Cluster,
    Grid,
    Layout,
    Training,
    held_to,
    layouts,
    plan_of,
)
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.calibration import Calibration
from pyperf_suite.laws.explained import KernelPrices
from pyperf_suite.laws.prices import Prices, UnseenPrices
from pyperf_suite.laws.training.memory import training_memory
from pyperf_suite.laws.training.step import StepConstants, found_constants, step_time
from pyperf_suite.laws.transformer import RECOMPUTES, Recompute, model_flop, six_nd, utilization

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "gathered")
# Of these no iteration was published with all that it depends on, so that their laws were held against none.
UNTESTED = {"context": "CP", "expert": "EP", "zero_stage": "ZeRO"}
# A cluster this many times as large is looked at before it is said that nothing fits.
MOST_TIMES_GPUS = 64


@dataclass(frozen=True)
class Priced:
    """One layout with its predicted iteration: seconds and bytes by part, and what they come to.

    `over_bytes` is by how much it does not fit, 0 where it does. `flop_per_s` is of one GPU as practitioners reckon it,
    2 FLOP a parameter and token for each of 3 passes, 4 where layers are computed again. `untested` names what of it no
    law was held against.
    """

    layout: Layout
    seconds: float
    parts: Mapping[str, float]
    memory: Mapping[str, float]
    over_bytes: float
    tokens_per_s: float
    mfu: float
    flop_per_s: float
    untested: tuple[str, ...]

    @property
    def memory_bytes(self) -> float:
        """On the fullest GPU."""
        return sum(self.memory.values())


@dataclass(frozen=True)
class Planned:
    """Every layout of a training on a cluster, priced, in arrays in the order of `grid`.

    `error_percent` is the step law's on iterations that were left out where its constants were found, on this GPU;
    None where its constants are another GPU's (`of_another_gpu`).
    """

    training: Training
    cluster: Cluster
    laws: GpuSpec | Calibration
    grid: Grid
    seconds: NDArray[np.float64]
    parts: Mapping[str, NDArray[np.float64]]
    memory: Mapping[str, NDArray[np.float64]]
    constants: StepConstants
    of_another_gpu: bool
    error_percent: float | None

    @functools.cached_property
    def memory_bytes(self) -> NDArray[np.float64]:
        """Of the fullest GPU."""
        return np.asarray(sum(self.memory.values()))

    @functools.cached_property
    def fits(self) -> NDArray[np.bool_]:
        """Where the memory is enough."""
        return self.memory_bytes <= self.cluster.usable_bytes

    @functools.cached_property
    def ranked(self) -> NDArray[np.intp]:
        """Places of those that fit, the fastest first."""
        return self.fastest(self.fits)

    @property
    def best(self) -> Priced:
        return self.at(int(self.ranked[0]))

    def fastest(self, among: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Places of those layouts, the fastest first; of equals the one that shares less, then the smaller one."""
        places = np.flatnonzero(among)
        keys = (self.memory_bytes, self.grid.columns["zero_stage"], self.seconds)
        return places[np.lexsort(tuple(key[places] for key in keys))]

    def best_of_splits(self, places: NDArray[np.intp], most: int) -> list[int]:
        """The first of each DP x TP x PP x CP x EP among ranked places."""
        found: dict[tuple[int, ...], int] = {}
        columns = np.stack([self.grid.columns[name] for name in SPLIT], axis=1)
        for place in places.tolist():
            found.setdefault(tuple(columns[place].tolist()), place)
            if len(found) == most:
                break
        return list(found.values())

    def at(self, place: int) -> Priced:
        """One layout, as plain numbers."""
        training, cluster, layout = self.training, self.cluster, self.grid.at(place)
        seconds = float(self.seconds[place])
        flop = float(model_flop(training.model, training.global_batch, training.seq))
        return Priced(
            layout,
            seconds,
            {name: float(part[place]) for name, part in self.parts.items()},
            {name: float(part[place]) for name, part in self.memory.items()},
            max(0.0, float(self.memory_bytes[place]) - cluster.usable_bytes),
            training.global_batch * training.seq / seconds,
            float(utilization(flop, seconds, cluster.gpus, cluster.gpu.peak(dtype_of(cluster.gpu)))),
            six_nd(training.model.parameters, training.global_batch * training.seq)
            * (4 / 3 if layout.recompute == "layers" else 1)
            / (seconds * cluster.gpus),
            tuple(
                told for name, told in UNTESTED.items() if getattr(layout, name) > (0 if name == "zero_stage" else 1)
            ),
        )

    def nearest_that_fits(self, place: int) -> Priced:
        """Of those that fit, the one fewest steps away from a layout; of several the fastest.

        A step doubles or halves a count, or goes to the next stage of ZeRO or way of recomputing.
        """
        away = np.zeros(len(self.grid))
        for name, column in self.grid.columns.items():
            steps = column.astype(np.float64) if name in ("zero_stage", "recompute") else np.log2(column)
            away += np.abs(steps - steps[place])
        return self.at(int(self.ranked[np.argmin(np.round(away[self.ranked], 6))]))

    def unseen(self, places: Sequence[int]) -> tuple[list[float], UnseenPrices]:
        """The share of each one's time that laws tell beyond what they were fitted on, and those laws' own errors."""
        prices = UnseenPrices(Prices(self.laws, dtype_of(self.cluster.gpu)))
        constants = replace(self.constants, host_s_per_layer=0.0)
        shares = []
        for place in places:
            layout = self.grid.at(place)
            columns = {name: int(column[place]) for name, column in self.grid.columns.items()}
            plan = plan_of(self.training, self.cluster.gpus_per_node, columns, layout.recompute)
            told = step_time(self.laws, self.training.model, plan, constants, prices).parts
            # Nothing hides in this reckoning, so no part is let be more than what is waited for in truth.
            unseen_s = sum(min(float(part), float(self.parts[name][place])) for name, part in told.items())
            shares.append(unseen_s / float(self.seconds[place]))
        return shares, prices


def planned(
    training: Training,
    cluster: Cluster,
    laws: GpuSpec | Calibration | None = None,
    fixed: Mapping[str, int] | None = None,
    prices: KernelPrices | None = None,
    constants: StepConstants | None = None,
) -> Planned:
    """Price every layout that divides, or those with the `fixed` values, by the field of a `Layout`.

    `laws` are by default those of the cluster's GPU. Raises UserError where no layout divides, and where none fits:
    by how many bytes the smallest does not, and the nearest that does.
    """
    laws = cluster.gpu if laws is None else laws
    whole = layouts(training, cluster, fixed)
    grid = held_to(whole, fixed or {})
    found = evaluated(training, cluster, grid, laws, prices, constants)
    if not len(found.ranked):
        _refuse(found, evaluated(training, cluster, whole, laws, prices, constants) if fixed else found)
    return found


def evaluated(
    training: Training,
    cluster: Cluster,
    grid: Grid,
    laws: GpuSpec | Calibration,
    prices: KernelPrices | None = None,
    constants: StepConstants | None = None,
) -> Planned:
    """Time and memory of every layout of a grid."""
    found = found_constants(laws)
    constants = constants or found.constants
    if cluster.network_bytes_per_s is not None:
        constants = replace(constants, network_bytes_per_s=cluster.network_bytes_per_s)
    prices = prices or Prices(laws, dtype_of(cluster.gpu))
    seconds = np.empty(len(grid))
    parts: dict[str, NDArray[np.float64]] = {}
    memory = {name: np.empty(len(grid)) for name in MEMORY_PARTS}
    for code in np.unique(grid.columns["recompute"]).tolist():
        alike = np.flatnonzero(grid.columns["recompute"] == code)
        columns = {name: column[alike] for name, column in grid.columns.items()}
        plan = plan_of(training, cluster.gpus_per_node, columns, RECOMPUTES[code])
        told = step_time(laws, training.model, plan, constants, prices)
        seconds[alike] = told.seconds
        for name, part in told.parts.items():
            parts.setdefault(name, np.zeros(len(grid)))[alike] = part
        for name, need in memory_of(training, columns, RECOMPUTES[code]).items():
            memory[name][alike] = need
    return Planned(
        training, cluster, laws, grid, seconds, parts, memory, constants, found.of_another_gpu, found.error_percent
    )


def memory_of(
    training: Training, columns: Mapping[str, NDArray[np.int64]], recompute: Recompute
) -> dict[str, NDArray[np.float64]]:
    """Bytes on the fullest GPU of each layout, by part (`laws/training/memory.py`)."""
    plan = plan_of(training, 1, columns, recompute)
    # A fused kernel keeps no scores, whatever else is kept.
    kept: Recompute = "attention" if training.fused_attention and recompute == "nothing" else recompute
    need = training_memory(
        training.model, plan.micro_batch, training.seq, plan.piece.sharding, data_ranks=plan.shards,
        zero_stage=plan.zero_stage, stages=plan.pipeline, recompute=kept, chunks=plan.chunks,
        micro_batches=plan.micro_batches, context=plan.context,
    )  # fmt: skip
    return {name: np.broadcast_to(getattr(need, name), plan.shape) for name in MEMORY_PARTS}


def dtype_of(gpu: GpuSpec) -> str:
    """What a GPU trains in: bf16, and before Ampere fp16."""
    return "bf16" if "bf16" in gpu.peak_flop_per_s else "fp16"


def _refuse(found: Planned, whole: Planned) -> None:
    """Say by how many bytes nothing fits, and what does."""
    place = int(np.argmin(found.memory_bytes))
    least = found.at(place)
    usable = found.cluster.usable_bytes
    wrong = (
        f"{least.layout} needs {least.memory_bytes / 2**30:.1f} GiB on a GPU, {least.over_bytes:.0f} bytes more than "
        f"the {usable / 2**30:.1f} GiB that are usable"
    )
    if whole is not found:
        wrong = f"No layout as asked for fits: {wrong}"
        if len(whole.ranked):
            same = np.ones(len(whole.grid), dtype=bool)
            for name, column in found.grid.columns.items():
                same &= whole.grid.columns[name] == column[place]
            near = whole.nearest_that_fits(int(np.flatnonzero(same)[0]))
            raise UserError(f"{wrong}; the nearest that fits is {near.layout}.")
    else:
        gpus = found.cluster.gpus
        wrong = f"No layout fits {gpus} GPU{'s' if gpus > 1 else ''}: {wrong}"
    larger = _fewest_gpus(found.training, found.cluster)
    raise UserError(f"{wrong}; {larger or f'nor would {MOST_TIMES_GPUS} times as many GPUs be enough'}.")


def _fewest_gpus(training: Training, cluster: Cluster) -> str | None:
    """The nearest cluster on which something fits, by doubling."""
    times = 2
    while times <= MOST_TIMES_GPUS:
        larger = replace(cluster, gpus=cluster.gpus * times)
        times *= 2
        try:
            grid = layouts(training, larger)
        except UserError:
            continue
        least, smallest = None, np.inf
        for code in np.unique(grid.columns["recompute"]).tolist():
            alike = np.flatnonzero(grid.columns["recompute"] == code)
            columns = {name: column[alike] for name, column in grid.columns.items()}
            total = np.asarray(sum(memory_of(training, columns, RECOMPUTES[code]).values()))
            if total.min() < smallest:
                least, smallest = int(alike[np.argmin(total)]), float(total.min())
        if least is not None and smallest <= cluster.usable_bytes:
            return f"{larger.gpus} GPUs would do, by {grid.at(least)}"
    return None


def told_change(before: Layout, after: Layout) -> str:
    """What differs, as "TP 1 -> 2, micro-batch 4 -> 2"."""
    changed = [name for name in WRITTEN if getattr(before, name) != getattr(after, name)]
    return ", ".join(f"{WRITTEN[name]} {getattr(before, name)} -> {getattr(after, name)}" for name in changed)
