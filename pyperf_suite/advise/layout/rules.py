"""The recipe that practitioners pick DP, TP and PP by, rule by rule, and whether the laws agree with each one here.

Source: tflops_optimization.md, notes of practitioners who trained on hundreds of GPUs; in numbers where it has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.layout.planned import Planned, Priced
from pyperf_suite.laws.training.memory import GRADIENT_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES

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
