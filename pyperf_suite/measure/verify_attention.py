"""Whether attention, or its gradients, are right: small cases to the last element, large ones by samples.

What goes wrong in kernels of attention - a mask by one key, a head, a block - is in every sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import numpy as np

from pyperf_suite.measure.arrays import (
    Array,
    Keep,
    as_float32,
    as_float64,
    computed_anew,
    first_not_finite,
    inner_product,
    largest,
    module_of,
)
from pyperf_suite.measure.attention_reference import KeyGradients, KeyHead, Roundings, attend, differentiate
from pyperf_suite.measure.mask_errors import MaskErrors, mask_weights
from pyperf_suite.measure.verify import Verification

PAIR_BUDGET = 1 << 25
"""Pairs of query and key up to which every element is checked: about a second on two cores."""

DEVICE_PAIR_BUDGET = 1 << 34
"""The same for tensors: a few seconds of a GPU whose float64 is fast."""

# A backward pair costs the reference as much as so many forward ones.
_BACKWARD_COST = 2

# Panels this large stay in a core's cache; fewer queries at a time would leave its matrix products slow.
_PANEL_PAIRS = 1 << 17
_DEVICE_PANEL_PAIRS = 1 << 24
_FEWEST_QUERIES = 16

# Queries of each head that are looked at in the largest cases.
_FEWEST_SAMPLES = 4

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
    method: Literal["full", "sampled"] = "full" if full else "sampled"
    for name, out in outputs.items():
        at = first_not_finite(out)
        if at is not None:
            found = f"{_place(name, at)} is {float(out[at])}"
            return Verification(False, method, np.inf, 0.0, np.inf, at, found)

    generator = np.random.default_rng(seed)
    groups = [(b, h) for b in range(k.shape[0]) for h in range(k.shape[1])]
    every_query = np.arange(case.queries)
    whole, samples = groups, case.queries
    if not full:
        affordable = int(pair_budget / 2 / (case.pairs * case.group * weight))
        some = (groups[0], groups[-1], groups[int(generator.integers(len(groups)))])
        whole = list(dict.fromkeys(some))[:affordable]
        pairs_of_a_sample = case.keys * q.shape[0] * q.shape[1] * weight
        samples = max(_FEWEST_SAMPLES, int(pair_budget / 2 / pairs_of_a_sample))
    for group in groups:
        in_full = group in whole
        case.check(group, every_query if in_full else _spread_over(case.queries, samples, generator), in_full)
        if not full:
            case.check_identities(group)
    return case.verdict(method)


class _Comparison:
    """Errors of one output against their limits: sums of squares for the norm, and the worst element."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.squared_error = self.squared_limit = self.squared_reference = 0.0
        self.worst_ratio = -1.0
        self.worst_at: tuple[int, ...] = ()
        self.worst = ""

    def compare(self, out: Array, reference: Array, limit: Array, group: tuple[int, ...], rows: Array) -> Array:
        """Take in rows of one head, [rows, head_dim]; returns their errors."""
        error = as_float64(out) - reference
        wide_limit = as_float64(limit)
        self.squared_error += inner_product(error, error)
        self.squared_limit += inner_product(wide_limit, wide_limit)
        self.squared_reference += inner_product(reference, reference)
        ratio = abs(error) / wide_limit
        row, column = largest(ratio)
        if float(ratio[row, column]) > self.worst_ratio:
            self.worst_ratio = float(ratio[row, column])
            self.worst_at = (*group, int(rows[row]), column)
            right = f"{float(reference[row, column]):.6g} ± {float(limit[row, column]):.1g}"
            self.worst = f"{_place(self.name, self.worst_at)} is {float(out[row, column]):.6g} where {right} is right"
        return error

    @property
    def norm(self) -> float:
        """‖error‖/‖reference‖; zero for a reference of zeros, whose limit per element is all there is."""
        return float(np.sqrt(self.squared_error / self.squared_reference)) if self.squared_reference > 0 else 0.0

    @property
    def norm_limit(self) -> float:
        """A quarter of what the limits per element add up to: their width is for the worst of many elements."""
        if self.squared_reference == 0:
            return 0.0
        return float(np.sqrt(self.squared_limit / self.squared_reference)) / 4

    def faults(self) -> list[str]:
        """What is wrong, as parts of a sentence."""
        norms = f"the relative norm of the error of {self.name} is {self.norm:.2g} where {self.norm_limit:.2g} is right"
        return [self.worst] * (self.worst_ratio > 1) + [norms] * (self.norm > self.norm_limit)


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
        given = dict(outputs) | {"q": q, "k": k, "v": v} | ({} if do is None else {"do": do})
        fits = k.shape == (batch, key_heads, self.keys, head_dim) and heads % key_heads == 0
        unlike = [name for name, array in given.items() if array.shape != shapes.get(name, q.shape)]
        if unlike or not fits or set(outputs) != set(names):
            found = ", ".join(f"{name} {array.shape}" for name, array in given.items())
            raise ValueError(f"shapes of {', '.join(names)} and their operands do not fit together: {found}")
        for name in given.keys() - outputs.keys():
            if first_not_finite(given[name]) is not None:
                raise ValueError(f"operand {name} holds a NaN or an infinity: there is nothing to compare with")
        self._outputs, self._q, self._k, self._v, self._do, self._keep = outputs, q, k, v, do, keep
        self.group = heads // key_heads
        self._scale = float(1 / np.sqrt(head_dim))
        # Where query i's keys end: all are seen, or those up to i + keys − queries.
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
            error = self._comparisons[name].compare(self._outputs[name][at][queries], reference, limit, at, queries)
            if self._do is None:
                visible = self._visible[queries]
                self._mask.add(error, reference, limit, expected["mask"][position], visible, self._v[group])
        for name in ("dk", "dv") if in_full and self._do is not None else ():
            reference, limit = expected[name], expected[f"{name}_limit"]
            self._comparisons[name].compare(self._outputs[name][group], reference, limit, group, np.arange(self.keys))

    def _heads_of(self, group: tuple[int, int]) -> list[tuple[int, int]]:
        """The query heads that share a key head."""
        batch, key_head = group
        return [(batch, head) for head in range(key_head * self.group, (key_head + 1) * self.group)]

    def _expected(self, group: tuple[int, int], queries: Array, in_full: bool) -> dict[str, Array]:
        """References and limits of `check`: [head of the group, query, head_dim], of dK and dV [key, head_dim]."""
        module = module_of(self._q)
        head = KeyHead.of(self._k[group], self._v[group])
        of_keys = KeyGradients(head, self._scale) if in_full and self._do is not None else None
        found: dict[str, list[Array]] = {}
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
                found.setdefault(name, []).append(module.concatenate(each, 0))
        expected: dict[str, Array] = {name: module.stack(each) for name, each in found.items()}
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

    def verdict(self, method: Literal["full", "sampled"]) -> Verification:
        """Judge what was gathered."""
        compared = [each for each in self._comparisons.values() if each.worst_at]
        worst = max(compared, key=lambda each: each.worst_ratio)
        widest = max(compared, key=lambda each: each.norm / max(each.norm_limit, np.finfo(np.float64).tiny))
        mask = self._mask.explanation()
        faults = [fault for each in compared for fault in each.faults()]
        faults += self._broken_identities + ([f"the mask is wrong: {mask}"] if mask else [])
        element = f"worst element at {worst.worst_ratio:.2g} of its limit"
        right = f"correct ({method}): relative norm {widest.norm:.2g}, {element}"
        return Verification(
            not faults,
            method,
            widest.norm,
            widest.norm_limit,
            worst.worst_ratio,
            worst.worst_at,
            "; ".join(faults) or right,
        )


def _spread_over(count: int, samples: int, generator: np.random.Generator) -> Array:
    """The first, the last and one in each of up to `samples` equal spans, in order."""
    edges = np.linspace(0, count, min(samples, count) + 1).astype(np.int64)
    return np.unique(np.concatenate((generator.integers(edges[:-1], edges[1:]), [0, count - 1])))


def _place(name: str, at: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, at))}]"
