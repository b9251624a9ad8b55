"""The transformer of the training workloads in torch's modules; with torch imported only where a case is prepared."""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from pyperf_suite.errors import Unsupported
from pyperf_suite.process.system import begin_deadline_anew
from pyperf_suite.workloads.attention import reason_of_refusal
from pyperf_suite.workloads.training import TransformerShape
from pyperf_suite.workloads.training.layers import heads_of

# Results that selective checkpointing keeps: the most expensive to compute again for their bytes (Korthikanti et al.
# 2022, section 5, turned round: there attention is what is dropped, for it kept its scores).
KEPT_BY_SELECTIVE = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    }
)

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}  # by the names that shapes have for them


class AttentionLayer(nn.Module):
    """Self-attention, causal but in an encoder, with shared key-value heads: x[batch, seq, hidden] to the same."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.head_dim, self.split, self.dropout = shape.head_dim, shape.projected, shape.dropout
        self.causal = not shape.classes
        self.shares_heads = shape.key_value_heads != shape.heads
        self.explicit, self.backend = shape.attention == "explicit", BACKENDS.get(shape.attention)
        self.qkv = nn.Linear(shape.hidden, sum(shape.projected), bias=not shape.gated)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=not shape.gated)
        if self.explicit:
            later = torch.ones(shape.seq, shape.seq, dtype=torch.bool).triu(1)
            self.register_buffer("hidden_keys", later if self.causal else later & False, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.qkv(x), self.split, self.head_dim)
        dropout = self.dropout if self.training else 0.0
        if self.explicit:
            # By its formula, with all scores in memory.
            group = q.shape[1] // k.shape[1]
            if group > 1:
                k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            weights = scores.masked_fill(self.get_buffer("hidden_keys"), float("-inf")).softmax(dim=-1)
            result = functional.dropout(weights, dropout) @ v
        else:
            with sdpa_kernel(self.backend) if self.backend is not None else nullcontext():
                result = functional.scaled_dot_product_attention(
                    q, k, v, dropout_p=dropout, is_causal=self.causal, enable_gqa=self.shares_heads
                )
        return self.out(result.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """GPT-2's two matrices with GELU, or Llama's three with SwiGLU."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.width, bias=False) if shape.gated else None
        self.up = nn.Linear(shape.hidden, shape.width, bias=not shape.gated)
        self.down = nn.Linear(shape.width, shape.hidden, bias=not shape.gated)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            return self.down(functional.silu(self.gate(x)) * self.up(x))
        return self.down(functional.gelu(self.up(x)))


class TransformerBlock(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = norm(shape), norm(shape)
        self.attention, self.mlp = AttentionLayer(shape), Mlp(shape)
        self.dropout = shape.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.attention(self.attention_norm(x)), self.dropout, self.training)
        return x + functional.dropout(self.mlp(self.mlp_norm(x)), self.dropout, self.training)


class TransformerBlocks(nn.Module):
    """A stack of blocks, checkpointed as the shape asks."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(shape) for _ in range(shape.layers))
        self.checkpointing = shape.checkpointing

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointing.kind == "none" or not self.training:
            return _through(self.blocks, x)
        group, context = 1, _selective
        if self.checkpointing.kind == "every":
            group, context = self.checkpointing.every, noop_context_fn
        for first in range(0, len(self.blocks), group):
            run = functools.partial(_through, self.blocks[first : first + group])
            x = checkpoint(run, x, use_reentrant=False, context_fn=context)
        return x


class Gpt(nn.Module):
    """Embeddings, blocks, norm, logits: tokens[batch, seq] and targets of the same shape to the mean loss in nats."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.seq, shape.hidden)
        self.dropout = shape.dropout
        self.blocks = TransformerBlocks(shape)
        self.norm = norm(shape)
        self._add_head(shape)
        self.register_buffer("places", torch.arange(shape.seq), persistent=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def _add_head(self, shape: TransformerShape) -> None:
        self.logits = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.logits.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(self.get_buffer("places")[: tokens.shape[1]])
        x = self.blocks(functional.dropout(x, self.dropout, self.training))
        logits = self._head(self.norm(x))
        # In float32 where it was less, but a float64 reference stays one.
        wide = torch.promote_types(logits.dtype, torch.float32)
        return functional.cross_entropy(logits.to(wide), targets.flatten())

    def _head(self, x: Tensor) -> Tensor:
        return self.logits(x).flatten(0, 1)


class Encoder(Gpt):
    """BERT as it is fine-tuned: tokens[batch, seq] and classes[batch] to the mean loss, by a pooled first token."""

    def _add_head(self, shape: TransformerShape) -> None:
        self.pooler = nn.Linear(shape.hidden, shape.hidden)
        self.classifier = nn.Linear(shape.hidden, shape.classes)

    def _head(self, x: Tensor) -> Tensor:
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return self.classifier(functional.dropout(pooled, self.dropout, self.training))


def norm(shape: TransformerShape) -> nn.Module:
    """RMSNorm where gated, as Llama has it, else LayerNorm."""
    return nn.RMSNorm(shape.hidden, eps=1e-5) if shape.gated else nn.LayerNorm(shape.hidden)


def build(shape: TransformerShape, seed: int = 0) -> nn.Module:
    """The seeded model in training mode on the CPU: a Gpt, an Encoder, or Blocks where there is no vocabulary."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not shape.vocab:
            return TransformerBlocks(shape)
        return Encoder(shape) if shape.classes else Gpt(shape)


def require_attention(shape: TransformerShape, device: torch.device | str, dtype: torch.dtype) -> None:
    """Raise Unsupported where the backend that attention is pinned to cannot take the shape there, in torch's words."""
    if shape.attention not in BACKENDS:
        return
    attention = AttentionLayer(replace(shape, batch=1)).to(device, dtype)
    x = torch.zeros(1, shape.seq, shape.hidden, device=device, dtype=dtype)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            attention(x).sum().backward()
        except RuntimeError as error:
            reason = reason_of_refusal(shape.attention, [str(each.message) for each in warned], str(error))
            raise Unsupported(
                f"torch's {shape.attention} attention cannot take heads of {attention.head_dim} in {dtype} on this "
                f"{torch.device(device).type} ({reason.rstrip('.')}): ask for sdpa, which chooses among those that can."
            ) from None


def inputs(shape: TransformerShape, seed: int = 0) -> tuple[Tensor, ...]:
    """Seeded tokens and targets [batch, seq] of a Gpt, classes [batch] of an Encoder, x [batch, seq, hidden] else."""
    generator = torch.Generator().manual_seed(seed)
    if not shape.vocab:
        return (torch.randn(shape.batch, shape.seq, shape.hidden, generator=generator),)
    drawn = torch.randint(shape.vocab, (shape.batch, shape.seq + 1), generator=generator)
    if shape.classes:
        return drawn[:, :-1].clone(), drawn[:, -1] % shape.classes
    # Each in its own memory, which slices of a single sequence would share.
    own = torch.contiguous_format
    return drawn[:, :-1].clone(memory_format=own), drawn[:, 1:].clone(memory_format=own)


def compared_weights(model: nn.Module, shape: TransformerShape) -> dict[str, nn.Parameter]:
    """Return the weights whose gradients are compared with float64: see `TransformerShape.compares_all`."""
    within = {name: re.search(r"blocks\.(\d+)\.", name) for name, _ in model.named_parameters()}
    ends = ("0", str(shape.layers - 1))
    left_out = {name for name, layer in within.items() if layer and layer[1] not in ends and not shape.compares_all}
    return {f"the gradient of {name}": each for name, each in model.named_parameters() if name not in left_out}


def summed(
    model: nn.Module,
    batches: Iterable[tuple[tuple[Tensor, ...], Any, float]],
    wide: torch.dtype,
    backward: bool = True,
    weights: Sequence[nn.Parameter] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """The result of each batch, and each weight's gradient of all of them in the type `wide`, both times their shares.

    A batch is the model's inputs, the gradient that comes from above (None of a loss) and its share; `weights` are by
    default all. By autograd.grad, which fills no gradient and so wakes no hook of DDP's.
    """
    weights = list(model.parameters()) if weights is None else weights
    results, total = [], [torch.zeros_like(each, dtype=wide, requires_grad=False) for each in weights]
    for given, upstream, share in batches:
        result = model(*given)
        results.append(result.detach().to(wide) * share)
        for due, found in zip(total, torch.autograd.grad(result, weights, upstream), strict=True) if backward else ():
            due += found.detach().to(wide) * share
        begin_deadline_anew()
    return results, total


def _through(blocks: Any, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


def _selective() -> Any:
    def policy(_context: Any, operation: Callable[..., Any], *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in KEPT_BY_SELECTIVE else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
