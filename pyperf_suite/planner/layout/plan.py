"""The fastest ways to cut a training over a cluster: every layout that divides, its time and memory by the laws.

All times are predictions; the law of an iteration (`laws/training`) states how far off it was on measured ones.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.training.memory import MIXED
from pyperf_suite.laws.transformer import model_flop
from pyperf_suite.planner.laws.calibration import Calibration
from pyperf_suite.planner.laws.roofline import utilization
from pyperf_suite.planner.laws.training.framework import USUAL, FoundConstants, check_framework, found_constants
from pyperf_suite.planner.laws.training.memory import ON_GPU, MemoryNeed, Verdict, need_of
from pyperf_suite.planner.laws.training.offload import OFFLOADED_BY, OFFLOADS
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.laws.training.step import UNITS_OF, kind_of, prices_of, step_time
from pyperf_suite.planner.layout.grid import (
    NAMED,
    SPLIT,
    WRITTEN,
    Cluster,
    Grid,
    TooManyLayouts,
    Training,
    frameworks_of,
    held_to,
    layouts,
    plans,
    runs,
    written,
)

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
BYTES_PER_PARAMETER = MIXED.total
RULE_SHARE = 0.75
# "Well above" in numbers: then the bubble is at most a quarter of the computation, (p − 1)/m.
WELL_ABOVE = 4
# Layouts whose times differ by less are as fast as each other: the repeatability of measured iterations.
SAME_TIME = 0.01


@dataclass(frozen=True)
class PredictedLayout:
    """One layout with its predicted iteration: seconds and bytes by part.

    Nine of ten runs lie between `low` and `high`, NaN where that is not known. `flop_per_s` is of one GPU as
    practitioners count it, 2 FLOP an active parameter and token for each of 3 passes, 4 where layers are computed
    again. `verdict` is one of VERDICTS; `over_bytes` is by how much it does not fit, 0 if it does.
    """

    place: int
    plan: ParallelPlan
    seconds: float
    low: float
    high: float
    parts: Mapping[str, float]
    memory: Mapping[str, float]
    over_bytes: float
    tokens_per_s: float
    mfu: float
    flop_per_s: float
    verdict: Verdict

    @property
    def framework(self) -> str:
        return str(self.plan.framework)

    @property
    def memory_bytes(self) -> float:
        """Bytes on the fullest GPU."""
        return sum(self.memory[name] for name in ON_GPU)


@dataclass(frozen=True)
class Planned:
    """The prediction of every layout of a training on a cluster, in arrays in the order of `grid`.

    `low` and `high` are seconds between which nine of ten runs lie. `constants` are by framework. `need` is what each
    layout holds, with the least and the most that frameworks make of it.
    """

    training: Training
    cluster: Cluster
    laws: GpuSpec | Calibration
    grid: Grid
    seconds: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    parts: Mapping[str, NDArray[np.float64]]
    need: MemoryNeed
    constants: Mapping[str, FoundConstants]

    @functools.cached_property
    def memory_bytes(self) -> NDArray[np.float64]:
        """Bytes on the fullest GPU."""
        return np.asarray(self.need.total)

    @functools.cached_property
    def fits(self) -> NDArray[np.bool_]:
        """True for layouts with room for what is counted; where there is none, for those that may fit after all."""
        held = self.cluster.hosted.holds(self.need.host)
        fits = (self.memory_bytes <= self.cluster.usable_bytes) & held
        return fits if fits.any() else (self.verdicts < 2) & held

    @functools.cached_property
    def verdicts(self) -> NDArray[np.intp]:
        """Places in VERDICTS."""
        room = self.cluster.usable_bytes
        return np.where(self.need.most <= room, 0, np.where(self.need.least <= room, 1, 2))

    def error_percent(self, framework: str) -> float | None:
        """The law's error on runs of this kind that the constants of a framework were not fitted on."""
        kind = kind_of(self.training.model, self.training.dtype_on(self.cluster.gpu))
        return self.constants[framework].error_percent(kind)

    @functools.cached_property
    def ranked(self) -> NDArray[np.intp]:
        """Places of those that fit, the fastest first."""
        return self.fastest(self.fits)

    @functools.cached_property
    def best(self) -> PredictedLayout:
        return self.at(int(self.ranked[0]))

    @property
    def surest(self) -> PredictedLayout | None:
        """The fastest of those that fit surely."""
        return self.fastest_fitting(self.verdicts == 0)

    def fastest(self, among: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Places of those layouts, the fastest first; of equals the one that shares less, then the smaller one."""
        places = np.flatnonzero(among)
        keys = (self.memory_bytes, self.grid.columns["zero_stage"], self.seconds)
        return places[np.lexsort(tuple(key[places] for key in keys))]

    def fastest_fitting(self, among: NDArray[np.bool_]) -> PredictedLayout | None:
        """The fastest of those layouts that fits."""
        places = self.fastest(self.fits & among)
        return self.at(int(places[0])) if places.size else None

    def best_of_splits(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """The first of each DP x TP x PP x CP x EP among ranked places."""
        columns = np.stack([self.grid.columns[name][places] for name in SPLIT], axis=1)
        return places[np.sort(np.unique(columns, axis=0, return_index=True)[1])]

    def at(self, place: int) -> PredictedLayout:
        """One layout, as plain numbers."""
        training, cluster = self.training, self.cluster
        # In plain numbers.
        ((_, plan),) = plans(training, cluster, self.grid.taken([place]))
        arrays = [name for name in WRITTEN if name not in NAMED] + ["shard_over", "gradient_bytes"]
        counts: dict[str, Any] = {name: int(getattr(plan, name)[0]) for name in arrays}
        plan = replace(plan, **counts)
        seconds, tokens = float(self.seconds[place]), training.global_batch * training.seq
        flop = float(model_flop(training.model, training.global_batch, training.seq))
        passes = 4 / 3 if plan.recompute == "layers" else 1
        dtype = training.dtype_on(cluster.gpu)
        return PredictedLayout(
            place,
            plan,
            seconds,
            float(self.low[place]),
            float(self.high[place]),
            {name: float(part[place]) for name, part in self.parts.items()},
            {each.name: float(getattr(self.need, each.name)[place]) for each in fields(MemoryNeed)},
            max(0.0, float(self.memory_bytes[place]) - cluster.usable_bytes),
            tokens / seconds,
            float(utilization(flop, seconds, cluster.gpus, cluster.gpu.peak(UNITS_OF.get(dtype, dtype)))),
            # Attention left out: Kaplan et al. 2020, section 2.1.
            6.0 * training.model.active_parameters * tokens * passes / (seconds * cluster.gpus),
            VERDICTS[self.verdicts[place]],
        )

    def nearest_that_fits(self, place: int) -> PredictedLayout:
        """The layout that fits and is fewest steps away from another; of several the fastest.

        A step doubles or halves a count, or goes to the next stage of ZeRO, way of recomputing or offload.
        """
        away = np.zeros(len(self.grid))
        for name, column in self.grid.columns.items():
            steps = column.astype(np.float64) if name in ("zero_stage", *NAMED) else np.log2(column)
            away += np.abs(steps - steps[place])
        return self.at(int(self.ranked[np.argmin(np.round(away[self.ranked], 6))]))


def planned(
    training: Training,
    cluster: Cluster,
    laws: GpuSpec | Calibration | None = None,
    fixed: Mapping[str, int] | None = None,
) -> Planned:
    """Predict every layout that divides, or those with the `fixed` values, by the names of WRITTEN.

    `laws` are by default those of the cluster's GPU. All layouts are of one framework, the first of USUAL under which
    any surely fits, or else may fit, unless the training names several. Where nothing surely fits and it names no
    offload, layouts that offload are ranked with the others. Raises UserError if no layout divides, and if none fits:
    by how many bytes the smallest does not, and the nearest that does.
    """
    laws, fixed = cluster.gpu if laws is None else laws, fixed or {}
    able = [name for name in USUAL if set(training.offloads) <= set(OFFLOADED_BY[name])]
    engines = [training] if training.framework else [replace(training, framework=name) for name in able]
    refused: list[UserError] = []
    full: list[tuple[Planned, Grid]] = []
    for offloads in (False, True):
        for engine in engines:
            away = tuple(each for each in engine.offloaded if each != "none")
            if offloads and (engine.offloads or not away):
                continue
            try:
                engine = replace(engine, offloads=engine.offloaded if offloads else engine.offloads)
                grid = layouts(engine, cluster, fixed)
                plans = evaluated(engine, cluster, held_to(grid, fixed, training.framework), laws)
            except UserError as reason:
                if isinstance(reason, TooManyLayouts) and not any(len(pair[0].ranked) for pair in full):
                    raise
                refused.append(reason)
                continue
            if plans.surest:
                return plans
            full.append((plans, grid))
    if not full:
        raise refused[0]
    plans, grid = next((pair for pair in full if len(pair[0].ranked)), full[0])
    if not len(plans.ranked):
        _refuse(plans, evaluated(plans.training, cluster, grid, laws) if fixed else plans)
    return plans


def evaluated(training: Training, cluster: Cluster, grid: Grid, laws: GpuSpec | Calibration) -> Planned:
    """Time and memory of every layout of a grid. Raises UserError where the GPU has no units for the dtype."""
    prices = replace(prices_of(laws, training.dtype_on(cluster.gpu)), library=training.library)
    seconds, low, high = (np.full(len(grid), np.nan) for _ in range(3))
    parts: dict[str, NDArray[np.float64]] = {}
    memory = {field.name: np.empty(len(grid)) for field in fields(MemoryNeed)}
    constants: dict[str, FoundConstants] = {}
    for similar, plan in plans(training, cluster, grid):
        constants[str(plan.framework)] = found_constants(laws, str(plan.framework))
        step = step_time(laws, training.model, plan, None, prices, cluster.network)
        seconds[similar] = step.seconds
        if step.low is not None and step.high is not None:
            low[similar], high[similar] = step.low, step.high
        for part, taken in step.parts.items():
            parts.setdefault(part, np.zeros(len(grid)))[similar] = taken
        need = need_of(training.model, plan)
        for name, held in memory.items():
            held[similar] = getattr(need, name)
    return Planned(training, cluster, laws, grid, seconds, low, high, parts, MemoryNeed(**memory), constants)


def _refuse(plans: Planned, unrestricted: Planned) -> None:
    """Raise UserError that says by how much nothing fits, and what does."""
    place = int(np.argmin(plans.memory_bytes))
    smallest, usable, gpus = plans.at(place), plans.cluster.usable_bytes, plans.cluster.gpus
    layout = written(smallest.plan)
    if not smallest.over_bytes:
        raise UserError(
            f"The GPUs have room for {layout}, but it needs {smallest.memory['host'] / 2**30:.1f} GiB of the host's "
            f"memory for each, more than nine tenths of --host-memory: take more GPUs, or --offload nvme."
        )
    wrong = (
        f"{layout} needs {smallest.memory_bytes / 2**30:.1f} GiB on a GPU, {smallest.over_bytes / 2**30:.1f} GiB "
        f"({smallest.over_bytes:.0f} bytes) more than the {usable / 2**30:.1f} GiB that are usable"
    )
    if unrestricted is not plans:
        wrong = f"No layout as requested fits: {wrong}"
        if len(unrestricted.ranked):
            same = [unrestricted.grid.columns[name] == column[place] for name, column in plans.grid.columns.items()]
            near = unrestricted.nearest_that_fits(int(np.flatnonzero(np.all(same, axis=0))[0]))
            raise UserError(f"{wrong}; the nearest that fits is {written(near.plan)}.")
    else:
        wrong = f"No layout fits {gpus} GPU{'s' if gpus > 1 else ''}: {wrong}"
    raise UserError(f"{wrong}: take more GPUs, or --offload.")


@dataclass(frozen=True)
class LayoutRule:
    """One rule that practitioners choose DP, TP and PP by, what it says here, and whether the laws agree.

    `kept` and `broken` are the fastest layouts that fit, of those that keep it and of those that do not; None if there
    is none.
    """

    rule: str
    here: str
    kept: PredictedLayout | None
    broken: PredictedLayout | None

    @property
    def agrees(self) -> bool | None:
        """True if keeping it costs nothing; None if there is nothing to compare."""
        if self.broken is None:
            return None
        return self.kept is not None and self.kept.seconds <= (1 + SAME_TIME) * self.broken.seconds

    @property
    def gain(self) -> float | None:
        """The share by which breaking it takes longer; negative if it is faster."""
        return self.broken.seconds / self.kept.seconds - 1 if self.kept and self.broken else None


def rules(planned: Planned) -> Iterator[LayoutRule]:
    """All rules, in the order of the recipe: tflops_optimization.md, notes of practitioners with hundreds of GPUs.

    They are judged under the framework of the fastest layout.
    """
    columns, cluster, model = planned.grid.columns, planned.cluster, planned.training.model
    engines = frameworks_of(planned.training, columns)
    same = engines == engines[planned.ranked[0]]
    parallel = columns["tensor"] * columns["pipeline"]

    def rule(text: str, here: str, keeps: NDArray[np.bool_], breaks: NDArray[np.bool_] | None = None) -> LayoutRule:
        others = ~keeps if breaks is None else breaks
        return LayoutRule(text, here, planned.fastest_fitting(keeps & same), planned.fastest_fitting(others & same))

    share = BYTES_PER_PARAMETER * model.parameters / cluster.memory_bytes
    gib = BYTES_PER_PARAMETER * model.parameters / 2**30
    needs = share >= RULE_SHARE
    here = (
        f"{BYTES_PER_PARAMETER} bytes of {model.parameters / 1e9:.2f} B parameters are {gib:.1f} GiB, {share:.0%} of "
        f"a GPU: {'cut the model' if needs else 'TP = PP = 1'}"
    )
    cut = parallel > 1
    yield rule("18 bytes a parameter below 75 % of a GPU: no TP, no PP", here, cut if needs else ~cut)

    per_node = cluster.gpus_per_node
    yield rule("TP inside a node", f"nodes of {per_node} GPU{'s' * (per_node > 1)}", columns["tensor"] <= per_node)

    text = "cut the model by PP, not TP, unless a layer does not fit"
    # The fewest GPUs a replica that the recipe would try: those of the smallest TP x PP that fits with more than one.
    sizes = parallel[planned.fits & (columns["context"] == 1) & cut]
    if sizes.size:
        share = BYTES_PER_PARAMETER * model.layer_parameters / cluster.memory_bytes
        fits = share < RULE_SHARE
        here = (
            f"a layer takes {BYTES_PER_PARAMETER * model.layer_parameters / 2**30:.2f} GiB, {share:.1%} of a GPU: "
            f"{'PP' if fits else 'TP'}, compared at TP x PP = {sizes.min()}, the smallest that fits"
        )
        similar = (columns["context"] == 1) & (parallel == sizes.min())
        stages = (columns["tensor"] == 1) == fits
        yield rule(text, here, similar & stages, similar & ~stages)
    else:
        yield LayoutRule(text, "no layout with TP or PP fits", None, None)

    most = int(columns["data"][planned.fits & same].max())
    yield rule("DP as far as possible", f"the largest DP that fits is {most}", columns["data"] == most)

    batch, best, piped = planned.training.global_batch, planned.best.plan, columns["pipeline"] > 1
    enough = batch // columns["micro_batch"] >= WELL_ABOVE * columns["data"] * columns["pipeline"]
    here = (
        f"the fastest has GBS/MBS = {batch // best.micro_batch} for DP x PP = {best.data * best.pipeline}; pipelines "
        f"need at least {WELL_ABOVE} x"
    )
    yield rule("GBS/MBS well above DP x PP", here, enough & piped, ~enough & piped)


# As a layout is written, and the field of a `ParallelPlan` that each is.
KEYS = dict(zip(("dp", "tp", "pp", "vp", "cp", "ep", "zero", "mb", "recompute", "offload"), WRITTEN, strict=True))
# Share of 1259 pairs of published layouts of one model on as many GPUs, predicted by constants that saw no run of the
# model, that was predicted in the right order, by the predicted distance as a logarithm. With experts (27 pairs) errors
# lie 2.8 times as far apart.
PREDICTED_LOG_RATIOS = (0.0, 0.01, 0.037, 0.077, 0.14, 0.31)
SHARES_RIGHT = (0.5, 0.57, 0.73, 0.78, 0.82, 0.97)
WIDER_WITH_EXPERTS = 2.8
# Below this confidence two layouts are equal within the error: less than about 5 % apart.
MIN_CONFIDENCE = 0.75
# Standard deviations that an end of an interval of 90 % is away.
NINE_OF_TEN = 1.645
# A network is enough where an endless one would save less than this.
MAX_NETWORK_SHARE = 0.05
MAX_BYTES_PER_S, MIN_BYTES_PER_S = 1e15, 1e6


def layout_of(text: str, gpus: int | None, framework: str | None) -> dict[str, int]:
    """A layout by the names of WRITTEN, from `dp=8,tp=4,pp=2,zero=1`, as `held_to` takes it.

    DP is by default what the GPUs leave, ZeRO what the framework has first.

    Raises UserError if the text is no layout or does not use `gpus` GPUs.
    """
    counts: dict[str, int] = {}
    for part in filter(None, re.split(r"[,\s]+", text.strip().lower())):
        key, _, value = part.partition("=")
        name = KEYS.get(key, "")
        if not name or name in counts:
            raise UserError(f"{part[:40]!r} is no part of a layout, or there twice: write {', '.join(KEYS)}=VALUE.")
        if name in NAMED:
            if value not in NAMED[name]:
                raise UserError(f"{part[:40]!r} is no part of a layout: {key} is one of {', '.join(NAMED[name])}.")
            counts[name] = NAMED[name].index(value)
        elif not re.fullmatch(r"\d{1,7}", value) or (int(value) < 1 and name != "zero_stage"):
            raise UserError(f"{part[:40]!r} needs a whole number above 0: write it as in {key}=2.")
        else:
            counts[name] = int(value)
    usual = dict.fromkeys(("tensor", "pipeline", "chunks", "context", "expert", "micro_batch"), 1)
    counts = {**usual, **dict.fromkeys(NAMED, 0), **counts}
    apart = counts["tensor"] * counts["pipeline"] * counts["context"]
    counts.setdefault("data", max(1, (gpus or apart) // apart))
    first = {"fsdp1": 3, "fsdp2": 3, "torchtitan": 3, "ddp": 0}.get(framework or "", 1)
    first = 3 if OFFLOADS[counts["offload"]] in ("cpu", "nvme") else first
    alone = counts["data"] * counts["context"] == 1 and not counts["offload"]
    counts.setdefault("zero_stage", 0 if alone else first)
    if gpus is not None and ranks_of(counts) != gpus:
        cut = " x ".join(f"{WRITTEN[name]} {counts[name]}" for name in ("data", "tensor", "pipeline", "context"))
        raise UserError(f"{cut} are {ranks_of(counts)} GPUs, not {gpus}.")
    return counts


def given_layouts(texts: Sequence[str], gpus: int | None, framework: str | None) -> list[tuple[str, dict[str, int]]]:
    """The layouts of texts as of `layout_of`, each with its framework: one for all unless several are named.

    Where none is named it is one that runs each with the stage of ZeRO that it has alone, if there is such a one.

    Raises UserError where they take unequal numbers of GPUs, and where no framework of USUAL runs all of them.
    """
    named = re.findall(r"[^,\s]+", framework or "")
    for name in named:
        check_framework(name)
    tried = [[(name, layout_of(text, gpus, name)) for name in named or USUAL] for text in texts]
    alone = [] if named else [[(name, layout_of(text, gpus, None)) for name in USUAL] for text in texts]
    counts = [ranks_of(ways[0][1]) for ways in tried]
    if len(set(counts)) > 1:
        taken = " and ".join(f"{text[:40]} ({count} GPUs)" for text, count in zip(texts, counts, strict=True))
        raise UserError(f"{taken} cannot be compared: take layouts of as many GPUs.")

    def able(name: str, layout: Mapping[str, int]) -> bool:
        return bool(runs(name, {axis: np.array([layout[axis]]) for axis in WRITTEN}).all())

    if len(named) > 1:
        return [next((each for each in ways if able(*each)), ways[0]) for ways in tried]
    for same in (*zip(*alone, strict=True), *zip(*tried, strict=True)):
        if all(able(*each) for each in same):
            return list(same)
    if named or len(texts) == 1:
        return [
            next((each for each in ways if OFFLOADS[each[1]["offload"]] in OFFLOADED_BY[each[0]]), ways[0])
            for ways in tried
        ]
    raise UserError(
        f"None of {', '.join(USUAL)} runs both layouts, so that they cannot be compared under one: name several, as in "
        "--framework megatron,torchtitan."
    )


def ranks_of(layout: Mapping[str, int]) -> int:
    """GPUs of a layout."""
    return layout["data"] * layout["tensor"] * layout["pipeline"] * layout["context"]


def exactly(training: Training, cluster: Cluster, laws: GpuSpec | Calibration, layout: Mapping[str, int]) -> Planned:
    """One layout, as of `layout_of`, whether it fits or not. Raises UserError for one that does not divide."""
    training = replace(training, offloads=(OFFLOADS[layout["offload"]],))
    grid = held_to(layouts(training, cluster, layout), layout, training.framework)
    return evaluated(training, cluster, grid, laws)


def surely_faster(training: Training, first: PredictedLayout, second: PredictedLayout) -> float:
    """Confidence that the first of two layouts takes less time: the share of such pairs of published runs.

    Under two frameworks errors are each one's own.
    """
    log_ratio = math.log(second.seconds / first.seconds)
    if first.framework != second.framework:
        scatter = math.hypot(*(math.log(each.high / each.seconds) for each in (first, second))) / NINE_OF_TEN
        return NormalDist(0, scatter).cdf(log_ratio) if scatter > 0 else 0.5
    wider = WIDER_WITH_EXPERTS if training.model.experts > 1 else 1.0
    right = float(np.interp(abs(log_ratio) / wider, PREDICTED_LOG_RATIOS, SHARES_RIGHT))
    return right if log_ratio >= 0 else 1 - right


def are_equal(training: Training, first: PredictedLayout, second: PredictedLayout) -> bool:
    """True if the law's error leaves open which of two layouts takes less time."""
    chance = surely_faster(training, first, second)
    return max(chance, 1 - chance) < MIN_CONFIDENCE


def smallest_network(plans: Planned, place: int) -> float | None:
    """Bytes/s that a GPU must send out of its node for a step MAX_NETWORK_SHARE longer than over an endless network.

    None where even a very slow one is enough.
    """
    layout = plans.grid.taken([place])

    def seconds(rate: float) -> float:
        cluster = replace(plans.cluster, network=rate)
        return float(evaluated(plans.training, cluster, layout, plans.laws).seconds[0])

    longest = (1 + MAX_NETWORK_SHARE) * seconds(MAX_BYTES_PER_S)
    if seconds(MIN_BYTES_PER_S) <= longest:
        return None
    low, high = math.log(MIN_BYTES_PER_S), math.log(MAX_BYTES_PER_S)
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if seconds(math.exp(middle)) <= longest else (middle, high)
    return math.exp(high)
