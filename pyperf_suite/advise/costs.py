"""What a token costs to train with each candidate: time, its uncertainty beside the present model, memory, parameters.

All are arrays over the grid; each part of the work is added up over the axes that it depends on before it meets others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.candidates import Shapes, shapes_of
from pyperf_suite.advise.prices import Part, Priced, Prices, price
from pyperf_suite.advise.setting import Setting
from pyperf_suite.advise.step import parts_of
from pyperf_suite.laws.transformer import attention_call, products

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """Arrays that broadcast to the shape of the candidates.

    `cost_s` is GPU-seconds a token: the time of a micro-batch times the GPUs that share it, over its tokens. `flop` is
    the model's own work a token, padding of the vocabulary not counted. `deviation` is the standard deviation of the
    logarithm of cost over the present model's: parts with equal shapes err alike and cancel, others err independently.
    """

    cost_s: Array
    flop: Array
    deviation: Array
    parameters: Array
    memory_bytes: Array
    extrapolated: NDArray[np.bool_]


def costs_of(shapes: Shapes, present: Setting, prices: Prices) -> Costs:
    """Price every candidate, and how surely it differs from the present model."""
    parts, here = parts_of(shapes), parts_of(shapes_of([present]))
    # Both at once, so that what they share is asked for once.
    priced = price([*parts, *here], prices)
    alike = {part.name: (part, its) for part, its in zip(here, priced[len(parts) :], strict=True)}
    scale = np.asarray(shapes.tp) / np.asarray(shapes.tokens)
    scale_here = present.tp / present.tokens
    times, squares, shared = [], [], []
    for part, its in zip(parts, priced, strict=False):
        spent = its.seconds * part.calls * scale
        times.append(spent)
        squares.append((its.deviation * spent) ** 2)
        if part.name in alike:
            part_here, its_here = alike[part.name]
            spent_here = float((its_here.seconds * part_here.calls * scale_here).item())
            shared.append(_same_sizes(part, part_here) * its.deviation**2 * spent * spent_here)
    spent_here = [(its.seconds * part.calls * scale_here).item() for part, its in alike.values()]
    cost_here = sum(spent_here)
    square_here = sum((its.deviation * spent) ** 2 for (_, its), spent in zip(alike.values(), spent_here, strict=True))
    cost = added_up(times)
    # Var(log(a/b)) of sums a and b of parts with relative errors e: Σe²a²/A² + Σe²b²/B² - 2 Σ_same e²ab/(AB).
    variance = added_up(squares) / cost**2 + square_here / cost_here**2 - 2 * added_up(shared) / (cost * cost_here)
    return Costs(
        cost,
        _flop_per_token(shapes, present.model.vocab),
        np.sqrt(np.maximum(variance, 0.0)),
        np.asarray(shapes.model.parameters, dtype=np.float64),
        memory_bytes(shapes),
        _any_of(its.extrapolated for its in priced),
    )


def memory_bytes(shapes: Shapes) -> Array:
    """Bytes on each GPU: 18 a parameter, shared by the group and its shards, and the activations of a micro-batch.

    18 bytes are weights in 16 and 32 bits, gradients and both moments of AdamW. Activations are
    s·b·h·(10 + 24/t) bytes a layer with attention that keeps no scores (Korthikanti et al. 2022, table 2).
    """
    model, tp = shapes.model, np.asarray(shapes.tp, dtype=np.float64)
    states = 18.0 * np.asarray(model.parameters) / (tp * shapes.shards)
    stream = np.asarray(shapes.tokens, dtype=np.float64) * model.hidden * model.layers
    return np.asarray(states + stream * (10 + 24 / tp))


def added_up(arrays: Iterable[Array]) -> Array:
    """The sum of arrays that broadcast together, those of equal shape first: few additions are of the whole grid."""
    by_shape: dict[tuple[int, ...], Array] = {}
    for array in arrays:
        shape = np.shape(array)
        by_shape[shape] = by_shape[shape] + array if shape in by_shape else array
    total: Any = 0.0
    for array in sorted(by_shape.values(), key=np.size):
        total = total + array
    return np.asarray(total)


def _same_sizes(part: Part, other: Part) -> NDArray[np.bool_]:
    same: Any = np.True_
    for size, size_here in zip(part.sizes, other.sizes, strict=True):
        same = same & (np.asarray(size) == np.asarray(size_here).item())
    return np.asarray(same)


def _flop_per_token(shapes: Shapes, vocab: int) -> Array:
    """Of all GPUs of a group together, forward and backward; the vocabulary counted as it is before any padding."""
    model = shapes.model
    per_token = np.asarray(shapes.tp) / np.asarray(shapes.tokens)
    of_products = [
        product.flop * per_token * (vocab / np.asarray(model.vocab) if product.part == "logits" else 1.0)
        for product in products(model, shapes.tokens, shapes.sharding)
    ]
    attention = attention_call(model, shapes.micro_batch, shapes.seq, shapes.sharding)
    return added_up([*of_products, (attention.flop() + attention.flop(backward=True)) * per_token])


def _any_of(arrays: Iterable[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Logical or of arrays that broadcast together, those of equal shape first."""
    by_shape: dict[tuple[int, ...], NDArray[np.bool_]] = {}
    for array in arrays:
        by_shape[array.shape] = by_shape[array.shape] | array if array.shape in by_shape else array
    found: Any = np.False_
    for array in sorted(by_shape.values(), key=np.size):
        found = found | array
    return np.asarray(found)
