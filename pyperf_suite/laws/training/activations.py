"""What torch keeps of a transformer's forward pass for the backward one, to the byte: each operation by what it saves.

`laws/training/memory.py` has Korthikanti's formula for planning: 16 bits, fused masks, several GPUs. `kept_bytes` is
for one device and a model written in torch's own operations, on a CPU or a GPU, in any element; `saved_bytes` is for a
rank of tensor parallelism or a stage of a pipeline. With 16 bits on a GPU both laws are the same but
for statistics, and for what torch keeps and the formula does not: SiLU's result in a gated MLP. In which order a stage
keeps and frees what its micro-batches need, `interleaved` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import ceil_div
from pyperf_suite.laws.transformer import ModelDimensions

# float32, in which torch keeps statistics, and int64, in which it has tokens.
FLOAT, INTEGER = 4, 8
KINDS = ("none", "every", "selective")


class Action(NamedTuple):
    """Forward or backward of one micro-batch through one of the model's chunks, which are numbered from its input."""

    backward: bool
    chunk: int
    micro_batch: int


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """What a stage does in turn: as many forwards as stages are left, then backward and forward by turns (1F1B).

    Source: Narayanan et al. 2021, section 2.2.1.
    """
    ahead = min(micro_batches, stages - stage)
    forwards = [Action(False, stage, number) for number in range(micro_batches)]
    backwards = [Action(True, stage, number) for number in range(micro_batches)]
    order = forwards[:ahead]
    for number in range(micro_batches - ahead):
        order += [backwards[number], forwards[ahead + number]]
    return order + backwards[micro_batches - ahead :]


def interleaved(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Action]:
    """The same with `chunks` groups of layers a stage, `stages` micro-batches through one after the other.

    Source: Narayanan et al. 2021, section 2.2.2. With several chunks `micro_batches` is a multiple of `stages`.
    """
    if chunks == 1:
        return one_forward_one_backward(stage, stages, micro_batches)
    total = micro_batches * chunks
    ahead = min(total, (chunks - 1) * stages + 2 * (stages - 1 - stage))

    def action(number: int, backward: bool) -> Action:
        turn, place = divmod(number, stages * chunks)
        chunk = place // stages
        chunk = chunks - 1 - chunk if backward else chunk
        return Action(backward, chunk * stages + stage, turn * stages + place % stages)

    order = [action(number, False) for number in range(ahead)]
    for number in range(total - ahead):
        order += [action(ahead + number, False), action(number, True)]
    return order + [action(number, True) for number in range(total - ahead, total)]


@dataclass(frozen=True)
class ActivationPolicy:
    """How the model is run, as far as that decides what is kept.

    `element_bytes` are of the results of matrix products, `stream_bytes` of the residual stream and the norms: the
    same but under autocast, where the stream stays in float32. `attention` "sdpa" is the fused kernel, which keeps no
    scores, "math" torch's own that writes them out, "explicit" the model's. `checkpointing` "every" drops all but the
    inputs of groups of `every` layers, "selective" all but each layer's input and the results of products and
    attention. `ends` says whether there are embeddings, last norm, logits and loss. Raises UserError for a kind of
    checkpointing that there is not.
    """

    element_bytes: int = FLOAT
    stream_bytes: int = FLOAT
    dropout: bool = False
    attention: Literal["sdpa", "math", "explicit"] = "sdpa"
    checkpointing: str = "none"
    every: int = 1
    ends: bool = True
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        if self.checkpointing not in KINDS or self.every < 1:
            raise UserError(
                f"Nothing is known of checkpointing {self.checkpointing!r} by {self.every}: choose from "
                f"{', '.join(KINDS)}, by at least 1."
            )

    @property
    def autocast(self) -> bool:
        return self.element_bytes < self.stream_bytes

    @property
    def written_out(self) -> bool:
        """Whether scores are kept: torch has no fused kernel with dropout on a CPU."""
        return self.attention != "sdpa" or (self.device == "cpu" and self.dropout)


@dataclass(frozen=True)
class KeptBytes:
    """Bytes kept, by what they are: of all layers, and of the `ends` before and behind them.

    `statistics` are means and deviations of norms and the logarithms of softmax's sums. With checkpointing "every",
    `inputs` is all there is of the layers.
    """

    inputs: float = 0.0
    norms: float = 0.0
    attention: float = 0.0
    mlp: float = 0.0
    masks: float = 0.0
    statistics: float = 0.0
    ends: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))

    def __add__(self, other: KeptBytes) -> KeptBytes:
        return KeptBytes(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __mul__(self, factor: float) -> KeptBytes:
        return KeptBytes(*(getattr(self, each.name) * factor for each in fields(self)))


def kept_bytes(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> KeptBytes:
    """What is kept of `batch` sequences of `seq` tokens between forward and backward, weights not counted.

    Measured on the CPU, where it is exact (tests/core/laws/test_activations.py); on a GPU written after torch's
    derivatives and not measured yet. For decoders of dense layers, GPT-2's (LayerNorm, GELU) or gated ones (RMSNorm,
    SwiGLU).
    """
    layers = _layers(model, batch, seq, keeping)
    if not keeping.ends:
        return layers
    return layers + _ends(model, keeping) * (batch * seq) + KeptBytes(statistics=FLOAT)


def working_bytes(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> float:
    """What backward holds in addition at the most: one group's activations, once they are computed again."""
    if keeping.checkpointing == "none":
        return 0.0
    plain = replace(keeping, checkpointing="none")
    group = min(keeping.every, model.layers) if keeping.checkpointing == "every" else 1
    whole = _layer(model, batch, seq, plain).total * group
    dropped = _layer_kept(model, batch, seq, keeping).total * group if keeping.checkpointing == "selective" else 0.0
    return whole - dropped


def _layers(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> KeptBytes:
    if keeping.checkpointing == "every":
        groups = int(ceil_div(model.layers, keeping.every))
        return KeptBytes(inputs=float(batch * seq * keeping.stream_bytes * model.hidden * groups))
    kept = _layer_kept(model, batch, seq, keeping) * model.layers
    # A stack of layers alone starts from data, for which no gradient is computed.
    if keeping.checkpointing == "none" and not keeping.ends and _is_composite(model, keeping):
        kept = kept + KeptBytes(norms=-FLOAT * model.hidden, statistics=-FLOAT) * (batch * seq)
    return kept


def _layer_kept(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> KeptBytes:
    return (_selected if keeping.checkpointing == "selective" else _layer)(model, batch, seq, keeping)


def _layer(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> KeptBytes:
    """One layer of which all is kept that autograd saves."""
    element, hidden = keeping.element_bytes, model.hidden
    norm = _norm(model, keeping)
    # Under autocast each product casts its own input; else gate and up share the norm's result.
    readers = 2 if model.gated and keeping.autocast else 1
    # Hidden layer before and after GELU; gate, SiLU of it, up and their product where gated.
    mlp = element * (readers * hidden + (4 if model.gated else 2) * model.ffn)
    attention, statistics, masks = _attention(model, batch, seq, keeping)
    per_token = KeptBytes(
        norms=2 * norm.norms,
        attention=element * hidden + attention,
        mlp=mlp,
        masks=masks + (2 * hidden * _mask_bytes(element, keeping) if keeping.dropout else 0),
        statistics=2 * norm.statistics + statistics,
    )
    return per_token * (batch * seq)


def _attention(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> tuple[float, float, float]:
    """Bytes a token from the result of the first projection to the input of the last one; statistics; masks."""
    element, heads = keeping.element_bytes, model.heads
    result = heads * model.head_dim
    projected = (heads + 2 * model.kv_heads) * model.head_dim
    if not keeping.written_out:
        return element * (projected + result), FLOAT * heads, 0.0
    # Not fused, torch's own attention computes in float32 and scales copies of queries and keys.
    fallback = keeping.attention != "explicit"
    inner = FLOAT if fallback else element
    shared = model.kv_heads != heads
    operands = inner * 3 * result
    # With a batch of one, products read the projection in place, of which a view keeps the whole.
    if batch == 1 or heads == 1:
        if fallback and not shared and inner == element:
            operands = inner * 2 * result + element * projected
        elif not fallback and shared:
            operands = element * (projected + 2 * result)
    # Softmax in float32 is what autocast wants of a GPU.
    softmax = FLOAT if keeping.autocast and keeping.device == "cuda" else inner
    dropped = inner if keeping.dropout or softmax != inner else 0
    mask = _mask_bytes(softmax, keeping) * heads * seq if keeping.dropout else 0
    return operands + (softmax + dropped) * heads * seq + element * result, 0.0, mask


def _selected(model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy) -> KeptBytes:
    """One layer of which its input is kept, and what products and attention returned."""
    element, heads, hidden = keeping.element_bytes, model.heads, model.hidden
    projected, result = (heads + 2 * model.kv_heads) * model.head_dim, heads * model.head_dim
    statistics = 0.0
    if keeping.written_out:
        inner = FLOAT if keeping.attention != "explicit" else element
        attention = inner * (heads * seq + result)
    else:
        attention, statistics = element * result, float(FLOAT * heads)
    per_token = KeptBytes(
        inputs=keeping.stream_bytes * hidden,
        attention=attention + element * (projected + hidden),
        mlp=element * ((2 if model.gated else 1) * model.ffn + hidden),
        statistics=statistics,
    )
    return per_token * (batch * seq)


def _norm(model: ModelDimensions, keeping: ActivationPolicy) -> KeptBytes:
    """Bytes a token: what a norm was given, and what it knows of it; its result is counted with who reads it."""
    if _is_composite(model, keeping):
        # RMSNorm out of single operations: input and scaled input, both in float32.
        return KeptBytes(norms=2 * FLOAT * model.hidden, statistics=FLOAT)
    statistic = keeping.stream_bytes if keeping.device == "cpu" else FLOAT
    return KeptBytes(norms=keeping.stream_bytes * model.hidden, statistics=(1 if model.gated else 2) * statistic)


def _is_composite(model: ModelDimensions, keeping: ActivationPolicy) -> bool:
    return model.gated and keeping.device == "cpu"


def _ends(model: ModelDimensions, keeping: ActivationPolicy) -> KeptBytes:
    """Bytes a token: its number and its target's, the mask behind the embedding, last norm, logits' input and result.

    The result is log-softmax in float32.
    """
    norm = _norm(model, keeping)
    mask = _mask_bytes(keeping.stream_bytes, keeping) * model.hidden if keeping.dropout else 0
    ends = 2 * INTEGER + norm.norms + keeping.element_bytes * model.hidden + FLOAT * model.vocab
    return KeptBytes(ends=ends, masks=mask, statistics=norm.statistics)


def _mask_bytes(element_bytes: int, keeping: ActivationPolicy) -> int:
    """Of one element: a byte where dropout is one kernel, else a factor in the element's own type."""
    return 1 if keeping.device == "cuda" else element_bytes


def saved_bytes(
    model: ModelDimensions,
    batch: int,
    seq: int,
    keeping: ActivationPolicy,
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


def _layers_of_group(keeping: ActivationPolicy) -> int:
    return keeping.every if keeping.checkpointing == "every" else 1


def _group_and_ends(
    model: ModelDimensions, batch: int, seq: int, keeping: ActivationPolicy, tensor: int
) -> tuple[float, float]:
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
