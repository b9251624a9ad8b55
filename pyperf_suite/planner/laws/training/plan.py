"""How an iteration of training is run: the one plan of sizes, layouts, laws and published runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.training.memory import LAST_STAGE
from pyperf_suite.laws.transformer import Recompute, Sharding, Sizes, check_recompute
from pyperf_suite.planner.laws.training.framework import DTYPES, check_framework
from pyperf_suite.planner.laws.training.offload import Host, Offload, check_offload

# Bytes of an element of activations and parameters in mixed precision.
HALF = 2
# Dtypes that the optimizer's states are kept in.
STATE_DTYPES = ("fp32", "bf16")
# The compute capability from which on Megatron hides TP's exchange.
HOPPER = 9


@dataclass(frozen=True, kw_only=True)
class ParallelPlan(Sharding):
    """How an iteration is run over tensor · context · data · pipeline GPUs: how its layers are cut, and all else.

    Counts may be arrays that broadcast. Ranks are placed as Megatron-LM does: TP innermost, then CP, DP and PP. Experts
    are spread over ranks of DP · CP.

    Attributes:
        global_batch: sequences of an iteration.
        micro_batch: sequences that a rank computes at a time.
        seq: tokens of a sequence.
        data: ranks with batches of their own (DP).
        pipeline: stages (PP).
        recompute: what backward computes again: "layers" is full activation checkpointing, "attention" the part between
            projections (selective).
        fused_attention: no scores are kept in memory, as with FlashAttention.
        overlap_gradients: gradients, and what ZeRO gathers, are sent during computation.
        gradient_bytes: of one element of a gradient as it is sent.
        ranks_per_node: GPUs of a node.
        chunks: groups of layers in each stage (interleaved schedule, virtual PP).
        context: ranks that a sequence is cut over (ring attention, CP).
        zero_stage: what DP · CP shares: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too.
        element_bytes: of one element of activations, and of parameters as they are computed with.
        dtype: of products in layers, one of DTYPES.
        framework: which runs it, one of FRAMEWORKS; None: `usual_framework`.
        offload: what leaves the GPU, one of OFFLOADS.
        host: a GPU's share of its host; None: of the maker's server.
        overlap_tensor: the exchange of TP within a node is hidden behind products, as NeMo's recipes do.
        recompute_share: of the layers, where layers are recomputed.
        whole_experts: experts are not cut over TP (Megatron-Core, ETP 1).
        fuses_experts: their kernels are fused, and overlapped with the exchange of tokens.
        shard_over: ranks of DP · CP that ZeRO shares over, next to each other, the others having copies (HSDP, MiCS);
            0: all.
        slower_attention: the time of its fused kernel over that of its framework's usual one.
        blocks: the host waits for each operation before the next (CUDA_LAUNCH_BLOCKING), so that no launch is hidden.
        state_dtype: of the optimizer's states, one of STATE_DTYPES: "bf16" keeps no master copy.
        gathers: collectives for one of a layer's parameters where ZeRO gathers them; 1: they are sent together.

    Raises UserError for numbers below 1, a stage of ZeRO that there is not, or a batch, a sequence or experts that do
    not divide.
    """

    global_batch: Any
    micro_batch: Sizes
    seq: Any
    data: Sizes = 1
    pipeline: Sizes = 1
    recompute: Recompute = "nothing"
    fused_attention: bool = True
    overlap_gradients: bool = False
    gradient_bytes: Sizes = HALF
    ranks_per_node: int = 8
    chunks: Sizes = 1
    context: Sizes = 1
    zero_stage: Sizes = 0
    element_bytes: int = HALF
    dtype: str = "bf16"
    framework: str | None = None
    offload: Offload = "none"
    host: Host | None = None
    overlap_tensor: bool = False
    recompute_share: float = 1.0
    whole_experts: bool | NDArray[np.bool_] = False
    fuses_experts: bool = False
    shard_over: Sizes = 0
    gathers: Sizes = 1
    state_dtype: str = "fp32"
    slower_attention: float = 1.0
    blocks: bool = False

    def __post_init__(self) -> None:
        check_recompute(self.recompute)
        check_offload(self.offload)
        if self.framework is not None:
            check_framework(self.framework)
        if self.dtype not in DTYPES:
            raise UserError(f"Nothing trains in {self.dtype!r}: choose from {', '.join(DTYPES)}.")
        if self.state_dtype not in STATE_DTYPES:
            raise UserError(f"No states of {self.state_dtype!r} are planned: choose from {', '.join(STATE_DTYPES)}.")
        sizes = (self.global_batch, self.micro_batch, self.seq, self.tensor, self.data, self.pipeline, self.chunks,
                 self.context, self.expert, self.gradient_bytes, self.ranks_per_node, self.element_bytes)  # fmt: skip
        if min(int(np.min(size)) for size in sizes) < 1:
            raise UserError(f"An iteration needs sizes of at least 1 throughout, but {self} was requested.")
        if np.min(self.zero_stage) < 0 or np.max(self.zero_stage) > LAST_STAGE:
            raise UserError(f"ZeRO has stages 0 to {LAST_STAGE}, but {self.zero_stage} was requested.")
        if np.any(self.global_batch % (self.micro_batch * self.data)):
            raise UserError(
                f"A global batch of {self.global_batch} cannot be cut into micro-batches of {self.micro_batch} on "
                f"{self.data} data-parallel ranks evenly."
            )
        if np.any(self.seq % np.asarray(self.context)):
            raise UserError(f"A sequence of {self.seq} tokens cannot be cut over {self.context} ranks evenly.")
        if np.any(self.shards % self.sharing):
            raise UserError(f"ZeRO cannot share over {self.shard_over} of {self.shards} ranks of DP and CP evenly.")
        if np.any((self.shards * self.expert_groups) % self.expert):
            raise UserError(f"Experts cannot be spread over {self.expert} of {self.shards} ranks of DP and CP evenly.")
        if np.any((np.asarray(self.chunks) > 1) & (self.micro_batches % self.pipeline != 0)):
            raise UserError(
                f"The interleaved schedule needs a multiple of {self.pipeline} stages of micro-batches, but there are "
                f"{self.micro_batches}."
            )

    @property
    def micro_batches(self) -> Any:
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def shards(self) -> Any:
        """Ranks that have the same parameters, which ZeRO shares among them: DP · CP."""
        return self.data * self.context

    @property
    def sharing(self) -> Any:
        """How many of them share a copy of what ZeRO shares."""
        sharing = np.where(np.asarray(self.shard_over) > 0, self.shard_over, self.shards)
        return sharing if sharing.ndim else int(sharing)

    @property
    def expert_groups(self) -> Any:
        """How many ranks of TP have experts of their own: 1 where each expert is cut over TP too.

        EP over more ranks than DP · CP takes those of TP, whose experts are then whole.
        """
        groups = np.where(self.whole_experts | (np.asarray(self.expert) > self.shards), self.tensor, 1)
        return groups if groups.ndim else int(groups)

    @property
    def ranks(self) -> Any:
        return self.tensor * self.shards * self.pipeline

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape to which the counts broadcast, () for one plan."""
        counts = (self.micro_batch, self.tensor, self.data, self.pipeline, self.chunks, self.context, self.expert,
                  self.zero_stage)  # fmt: skip
        return np.broadcast_shapes(*map(np.shape, counts))

    @property
    def tokens(self) -> Any:
        """Tokens of a micro-batch on one rank."""
        return self.micro_batch * self.seq // self.context

    @property
    def sequence_ranks(self) -> Sizes:
        """Over how many ranks the sequence is cut where TP leaves tokens whole."""
        return self.tensor if self.sequence_parallel else 1

    @property
    def per_node_next_to_tensor(self) -> Any:
        """Ranks of a node among those that differ in all but TP."""
        return np.maximum(1, self.ranks_per_node // self.tensor)

    @property
    def recompute_fraction(self) -> float:
        """The share of a layer's forward pass that backward computes again."""
        return self.recompute_share if self.recompute == "layers" else 0.0

    @property
    def attention_recompute_fraction(self) -> float:
        return 1.0 if self.recompute == "attention" else self.recompute_fraction

    @property
    def passes(self) -> float:
        """Forward passes' worth of launches of a layer: backward launches twice as many kernels."""
        return 3 + self.recompute_fraction

    def distinct(self) -> tuple[ParallelPlan, NDArray[np.intp]]:
        """The plans of a grid that differ in what a rank's layer costs, and for each plan, flat, the place of its own.

        They are of one micro-batch on as few ranks of DP as the experts need.
        """
        counts = (self.micro_batch, self.tensor, self.context, self.expert, np.asarray(self.expert_groups) > 1)
        rows = np.stack([np.broadcast_to(count, self.shape).ravel() for count in counts], axis=1)
        distinct, back = np.unique(rows, axis=0, return_inverse=True)
        micro_batch, tensor, context, expert, whole = np.ascontiguousarray(distinct.T)
        plan = replace(
            self, global_batch=micro_batch * expert, micro_batch=micro_batch, tensor=tensor, data=expert,
            context=context, expert=expert, pipeline=1, chunks=1, zero_stage=0, gradient_bytes=HALF, shard_over=0,
            whole_experts=whole > 0,
        )  # fmt: skip
        return plan, np.asarray(back, dtype=np.intp).ravel()


def as_published(plan: ParallelPlan, gpu: GpuSpec) -> ParallelPlan:
    """The plan on a GPU, in what nobody states as in the published runs that the constants were found on.

    Gradients are of 32 bits where Megatron adds them up, but in fp16, or FSDP scatters them; Megatron hides TP's
    exchange behind products from Hopper on, where anything is sent during computation. States of 16 bits have gradients
    of 16 bits.
    """
    stage, framework = np.asarray(plan.zero_stage), plan.framework
    wide = (framework == "megatron") & (plan.dtype != "fp16") | (stage > 0) & (
        framework not in ("deepspeed", "megatron")
    )
    sent = np.where(wide & (plan.state_dtype == "fp32"), 2 * HALF, HALF)
    hides = plan.framework == "megatron" and (gpu.compute_capability or (0, 0))[0] >= HOPPER
    hides = hides and plan.overlap_gradients
    return replace(plan, gradient_bytes=sent if sent.ndim else int(sent), overlap_tensor=hides)
