"""Layouts beyond the fastest: a given one, two compared, what it costs, the network needed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.transformer import check_recompute
from pyperf_suite.planner.laws.calibration import Calibration
from pyperf_suite.planner.laws.training.framework import usual_framework
from pyperf_suite.planner.laws.training.offload import check_offload
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.layout.grid import (
    NAMED,
    WRITTEN,
    Cluster,
    Grid,
    Training,
    axes_of,
    cuts,
    plan_at,
    runs,
    uneven,
    written,
)
from pyperf_suite.planner.layout.plan import Planned, PredictedLayout, evaluated

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
DAY_S = 86400.0
# A network is enough where an endless one would save less than this.
ENOUGH = 0.05
ENDLESS, SLOWEST = 1e15, 1e6


def layout_of(text: str, gpus: int | None, framework: str | None) -> dict[str, Any]:
    """A layout by the names of WRITTEN, from `dp=8,tp=4,pp=2,zero=1`.

    DP is by default what the GPUs leave, ZeRO what the framework has first.

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
    """What a training takes: `tokens` in all, on GPUs at `price` dollars an hour; None if not requested."""

    tokens: float | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        for option, value, most in (("--tokens", self.tokens, 1e18), ("--price", self.price, 1e6)):
            if value is not None and not 0 < value <= most:
                raise UserError(f"{option} has to lie above 0 and up to {most:g}, but {value:g} was requested.")


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
