"""Bytes of weights, gradients and optimizer states that torch's own engines allocate on each rank, to the byte.

Planning divides evenly (`laws/training/memory.py`); DDP, ZeroRedundancyOptimizer and FSDP2 do not, and a small model
shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyperf_suite.laws.matmul.tiling import ceil_div
from pyperf_suite.laws.training.gpt_weights import Weight

Engine = Literal["ddp", "zero_optimizer", "fsdp"]


@dataclass(frozen=True)
class Storage:
    """Bytes a parameter: the `weight` computed with, its `gradient`, the `optimizer`'s moments, a `master` copy.

    `step` is what the optimizer keeps once a tensor: torch's AdamW counts its steps in a float32 each.
    """

    weight: int
    gradient: int
    optimizer: int
    master: int = 0
    step: int = 4

    @property
    def state(self) -> int:
        """What the optimizer has of a parameter: its moments, and the master copy that it updates."""
        return self.optimizer + self.master


# AdamW of torch on weights in one type, whose moments have the type of the weights.
FLOAT32 = Storage(weight=4, gradient=4, optimizer=8)
BFLOAT16 = Storage(weight=2, gradient=2, optimizer=4)
# Weights in 16 bits beside a master copy, gradients and moments in 32 (laws/training/memory.py).
MIXED = Storage(weight=2, gradient=4, optimizer=8, master=4)


@dataclass(frozen=True)
class Held:
    """Bytes that live from step to step on one rank."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Of all together."""
        return self.weights + self.gradients + self.optimizer


def held_by_rank(weights: Sequence[Weight], engine: Engine, ranks: int, storage: Storage = FLOAT32) -> tuple[Held, ...]:
    """What each of `ranks` data-parallel ranks holds of the `weights` that they have in common.

    "ddp" keeps all of it on each, gradients as views of its buckets; "zero_optimizer" is DDP whose optimizer states are
    dealt out by whole tensors; "fsdp" cuts each tensor along its first dimension, with or without resharding.
    """
    if engine == "fsdp":
        return tuple(_sharded(weights, ranks, rank, storage) for rank in range(ranks))
    elements = sum(weight.elements for weight in weights)
    shares = dealt_out(weights, ranks) if engine == "zero_optimizer" else [weights] * ranks
    kept = storage.weight * elements
    return tuple(Held(kept, storage.gradient * elements, _states(share, storage)) for share in shares)


def _states(weights: Sequence[Weight], storage: Storage) -> int:
    return sum(storage.state * weight.elements + storage.step for weight in weights)


def dealt_out(weights: Sequence[Weight], ranks: int) -> list[list[Weight]]:
    """Largest first, each to the rank that has the least so far, as ZeroRedundancyOptimizer does."""
    shares: list[list[Weight]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for weight in sorted(weights, key=lambda weight: weight.elements, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(weight)
        sizes[least] += weight.elements
    return shares


def _sharded(weights: Sequence[Weight], ranks: int, rank: int, storage: Storage) -> Held:
    """FSDP2's share: weights and gradients are padded to the first rank's rows, optimizer states are not."""
    padded = own = 0
    for weight in weights:
        rows, *_ = weight.shape
        across = weight.elements // rows
        most = int(ceil_div(rows, ranks))
        padded += most * across
        own += max(0, min(most, rows - rank * most)) * across
    return Held(
        storage.weight * padded,
        storage.gradient * padded,
        storage.state * own + storage.step * len(weights),
    )
