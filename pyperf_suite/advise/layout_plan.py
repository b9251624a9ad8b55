"""The fastest ways to cut a training over a cluster: every layout that divides, its time and memory by the laws.

Predictions throughout; `laws/training/step_time.py` says how a time is made up and how far off it was where it was
measured.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.layout_grid import SPLIT, WRITTEN, Cluster, Grid, Layout, Training, held_to, layouts, plan_of
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.calibration import Calibration
from pyperf_suite.laws.model_flops import RECOMPUTES, Recompute, model_flop, six_nd, utilization
from pyperf_suite.laws.prices import KernelPrices, Prices, UnseenPrices
from pyperf_suite.laws.training.memory import GRADIENT_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES, training_memory
from pyperf_suite.laws.training.micro_batch import StepConstants
from pyperf_suite.laws.training.step_time import found_constants, step_time

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


BYTES_PER_PARAMETER = WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES
RULE_SHARE = 0.75
# "Well above" in numbers: then the bubble is at most a quarter of the computation, (p − 1)/m.
WELL_ABOVE = 4
# Layouts whose times differ by less are as fast as each other: what measured iterations repeat to.
ALIKE = 0.01


@dataclass(frozen=True)
class LayoutRule:
    """One rule, what it says here, and whether the laws agree; None where there is nothing to compare.

    `kept` and `broken` are the fastest layouts that fit of those that keep it and of those that do not.
    """

    rule: str
    here: str
    kept: Priced | None
    broken: Priced | None

    @property
    def agrees(self) -> bool | None:
        """Whether keeping it costs nothing."""
        if self.kept is None:
            return None if self.broken is None else False
        return None if self.broken is None else self.kept.seconds <= (1 + ALIKE) * self.broken.seconds

    @property
    def gain(self) -> float | None:
        """By how much longer breaking it takes: 0.1 for a tenth; negative where it is faster."""
        if self.kept is None or self.broken is None:
            return None
        return self.broken.seconds / self.kept.seconds - 1


def rules(planned: Planned) -> tuple[LayoutRule, ...]:
    """All of them, in the recipe's order."""
    return tuple(_rules(planned))


def _rules(planned: Planned) -> Iterator[LayoutRule]:
    columns, cluster, model = planned.grid.columns, planned.cluster, planned.training.model
    parallel = columns["tensor"] * columns["pipeline"]
    share = BYTES_PER_PARAMETER * model.parameters / cluster.memory_bytes
    gigabytes = BYTES_PER_PARAMETER * model.parameters / 2**30
    needs = share >= RULE_SHARE
    here = (
        f"{BYTES_PER_PARAMETER} x {model.parameters / 1e9:.2f} B parameters are {gigabytes:.1f} GiB, {share:.0%} of a "
        f"GPU: {'cut the model' if needs else 'TP = PP = 1'}"
    )
    cut = parallel > 1
    yield _rule(planned, "18 bytes a parameter below 75 % of a GPU: no TP, no PP", here, cut if needs else ~cut)
    per_node = cluster.gpus_per_node
    yield _rule(planned, "TP inside a node", f"nodes of {per_node} GPUs", columns["tensor"] <= per_node)
    yield _stages_before_tensor(planned, parallel)
    most = int(columns["data"][planned.fits].max())
    here = f"the largest DP that fits is {most}"
    yield _rule(planned, "DP as far as possible", here, columns["data"] == most)
    micro_batches = planned.training.global_batch // columns["micro_batch"]
    enough = micro_batches >= WELL_ABOVE * columns["data"] * columns["pipeline"]
    piped = columns["pipeline"] > 1
    best = planned.best.layout
    here = (
        f"the fastest has GBS/MBS = {planned.training.global_batch // best.micro_batch} for DP x PP = "
        f"{best.data * best.pipeline}; asked of pipelines, at least {WELL_ABOVE} x"
    )
    yield _rule(planned, "GBS/MBS well above DP x PP", here, enough & piped, ~enough & piped)


def _stages_before_tensor(planned: Planned, parallel: NDArray[np.int64]) -> LayoutRule:
    """PP = MP unless a single layer does not fit: of as many GPUs a replica, stages before TP."""
    columns, cluster, model = planned.grid.columns, planned.cluster, planned.training.model
    share = BYTES_PER_PARAMETER * model.layer_parameters / cluster.memory_bytes
    fits = share < RULE_SHARE
    usual = columns["context"] == 1
    # The fewest GPUs a replica that the recipe would try: those of the smallest MP that fits with more than one.
    sizes = parallel[planned.fits & usual & (parallel > 1)]
    if not sizes.size:
        return LayoutRule("PP = MP unless a layer does not fit", "no layout with TP or PP fits", None, None)
    smallest = int(sizes.min())
    alike = usual & (parallel == smallest)
    here = (
        f"a layer takes {BYTES_PER_PARAMETER * model.layer_parameters / 2**30:.2f} GiB, {share:.1%} of a GPU: "
        f"{'PP' if fits else 'TP'}, compared at MP = {smallest}, the smallest that fits"
    )
    stages = columns["tensor"] == 1 if fits else columns["tensor"] > 1
    return _rule(planned, "PP = MP unless a layer does not fit", here, alike & stages, alike & ~stages)


def _rule(
    planned: Planned,
    rule: str,
    here: str,
    keeps: NDArray[np.bool_],
    breaks: NDArray[np.bool_] | None = None,
) -> LayoutRule:
    return LayoutRule(rule, here, _fastest(planned, keeps), _fastest(planned, ~keeps if breaks is None else breaks))


def _fastest(planned: Planned, among: NDArray[np.bool_]) -> Priced | None:
    places = planned.fastest(planned.fits & among)
    return planned.at(int(places[0])) if places.size else None
