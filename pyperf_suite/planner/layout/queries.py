"""Layouts beyond the fastest: a given one, two compared, how many GPUs, what it costs, the network needed."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.model_flop import model_flop
from pyperf_suite.laws.transformer import check_recompute
from pyperf_suite.planner.laws.calibration import Calibration
from pyperf_suite.planner.laws.training.framework import usual_framework
from pyperf_suite.planner.laws.training.offload import check_offload
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.layout.grid import (
    LARGEST,
    NAMED,
    WRITTEN,
    Cluster,
    Grid,
    Training,
    axes_of,
    cuts,
    divides,
    plan_at,
    runs,
    uneven,
    written,
)
from pyperf_suite.planner.layout.plan import Planned, PredictedLayout, evaluated, planned
from pyperf_suite.planner.power import MeasuredPower

# As a layout is written, and the field of a `ParallelPlan` that each is.
KEYS = {
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "vp": "chunks",
    "cp": "context",
    "ep": "expert",
    "zero": "zero_stage",
    "mb": "micro_batch",
    "recompute": "recompute",
    "offload": "offload",
}
CHECKS = {"recompute": check_recompute, "offload": check_offload}
# Of 1259 pairs of published layouts of one model on as many GPUs, predicted by constants that saw no run of the model,
# the share predicted in the right order, by how far apart they were predicted to be, as a logarithm. With experts (27
# pairs) errors lie 2.8 times as far apart.
PREDICTED_LOG_RATIOS = (0.0, 0.01, 0.037, 0.077, 0.14, 0.31)
SHARES_RIGHT = (0.5, 0.57, 0.73, 0.78, 0.82, 0.97)
WIDER_WITH_EXPERTS = 2.8
DAY_S, HOUR_S = 86400.0, 3600.0
# A network is enough where an endless one would save less than this.
ENOUGH = 0.05
ENDLESS, SLOWEST = 1e15, 1e6
# How far numbers of GPUs are tried beyond what a small cluster's rate says, and how many round ones.
MOST_TIMES, ROUND = 4, 6


def layout_of(text: str, gpus: int | None, framework: str | None) -> dict[str, Any]:
    """A layout by the names of WRITTEN, as in `dp=8,tp=4,pp=2,zero=1`; DP is by default what the GPUs leave, ZeRO what the framework has first.

    Raises UserError for what is no layout, and for one that is not of so many GPUs.
    """
    given: dict[str, Any] = {}
    for part in filter(None, re.split(r"[,\s]+", text.strip().lower())):
        name, _, value = part.partition("=")
        if name not in KEYS or KEYS[name] in given:
            raise UserError(f"{part[:40]!r} is no part of a layout, or there twice: write {', '.join(KEYS)}=VALUE.")
        if name in NAMED:
            CHECKS[name](value)
        elif not re.fullmatch(r"\d{1,7}", value) or (int(value) < 1 and name != "zero"):
            raise UserError(f"{part[:40]!r} needs a whole number above 0: write it as in {name}=2.")
        given[KEYS[name]] = value if name in NAMED else int(value)
    for name in ("tensor", "pipeline", "chunks", "context", "expert", "micro_batch"):
        given.setdefault(name, 1)
    given |= {"recompute": "nothing", "offload": "none"} | given
    apart = given["tensor"] * given["pipeline"] * given["context"]
    given.setdefault("data", max(1, (gpus or apart) // apart))
    first = {"fsdp1": 3, "fsdp2": 3, "torchtitan": 3, "ddp": 0}.get(framework or "", 1)
    first = 3 if given["offload"] in ("cpu", "nvme") else first
    alone = given["data"] * given["context"] == 1 and given["offload"] == "none"
    given.setdefault("zero_stage", 0 if alone else first)
    if gpus is not None and ranks_of(given) != gpus:
        cut = " x ".join(f"{WRITTEN[name]} {given[name]}" for name in ("data", "tensor", "pipeline", "context"))
        raise UserError(f"{cut} are {ranks_of(given)} GPUs, not {gpus}.")
    return given


def ranks_of(layout: Mapping[str, Any]) -> int:
    """GPUs of a layout."""
    return int(layout["data"] * layout["tensor"] * layout["pipeline"] * layout["context"])


def exactly(training: Training, cluster: Cluster, laws: GpuSpec | Calibration, layout: Mapping[str, Any]) -> Planned:
    """One layout, by the names of WRITTEN, whether it fits or not. Raises UserError for one that cannot be run."""
    codes = {name: names.index(layout[name]) for name, names in NAMED.items()}
    grid = Grid({name: np.array([value]) for name, value in {**layout, **codes}.items()}, {})
    stage, offload, pipeline, chunks = (layout[name] for name in ("zero_stage", "offload", "pipeline", "chunks"))
    framework = training.framework or usual_framework(stage, offload)
    if stage > 3:
        raise UserError(f"ZeRO has stages 0 to 3, but {stage} was requested.")
    training = replace(training, offloads=(offload,))
    if not runs(framework, grid.columns)[0]:
        why = "" if offload == "none" else " (optimizer states leave the GPU from ZeRO 1 on, parameters with 3)"
        raise UserError(f"{framework} cannot run {written(layout)}{why}: name another --framework, or another layout.")
    training.peak_on(cluster.gpu)
    reason = uneven(training, cluster, layout["tensor"], layout["context"], pipeline, layout["data"])
    if reason is None and not cuts(training, pipeline, chunks):
        reason = f"{training.model.layers} layers are not {pipeline} stages of {chunks} chunks"
    if reason is None and training.model.experts % layout["expert"]:
        reason = f"EP does not divide the {training.model.experts} experts"
    if reason:
        raise UserError(f"{written(layout)} does not come out even: {reason}.")
    # The plan has a sentence for a batch or experts that do not divide.
    plan_at(training, cluster, grid, 0)
    return evaluated(training, cluster, grid, laws)


def surely_faster(training: Training, first: PredictedLayout, second: PredictedLayout) -> float:
    """How sure it is that the first of two layouts takes less time: the share of such pairs of published runs."""
    apart = math.log(second.seconds / first.seconds)
    wider = WIDER_WITH_EXPERTS if training.model.experts > 1 else 1.0
    right = float(np.interp(abs(apart) / wider, PREDICTED_LOG_RATIOS, SHARES_RIGHT))
    return right if apart >= 0 else 1 - right


@dataclass(frozen=True)
class Budget:
    """What a training is to take: `tokens`, in `days`, on GPUs at `price` dollars an hour; None if not requested.

    `power` is what a GPU was measured to draw, None if it was not.
    """

    tokens: float | None = None
    days: float | None = None
    price: float | None = None
    power: MeasuredPower | None = None

    def __post_init__(self) -> None:
        limits = {"--tokens": (self.tokens, 1e18), "--target-days": (self.days, 36500.0), "--price": (self.price, 1e6)}
        for option, (value, most) in limits.items():
            if value is not None and not 0 < value <= most:
                raise UserError(f"{option} has to lie above 0 and up to {most:g}, but {value:g} was requested.")
        if self.days is not None and self.tokens is None:
            raise UserError("--target-days says when, but not how much is trained on: add --tokens, as in 2e12.")

    def days_of(self, seconds_a_token: float) -> float | None:
        return None if self.tokens is None else self.tokens * seconds_a_token / DAY_S

    def cost_of(self, gpus: int, seconds_a_token: float, tokens: float) -> float | None:
        """Dollars of so many tokens."""
        return None if self.price is None else gpus * self.price * tokens * seconds_a_token / HOUR_S


def fewest_gpus(
    training: Training,
    cluster_of: Callable[[int], Cluster],
    laws: GpuSpec | Calibration,
    budget: Budget,
    fixed: Mapping[str, int] | None = None,
) -> Planned:
    """The smallest number of nodes whose best layout is in time; `cluster_of` is a cluster of so many nodes.

    A GPU does most on a small cluster of a power of two, whose rate bounds the number to begin with. From there on only
    numbers of nodes that some split divides are tried: in steps that double until one is in time, then by halves. As a
    rate does not rise with each node, the roundest of the smaller numbers are tried too. Raises UserError where none is
    in time.
    """
    rate = (budget.tokens or 0.0) / ((budget.days or 1.0) * DAY_S)
    # Few GPUs that offload say nothing of many that need not.
    training = replace(training, offloads=training.offloads or ("none",))
    node = cluster_of(1)
    flop = float(model_flop(training.model, 1, training.seq)) / training.seq
    fewest = max(1, math.ceil(rate * flop / training.peak_on(node.gpu) / node.gpus))
    most, refused = LARGEST["gpus"] // node.gpus, ""

    @functools.cache
    def found_on(nodes: int) -> Planned | None:
        nonlocal refused
        try:
            return planned(training, cluster_of(nodes), laws, fixed)
        except UserError as reason:
            refused = f" ({str(reason)[:200]})"
            return None

    def in_time(nodes: int) -> bool:
        found = found_on(nodes)
        return found is not None and found.best.tokens_per_s >= rate

    similar = 1 << (fewest.bit_length() - 1)
    while similar <= most and found_on(similar) is None:
        similar *= 2
    small = found_on(similar) if similar <= most else None
    first = max(fewest, math.ceil(rate / small.best.tokens_per_s * similar)) if small else most + 1
    numbers = range(first, min(most, MOST_TIMES * first) + 1)
    dividing = (nodes for nodes in numbers if divides(training, cluster_of(nodes)))
    even = list(itertools.islice(dividing, 1))
    low, high = -1, 0
    while high < len(even) and not in_time(even[high]):
        even += itertools.islice(dividing, high + 1)
        low, high = high, 2 * high + 1
    if low < (high := min(high, len(even) - 1)) and in_time(even[high]):
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if in_time(even[middle]) else (middle, high)
        rounder = sorted(even[:high], key=lambda nodes: nodes & -nodes, reverse=True)[:ROUND]
        best = found_on(next((nodes for nodes in sorted(rounder) if in_time(nodes)), even[high]))
        if best is not None:
            return best
    raise UserError(
        f"No number of GPUs that was tried trains {budget.tokens:g} tokens in {budget.days:g} days with a global batch "
        f"of {training.global_batch} sequences: raise it, or take more days{refused}."
    )


def smallest_network(found: Planned, plan: ParallelPlan) -> float | None:
    """Bytes/s that a GPU has to send out of its node for a step at most ENOUGH longer than over an endless network.

    None within one node, and where even a very slow one is enough.
    """
    if found.cluster.gpus <= found.cluster.gpus_per_node:
        return None

    def seconds(rate: float) -> float:
        cluster = replace(found.cluster, network=rate)
        return float(exactly(found.training, cluster, found.laws, axes_of(plan)).seconds[0])

    longest = (1 + ENOUGH) * seconds(ENDLESS)
    if seconds(SLOWEST) <= longest:
        return None
    low, high = math.log(SLOWEST), math.log(ENDLESS)
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if seconds(math.exp(middle)) <= longest else (middle, high)
    return math.exp(high)


def ends_of(predicted: PredictedLayout) -> Iterator[float]:
    """Seconds of an iteration as predicted, and where known the low and the high end."""
    yield predicted.seconds
    if not math.isnan(predicted.low):
        yield from (predicted.low, predicted.high)
