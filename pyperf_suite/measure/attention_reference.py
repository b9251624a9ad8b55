"""Float64 attention of some queries of one head, and how far correct kernels may lie from it.

Limits are derived beside the reference because they weigh the same probabilities; `verify_attention` holds outputs
against both.

The model. A kernel's probability P errs by a relative β, whatever order it works in:

    β = u·(1 + a + |s|) + u₃₂·(√d·a + 2·|s| + √N + 16),   u of the dtype, u₃₂ of fp32,

for a kernel may round to dtype what it scales before Q·Kᵀ (a = ‖q‖·max‖k‖·scale/√d, the size of a score), the score s
and P itself, and always sums in fp32: d terms of a score, N of the longest sum after it (as √: Higham & Mary, see
`tolerance`), with an exponential good to 16 units, as fast ones are. Values too small for the dtype may err by its
smallest, η. So P·V errs by at most

    4·√(Σⱼ W·V² + O²·Σⱼ W) + u·|O| + η,   W = (P·β + η)²,

the root because roundings are independent; 4 is above the certain bound for fewer than 16 keys and near 8 standard
deviations for many. The gradient of a score, dS = P∘(dP − D) with dP = dO·Vᵀ and D = Σ dO∘O, errs by

    E = P·((β + u)·|dP − D| + u·|dP| + √d·u₃₂·b + δD) + η,   b = ‖do‖·max‖v‖/√d,  δD = u·√(Σ dO²O² + Σⱼ P²dP²),

and dQ = scale·dS·K, dK = scale·dSᵀ·Q, dV = Pᵀ·dO as products of E or P·β with squares do; where a group of heads
shares dK and dV, each head's part may be rounded before they are summed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyperf_suite.measure.arrays import Array, as_float32, as_float64, like, module_of
from pyperf_suite.measure.tolerance import TABLE

SAFETY = 4.0
_SINGLE = TABLE["float32"].rounding
_EXPONENTIAL_UNITS = 16


@dataclass(frozen=True)
class Roundings:
    """What a dtype, the head's size and the longest sum make of every value: u, η, and parts of β and E."""

    unit: float
    smallest: float
    score_sum: float
    other_sums: float

    @classmethod
    def of(cls, dtype: str, head_dim: int, longest_sum: int) -> Roundings:
        """For scores that sum over `head_dim` and products that sum over up to `longest_sum` terms."""
        precision = TABLE[dtype]
        others = _SINGLE * (np.sqrt(longest_sum) + _EXPONENTIAL_UNITS)
        return cls(precision.rounding, precision.smallest, _SINGLE * float(np.sqrt(head_dim)), float(others))

    def limit(self, spread: Array, magnitude: Array) -> Array:
        """4·√spread, and the storing of a result of that magnitude."""
        return as_float64(SAFETY * module_of(spread).sqrt(spread) + self.unit * magnitude + self.smallest)


@dataclass(frozen=True)
class KeyHead:
    """K and V of one head, [seq_k, head_dim], wide, with what every panel of queries needs of them."""

    k: Array
    v: Array
    k_squares: Array
    v_squares: Array
    longest_key: float
    longest_value: float

    @classmethod
    def of(cls, k: Array, v: Array) -> KeyHead:
        """From K and V in any type that holds their values."""
        k, v = as_float64(k), as_float64(v)
        squares = [as_float32(each**2) for each in (k, v)]
        longest = [float(each.sum(axis=1).max()) ** 0.5 for each in squares]
        return cls(k, v, squares[0], squares[1], longest[0], longest[1])


@dataclass(frozen=True)
class Panel:
    """Queries of one head against the keys that any of them sees.

    `o` [queries, head_dim] is right within `o_limit`; `p` [queries, keys] are the probabilities, `wobble` the size
    P·β + η of their errors, and `log_sum_exp` [queries] what normalised them.
    """

    q: Array
    p: Array
    wobble: Array
    relative: Array
    log_sum_exp: Array
    o: Array
    o_limit: Array


@dataclass(frozen=True)
class ScoreGradients:
    """What `do` [queries, head_dim] makes of a panel's scores: dS [queries, keys], and the squares of E."""

    panel: Panel
    do: Array
    ds: Array
    error_squares: Array

    def of_queries(self, head: KeyHead, scale: float, roundings: Roundings) -> tuple[Array, Array]:
        """The gradient dQ [queries, head_dim] and its limit."""
        keys = self.ds.shape[1]
        dq = scale * (self.ds @ head.k[:keys])
        spread = scale**2 * (self.error_squares @ head.k_squares[:keys])
        return dq, roundings.limit(spread, abs(dq))


class KeyGradients:
    """dK and dV of one key head, [seq_k, head_dim], gathered from panels of all queries of all heads that share it."""

    def __init__(self, head: KeyHead, scale: float) -> None:
        self._scale = scale
        nothing = module_of(head.k).zeros_like
        self._of_head = {name: nothing(head.k) for name in ("dk", "dv")}
        self._total, self._magnitude, self._spread = (
            {name: nothing(head.k) for name in ("dk", "dv")} for _ in range(3)
        )

    def add(self, found: ScoreGradients) -> None:
        """Take in one panel."""
        keys, panel = found.ds.shape[1], found.panel
        q_squares, do_squares = (as_float32(each**2) for each in (panel.q, found.do))
        self._of_head["dk"][:keys] += self._scale * (found.ds.T @ panel.q)
        self._of_head["dv"][:keys] += panel.p.T @ found.do
        self._spread["dk"][:keys] += self._scale**2 * (found.error_squares.T @ q_squares)
        self._spread["dv"][:keys] += (panel.wobble**2).T @ do_squares

    def end_head(self) -> None:
        """All panels of one query head are in: its part may be rounded here."""
        for name, part in self._of_head.items():
            self._total[name] += part
            self._magnitude[name] += abs(part)
            part[...] = 0

    def references(self, roundings: Roundings) -> dict[str, Array]:
        """Reference of each by name, and its limit by that name with "_limit"."""
        limits = {
            f"{name}_limit": roundings.limit(self._spread[name], magnitude)
            for name, magnitude in self._magnitude.items()
        }
        return self._total | limits


def attend(q: Array, visible: Array, head: KeyHead, scale: float, roundings: Roundings) -> Panel:
    """softmax(scale·Q·Kᵀ)·V for `q` [queries, head_dim], of which query i sees the first visible[i] keys."""
    module = module_of(q)
    keys = int(visible.max())
    wide = as_float64(q)
    scores = (wide * scale) @ head.k[:keys].T
    size = scale / q.shape[1] ** 0.5 * head.longest_key * (wide**2).sum(axis=1) ** 0.5
    relative = abs(as_float32(scores))
    relative *= roundings.unit + 2 * _SINGLE
    constant = roundings.unit * (1 + size) + roundings.score_sum * size + roundings.other_sums
    relative += as_float32(constant)[:, None]

    seen_by_all = int(visible.min())
    hidden = like(np.arange(seen_by_all, keys), q) >= like(visible, q)[:, None]
    scores[:, seen_by_all:][hidden] = -np.inf
    highest = module.amax(scores, axis=1, keepdims=True)
    scores -= highest
    p = module.exp(scores, out=scores)
    total = p.sum(axis=1, keepdims=True)
    p /= total

    wobble = as_float32(p)
    wobble *= relative
    wobble += roundings.smallest
    o = p @ head.v[:keys]
    squares = wobble**2
    spread = squares @ head.v_squares[:keys] + o**2 * squares.sum(axis=1, keepdims=True)
    log_sum_exp = (highest + module.log(total))[:, 0]
    return Panel(wide, p, wobble, relative, log_sum_exp, o, roundings.limit(spread, abs(o)))


def differentiate(panel: Panel, do: Array, head: KeyHead, roundings: Roundings) -> ScoreGradients:
    """The gradients of a panel's scores, given that of its outputs, `do` [queries, head_dim]."""
    module, keys, unit = module_of(do), panel.p.shape[1], roundings.unit
    wide = as_float64(do)
    dp = wide @ head.v[:keys].T
    size = head.longest_value / do.shape[1] ** 0.5 * (wide**2).sum(axis=1) ** 0.5
    narrow_p = as_float32(panel.p)
    error = abs(as_float32(dp))
    weighed = narrow_p * error
    of_delta = unit * (((wide * panel.o) ** 2).sum(axis=1) + module.einsum("ij,ij->i", weighed, weighed)) ** 0.5
    error *= unit
    error += as_float32(roundings.score_sum * size + of_delta)[:, None]
    dp -= (wide * panel.o).sum(axis=1)[:, None]
    error += abs(as_float32(dp)) * (panel.relative + unit)
    error *= narrow_p
    error += roundings.smallest
    error *= error
    dp *= panel.p
    return ScoreGradients(panel, wide, dp, error)
