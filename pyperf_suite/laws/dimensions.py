"""A transformer given by its dimensions, and the parameters that they add up to.

What a model costs to train follows from these few numbers; no weights are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pyperf_suite.errors import UserError

# Far above any model there is; and even all of them together are fewer parameters than 64 bits can count.
LARGEST = {
    "layers": 1 << 11,
    "hidden": 1 << 18,
    "ffn": 1 << 20,
    "heads": 1 << 13,
    "vocab": 1 << 25,
    "experts": 1 << 12,
    "expert_ffn": 1 << 20,
    "shared_ffn": 1 << 20,
    "positions": 1 << 25,
    "query_rank": 1 << 18,
    "latent_rank": 1 << 18,
    "norms": 1 << 4,
    # Last, as they may follow from others.
    "head_dim": 1 << 13,
    "value_head_dim": 1 << 13,
}
ALWAYS_GIVEN = ("layers", "hidden", "ffn", "heads", "vocab")
_AT_LEAST_1 = (*ALWAYS_GIVEN, "experts", "top_k")
_BIASES = ("qkv_bias", "output_bias", "mlp_bias", "norm_bias")


@dataclass(frozen=True)
class ModelDimensions:
    """A transformer: GPT-2 with `bias`, `positions` and `tied`, Llama with `gated` and `kv_heads`, BERT not `causal`.

    `ffn` is the width of the hidden layer of an MLP, `gated` one with a third matrix (SwiGLU). `experts` MLPs of width
    `expert_ffn` stand in each layer, of which a token visits `top_k` and one of width `shared_ffn` besides; the
    `dense_layers` have one MLP of width `ffn`. `positions` are learned position embeddings, 0 where there are none.
    `tied` says that the embedding is the output matrix too. `bias` stands for one in all projections and norms.

    With a `latent_rank` attention is DeepSeek-V2's latent one (MLA): keys and values come from a vector of that rank,
    queries from one of `query_rank` (0: straight from the hidden state), `rope_head_dim` of a head's `head_dim` are
    rotated and the keys' part of it is shared by all heads, values have `value_head_dim`. `other_parameters` stand
    once in the model and enter no product worth counting. Raises UserError for dimensions that no model can have.
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
    qkv_bias: bool = False
    output_bias: bool = False  # of the projection after attention
    mlp_bias: bool = False
    norm_bias: bool = False  # LayerNorm, where RMSNorm has none
    norm_weight: bool = True
    norms: int = 2  # in each layer, as wide as hidden
    qk_norm: bool = False  # over a head's queries and over its keys
    expert_ffn: int = 0  # ffn
    shared_ffn: int = 0  # no shared expert
    shared_gate: bool = False
    router_bias: bool = False
    dense_layers: int = 0
    query_rank: int = 0
    latent_rank: int = 0
    rope_head_dim: int = 0
    value_head_dim: int = 0  # head_dim
    causal: bool = True
    head_transform: bool = False  # BERT's: a square matrix and a norm before the output matrix, which has a bias
    other_parameters: int = 0

    def __post_init__(self) -> None:
        self._check_signs()
        if not self.head_dim and self.hidden % self.heads:
            raise UserError(
                f"hidden = {self.hidden} cannot be divided into {self.heads} heads: give head_dim, or a hidden that "
                f"{self.heads} divides."
            )
        self._fill_in()
        self._check_sizes()

    def __str__(self) -> str:
        told = (field for field in fields(self) if field.name in ALWAYS_GIVEN or self._differs(field.name))
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in told)

    def resized(self, **changes: int) -> ModelDimensions:
        """The model with other dimensions; what followed from them before follows again.

        As many key-value heads as heads, and a head_dim of hidden / heads, stay so unless they are named. Raises
        UserError for dimensions that no model can have.
        """
        return ModelDimensions(**following(self, changes))

    @property
    def sparse_layers(self) -> int:
        """Layers in which a token visits `top_k` of `experts`: all but the dense ones."""
        return self.layers - self.dense_layers

    @property
    def attention_parameters(self) -> int:
        """Of the projections of one layer's attention, with the norms inside it."""
        return self._projections + self._attention_biases + 2 * self.head_dim * self.qk_norm

    @property
    def expert_parameters(self) -> int:
        """Of one MLP that tokens are routed to; of the only MLP where there is one."""
        return self._mlp_parameters(self.expert_ffn)

    @property
    def layer_parameters(self) -> int:
        """Of one layer: attention, all its MLPs with their router, its norms."""
        router = self.experts * (self.hidden + self.router_bias) if self.experts > 1 else 0
        shared = self._mlp_parameters(self.shared_ffn) + self.hidden * self.shared_gate if self.shared_ffn else 0
        return self._outside_mlp + self.experts * self.expert_parameters + router + shared

    @property
    def dense_layer_parameters(self) -> int:
        """Of one of the dense layers."""
        return self._outside_mlp + self._mlp_parameters(self.ffn)

    @property
    def outer_parameters(self) -> int:
        """Of what stands outside of the layers: embeddings, the last norm (BERT: the first), the output matrix."""
        matrices = 1 if self.tied else 2
        transform = self.hidden * (self.hidden + 1) + self._norm_parameters + self.vocab if self.head_transform else 0
        embeddings = self.hidden * (matrices * self.vocab + self.positions)
        return embeddings + self._norm_parameters + transform + self.other_parameters

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        layers = self.sparse_layers * self.layer_parameters + self.dense_layers * self.dense_layer_parameters
        return layers + self.outer_parameters

    @property
    def active_parameters(self) -> int:
        """Of the whole model, those that one token meets."""
        return self.parameters - self.sparse_layers * (self.experts - self.top_k) * self.expert_parameters

    @property
    def _projections(self) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if not self.latent_rank:
            return self.hidden * (2 * queries + 2 * keys)
        down_and_up = self.query_rank * (self.hidden + 1 + queries) if self.query_rank else self.hidden * queries
        from_latent = self.heads * (self.head_dim - self.rope_head_dim + self.value_head_dim)
        latent = self.hidden * (self.latent_rank + self.rope_head_dim) + self.latent_rank * (1 + from_latent)
        return down_and_up + latent + self.heads * self.value_head_dim * self.hidden

    @property
    def _attention_biases(self) -> int:
        if self.latent_rank:
            inner = self.query_rank + self.latent_rank + self.rope_head_dim  # of the projections down alone
        else:
            inner = (self.heads + 2 * self.kv_heads) * self.head_dim
        return inner * self.qkv_bias + self.hidden * self.output_bias

    @property
    def _outside_mlp(self) -> int:
        return self.attention_parameters + self.norms * self._norm_parameters

    @property
    def _norm_parameters(self) -> int:
        return self.hidden * (self.norm_weight + self.norm_bias)

    def _mlp_parameters(self, width: int) -> int:
        into = 2 if self.gated else 1
        return (into + 1) * self.hidden * width + (into * width + self.hidden) * self.mlp_bias

    def _differs(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).__dataclass_fields__[name].default)

    def _fill_in(self) -> None:
        """Give what was left out its value, and `bias` its meaning."""
        followed = {"kv_heads": self.heads, "head_dim": self.hidden // self.heads, "expert_ffn": self.ffn}
        for name, value in followed.items():
            if isinstance(getattr(self, name), int) and not getattr(self, name):
                object.__setattr__(self, name, value)
        if not self.latent_rank and isinstance(self.value_head_dim, int) and not self.value_head_dim:
            object.__setattr__(self, "value_head_dim", self.head_dim)
        if self.bias:
            for name in _BIASES:
                object.__setattr__(self, name, True)

    def _check_signs(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _AT_LEAST_1 and value < 1:
                raise UserError(f"A model needs {field.name} of at least 1, but {value} were asked for.")
            if value < 0:
                raise UserError(f"{field.name} cannot be negative, but {value} was asked for.")

    def _check_sizes(self) -> None:
        for name, most in LARGEST.items():
            if getattr(self, name) > most:
                raise UserError(
                    f"A model of {name} = {getattr(self, name)} is beyond the {most} that are counted with."
                )
        if self.heads % self.kv_heads:
            raise UserError(f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly.")
        if self.top_k > self.experts:
            raise UserError(f"A token cannot visit {self.top_k} of {self.experts} experts.")
        if self.experts == 1 and self.expert_ffn != self.ffn:
            raise UserError(f"expert_ffn = {self.expert_ffn} is of one of several experts: give experts, or ffn alone.")
        if self.dense_layers > self.layers:
            raise UserError(f"{self.dense_layers} of {self.layers} layers cannot be dense.")
        if self.latent_rank and not (self.value_head_dim and self.rope_head_dim < self.head_dim):
            raise UserError(
                "Latent attention needs a value_head_dim, and a rope_head_dim below head_dim, but "
                f"{self} was asked for."
            )
        if not self.latent_rank and self.value_head_dim != self.head_dim:
            raise UserError(
                f"value_head_dim = {self.value_head_dim} beside head_dim = {self.head_dim} is of latent attention: "
                "give its latent_rank too."
            )


def following(model: ModelDimensions, changes: dict[str, Any]) -> dict[str, Any]:
    """All fields of the changed model, 0 where they follow from others as they did before.

    Values may be arrays. Raises UserError for a name that is no dimension.
    """
    values = {field.name: getattr(model, field.name) for field in fields(model)}
    if unknown := changes.keys() - values.keys():
        raise UserError(f"A model has no dimension {min(unknown)}: change one of {', '.join(values)}.")
    if model.kv_heads == model.heads:
        values["kv_heads"] = 0
    if model.head_dim * model.heads == model.hidden:
        values["head_dim"] = 0
    if model.expert_ffn == model.ffn:
        values["expert_ffn"] = 0
    if not model.latent_rank:
        values["value_head_dim"] = 0
    return values | changes
