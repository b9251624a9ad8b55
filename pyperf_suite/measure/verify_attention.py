"""Check attention and its gradients: small cases to the last element, large ones by samples.

What goes wrong in kernels of attention - a mask by one key, a head, a block - is in every sample.

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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pyperf_suite.measure.tolerance import (
    TABLE,
    Array,
    Keep,
    as_float32,
    as_float64,
    computed_anew,
    first_not_finite,
    inner_product,
    like,
    module_of,
)
from pyperf_suite.measure.verify import ElementComparison, ExecutionContext, Method, Verification, named, verdict

PAIR_BUDGET = 1 << 25  # pairs of query and key up to which every element is checked: about a second on two cores
DEVICE_PAIR_BUDGET = 1 << 34  # the same for tensors: a few seconds of a GPU whose float64 is fast
_BACKWARD_COST = 2  # cost of a backward pair for the reference, in forward pairs

# Panels this large stay in a core's cache; fewer queries at a time would leave its matrix products slow.
_PANEL_PAIRS = 1 << 17
_DEVICE_PANEL_PAIRS = 1 << 24
_FEWEST_QUERIES = 16
_FEWEST_SAMPLES = 4  # queries of each head that are looked at in the largest cases

# Standard deviations of an identity's own rounding are below half a unit of this; eight leave no doubt.
_IDENTITY_SAFETY = 8.0


def verify_attention(
    outputs: Mapping[str, Array],
    q: Array,
    k: Array,
    v: Array,
    do: Array | None,
    causal: bool,
    dtype: str,
    pair_budget: int | None = None,
    seed: int = 0,
    keep: Keep = computed_anew,
) -> Verification:
    """Compare `outputs` with float64 attention: "o", or where `do` is given its gradients "dq", "dk" and "dv".

    `q`, `do`, "o" and "dq" are [batch, heads, seq_q, head_dim], the others [batch, kv_heads, seq_k, head_dim]; query
    head h uses key head h // (heads / kv_heads), query i sees keys ≤ i + seq_k − seq_q where causal, and scores are
    scaled by 1/√head_dim. All hold values as rounded to `dtype`, of random sign, in any numpy type that can, or are
    torch tensors, which are compared on their device. A NaN or infinity fails wherever it stands; limits per element
    are those of `attention_reference`, the norm of all errors may be a quarter of that of the limits, and no mistaken
    mask (`mask_errors`) may explain the errors of "o".

    Up to `pair_budget` pairs of query and key every element is compared. Above it:

    * the first, the last and a random group of heads that share a key head are compared in full, as many as half the
      budget allows;
    * of every head the first query, the last and one in each of as many equal spans as the other half allows are
      compared, at least 4 in all: a block of wrong queries two spans long cannot hide;
    * every group's gradients must satisfy Σⱼ dVⱼ = Σᵢ dOᵢ, as probabilities sum to one, and Qᵀ·dQ = dKᵀ·K, both
      being scale·Σᵢⱼ dSᵢⱼ Qᵢ⊗Kⱼ: head_dim and head_dim² numbers in which every element of dK and dV takes part.

    The budget is `PAIR_BUDGET`, or for tensors `DEVICE_PAIR_BUDGET`, if none is given. What depends on the operands
    alone goes through `keep`, which may hold it from an earlier call.

    Raises ValueError if shapes do not fit together or an operand is not finite.
    """
    case = _Case(outputs, q, k, v, do, causal, dtype, keep)
    if pair_budget is None:
        pair_budget = PAIR_BUDGET if isinstance(q, np.ndarray) else DEVICE_PAIR_BUDGET
    weight = _BACKWARD_COST if do is not None else 1
    full = case.pairs * q.shape[0] * q.shape[1] * weight <= pair_budget
    method: Method = "full" if full else "sampled"
    for name, out in outputs.items():
        at = first_not_finite(out)
        if at is not None:
            found = f"{named(name, at)} is {float(out[at])}"
            return Verification(False, method, np.inf, 0.0, np.inf, at, found)

    generator = np.random.default_rng(seed)
    groups = [(b, h) for b in range(k.shape[0]) for h in range(k.shape[1])]
    every_query = np.arange(case.queries)
    full_groups, samples = groups, case.queries
    if not full:
        affordable = int(pair_budget / 2 / (case.pairs * case.group * weight))
        some = (groups[0], groups[-1], groups[int(generator.integers(len(groups)))])
        full_groups = list(dict.fromkeys(some))[:affordable]
        pairs_of_a_sample = case.keys * q.shape[0] * q.shape[1] * weight
        samples = max(_FEWEST_SAMPLES, int(pair_budget / 2 / pairs_of_a_sample))
    for group in groups:
        in_full = group in full_groups
        case.check(group, every_query if in_full else _spread_over(case.queries, samples, generator), in_full)
        if not full:
            case.check_identities(group)
    return case.verdict(method)


class _Comparison(ElementComparison):
    def compare(self, out: Array, reference: Array, limit: Array, place: ExecutionContext) -> Array:
        wide_limit = as_float64(limit)
        self.squared_limit += inner_product(wide_limit, wide_limit)
        return super().compare(out, reference, wide_limit, place)

    @property
    def norm_limit(self) -> float:
        """A quarter of what the limits per element add up to: their width is for the worst of many elements."""
        return math.sqrt(self.squared_limit / self.squared_reference) / 4 if self.squared_reference else 0.0


class _Case:
    """One verification: operands, where each query's keys end, and what was found so far."""

    def __init__(
        self,
        outputs: Mapping[str, Array],
        q: Array,
        k: Array,
        v: Array,
        do: Array | None,
        causal: bool,
        dtype: str,
        keep: Keep,
    ) -> None:
        batch, heads, self.queries, head_dim = q.shape
        _, key_heads, self.keys, _ = k.shape
        names = ("o",) if do is None else ("dq", "dk", "dv")
        shapes = {"k": k.shape, "v": k.shape, "do": q.shape, "o": q.shape, "dq": q.shape, "dk": k.shape, "dv": k.shape}
        arrays = dict(outputs) | {"q": q, "k": k, "v": v} | ({} if do is None else {"do": do})
        fits = k.shape == (batch, key_heads, self.keys, head_dim) and heads % key_heads == 0
        unlike = [name for name, array in arrays.items() if array.shape != shapes.get(name, q.shape)]
        if unlike or not fits or set(outputs) != set(names):
            found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ValueError(f"shapes of {', '.join(names)} and their operands do not fit together: {found}")
        for name in arrays.keys() - outputs.keys():
            if first_not_finite(arrays[name]) is not None:
                raise ValueError(f"operand {name} holds a NaN or an infinity: there is nothing to compare with")
        self._outputs, self._q, self._k, self._v, self._do, self._keep = outputs, q, k, v, do, keep
        self.group = heads // key_heads
        self._scale = float(1 / np.sqrt(head_dim))
        # End of the keys of query i: all of them, or those up to i + keys − queries.
        first = self.keys - self.queries + 1 if causal else self.keys
        self._visible = first + np.arange(self.queries) * causal
        self.pairs = int(self._visible.sum())
        self._roundings = Roundings.of(dtype, head_dim, max(self.keys, self.queries * self.group))
        self._comparisons = {name: _Comparison(name) for name in names}
        self._mask = MaskErrors()
        self._broken_identities: list[str] = []

    def check(self, group: tuple[int, int], queries: Array, in_full: bool) -> None:
        """Compare these queries of the heads that share a key head; `in_full`, being all, their dK and dV too."""
        batch, key_head = group
        which = "all queries" if in_full else f"{len(queries)} queries"
        expected = self._keep(
            f"{which} of batch {batch}, key head {key_head}", partial(self._expected, group, queries, in_full)
        )
        name = "o" if self._do is None else "dq"
        for position, at in enumerate(self._heads_of(group)):
            reference, limit = expected[name][position], expected[f"{name}_limit"][position]
            error = self._comparisons[name].compare(
                self._outputs[name][at][queries], reference, limit, partial(_place_in, at, queries)
            )
            if self._do is None:
                visible = self._visible[queries]
                self._mask.add(error, reference, limit, expected["mask"][position], visible, self._v[group])
        for name in ("dk", "dv") if in_full and self._do is not None else ():
            reference, limit = expected[name], expected[f"{name}_limit"]
            self._comparisons[name].compare(
                self._outputs[name][group], reference, limit, lambda *place: (*group, *place)
            )

    def _heads_of(self, group: tuple[int, int]) -> list[tuple[int, int]]:
        batch, key_head = group
        return [(batch, head) for head in range(key_head * self.group, (key_head + 1) * self.group)]

    def _expected(self, group: tuple[int, int], queries: Array, in_full: bool) -> dict[str, Array]:
        """References and limits of `check`: [head of the group, query, head_dim], of dK and dV [key, head_dim]."""
        module = module_of(self._q)
        head = KeyHead.of(self._k[group], self._v[group])
        of_keys = KeyGradients(head, self._scale) if in_full and self._do is not None else None
        panels: dict[str, list[Array]] = {}
        for at in self._heads_of(group):
            of_head: dict[str, list[Array]] = {}
            for rows in self._panels(queries):
                visible = self._visible[rows]
                panel = attend(self._q[at][rows], visible, head, self._scale, self._roundings)
                if self._do is None:
                    parts = {"o": panel.o, "o_limit": as_float32(panel.o_limit)}
                    parts["mask"] = mask_weights(panel, visible, head, self._scale).T
                else:
                    gradients = differentiate(panel, self._do[at][rows], head, self._roundings)
                    dq, limit = gradients.of_queries(head, self._scale, self._roundings)
                    parts = {"dq": dq, "dq_limit": as_float32(limit)}
                    if of_keys is not None:
                        of_keys.add(gradients)
                for name, part in parts.items():
                    of_head.setdefault(name, []).append(part)
            if of_keys is not None:
                of_keys.end_head()
            for name, each in of_head.items():
                panels.setdefault(name, []).append(module.concatenate(each, 0))
        expected: dict[str, Array] = {name: module.stack(each) for name, each in panels.items()}
        if self._do is None:
            expected["mask"] = expected["mask"].swapaxes(1, 2)
        return expected | (of_keys.references(self._roundings) if of_keys is not None else {})

    def _panels(self, queries: Array) -> list[Array]:
        """`queries` in runs whose probabilities stay near the cache."""
        most_pairs = _PANEL_PAIRS if isinstance(self._q, np.ndarray) else _DEVICE_PANEL_PAIRS
        step = max(_FEWEST_QUERIES, most_pairs // self.keys)
        return [queries[begin : begin + step] for begin in range(0, len(queries), step)]

    def check_identities(self, group: tuple[int, int]) -> None:
        """Σⱼ dVⱼ = Σᵢ dOᵢ and Qᵀ·dQ = dKᵀ·K over the heads that share a key head, within their roundings."""
        if self._do is None:
            return
        batch, key_head = group
        heads = slice(key_head * self.group, (key_head + 1) * self.group)
        q, do, dq = (
            as_float64(each[batch, heads].reshape(-1, each.shape[-1]))
            for each in (self._q, self._do, self._outputs["dq"])
        )
        k, dk, dv = (as_float64(each[group]) for each in (self._k, self._outputs["dk"], self._outputs["dv"]))
        unit = _IDENTITY_SAFETY * (self._roundings.unit + self._roundings.score_sum + self._roundings.other_sums)
        for name, left, right, squares in (
            ("Σⱼ dVⱼ = Σᵢ dOᵢ", dv.sum(axis=0), do.sum(axis=0), (dv**2).sum(axis=0)),
            ("Qᵀ·dQ = dKᵀ·K", q.T @ dq, dk.T @ k, (q**2).T @ dq**2 + (dk**2).T @ k**2),
        ):
            limit = unit * squares**0.5 + self._roundings.smallest * len(q) ** 0.5
            ratio = float((abs(left - right) / limit).max())
            if ratio > 1:
                self._broken_identities.append(
                    f"{name} is missed by {ratio:.2g} times its rounding in batch {batch}, key head {key_head}"
                )

    def verdict(self, method: Method) -> Verification:
        compared = [each for each in self._comparisons.values() if each.worst_at]
        worst = max(compared, key=lambda each: each.worst_ratio)
        widest = max(compared, key=lambda each: each.norm / max(each.norm_limit, np.finfo(np.float64).tiny))
        mask = self._mask.explanation()
        faults = [fault for each in compared for fault in each.faults(each.norm_limit)]
        faults += self._broken_identities + ([f"the mask is wrong: {mask}"] if mask else [])
        return verdict(faults, method, widest.norm, widest.norm_limit, worst)


def _place_in(head: tuple[int, int], rows: Sequence[int] | Array, row: int, column: int) -> tuple[int, ...]:
    return (*head, int(rows[row]), column)


def _spread_over(count: int, samples: int, generator: np.random.Generator) -> Array:
    """The first, the last and one in each of up to `samples` equal spans, in order."""
    edges = np.linspace(0, count, min(samples, count) + 1).astype(np.int64)
    return np.unique(np.concatenate((generator.integers(edges[:-1], edges[1:]), [0, count - 1])))


SAFETY = 4.0
_SINGLE = TABLE["float32"].rounding
_EXPONENTIAL_UNITS = 16


@dataclass(frozen=True)
class Roundings:
    """Rounding by dtype, head size and longest sum: u, η, and parts of β and E."""

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
class ScorePanel:
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
    """Gradients of a panel's scores for `do` [queries, head_dim]: dS [queries, keys], and the squares of E."""

    panel: ScorePanel
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

    def add(self, gradients: ScoreGradients) -> None:
        keys, panel = gradients.ds.shape[1], gradients.panel
        q_squares, do_squares = (as_float32(each**2) for each in (panel.q, gradients.do))
        self._of_head["dk"][:keys] += self._scale * (gradients.ds.T @ panel.q)
        self._of_head["dv"][:keys] += panel.p.T @ gradients.do
        self._spread["dk"][:keys] += self._scale**2 * (gradients.error_squares.T @ q_squares)
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


def attend(q: Array, visible: Array, head: KeyHead, scale: float, roundings: Roundings) -> ScorePanel:
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
    return ScorePanel(wide, p, wobble, relative, log_sum_exp, o, roundings.limit(spread, abs(o)))


def differentiate(panel: ScorePanel, do: Array, head: KeyHead, roundings: Roundings) -> ScoreGradients:
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


MISTAKES = (
    "each query misses the first key it should see",
    "each query misses the last key it should see",
    "each query sees one key too many",
)

_LARGEST_WEIGHT = 0.5  # a missing key with more than this weight exceeds the limit per element

# The mistake made has a share of 1 and a right mask one of 0; in between, noise must be as unlikely as this many of
# its standard deviations. Those are a tenth of an element's limit or less: a nineteenth where scores and
# probabilities are rounded to bf16, near a thirtieth where only probabilities are, or in fp32.
_DECISIVE_SHARE = 0.5
_CERTAINTY = 6.0
_DEVIATIONS_IN_LIMIT = 10.0


def mask_weights(panel: ScorePanel, visible: Array, head: KeyHead, scale: float) -> Array:
    """[mistake, query]: how far each mistake moves an output of a panel along the key's value minus the output."""
    module, keys = module_of(panel.q), head.k.shape[0]
    queries, _, last, beyond = (like(at, panel.q) for at in (np.arange(len(visible)), *_keys_at(visible, keys)))
    scores = scale * (panel.q * head.k[beyond]).sum(axis=1)
    added = module.exp(scores - panel.log_sum_exp) * (like(visible, panel.q) < keys)
    weights = module.stack([-panel.p[:, 0], -panel.p[queries, last], added])
    weights *= abs(weights) < _LARGEST_WEIGHT
    # Normalised anew without the key, or with it.
    return as_float64(weights / (1 + weights))


class MaskErrors:
    """The share of each mistake in the errors of all outputs compared."""

    def __init__(self) -> None:
        self._mistake_sums = np.zeros(len(MISTAKES))
        self._size = np.zeros(len(MISTAKES))
        self._noise = np.zeros(len(MISTAKES))

    def add(self, error: Array, o: Array, o_limit: Array, weights: Array, visible: Array, v: Array) -> None:
        """Take in the errors of outputs `o` [queries, head_dim] with their `mask_weights`; `v` is their key head's."""
        for mistake, at in enumerate(_keys_at(visible, v.shape[0])):
            moved = weights[mistake][:, None] * (as_float64(v[like(at, v)]) - o)
            self._mistake_sums[mistake] += inner_product(error, moved)
            self._size[mistake] += inner_product(moved, moved)
            moved *= o_limit
            self._noise[mistake] += inner_product(moved, moved)

    def explanation(self) -> str | None:
        """The mistake that explains the errors; None if no mistake does, or if rounding could pass for it."""
        for mistake, found, size, noise in zip(MISTAKES, self._mistake_sums, self._size, self._noise, strict=True):
            deviation = np.sqrt(noise) / _DEVIATIONS_IN_LIMIT
            if found > _DECISIVE_SHARE * size > _CERTAINTY * deviation:
                return mistake
        return None


def _keys_at(visible: Array, keys: int) -> tuple[Array, Array, Array]:
    """The key that each mistake is about: the first, the last that is seen, the one beyond it."""
    return np.zeros_like(visible), visible - 1, np.minimum(visible, keys - 1)
