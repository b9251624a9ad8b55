"""A model as it is trained: its dimensions beside what runs them, on each GPU of a tensor-parallel group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.laws.transformer import ModelDimensions, Sharding

# Far above what anyone trains with, and low enough that a product's sizes stay exact.
LARGEST = {"seq": 1 << 24, "micro_batch": 1 << 16, "tp": 1 << 10, "shards": 1 << 16}
MOST_TOKENS = 1 << 26


@dataclass(frozen=True)
class Setting:
    """`micro_batch` sequences of `seq` tokens at a time, over `tp` GPUs that share each layer.

    `shards` data-parallel GPUs share weights, gradients and optimizer state (ZeRO-3, FSDP); it enters memory alone.
    Raises UserError for what cannot be trained so.
    """

    model: ModelDimensions
    seq: int
    micro_batch: int = 1
    tp: int = 1
    shards: int = 1
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        for name, most in LARGEST.items():
            if not 1 <= getattr(self, name) <= most:
                raise UserError(f"{name} has to lie between 1 and {most}, but {getattr(self, name)} was asked for.")
        if self.tokens > MOST_TOKENS:
            raise UserError(
                f"{self.micro_batch} sequences of {self.seq} are {self.tokens} tokens at a time, beyond the "
                f"{MOST_TOKENS} that are counted with: ask for less."
            )
        try:
            Sharding(self.tp).check(self.model)
        except UserError as uneven:
            raise UserError(f"{str(uneven).rstrip('.')}: take tp = {self._nearest_tp()}.") from None

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.seq * self.micro_batch

    def _nearest_tp(self) -> str:
        """The numbers of GPUs on either side of the one asked for that can share the layers evenly."""
        ranks = np.arange(1, 2 * self.tp + 1)
        dividing = ranks[np.broadcast_to(Sharding(ranks).divides(self.model), ranks.shape)].tolist()
        below = [tp for tp in dividing if tp < self.tp]
        above = [tp for tp in dividing if tp > self.tp]
        return " or ".join(map(str, below[-1:] + above[:1]))
