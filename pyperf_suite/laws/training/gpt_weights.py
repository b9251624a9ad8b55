"""Every weight of a GPT by name and shape, and what of them one rank of TP and PP has: no torch is needed to know that.

The names are those of the modules in `workloads/training/gpt.py`, in the order of `Module.parameters()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyperf_suite.laws.dimensions import ModelDimensions

FIRST, LAST = -1, -2


@dataclass(frozen=True)
class Weight:
    """One weight of a model; `cut` is the dimension that TP cuts, None where each rank has all of it.

    `place` is the number of its layer, FIRST in front of all layers or LAST behind them.
    """

    name: str
    shape: tuple[int, ...]
    place: int
    cut: int | None = None

    @property
    def elements(self) -> int:
        """Of the whole of it."""
        return math.prod(self.shape)

    def over_tensor(self, ranks: int) -> Weight:
        """What one of so many ranks of TP has of it."""
        if self.cut is None or ranks == 1:
            return self
        shape = tuple(size // ranks if place == self.cut else size for place, size in enumerate(self.shape))
        return replace(self, shape=shape)


def gpt_weights(model: ModelDimensions) -> tuple[Weight, ...]:
    """All of a decoder with dense layers, embeddings and logits: GPT-2's, or Llama's block where gated.

    Columns into a block are cut over TP, rows out of it (Shoeybi et al. 2019, Megatron-LM), as are the rows of both
    embeddings and of the output matrix; norms and biases behind a sum over ranks are whole on every rank.
    """
    hidden, vocab = model.hidden, model.vocab
    ends = [Weight("tokens.weight", (vocab, hidden), FIRST, 0)]
    if model.positions:
        ends.append(Weight("positions.weight", (model.positions, hidden), FIRST, 0))
    layers = (weight for layer in range(model.layers) for weight in _layer(model, layer))
    last = [*_norm(model, "norm", LAST)]
    if not model.tied:
        last.append(Weight("logits.weight", (vocab, hidden), LAST, 0))
    return (*ends, *layers, *last)


def stage_of(weight: Weight, layers: int, stages: int, chunks: int) -> int:
    """Of the pipeline stage that has it: layers are dealt out in stages · chunks groups, the i-th to stage i mod p."""
    if weight.place == FIRST:
        return 0
    if weight.place == LAST:
        return stages - 1
    return weight.place // (layers // (stages * chunks)) % stages


def rank_weights(
    model: ModelDimensions, tensor: int = 1, stages: int = 1, chunks: int = 1, stage: int = 0
) -> tuple[Weight, ...]:
    """What a rank of that pipeline stage has, cut over TP; layers and dimensions have to divide."""
    return tuple(
        weight.over_tensor(tensor)
        for weight in gpt_weights(model)
        if stage_of(weight, model.layers, stages, chunks) == stage
    )


def _layer(model: ModelDimensions, layer: int) -> Iterator[Weight]:
    hidden, width = model.hidden, model.ffn
    result = model.heads * model.head_dim
    projected = result + 2 * model.kv_heads * model.head_dim
    into = [("mlp.gate", width)] if model.gated else []

    def linear(name: str, outputs: int, inputs: int, cut: int, bias: bool) -> Iterator[Weight]:
        yield Weight(f"{prefix}.{name}.weight", (outputs, inputs), layer, cut)
        if bias:
            # Behind rows that are cut stands a sum over ranks, and only then the bias.
            yield Weight(f"{prefix}.{name}.bias", (outputs,), layer, 0 if cut == 0 else None)

    prefix = f"blocks.blocks.{layer}"
    yield from _norm(model, f"{prefix}.attention_norm", layer)
    yield from _norm(model, f"{prefix}.mlp_norm", layer)
    yield from linear("attention.qkv", projected, hidden, 0, model.qkv_bias)
    yield from linear("attention.out", hidden, result, 1, model.output_bias)
    for name, outputs in [*into, ("mlp.up", width)]:
        yield from linear(name, outputs, hidden, 0, model.mlp_bias)
    yield from linear("mlp.down", hidden, width, 1, model.mlp_bias)


def _norm(model: ModelDimensions, name: str, place: int) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (model.hidden,), place)
    if model.norm_bias:
        yield Weight(f"{name}.bias", (model.hidden,), place)
