"""Gradients of a step that ranks share, against a single process that sees all of their micro-batches.

Which rank draws what is fixed by its number, so that any process can make any rank's.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from pyperf_suite.measure.tolerance import element_limit, operation_unit

# Roundings of sums over ranks: a small multiple of their square root (see measure.tolerance.element_limit).
EXCHANGED = 4.0

# Knuth's multiplier of a linear congruential generator, odd; elements that are widened to 64 bits at a time.
_MULTIPLIER = 6364136223846793005
_FINGERPRINTED = 1 << 20


def seed_of(rank: int, micro: int, micro_batches: int) -> int:
    """The seed of micro-batch number `micro` of that rank, of `micro_batches` that each has."""
    return 1 + rank * micro_batches + micro


def summed(
    model: Any, weights: Sequence[Any], batches: Iterable[tuple[tuple[Any, ...], Any]], count: int, wide: Any
) -> list[Any]:
    """Each weight's gradient in the type `wide`: of all batches together, divided by `count`.

    A batch is the model's inputs and the gradient that comes from above, None of a loss. By autograd.grad, which fills
    no gradient and so wakes no hook of DDP's.
    """
    torch: Any = importlib.import_module("torch")
    total = [torch.zeros_like(each, dtype=wide, requires_grad=False) for each in weights]
    for inputs, upstream in batches:
        result = model(*inputs)
        for due, found in zip(total, torch.autograd.grad(result, weights, upstream), strict=True):
            due += found.detach().to(wide) / count
    return total


def exchanged_limit(due: Any, dtype: str, terms: int) -> Any:
    """By how much each element of a gradient may be off that ranks have summed from so many, each of them right.

    Sums are rounded in their type each time, at random: as measure.tolerance.element_limit has it, but relative to
    what elements of this row and column are usually as large as, for an element's own terms may cancel.
    """
    from pyperf_suite.workloads.training.rounding import spread

    return element_limit(dtype, dtype, terms).smallest + (
        EXCHANGED * math.sqrt(terms) * operation_unit(dtype, 1) * (due.abs() + spread(due))
    )


def same_on_all(tensors: Iterable[Any], group: Any, place: str) -> bool:
    """Whether every rank of the group holds the same bits."""
    torch: Any = importlib.import_module("torch")
    mine = torch.tensor([fingerprint(tensors)], dtype=torch.int64, device=place)
    found = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(found, mine, group=group)
    return len({int(each) for each in found}) == 1


def fingerprint(tensors: Iterable[Any]) -> int:
    """The bits of all tensors in 64, made where they lie.

    Their elements as integers, times odd numbers that grow with their place, summed modulo 2^64: so one element that
    changes always shows, and so do two that are swapped.
    """
    torch: Any = importlib.import_module("torch")
    total = 0
    for each in tensors:
        kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[each.element_size()]
        numbers = each.detach().contiguous().reshape(-1).view(kind)
        total *= _MULTIPLIER
        for begin in range(0, numbers.numel(), _FINGERPRINTED):
            part = numbers[begin : begin + _FINGERPRINTED].long()
            places = torch.arange(begin, begin + part.numel(), device=part.device)
            total += int((part * (2 * places + 1)).sum())
        total = (total + numbers.numel()) % 2**64
    return total - 2**63
