"""Pieces of training as workloads: one transformer, built in torch, that all of them train or take apart.

What each workload's check sees, element by element, what with, and whether also of steps that are timed:

- training_step, precision_step: the result and all gradients, after AdamW's update weights and moments; float64, limits
  by random rounding (rounding.py); while timed, but for dropout and AdamW. Of more than 64 million parameters,
  gradients of what stands outside the layers and of the first and last of these.
- checkpointed_step: the same of the whole batch; or of one sequence where a batch takes too long, and of one that takes
  too long itself against the model without checkpointing; while timed, where the whole batch is compared.
- layer_pass, block_part: the result or gradients, on every operand set; float64, limits by dtype; while timed.
- optimizer_update: all weights and states, of 8-bit packages weights alone; float64 from where they stand; not while
  timed, as a step goes on from the last.
- data_parallel: all gradients, and that ranks hold the same bits; a single process, limits by the roundings of sums;
  while timed.
- overlap: the product, a large one on a CPU by Freivalds' check; the mean of the ranks; while timed, where it is exact.
- transfer: every byte, of a file 32 pieces; what was sent; while timed.
- input_pipeline: every sample of an epoch, pictures to the pixel; what was written; while timed, a step's last batch.
- training_memory: counts bytes of a step and has no values to compare.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pyperf_suite.errors import OneOf, UserError, Within, check_limits
from pyperf_suite.laws.transformer import PASSES, ModelDimensions, model_flop

# torch's scaled_dot_product_attention as torch chooses, pinned to one of its backends, or written out; and what the law
# knows of what each keeps: torch itself chooses a fused kernel.
ATTENTIONS: Mapping[str, Literal["sdpa", "math", "explicit"]] = {
    "sdpa": "sdpa",
    "flash": "sdpa",
    "math": "math",
    "explicit": "explicit",
}

# In a model of more parameters a mistake in a layer shows in the gradients of those before it.
MOST_COMPARED = 64_000_000

Size = Annotated[int, Within(1)]
SizeOrNone = Annotated[int, Within(0)]


@dataclass(frozen=True)
class Checkpointing:
    """Activations that are dropped in forward and computed again in backward; `parse` reads what `str` writes.

    "none"; "every:K", in which the blocks are cut into groups of K and only each group's input is kept; "selective", in
    which each block keeps the results of matrix products and attention and computes the rest again.
    """

    kind: str = "none"
    every: int = 1

    def __str__(self) -> str:
        return f"every:{self.every}" if self.kind == "every" else self.kind

    @classmethod
    def parse(cls, text: str) -> Checkpointing:
        if text in ("none", "selective"):
            return cls(text)
        match = re.fullmatch(r"every(?::([1-9][0-9]{0,3}))?", text)
        if match is None:
            raise UserError(f"There is no checkpointing {text!r}: choose none, every:K or selective.")
        return cls("every", int(match[1] or 1))


@dataclass(frozen=True)
class TransformerShape:
    """A decoder of `layers` blocks of width `hidden` on `batch` sequences of `seq` tokens.

    `gated` is Llama's block (SwiGLU, RMSNorm, no biases), else GPT-2's (GELU, LayerNorm, biases). With `vocab` 0 it is
    a stack of blocks alone, without embeddings, logits and loss. With `classes` it is an encoder instead, as BERT is
    fine-tuned: every token sees all others, and the first one is classified. `kv_heads` 0 is as many as heads, `ffn` 0
    is 4 x hidden, or the multiple of 64 next above 8/3 x hidden where gated. `attention` "sdpa" is torch's own
    scaled_dot_product_attention, "flash" and "math" the same with that backend alone, "explicit" writes the scores out.
    """

    hidden: Size = 256
    heads: Size = 4
    layers: Size = 2
    seq: Size = 128
    batch: Size = 1
    kv_heads: SizeOrNone = 0
    ffn: SizeOrNone = 0
    vocab: SizeOrNone = 0
    gated: bool = False
    tied: bool = True
    dropout: float = 0.0
    attention: Annotated[str, OneOf(ATTENTIONS)] = "sdpa"
    checkpointing: Checkpointing = Checkpointing()
    classes: SizeOrNone = 0

    @property
    def key_value_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def projected(self) -> tuple[int, int, int]:
        """Widths of queries, of keys and of values of all heads."""
        keys = self.key_value_heads * self.head_dim
        return self.hidden, keys, keys

    @property
    def width(self) -> int:
        if self.ffn:
            return self.ffn
        return -(-8 * self.hidden // (3 * 64)) * 64 if self.gated else 4 * self.hidden

    @property
    def tokens(self) -> int:
        return self.batch * self.seq

    @property
    def has_logits(self) -> bool:
        """True if each token has a number for every word of a vocabulary."""
        return bool(self.vocab) and not self.classes

    @property
    def compares_all(self) -> bool:
        """True if gradients of all layers are compared with float64, else those of the first and last alone."""
        return bool(self.dimensions.parameters <= MOST_COMPARED)

    @property
    def dimensions(self) -> ModelDimensions:
        """The same for the laws. A stack of blocks has a vocabulary of one there, which no law notices."""
        return ModelDimensions(
            layers=self.layers,
            hidden=self.hidden,
            ffn=self.width,
            heads=self.heads,
            vocab=self.vocab or 1,
            kv_heads=self.key_value_heads,
            gated=self.gated,
            bias=not self.gated,
            tied=self.tied,
            positions=self.seq if self.vocab else 0,
            causal=not self.classes,
            other_parameters=self.classes and (self.hidden + self.classes) * (self.hidden + 1),
        )

    def validate(self) -> None:
        check_limits(self)
        if self.hidden % self.heads:
            raise UserError(f"hidden = {self.hidden} cannot be divided into {self.heads} heads: choose a divisor.")
        if self.heads % self.key_value_heads:
            raise UserError(
                f"{self.heads} heads cannot share {self.key_value_heads} key-value heads: choose a divisor."
            )
        if self.classes and not self.vocab:
            raise UserError("Classes are of a model with a vocabulary: name one, or leave classes out.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout is a share from 0 up to 1, but {self.dropout} was requested.")


def requested_flop(shape: TransformerShape) -> float:
    """Forward and backward by the laws (laws/transformer.py), of layers alone where there is no vocabulary."""
    flop = float(model_flop(shape.dimensions, shape.batch, shape.seq))
    if shape.has_logits:
        return flop
    # The laws' model has logits.
    return flop - PASSES * 2.0 * shape.tokens * shape.hidden * (shape.vocab or 1)
