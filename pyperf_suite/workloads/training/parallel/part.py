"""A stage of the GPT: some of its blocks, with the embeddings before the first and the loss behind the last.

Imported where a case is prepared and nowhere else, for its classes are torch's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

_BLOCK = re.compile(r"(?<=^blocks\.blocks\.)\d+")


class Part(nn.Module):
    """Blocks `first` to `last` - 1 of a Gpt, whose modules it takes over; `layers` is how many the Gpt has.

    Called with tokens[batch, seq], or what the part before returned, and with targets[batch, seq] where it is the last.
    It returns x[batch, seq, hidden] or the mean loss in nats as [1]. Under tensor parallelism x is this rank's share
    of the sequence, and the logits are cut by vocabulary.
    """

    def __init__(self, whole: Any, first: int, last: int, layers: int) -> None:
        super().__init__()
        self.first = first
        self.tokens = whole.tokens if first == 0 else None
        self.positions = whole.positions if first == 0 else None
        self.blocks = whole.blocks
        whole.blocks.blocks = whole.blocks.blocks[first:last]
        self.norm = whole.norm if last == layers else None
        self.logits = whole.logits if last == layers else None
        self.register_buffer("places", whole.get_buffer("places"), persistent=False)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions(self.get_buffer("places")[: x.shape[1]])
        x = self.blocks(x)
        if self.norm is None or self.logits is None:
            return x
        assert targets is not None
        logits = self.logits(self.norm(x)).flatten(0, 1).float()
        loss = functional.cross_entropy(logits, targets.flatten())
        # No view of the loss: FSDP warns of views, and pipelining joins micro-batches' losses along an axis.
        return torch.stack((loss.to_local() if isinstance(loss, DTensor) else loss,))

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by the names that they have in the whole Gpt."""
        for name, weight in self.named_parameters():
            yield _BLOCK.sub(lambda number: str(int(number[0]) + self.first), name), weight
