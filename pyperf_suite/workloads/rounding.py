"""How far honest rounding carries what torch computes, and whether results lie within that.

What honest rounding does comes from Monte Carlo arithmetic (Parker 1997): every operation's result, and in backward
every gradient, is off by a random share of the unit roundoff, as in the type that is judged. `judged` compares a step's
errors with how far its results then move. Imported where a case is prepared and nowhere else, for its classes are
torch's.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pyperf_suite.measure.tolerance import TABLE
from pyperf_suite.workloads.workload import Checked, together

# Neighbours of a vector whose movement is averaged: enough to estimate a scale from, and few enough to follow it.
_WINDOW = 33
DRAWS = 5  # random roundings of a step, from which follows how far honest rounding moves each element
_POOL = 1 << 20  # how many factors an operation takes in a row at most

# A sum of K terms of random sign errs by less than this times √K·u of its size with near certainty (tolerance.py).
_SUMMED = 4.0
_TF32_OPERAND = 2.0**-11  # with TF32 tensor cores read float32 operands with 11 bits

# Limits of honest errors (see `judged`): the root mean square in scales, and single errors in root mean squares.
_MIN_RMS_SCALES, _MAX_RMS_SCALES = 0.5, 3.0
_MAX_ERROR_RMS, _TAIL_ERROR_RMS, _TAIL_SHARE, _TAIL_ELEMENTS = 20.0, 10.0, 2e-5, 4
_MAX_ALONG_SHARE, _MAX_STRAY_SIGMA, _MIN_ALONG_ELEMENTS = 0.5, 5.0, 256
_FALSE_ALARM_CHANCE = 1e-8


@dataclass(frozen=True)
class Rounding:
    """Rounding of one operation of `dtype` over up to `inner` terms."""

    unit: float
    stored: float
    smallest: float

    @classmethod
    def of(cls, dtype: str, inner: int = 1) -> Rounding:
        """Up to `unit` of the result, `stored` of it by storing it alone; the rest is by sums and operands."""
        stored, summed = TABLE[dtype].rounding, _SUMMED * inner**0.5 * TABLE["float32"].rounding
        operands = _TF32_OPERAND if dtype == "tfloat32" else 0.0
        return cls(stored + summed + operands, stored, TABLE[dtype].smallest)

    def applied(self, values: Tensor, factors: Factors) -> Tensor:
        result = torch.empty(values.shape, dtype=values.dtype, device=values.device)
        given, rounded = values.reshape(-1), result.view(-1)
        for begin in range(0, given.numel(), _POOL):
            part, out = given[begin : begin + _POOL], rounded[begin : begin + _POOL]
            factor = factors.some(part)
            torch.mul(part, factor, out=out)
            if self.smallest > 2.0**-100:  # else too small to matter
                out.add_(factor - 1, alpha=self.smallest / self.unit)
        return result

    def of_sums(self, right: Tensor, terms: float) -> Tensor:
        """Mean square rounding error of `terms` additions per element, whose sums are as large as its neighbours."""
        wide = right.double().square()
        return (wide + smoothed(wide)) * (self.stored**2 * terms / 3) + self.smallest**2


class Factors:
    """Random factors of 1 ± `unit`, drawn once: an operation takes as many in a row as it has values.

    To draw new ones takes several times as long as the operations of a transformer do.
    """

    def __init__(self, unit: float, seed: int, device: torch.device | str) -> None:
        drawn = torch.empty(2 * _POOL, device=device)
        self._pool = drawn.uniform_(1 - unit, 1 + unit, generator=torch.Generator(device).manual_seed(seed))
        self._start = random.Random(seed)

    def some(self, values: Tensor) -> Tensor:
        """As many as those values, at most `_POOL`, in their type."""
        begin = self._start.randrange(_POOL)
        return self._pool[begin : begin + values.numel()].to(values.dtype)


class _Rounded(torch.autograd.Function):
    """Rounds a result in forward, and the gradient that comes back to it in backward."""

    @staticmethod
    def forward(context: Any, values: Tensor, rounding: Rounding, factors: Factors) -> Tensor:
        context.rounding, context.factors = rounding, factors
        return rounding.applied(values, factors)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return context.rounding.applied(gradient, context.factors), None, None


class RoundedOperations(TorchFunctionMode):
    """Rounds at random what torch computes while entered, but for views; with `weights` parameters as well."""

    def __init__(self, rounding: Rounding, seed: int, device: torch.device | str, weights: bool = False) -> None:
        super().__init__()
        self._rounding, self._weights = rounding, weights
        self._factors = Factors(rounding.unit, seed, device)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "__get__":
            return function(*args, **(kwargs or {}))
        if self._weights:
            args = tuple(self._round(each) if isinstance(each, torch.nn.Parameter) else each for each in args)
        if function is Tensor.softmax:
            # Fused attention subtracts in backward, from all keys of a query, one sum that was rounded.
            weights = self._round((args[0] - args[0].detach().amax(-1, True)).exp())
            return self._round(weights / self._round(weights.sum(-1, True)))
        result = function(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        storage = result.untyped_storage().data_ptr()
        if any(isinstance(each, Tensor) and each.untyped_storage().data_ptr() == storage for each in args):
            return result
        return self._round(result)

    def _round(self, values: Tensor) -> Tensor:
        rounded: Tensor = _Rounded.apply(values, self._rounding, self._factors)
        return rounded


def smoothed(squares: Tensor) -> Tensor:
    """The mean square of each element, from a few draws of it, by those of its neighbours.

    A few draws say little of their element. Those of a matrix go with its row and its column, of which a gradient's
    element is a sum of products; so mean squares of rows and columns together estimate it, in each square block by
    itself where a matrix consists of such, as that of queries, keys and values does. A quarter of the block's mean is
    added: where few tokens make up a gradient, elements of a row move together, all too little in some draws. In a
    vector it is the mean of neighbours and whole: the gradient of keys' biases is zero but for errors.
    """
    if squares.ndim == 0:
        return squares
    if squares.ndim == 1:
        row = squares.reshape(1, 1, -1)
        mean = functional.avg_pool1d(row, _WINDOW, 1, _WINDOW // 2, count_include_pad=False)
        return (mean.reshape(squares.shape) + squares.mean()) / 2
    width, count = squares.shape[-1], squares.numel() // squares.shape[-1]
    blocks = squares.reshape(-1, count if count % width else width, width)
    # All zero where nothing moved at all.
    whole = blocks.mean((1, 2), True).clamp(min=torch.finfo(torch.float64).tiny)
    return (blocks.mean(2, True) * (blocks.mean(1, True) / whole) + whole / 4).reshape(squares.shape)


def exact_and_scales(
    run: Callable[[torch.dtype, AbstractContextManager[Any]], Mapping[str, Tensor]],
    rounding: Rounding,
    seed: int,
    device: torch.device | str,
    *,
    weights: bool = False,
    sums: int = 0,
    additions: int = 1,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a step's results by name in float64, and how far honest rounding moves each element (root mean square).

    `run(dtype, context)` computes it in that type and context: once in float64, then with operations that round at
    random, and parameters where they are used with `weights`, in float32, which is exact enough for a movement. `sums`
    is over how many terms vectors were summed by a kernel that keeps sums in the type itself, as torch's on a CPU do
    for the gradients of norms and biases; 0 where sums are kept in float32. `additions` is how many results of that
    kind the judged step adds up.
    """
    exact = {name: value.double() for name, value in run(torch.float64, nullcontext()).items()}
    operations = RoundedOperations(rounding, seed, device, weights)
    squares = {name: torch.zeros_like(value) for name, value in exact.items()}
    for _ in range(DRAWS):
        for name, moved in run(torch.float32, operations).items():
            squares[name] += (moved - exact[name]).square_() / DRAWS
    for name, right in exact.items():
        terms = additions + (sums if right.ndim == 1 else 0)
        squares[name] = (smoothed(squares[name]) + rounding.of_sums(right, terms)).sqrt_()
    return exact, squares


def judged(results: Mapping[str, Tensor | None], exact: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> Checked:
    """A step's results and gradients against how far honest rounding moves them; the first that is wrong in words.

    An error to first order is a sum of thousands of independent roundings, nearly normal of the element's scale; its
    tail is heavier, as scales are estimated. With s an element's scale and r the root mean square of |error|/s over its
    tensor, a tensor is wrong with r over _MAX_RMS_SCALES, with an element over _MAX_ERROR_RMS·r·s, or with more than a
    few elements, _TAIL_SHARE of them, over _TAIL_ERROR_RMS·r·s; r counts as _MIN_RMS_SCALES at least. Of few elements r
    may be larger: a scale from D draws of n elements is x times too small with a chance of about x^-Dn, of which half
    are taken as independent. And an error may lie along the gradient by _MAX_ALONG_SHARE of its norm, apart from a
    share that all tensors have in common: a scaled gradient shows there first. docs/measured_code.md has how often
    honest steps came near these limits.
    """
    checks, along = [], {}
    for name, right in exact.items():
        values = results.get(name)
        if values is None:
            checks.append(Checked(right.numel(), right.numel(), f"{name} is missing"))
            continue
        off = values.detach().to(right.device, torch.float64) - right
        bad, limit = _beyond_rounding(off, scales[name])
        wrong, size = int(bad.sum()), float(right.norm())
        words = f"{name} is {float(off.norm()) / size if size else math.inf:.2g} off in norm"
        if 0 < wrong < bad.numel() or bad.ndim == 0:
            at = tuple(int(each) for each in bad.nonzero()[0]) if wrong else ()
            due = f"{float(right[at]):.6g} ± {limit * float(scales[name][at]):.1g}"
            words = f"{name} at {at} is {float(values[at]):.6g} where {due} is right"
        checks.append(Checked(wrong, bad.numel(), words))
        if not wrong and bad.numel() >= _MIN_ALONG_ELEMENTS and size:
            # The share of the gradient that the error has, and how large that may be: by chance more where few elements
            # make up the gradient.
            direction = right / size
            chance = _MAX_STRAY_SIGMA * float(direction.square().square().sum()) ** 0.5
            most = float(off.norm()) / size * (_MAX_ALONG_SHARE + chance)
            along[name] = float((off * direction).sum()) / size, most
    usual = statistics.median(gain for gain, _ in along.values()) if along else 0.0
    for name, (gain, most) in along.items():
        if min(abs(gain), abs(gain - usual)) > most:
            words = f"{name} is {1 + gain:.5g} times the right one, the others {1 + usual:.5g}"
            checks.append(Checked(exact[name].numel(), 0, words))
    return together(checks)


def _beyond_rounding(off: Tensor, scale: Tensor) -> tuple[Tensor, float]:
    """Return the wrong elements, all where the tensor is wrong as a whole, and the error allowed of one, in scales."""
    share, count = off.abs() / scale, off.numel()
    max_scales = min(_MAX_ERROR_RMS, _MAX_RMS_SCALES * _FALSE_ALARM_CHANCE ** (-2 / (DRAWS * count)))
    error = float(share.norm()) / max(1, int(share.count_nonzero())) ** 0.5
    usual = max(_MIN_RMS_SCALES, error) if error <= max_scales else max_scales  # NaN is not
    for limit, few in ((_MAX_ERROR_RMS * usual, 0), (_TAIL_ERROR_RMS * usual, _TAIL_ELEMENTS + _TAIL_SHARE * count)):
        bad = ~(share <= limit)
        if int(bad.sum()) > few:
            return bad, limit
    return torch.full_like(bad, not error <= max_scales), max_scales


def compared(
    results: Mapping[str, Tensor | None],
    exact: Mapping[str, Tensor],
    allowed: Mapping[str, Tensor],
    in_norm: float,
    first_number: int = 0,
) -> Checked:
    """Every element against its limit, each tensor against a share `in_norm` of its norm; the first wrong in words."""
    wrong, count, first = 0, 0, ""
    for name, right in exact.items():
        values, limit = results.get(name), allowed[name]
        count += right.numel()
        if values is None:
            wrong, first = wrong + right.numel(), first or f"{name} is missing"
            continue
        values = values.detach()
        off = (values.to(right.device, torch.float64) - right).abs()
        bad = ~(off <= limit)  # NaN is bad
        here = int(bad.sum())
        if here:
            at = tuple(int(each) for each in bad.nonzero()[0])
            due = f"{float(right[at]):.6g} ± {float(limit[at]):.1g}"
            reported = (first_number + at[0], *at[1:]) if first_number else at
            said = f"{name} at {reported} is {float(values[at]):.6g} where {due} is right"
        elif off.norm() > in_norm * right.norm():
            here = right.numel()
            said = f"{name} is {float(off.norm() / right.norm()):.2g} off in norm"
        if here:
            wrong, first = wrong + here, first or said
    return Checked(wrong, count, first)
