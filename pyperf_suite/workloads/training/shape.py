"""The transformer that training workloads build, as plain data: dimensions, how attention is written, what is kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyperf_suite.errors import UserError
from pyperf_suite.laws.dimensions import ModelDimensions

# torch's scaled_dot_product_attention as torch chooses, pinned to one of its backends, or written out.
ATTENTIONS = ("sdpa", "flash", "math", "explicit")


@dataclass(frozen=True)
class Checkpointing:
    """Which activations are dropped in forward and computed again in backward; `parse` reads what `str` writes.

    "none"; "every:K", in which the blocks are cut into groups of K and only each group's input is kept; "selective", in
    which each block keeps the results of matrix products and attention and computes the rest again.
    """

    kind: str = "none"
    every: int = 1

    def __str__(self) -> str:
        return f"every:{self.every}" if self.kind == "every" else self.kind

    @classmethod
    def parse(cls, text: str) -> Checkpointing:
        """Read what a user wrote. Raises UserError that names the forms there are."""
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
    a stack of blocks alone, without embeddings, logits and loss. `kv_heads` 0 is as many as heads, `ffn` 0 is
    4 x hidden, or the multiple of 64 next above 8/3 x hidden where gated. `attention` "sdpa" is torch's own
    scaled_dot_product_attention, "flash" and "math" the same with that backend alone, "explicit" writes the scores out.
    """

    hidden: int = 256
    heads: int = 4
    layers: int = 2
    seq: int = 128
    batch: int = 1
    kv_heads: int = 0
    ffn: int = 0
    vocab: int = 0
    gated: bool = False
    tied: bool = True
    dropout: float = 0.0
    attention: str = "sdpa"
    checkpointing: Checkpointing = Checkpointing()

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values, which groups of query heads share."""
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Of the hidden layer of the MLP."""
        if self.ffn:
            return self.ffn
        return -(-8 * self.hidden // (3 * 64)) * 64 if self.gated else 4 * self.hidden

    @property
    def tokens(self) -> int:
        """In one step."""
        return self.batch * self.seq

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
        )

    def validate(self) -> None:
        """Raise UserError for a transformer that cannot be."""
        for name in ("hidden", "heads", "layers", "seq", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"A transformer needs {name} of at least 1, but {getattr(self, name)} was asked for.")
        for name in ("kv_heads", "ffn", "vocab"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} cannot be {getattr(self, name)}: give at least 0.")
        if self.hidden % self.heads:
            raise UserError(f"hidden = {self.hidden} cannot be divided into {self.heads} heads: choose a divisor.")
        if self.heads % self.key_value_heads:
            raise UserError(
                f"{self.heads} heads cannot share {self.key_value_heads} key-value heads: choose a divisor."
            )
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout is a share from 0 up to 1, but {self.dropout} was asked for.")
        if self.attention not in ATTENTIONS:
            raise UserError(f"Unknown attention {self.attention!r}: choose from {', '.join(ATTENTIONS)}.")
