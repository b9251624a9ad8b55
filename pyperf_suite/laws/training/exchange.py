"""What ranks with the same layers exchange in an iteration: gradients and, with ZeRO, parameters; and pipelines' sends.

What runs beside computation is hidden by all of a pass, from its start to its end: the best case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.prices import KernelPrices
from pyperf_suite.laws.training.micro_batch import taken_share, waited_s
from pyperf_suite.laws.training.plan import Plan

# Of the time of a layer, backward's share: two of three passes' worth, computing again aside.
BACKWARD_SHARE = 2 / 3


@dataclass(frozen=True)
class RankParameters:
    """Parameters of a rank of the stage that has the output matrix: routed experts', and all others."""

    shared: Any
    experts: Any


@dataclass(frozen=True)
class Exposed:
    """Seconds of exchange that no computation hides, of gradients and of parameters.

    `once` are of an iteration, `each` of every micro-batch, for which the pipeline waits too.
    """

    gradients_once: Any
    gradients_each: Any
    parameters_once: Any
    parameters_each: Any

    @property
    def each(self) -> Any:
        return self.gradients_each + self.parameters_each


def rank_parameters(model: ModelDimensions, plan: Plan) -> RankParameters:
    """Matrices are cut over TP, layers over PP, experts over EP too."""
    routed = model.sparse_layers * model.experts * model.expert_parameters if model.experts > 1 else 0
    layers = model.sparse_layers * model.layer_parameters + model.dense_layers * model.dense_layer_parameters
    return RankParameters(
        ((layers - routed) / plan.pipeline + model.hidden * model.vocab) / plan.tensor,
        routed / plan.pipeline / plan.tensor / plan.expert,
    )


def exposed(model: ModelDimensions, plan: Plan, prices: KernelPrices, network: float | None, stage_s: Any) -> Exposed:
    """What is waited for, where the layers of a stage take `stage_s` a micro-batch.

    By stage of ZeRO (Rajbhandari et al. 2020, section 7): 0 all_reduces gradients; 1 reduce_scatters them and gathers
    the updated parameters, 2 scatters each micro-batch's; 3 gathers parameters in every forward and backward too.
    """
    hides = 1 if plan.overlap_gradients else 0
    backward_s, forward_s = hides * BACKWARD_SHARE * stage_s, hides * (1 - BACKWARD_SHARE) * stage_s
    taken = taken_share(plan.shards, np.maximum(1, plan.ranks_per_node // plan.tensor))
    stage = np.asarray(plan.zero_stage)
    summed_s = waited_s(_over_data("all_reduce", plan.gradient_bytes, model, plan, prices, network), backward_s, taken)
    if not np.any(stage):
        return Exposed(summed_s, 0.0, 0.0, 0.0)
    scattered_s = _over_data("reduce_scatter", plan.gradient_bytes, model, plan, prices, network)
    gathered_s = _over_data("all_gather", plan.element_bytes, model, plan, prices, network)
    after_backward = waited_s(scattered_s, backward_s, taken)
    before_forward = waited_s(gathered_s, forward_s, taken)
    # Parameters come first, for without them nothing is computed; gradients have what is left of the pass.
    again = waited_s(gathered_s, backward_s, taken)
    last = waited_s(scattered_s, np.maximum(0.0, backward_s - gathered_s), taken)
    zero = np.zeros(plan.shape)
    return Exposed(
        np.where(stage == 0, summed_s, np.where(stage == 1, after_backward, zero)),
        np.where(stage == 2, after_backward, np.where(stage == 3, last, zero)),
        np.where((stage == 1) | (stage == 2), before_forward, zero),
        np.where(stage == 3, before_forward + again, zero),
    )


def send_s(model: ModelDimensions, plan: Plan, prices: KernelPrices, network: float | None) -> Any:
    """Activations to the next stage and their gradients back. Stages share a node where a whole one leaves room."""
    together: Any = np.where(2 * plan.tensor * plan.shards <= plan.ranks_per_node, 2, 1)
    piece = plan.piece
    size = piece.element_bytes * piece.tokens * model.hidden / piece.sequence_ranks
    if np.ndim(together) == 0:
        together = int(together)
    return 2 * prices.collective("send_receive", size, 2, together, network).seconds


def interleaved_sends_s(plan: Plan, sends_s: Any, chunk_s: Any) -> Any:
    """What sending beside computation costs where every chunk of `chunk_s` does it, v times as often.

    With one chunk a stage it is part of what the constants of a step were found on.
    """
    each = waited_s(sends_s, chunk_s, taken_share(plan.pipeline * plan.tensor * plan.shards, plan.ranks_per_node))
    chunks = np.asarray(plan.chunks)
    return np.where((chunks > 1) & (np.asarray(plan.pipeline) > 1), plan.micro_batches * chunks * each, 0.0)


def _over_data(
    operation: str, element_bytes: int, model: ModelDimensions, plan: Plan, prices: KernelPrices, network: float | None
) -> Any:
    """A rank's parameters over the ranks that have the same: of these TP, and EP, leave every so many of a node."""
    ours = rank_parameters(model, plan)
    per_node: Any = np.maximum(1, plan.ranks_per_node // plan.tensor)
    if np.ndim(per_node) == 0:
        per_node = int(per_node)
    seconds = prices.collective(operation, element_bytes * ours.shared, plan.shards, per_node, network).seconds
    if model.experts > 1:
        apart = np.maximum(1, plan.ranks_per_node // (plan.tensor * plan.expert))
        ranks = plan.shards // plan.expert
        seconds = seconds + prices.collective(operation, element_bytes * ours.experts, ranks, apart, network).seconds
    return seconds
