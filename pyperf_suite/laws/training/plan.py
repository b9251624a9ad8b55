"""How an iteration of training is cut over GPUs: one way, or a whole grid of ways in arrays of one shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.model_flops import Recompute, check_recompute
from pyperf_suite.laws.training.memory import LAST_STAGE
from pyperf_suite.laws.transformer import Sharding, Sizes

# Bytes of an element of activations and parameters in mixed precision.
HALF = 2


@dataclass(frozen=True)
class MicroBatch:
    """What one GPU sees of a micro-batch of `sequences`: its cut of every layer and of the sequence.

    Only these decide what a layer costs, so plans that differ otherwise share its price.
    """

    sequences: Sizes
    seq: int
    tensor: Sizes = 1
    context: Sizes = 1
    expert: Sizes = 1
    recompute: Recompute = "nothing"
    fused_attention: bool = True
    sequence_parallel: bool = False
    ranks_per_node: int = 8
    element_bytes: int = HALF

    @property
    def tokens(self) -> Any:
        """Of this GPU; those that TP shares count whole."""
        return self.sequences * self.seq // self.context

    @property
    def sharding(self) -> Sharding:
        return Sharding(self.tensor, self.sequence_parallel, self.expert)

    @property
    def sequence_ranks(self) -> Sizes:
        """Over how many ranks the sequence is cut where TP leaves tokens whole."""
        return self.tensor if self.sequence_parallel else 1

    @property
    def per_node_beside_tensor(self) -> Any:
        """Of ranks that differ in all but TP, those that share a node."""
        return np.maximum(1, self.ranks_per_node // self.tensor)

    @property
    def passes(self) -> int:
        """Forward passes' worth of launches of a layer: backward launches twice as many kernels."""
        return 4 if self.recompute == "layers" else 3


@dataclass(frozen=True)
class Plan:
    """How an iteration is run: `global_batch` sequences of `seq` tokens, over tensor · context · data · pipeline GPUs.

    Ranks are placed as Megatron-LM does, TP innermost, then CP, DP and PP, on nodes of `ranks_per_node`. `pipeline`
    stages hold `chunks` groups of layers each (interleaved schedule, virtual PP); `context` cuts the sequence (ring
    attention), `expert` spreads experts over ranks of DP · CP. ZeRO shares over DP · CP. `recompute` "layers" is full
    activation checkpointing: backward computes each layer's forward again; "attention" the part between projections
    (selective). `fused_attention` keeps no scores in memory, as FlashAttention. `sequence_parallel` cuts along the
    sequence what TP leaves whole. `overlap_gradients` sends gradients, and what ZeRO gathers, beside computation.
    `gradient_bytes` is one element of a gradient as it is sent, `element_bytes` one of activations and of parameters as
    they are computed with.

    Counts may be arrays that broadcast together. Raises UserError for numbers below 1, a stage of ZeRO that there is
    not, or a batch, a sequence or experts that do not divide.
    """

    global_batch: int
    micro_batch: Sizes
    seq: int
    tensor: Sizes = 1
    data: Sizes = 1
    pipeline: Sizes = 1
    recompute: Recompute = "nothing"
    fused_attention: bool = True
    overlap_gradients: bool = False
    gradient_bytes: int = HALF
    ranks_per_node: int = 8
    chunks: Sizes = 1
    context: Sizes = 1
    expert: Sizes = 1
    zero_stage: Sizes = 0
    sequence_parallel: bool = False
    element_bytes: int = HALF

    def __post_init__(self) -> None:
        check_recompute(self.recompute)
        sizes = (self.global_batch, self.micro_batch, self.seq, self.tensor, self.data, self.pipeline, self.chunks,
                 self.context, self.expert, self.gradient_bytes, self.ranks_per_node, self.element_bytes)  # fmt: skip
        if min(int(np.min(size)) for size in sizes) < 1:
            raise UserError(f"An iteration needs sizes of at least 1 throughout, but {self} was asked for.")
        if np.min(self.zero_stage) < 0 or np.max(self.zero_stage) > LAST_STAGE:
            raise UserError(f"ZeRO has stages 0 to {LAST_STAGE}, but {self.zero_stage} was asked for.")
        if np.any(self.global_batch % (self.micro_batch * self.data)):
            raise UserError(
                f"A global batch of {self.global_batch} cannot be cut into micro-batches of {self.micro_batch} on "
                f"{self.data} data-parallel ranks evenly."
            )
        if np.any(self.seq % np.asarray(self.context)):
            raise UserError(f"A sequence of {self.seq} tokens cannot be cut over {self.context} ranks evenly.")
        if np.any(self.shards % self.expert):
            raise UserError(f"Experts cannot be spread over {self.expert} of {self.shards} ranks of DP and CP evenly.")
        if np.any((np.asarray(self.chunks) > 1) & (self.micro_batches % self.pipeline != 0)):
            raise UserError(
                f"The interleaved schedule needs a multiple of {self.pipeline} stages of micro-batches, but there are "
                f"{self.micro_batches}."
            )

    @property
    def micro_batches(self) -> Any:
        """Of one data-parallel rank in an iteration."""
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def shards(self) -> Any:
        """Ranks that have the same parameters, which ZeRO shares among them: DP · CP."""
        return self.data * self.context

    @property
    def shape(self) -> tuple[int, ...]:
        """What its counts broadcast to, () for one plan."""
        counts = (self.micro_batch, self.tensor, self.data, self.pipeline, self.chunks, self.context, self.expert,
                  self.zero_stage)  # fmt: skip
        return np.broadcast_shapes(*map(np.shape, counts))

    @property
    def piece(self) -> MicroBatch:
        """What one GPU sees of a micro-batch."""
        return self._piece(self.micro_batch, self.tensor, self.context, self.expert)

    def distinct_pieces(self) -> tuple[MicroBatch, NDArray[np.intp]]:
        """The different ones among a grid's pieces, and for each plan, flat, the place of its own."""
        counts = (self.micro_batch, self.tensor, self.context, self.expert)
        rows = np.stack([np.broadcast_to(count, self.shape).ravel() for count in counts], axis=1)
        distinct, back = np.unique(rows, axis=0, return_inverse=True)
        return self._piece(*np.ascontiguousarray(distinct.T)), np.asarray(back, dtype=np.intp).ravel()

    def _piece(self, sequences: Sizes, tensor: Sizes, context: Sizes, expert: Sizes) -> MicroBatch:
        return MicroBatch(
            sequences, self.seq, tensor, context, expert, self.recompute, self.fused_attention, self.sequence_parallel,
            self.ranks_per_node, self.element_bytes,
        )  # fmt: skip
