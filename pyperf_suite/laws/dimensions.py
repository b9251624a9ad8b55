"""A transformer given by its dimensions, and the parameters that they add up to.

What a model costs to train follows from these few numbers; no weights are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyperf_suite.errors import UserError


@dataclass(frozen=True)
class ModelDimensions:
    """A decoder-only transformer: GPT-2 with `bias`, `positions` and `tied`, Llama with `gated` and `kv_heads`.

    `ffn` is the width of the hidden layer of an MLP, `gated` one with a third matrix (SwiGLU). `experts` MLPs stand in
    each layer, of which a token visits `top_k`. `positions` are learned position embeddings, 0 where there are none.
    `tied` says that the embedding is the output matrix too. Raises UserError for dimensions that no model can have.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int
    kv_heads: int = 0  # as many as heads
    head_dim: int = 0  # hidden / heads
    gated: bool = False
    bias: bool = False
    tied: bool = False
    positions: int = 0
    experts: int = 1
    top_k: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        for name in ("layers", "hidden", "ffn", "heads", "vocab", "kv_heads", "experts", "top_k"):
            if getattr(self, name) < 1:
                raise UserError(f"A model needs {name} of at least 1, but {getattr(self, name)} were asked for.")
        if not self.head_dim and self.hidden % self.heads:
            raise UserError(
                f"hidden = {self.hidden} cannot be divided into {self.heads} heads: give head_dim, or a hidden that "
                f"{self.heads} divides."
            )
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden // self.heads)
        if self.heads % self.kv_heads:
            raise UserError(f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly.")
        if self.top_k > self.experts:
            raise UserError(f"A token cannot visit {self.top_k} of {self.experts} experts.")
        if self.positions < 0 or self.head_dim < 1:
            raise UserError(f"Positions and head_dim cannot be negative, but {self} was asked for.")

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    @property
    def attention_parameters(self) -> int:
        """Of the four projections of one layer's attention."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        biases = queries + 2 * keys + self.hidden if self.bias else 0
        return self.hidden * (2 * queries + 2 * keys) + biases

    @property
    def expert_parameters(self) -> int:
        """Of one MLP."""
        into = 2 if self.gated else 1
        biases = into * self.ffn + self.hidden if self.bias else 0
        return (into + 1) * self.hidden * self.ffn + biases

    @property
    def layer_parameters(self) -> int:
        """Of one layer: attention, all its MLPs with their router, two norms."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        return self.attention_parameters + self.experts * self.expert_parameters + router + 2 * self._norm_parameters

    @property
    def outer_parameters(self) -> int:
        """Of what stands outside of the layers: embeddings, the last norm, the output matrix."""
        matrices = 1 if self.tied else 2
        return self.hidden * (matrices * self.vocab + self.positions) + self._norm_parameters

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return self.layers * self.layer_parameters + self.outer_parameters

    @property
    def active_parameters(self) -> int:
        """Of the whole model, those that one token meets."""
        return self.parameters - self.layers * (self.experts - self.top_k) * self.expert_parameters

    @property
    def _norm_parameters(self) -> int:
        return self.hidden * (2 if self.bias else 1)
