"""What of a GPU's memory training takes: weights with their gradients and optimizer states, and kept activations.

Closed forms of the literature; what a framework allocates besides is left room for, not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.model_flops import Recompute, check_recompute
from pyperf_suite.laws.tiling import ceil_div
from pyperf_suite.laws.transformer import Linear, Sharding, Sizes, attention_call, linears

# Bytes a parameter with AdamW in mixed precision, 18 in all (Bekman, Machine Learning Engineering): weights in 16 bits
# and the master copy in 32, gradients in 32, two moments in 32.
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 4, 4 + 8
# From which stage of ZeRO on data-parallel ranks share each (Rajbhandari et al. 2020, section 5).
SHARED_FROM_STAGE = {"optimizer": 1, "gradients": 2, "weights": 3}
LAST_STAGE = 3
# The rest is for the CUDA context, buffers of NCCL and of the libraries, and fragmentation: a choice, no measurement.
USABLE_SHARE = 0.9


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes on the fullest GPU, by what they are for; arrays where the model is a grid."""

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any

    @property
    def total(self) -> Any:
        """Bytes of all together."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def fits(self, memory_bytes: float) -> Any:
        """Whether a GPU with so many bytes has room for it, a tenth of them kept free."""
        return self.total <= USABLE_SHARE * memory_bytes


def training_memory(
    model: ModelDimensions,
    micro_batch: Sizes,
    seq: Sizes,
    sharding: Sharding | None = None,
    *,
    data_ranks: Sizes = 1,
    zero_stage: int = 0,
    stages: int = 1,
    recompute: Recompute = "attention",
) -> MemoryNeed:
    """The need of one GPU of `data_ranks` that share by ZeRO stage 0 to 3, in a pipeline of `stages`.

    `recompute` "attention" is also right for FlashAttention, which keeps no scores. The first stage of a pipeline is
    counted, which holds as many micro-batches as there are stages (1F1B; Narayanan et al. 2021, section 2.2). Raises
    UserError for a stage of ZeRO that there is not, for layers that cannot be cut into stages, and where a dimension
    cannot be cut over the ranks.
    """
    sharding = sharding or Sharding()
    if not 0 <= zero_stage <= LAST_STAGE:
        raise UserError(f"ZeRO has stages 0 to {LAST_STAGE}, but {zero_stage} was asked for.")
    if np.min(data_ranks) < 1:
        raise UserError(f"Training needs at least 1 data-parallel rank, but {np.min(data_ranks)} were asked for.")
    if stages < 1 or np.any(np.asarray(model.layers) < stages):
        raise UserError(f"{np.min(model.layers)} layers cannot be cut into {stages} stages.")
    parameters = rank_parameters(model, sharding, stages)
    shared = {name: data_ranks if zero_stage >= first else 1 for name, first in SHARED_FROM_STAGE.items()}
    return MemoryNeed(
        weights=WEIGHT_BYTES * parameters / shared["weights"],
        gradients=GRADIENT_BYTES * parameters / shared["gradients"],
        optimizer=OPTIMIZER_BYTES * parameters / shared["optimizer"],
        activations=activation_bytes(model, micro_batch, seq, sharding, stages, recompute),
    )


def rank_parameters(model: ModelDimensions, sharding: Sharding, stages: int = 1) -> Any:
    """Parameters on the first rank: its share of every matrix, embeddings cut over TP, and norms and biases whole.

    With a pipeline, its share of the layers beside the larger of what stands at the ends: embedding or output matrix.
    """
    # A matrix of a rank has the shape of its product.
    ours, every = linears(model, 1, sharding), linears(model, 1)
    inside = _matrix_parameters(part for part in ours if not part.outside_layers)
    outside = _matrix_parameters(part for part in ours if part.outside_layers)
    embedding = 1.0 * model.vocab * model.hidden
    in_no_product = model.parameters - _matrix_parameters(every) - (0 if model.tied else embedding)
    embedding_share = 1.0 * ceil_div(model.vocab, sharding.tensor) * model.hidden
    if stages == 1:
        return inside + outside + in_no_product + (0 if model.tied else embedding_share)
    layers_share = ceil_div(model.layers, stages) / np.asarray(model.layers)
    return (inside + in_no_product) * layers_share + np.maximum(outside, embedding_share)


def activation_bytes(
    model: ModelDimensions,
    micro_batch: Sizes,
    seq: Sizes,
    sharding: Sharding | None = None,
    stages: int = 1,
    recompute: Recompute = "attention",
) -> Any:
    """What the first stage keeps for backward, in 16 bits: s·b·h·(34 + 5·a·s/h) bytes a layer of a GPT.

    With TP and SP as table 2 of Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer
    Models, here for any width, shared key-value heads, gated MLPs and experts; masks of dropout are counted. Where
    layers are recomputed, their inputs are kept and the one at work. Raises UserError for an unknown `recompute`.
    """
    check_recompute(recompute)
    sharding = sharding or Sharding()
    tokens = 1.0 * micro_batch * seq
    # A stage in front holds one micro-batch more than the one behind it, each in its share of the layers.
    per_stage = ceil_div(model.layers, stages) * stages / np.asarray(model.layers)
    outside = _outside_bytes(model, sharding) if stages == 1 else model.hidden / _sequence_ranks(sharding) * stages
    kept = _layers_bytes(model, seq, sharding, recompute) * per_stage
    if recompute == "layers":
        kept = kept + _layers_bytes(model, seq, sharding, "attention") / model.layers
    return tokens * (kept + outside)


def _layers_bytes(model: ModelDimensions, seq: Sizes, sharding: Sharding, recompute: Recompute) -> Any:
    """Bytes a token of all layers."""
    sequence_ranks = _sequence_ranks(sharding)
    if recompute == "layers":
        return 2.0 * model.hidden * model.layers / sequence_ranks
    attention = attention_call(model, 1, seq, sharding)
    # Inputs of norms, of attention and of the MLP, and a byte for each mask after the latter two.
    whole = 2 * model.norms * model.hidden + 2 * (2 + 1) * model.hidden
    whole = whole + 2 * (model.query_rank + model.latent_rank + model.rope_head_dim)
    cut = 2 * (attention.heads + attention.kv_heads) * attention.head_dim  # queries and keys
    cut = cut + 2 * (attention.kv_heads + attention.heads) * attention.value_head_dim  # values, and what comes out
    if recompute == "nothing":
        cut = cut + 5 * attention.heads * np.asarray(seq)  # softmax, its dropout, and the mask of that
    # Before and after the activation function, and the gate; each of a token's experts has its input and output too.
    per_width = 2 * (3 if model.gated else 2) / np.asarray(sharding.tensor)
    visited = model.top_k * model.expert_ffn + model.shared_ffn
    routed = 4 * model.top_k * model.hidden if model.experts > 1 else 0
    experts = model.sparse_layers * (per_width * visited + routed / sequence_ranks)
    dense = model.dense_layers * per_width * model.ffn
    return model.layers * (whole / sequence_ranks + cut) + experts + dense


def _outside_bytes(model: ModelDimensions, sharding: Sharding) -> Any:
    """Bytes a token outside of the layers: mask of the embedding, last norm, input and 32-bit result of the logits."""
    return 5 * model.hidden / _sequence_ranks(sharding) + 4.0 * ceil_div(model.vocab, sharding.tensor)


def _matrix_parameters(parts: Iterable[Linear]) -> Any:
    return sum(1.0 * part.outputs * part.inputs * part.calls for part in parts)


def _sequence_ranks(sharding: Sharding) -> NDArray[np.int64]:
    """Over how many ranks the sequence is cut where TP leaves tokens whole."""
    return np.asarray(sharding.tensor if sharding.sequence_parallel else 1)
