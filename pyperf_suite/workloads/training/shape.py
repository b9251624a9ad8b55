"""The transformer that training workloads build, as plain data: what it is, and the memory and FLOPs of a step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pyperf_suite.errors import OneOf, Unsupported, UserError, Within, check_limits
from pyperf_suite.hardware import memory
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.model_flops import PASSES, hardware_flop, model_flop
from pyperf_suite.laws.training.activations import FLOAT, Keeping, kept_bytes

# torch's scaled_dot_product_attention as torch chooses, pinned to one of its backends, or written out; and what the law
# knows of what each keeps: torch itself chooses a fused kernel.
ATTENTIONS: Mapping[str, Literal["sdpa", "math", "explicit"]] = {
    "sdpa": "sdpa",
    "flash": "sdpa",
    "math": "math",
    "explicit": "explicit",
}

# How weights are kept and how products are computed: "autocast" keeps float32 weights and casts at each product.
PRECISIONS = ("float32", "tfloat32", "bfloat16", "float16", "autocast_bfloat16", "autocast_float16")

HALF, DOUBLE = 2, 8
MOMENTS = 2  # of AdamW, each in the type of its weight

Size = Annotated[int, Within(1)]
SizeOrNone = Annotated[int, Within(0)]


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

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values, which groups of query heads share."""
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
        """Of the hidden layer of the MLP."""
        if self.ffn:
            return self.ffn
        return -(-8 * self.hidden // (3 * 64)) * 64 if self.gated else 4 * self.hidden

    @property
    def tokens(self) -> int:
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
        check_limits(self)
        if self.hidden % self.heads:
            raise UserError(f"hidden = {self.hidden} cannot be divided into {self.heads} heads: choose a divisor.")
        if self.heads % self.key_value_heads:
            raise UserError(
                f"{self.heads} heads cannot share {self.key_value_heads} key-value heads: choose a divisor."
            )
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout is a share from 0 up to 1, but {self.dropout} was asked for.")


@dataclass(frozen=True)
class TrainedShape(TransformerShape):
    """A transformer, and the precision that it is trained in."""

    precision: Annotated[str, OneOf(PRECISIONS)] = "float32"

    @property
    def is_autocast(self) -> bool:
        """Whether weights are cast where they are used."""
        return self.precision.startswith("autocast_")

    @property
    def element(self) -> str:
        """The type that products are computed in."""
        return self.precision.removeprefix("autocast_")

    @property
    def weights(self) -> str:
        """The type that weights are kept in."""
        return self.precision if self.precision in ("bfloat16", "float16") else "float32"

    def keeping(self, device: str) -> Keeping:
        """The same for the law of kept activations, on a "cpu" or a "cuda"."""
        return Keeping(
            element_bytes=FLOAT if self.element in ("float32", "tfloat32") else HALF,
            stream_bytes=FLOAT if self.weights == "float32" else HALF,
            dropout=self.dropout > 0,
            attention=ATTENTIONS[self.attention],
            checkpointing=self.checkpointing.kind,
            every=self.checkpointing.every,
            ends=bool(self.vocab),
            device="cuda" if device == "cuda" else "cpu",
        )

    def state_bytes(self, updated: bool) -> int:
        """Of weights and gradients, and of AdamW's moments where they are `updated`."""
        each = FLOAT if self.weights == "float32" else HALF
        return int(self.dimensions.parameters) * each * (2 + (MOMENTS if updated else 0))

    def step_bytes(self, updated: bool) -> int:
        """The state, and what forward keeps for backward, on either kind of device."""
        kept = kept_bytes(self.dimensions, self.batch, self.seq, self.keeping("cuda"))
        return self.state_bytes(updated) + int(kept.total)

    def require_reference(self, sequences: int) -> None:
        """Raise Unsupported where the host has no room for gradients in float64, of so many sequences at a time.

        Attention is written out; the model is kept, its gradients, the exact ones, rounded ones, and their limits.
        """
        keeping = Keeping(DOUBLE, DOUBLE, attention="explicit", ends=bool(self.vocab))
        kept = kept_bytes(self.dimensions, sequences, self.seq, keeping).total
        require_for_reference(int(self.dimensions.parameters) * 5 * DOUBLE + int(kept))


def require_for_reference(nbytes: int) -> None:
    """Raise Unsupported where the host has not so many bytes left for a result in float64."""
    available = memory.available_bytes()
    if nbytes > available:
        raise Unsupported(
            f"What this is checked by, in float64, takes {nbytes / 1e9:.1f} GB, but {available / 1e9:.1f} GB of memory "
            "are free: ask for smaller dimensions."
        )


def asked_flop(shape: TransformerShape, causal_halved: bool = True) -> float:
    """Forward and backward by the laws (laws/model_flops.py), of layers alone where there is no vocabulary."""
    flop = float(model_flop(shape.dimensions, shape.batch, shape.seq, causal_halved))
    return flop - _logits_of_none(shape)


def computed_flop(shape: TransformerShape, causal_halved: bool = True) -> float:
    """With what checkpointing computes again: all of a group up to its last product, whose result nobody needs.

    Selective checkpointing computes no product again. Fused attention computes its scores again in backward, which
    here is left out as in most published figures (PaLM, appendix B).
    """
    if shape.checkpointing.kind != "every":
        return asked_flop(shape, causal_halved)
    flop = float(hardware_flop(shape.dimensions, shape.batch, shape.seq, "layers", causal_halved))
    groups = -(-shape.layers // shape.checkpointing.every)
    return flop - _logits_of_none(shape) - groups * 2 * shape.tokens * shape.width * shape.hidden


def guides_flop(shape: TransformerShape, parameters: int) -> float:
    """Parameters x 3 (4 with checkpointing) x 2 x seq x batch (BigScience, tflops_optimization.md)."""
    passes = PASSES + (shape.checkpointing.kind == "every")
    return 2.0 * passes * parameters * shape.tokens


def _logits_of_none(shape: TransformerShape) -> float:
    """What the laws' model has in logits over a vocabulary of one, where there is none."""
    return 0.0 if shape.vocab else PASSES * 2.0 * shape.tokens * shape.hidden
