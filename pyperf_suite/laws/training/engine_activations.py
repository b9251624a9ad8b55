"""What autograd keeps on one rank of torch's engines at the most: a share of each layer, of several micro-batches.

`laws/training/activations.py` has one process to the byte; here a rank of tensor parallelism keeps its cut, and a stage
of a pipeline as many micro-batches as its schedule has under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.matmul.tiling import ceil_div
from pyperf_suite.laws.training.activations import FLOAT, INTEGER, Keeping, KeptBytes, kept_bytes
from pyperf_suite.laws.training.shared_cores import Action


def saved_bytes(
    model: ModelDimensions,
    batch: int,
    seq: int,
    keeping: Keeping,
    *,
    tensor: int = 1,
    chunk_layers: int | None = None,
    last_chunk: int = 0,
    order: Sequence[Action] = (Action(False, 0, 0),),
    micro_batches: int = 1,
) -> float:
    """The most that is kept at the end of any forward of a rank which does `order`, in bytes.

    Chunks have `chunk_layers` layers each, by default all; chunk 0 has the embeddings and `last_chunk` the logits. With
    `tensor` ranks of TP and SP, heads, MLP and vocabulary are cut, and what stands between blocks along the sequence;
    but DTensor keeps the gathered input of both blocks. In a pipeline the tokens and targets of all micro-batches lie
    together and live as long as one of them is kept.
    """
    layers = chunk_layers or model.layers
    group, ends = _group_and_ends(model, batch, seq, keeping, tensor)
    of_chunk = group * float(ceil_div(layers, _layers_of_group(keeping)))
    numbers = float(INTEGER * batch * seq)
    most = under_way = 0.0
    own = {action.chunk for action in order}
    for action in order:
        kept = of_chunk + (ends - 2 * numbers if action.chunk == last_chunk else 0.0)
        under_way += -kept if action.backward else kept
        most = max(most, under_way)
    together = numbers * micro_batches
    return most + (together if 0 in own else 0.0) + (together if last_chunk in own else 0.0)


def _layers_of_group(keeping: Keeping) -> int:
    return keeping.every if keeping.checkpointing == "every" else 1


def _group_and_ends(model: ModelDimensions, batch: int, seq: int, keeping: Keeping, tensor: int) -> tuple[float, float]:
    """Bytes of one group of layers, and of what stands before and behind all of them."""
    cut = _cut(model, tensor)
    layers = _layers_of_group(keeping)
    one, two = (kept_bytes(replace(cut, layers=layers * groups), batch, seq, keeping) for groups in (1, 2))
    group = KeptBytes(*(getattr(two, name) - getattr(one, name) for name in vars(one)))
    tokens = batch * seq
    of_attention = 0.0 if keeping.written_out or keeping.checkpointing == "every" else FLOAT * cut.heads * tokens
    norms = group.norms + group.inputs + group.statistics - layers * of_attention
    last_norm = keeping.stream_bytes * model.hidden * tokens + one.statistics - group.statistics - FLOAT
    elsewhere = 1 - 1 / tensor
    return group.total - elsewhere * norms, one.total - group.total - elsewhere * last_norm


def _cut(model: ModelDimensions, tensor: int) -> ModelDimensions:
    """A model whose layers keep what a rank of TP keeps between its gathers and scatters."""
    if tensor == 1:
        return model
    return replace(
        model,
        heads=model.heads // tensor,
        kv_heads=model.kv_heads // tensor,
        head_dim=model.head_dim,
        ffn=model.ffn // tensor,
        expert_ffn=model.ffn // tensor,
        vocab=model.vocab // tensor,
    )
