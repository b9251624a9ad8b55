"""Cuts of a training step over ranks, as plain data: DP, TP, PP with chunks, the stage of ZeRO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pyperf_suite.errors import OneOf, UserError, Within, check_limits
from pyperf_suite.laws.training.memory import LAST_STAGE
from pyperf_suite.workloads.on_ranks import DTYPES, MOST_RANKS
from pyperf_suite.workloads.training import TransformerShape

MOST_MICRO_BATCHES = 1 << 12
DEEPSPEED = "deepspeed"
# The first stage whose parameters lie in shards, by FSDP2.
SHARDED_FROM_STAGE = 2


@dataclass(frozen=True)
class ParallelStepParameters(TransformerShape):
    """A transformer on `data` x `tensor` x `pipeline` ranks, with an AdamW step at the end of each iteration.

    `batch` is the sequences of one micro-batch on one data-parallel rank, `micro_batches` how many of them make an
    iteration there: the global batch is their product with `data`. Ranks are placed as Megatron-LM does, TP innermost,
    then DP, then PP. `pipeline` stages hold `chunks` groups of layers each (1: 1F1B; more: the interleaved schedule).
    `zero_stage` 0 is DDP, 1 DDP with ZeroRedundancyOptimizer, 2 FSDP2 that keeps parameters after forward, 3 FSDP2 that
    shards them again. TP goes with sequence parallelism. With `offload` "cpu" FSDP2's shards and states lie in the
    CPU's memory, and each unit is copied as it runs (CPUOffloadPolicy). `engine` "deepspeed" is that
    package's own ZeRO 0 to 3 and offload, with data parallelism alone.
    """

    data: Annotated[int, Within(1, MOST_RANKS)] = 1
    tensor: Annotated[int, Within(1, MOST_RANKS)] = 1
    pipeline: Annotated[int, Within(1, MOST_RANKS)] = 1
    chunks: Annotated[int, Within(1, MOST_RANKS)] = 1
    zero_stage: Annotated[int, Within(0, LAST_STAGE)] = 0
    micro_batches: Annotated[int, Within(1, MOST_MICRO_BATCHES)] = 1
    dtype: Annotated[str, OneOf(DTYPES)] = "float32"
    offload: Annotated[str, OneOf(("none", "cpu"))] = "none"
    engine: Annotated[str, OneOf(("torch", DEEPSPEED))] = "torch"

    # Not limited: NCCL copies as it likes, and running out of memory is an outcome that a study wants to see.
    peer_to_peer = True
    footprint_bytes = 0

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def is_sharded(self) -> bool:
        return self.zero_stage >= SHARDED_FROM_STAGE

    @property
    def global_batch(self) -> int:
        return self.batch * self.micro_batches * self.data

    @property
    def name(self) -> str:
        """As in `dp2 tp2 zero1 flash`: what differs from one rank that does everything."""
        cuts = ("data", "dp"), ("tensor", "tp"), ("pipeline", "pp"), ("chunks", "v")
        parts = [f"{short}{getattr(self, name)}" for name, short in cuts if getattr(self, name) > 1] or ["1 rank"]
        parts += [f"zero{self.zero_stage}"] if self.zero_stage else []
        parts += [self.attention]
        parts += [f"ckpt {self.checkpointing}"] if self.checkpointing.kind != "none" else []
        parts += [self.engine] if self.engine != "torch" else []
        parts += [f"offload {self.offload}"] if self.offload != "none" else []
        return " ".join(parts)

    def validate(self) -> None:
        check_limits(self)
        super().validate()
        if self.ranks > MOST_RANKS:
            raise UserError(f"{self.ranks} ranks were requested: ask for {MOST_RANKS} at most.")
        if self.dropout:
            raise UserError("Gradients of a step with dropout cannot be compared with a single process's: leave it 0.")
        if not self.vocab:
            raise UserError("A study trains a whole GPT: give a vocab of at least 1.")
        self._validate_cuts()

    def _validate_cuts(self) -> None:
        if self.engine == DEEPSPEED and self.ranks > self.data:
            raise UserError(
                "DeepSpeed's engine is studied with data parallelism alone: ask for tensor=1 and pipeline=1."
            )
        if self.offload != "none" and not self.zero_stage:
            raise UserError(f"Offload to the {self.offload} needs shards: ask for zero_stage 2 or 3.")
        if self.offload != "none" and self.engine == "torch" and not self.is_sharded:
            raise UserError(
                f"Offload to the {self.offload} is FSDP2's, but ZeRO stage {self.zero_stage} is not: ask for "
                "zero_stage 2 or 3."
            )
        for noun, size in (
            ("heads", self.heads),
            ("key-value heads", self.key_value_heads),
            ("columns of the MLP", self.width),
            ("tokens of a sequence", self.seq),
            ("entries of the vocabulary", self.vocab),
        ):
            if size % self.tensor:
                raise UserError(f"{size} {noun} cannot be cut over TP = {self.tensor} evenly: choose a divisor.")
        stages = self.pipeline * self.chunks
        if self.layers % stages:
            raise UserError(
                f"{self.layers} layers cannot be cut into {self.pipeline} stages of {self.chunks} chunks evenly."
            )
        if self.chunks > 1 and self.pipeline == 1:
            raise UserError(f"{self.chunks} chunks are of a pipeline, but there is one stage: ask for pipeline=2.")
        if self.chunks > 1 and self.micro_batches % self.pipeline:
            raise UserError(
                f"The interleaved schedule needs a multiple of {self.pipeline} micro-batches, but there are "
                f"{self.micro_batches}."
            )
        if self.pipeline > 1 and self.tied:
            raise UserError("The embedding and the logits lie on different stages: ask for tied=false with a pipeline.")
