"""Tensor parallelism with sequence parallelism of a part of the GPT, by DTensor.

Between blocks each rank holds its share of the sequence; it is gathered before attention and MLP, whose matrices are
cut by heads and by columns, and summed and scattered behind them (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pyperf_suite.workloads.training.parallel.parameters import ParallelStepParameters

FUSED = "attention.qkv."


def cut_by_tensor(part: Any, parameters: ParallelStepParameters, mesh: Any) -> None:
    """Turn the parameters of a part into DTensors over `mesh`, in place.

    Norms lie whole on each rank, and so do the biases of attention's and the MLP's second matrix.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def gathered() -> Any:
        return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))

    in_block = {
        "attention_norm": SequenceParallel(),
        "attention": gathered(),
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "mlp_norm": SequenceParallel(),
        "mlp": gathered(),
        **({"mlp.gate": ColwiseParallel()} if parameters.gated else {}),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    torch: Any = importlib.import_module("torch")
    order = rows_by_rank(parameters, torch)
    for block in part.blocks.blocks:
        attention = block.attention
        with torch.no_grad():
            for each in attention.qkv.parameters():
                each.copy_(each[order.to(each.device)])
        attention.split = tuple(size // parameters.tensor for size in attention.split)
        parallelize_module(block, mesh, in_block)
    if part.tokens is not None:
        # Rows of both tables are cut; what a rank finds in its own is summed and scattered along the sequence.
        tables: dict[str, Any] = {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        }
        parallelize_module(part, mesh, tables)
    if part.logits is not None:
        logits = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(part, mesh, {"norm": SequenceParallel(), "logits": logits})
        if parameters.tied:
            part.logits.weight = part.tokens.weight


def rows_by_rank(parameters: ParallelStepParameters, torch: Any) -> Any:
    """The order of the rows of attention's first matrix in which each rank's queries, keys and values are one piece."""
    head = parameters.hidden // parameters.heads
    rows = torch.arange((parameters.heads + 2 * parameters.key_value_heads) * head)
    kinds = rows.split([count * head for count in (parameters.heads, *[parameters.key_value_heads] * 2)])
    by_rank = zip(*(kind.chunk(parameters.tensor) for kind in kinds), strict=True)
    return torch.cat([piece for pieces in by_rank for piece in pieces])


def loss_cut_by_vocabulary(parameters: ParallelStepParameters) -> AbstractContextManager[Any]:
    """What forward and backward are in, so that logits that lie by vocabulary are not gathered for their loss."""
    if parameters.tensor == 1:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    entered: AbstractContextManager[Any] = loss_parallel()
    return entered
