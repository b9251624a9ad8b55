"""Gradients of a step that ranks share, against a single process that sees all of their micro-batches.

Which rank draws what is fixed by its number, so that any process can make any rank's.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

# Relative norm of an averaged gradient against the single process's: the same kernels gave both, so there is the order
# of a few sums, and in bfloat16 each sum and each division is rounded to 8 bits. A rank left out of n is 1 / n.
GRADIENT_LIMIT = {"float32": 1e-5, "bfloat16": 3e-2}

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


def off_in_norm(name: str, gradient: Any, due: Any, limit: float) -> str:
    """What to say of a gradient that is missing or differs from the one that is due; empty where it is right."""
    if gradient is None:
        return f"{name} has no gradient"
    off, norm = float((gradient.detach().to(due.device, due.dtype) - due).norm()), float(due.norm())
    # A gradient of zeros, as before a norm over a single element, has no relative error.
    if off <= limit * norm:
        return ""
    return f"the gradient of {name} is {off / norm if norm else off:.2g} off in norm, and {limit:g} is allowed"


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
