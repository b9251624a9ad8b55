"""How far honest rounding carries each element of a result: by running its formula again, rounded at random.

Monte Carlo arithmetic (Parker 1997): every operation's result, and in backward every gradient, is off by a random
share of the unit roundoff, as in the type that is judged. How far the result then moves bounds what a kernel may be
off by. Imported where a case is prepared and nowhere else, for its classes are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyperf_suite.measure.tolerance import CARRIED, SUMMED, TABLE, operation_unit
from pyperf_suite.workloads.workload import Checked

# Neighbours of a vector whose movement is averaged: enough to tell a scale from, and few enough to follow it.
_WINDOW = 33

# The whole may be off by this share of what its elements may be off by together: they do not all reach their limits.
_NORM_SHARE = 1 / 4


@dataclass(frozen=True)
class Rounding:
    """What one operation of `dtype` over up to `inner` terms may do to its result."""

    unit: float
    stored: float
    smallest: float

    @classmethod
    def of(cls, dtype: str, inner: int) -> Rounding:
        """The table's. Raises ValueError for a dtype that is not in it."""
        return cls(operation_unit(dtype, inner), TABLE[dtype].rounding, TABLE[dtype].smallest)

    def applied(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Each value off by up to a unit roundoff, uniformly; infinities stay."""
        share = torch.rand(values.shape, generator=generator, device=values.device, dtype=values.dtype).mul_(2).sub_(1)
        return values * (1 + self.unit * share) + self.smallest * share


class _Rounded(torch.autograd.Function):
    """Rounds a result in forward, and the gradient that comes back to it in backward."""

    @staticmethod
    def forward(context: Any, values: Tensor, rounding: Rounding, generator: torch.Generator) -> Tensor:
        context.rounding, context.generator = rounding, generator
        return rounding.applied(values, generator)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return context.rounding.applied(gradient, context.generator), None, None


class RoundedOperations(TorchFunctionMode):
    """While entered, what torch computes is rounded at random; views and what is given back unchanged are not.

    With `weights` so are parameters where they are used, as by a cast to the type that products are computed in.
    """

    def __init__(self, rounding: Rounding, seed: int, device: torch.device | str, weights: bool = False) -> None:
        super().__init__()
        self._rounding, self._weights = rounding, weights
        self._generator = torch.Generator(device).manual_seed(seed)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "__get__":
            return function(*args, **(kwargs or {}))
        if self._weights:
            args = tuple(self._round(each) if isinstance(each, torch.nn.Parameter) else each for each in args)
        result = function(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        storage = result.untyped_storage().data_ptr()
        if any(isinstance(each, Tensor) and each.untyped_storage().data_ptr() == storage for each in args):
            return result
        return self._round(result)

    def _round(self, values: Tensor) -> Tensor:
        rounded: Tensor = _Rounded.apply(values, self._rounding, self._generator)
        return rounded


def spread(moved: Tensor) -> Tensor:
    """The root mean square by which elements move, from how they moved once, smoothed over their neighbours.

    A single movement says little of its element. Those of a matrix go with its row and its column, of which a
    gradient's element is a sum of products; so mean squares of rows and columns together tell it, and in a vector
    those of its neighbours.
    """
    squares = moved.double().square()
    if squares.ndim == 0:
        return squares.sqrt()
    if squares.ndim < 2:
        return _smoothed(squares).sqrt()
    matrix = squares.reshape(-1, squares.shape[-1])
    rows, columns = matrix.mean(1, keepdim=True), matrix.mean(0, keepdim=True)
    # All zero where nothing moved at all.
    whole = rows.mean().clamp(min=torch.finfo(torch.float64).tiny)
    return (rows.sqrt() * (columns / whole).sqrt()).reshape(moved.shape)


def limits(exact: Mapping[str, Tensor], moved: Mapping[str, Tensor], rounding: Rounding, summed: int) -> dict[str, Any]:
    """By how much each element may be off: `exact` and what came out of the same with rounded operations.

    `summed` is over how many terms vectors were summed by a kernel that keeps sums in the type itself, as torch's on a
    CPU do for the gradients of norms and biases; 0 where sums are kept in float32.
    """
    allowed = {}
    for name, right in exact.items():
        # Of a single number it is no more than a draw: it may be off as one operation's result.
        one = rounding.unit if right.ndim == 0 else 2 * rounding.stored
        limit = CARRIED * spread(moved[name] - right) + one * right.abs() + rounding.smallest
        if right.ndim == 1 and summed:
            limit += SUMMED * rounding.stored * summed**0.5 * _smoothed(right.square()).sqrt()
        allowed[name] = limit
    return allowed


def exact_and_limits(
    run: Callable[[], Mapping[str, Tensor]], rounding: Rounding, operations: RoundedOperations, summed: int = 0
) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
    """What `run()` gives, by name, and by how much each element may be off: it runs as it is, then with operations."""
    exact = run()
    with operations:
        moved = run()
    return exact, limits(exact, moved, rounding, summed)


def compared(
    found: Mapping[str, Tensor | None],
    exact: Mapping[str, Tensor],
    allowed: Mapping[str, Tensor],
    in_norm: float | None = None,
    first_number: int = 0,
) -> Checked:
    """Every element against its limit, and each tensor in norm; the first that is wrong in words.

    `in_norm` is a share of the exact tensor's norm; by default one of what its elements may be off by together. The
    first row has number `first_number`.
    """
    wrong, count, first = 0, 0, ""
    for name, right in exact.items():
        values, limit = found.get(name), allowed[name]
        count += right.numel()
        if values is None:
            wrong, first = wrong + right.numel(), first or f"{name} is missing"
            continue
        values = values.detach()
        off = (values.to(right.device, torch.float64) - right).abs()
        bad = ~(off <= limit)  # NaN is bad
        here = int(bad.sum())
        whole = _NORM_SHARE * limit.norm() if in_norm is None else in_norm * right.norm()
        if here:
            at = tuple(int(each) for each in bad.nonzero()[0])
            due = f"{float(right[at]):.6g} ± {float(limit[at]):.1g}"
            told = (first_number + at[0], *at[1:]) if first_number else at
            said = f"{name} at {told} is {float(values[at]):.6g} where {due} is right"
        elif off.norm() > whole:
            here = right.numel()
            said = f"{name} is {float(off.norm() / right.norm()):.2g} off in norm"
        if here:
            wrong, first = wrong + here, first or said
    return Checked(wrong, count, first)


def _smoothed(values: Tensor) -> Tensor:
    """The mean over neighbours of each element of a vector."""
    row = values.reshape(1, 1, -1)
    mean = torch.nn.functional.avg_pool1d(row, _WINDOW, 1, _WINDOW // 2, count_include_pad=False)
    return mean.reshape(values.shape)
