"""What a token costs to train with each candidate: time, its uncertainty beside the present model, memory, parameters.

All are arrays over the grid; each part of the work is added up over the axes that it depends on before it meets others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.sizing.candidates import Shapes, shapes_of
from pyperf_suite.advise.sizing.prices import Part, Prices, price
from pyperf_suite.advise.sizing.setting import Setting
from pyperf_suite.advise.sizing.step import parts_of
from pyperf_suite.laws.training.memory import training_memory
from pyperf_suite.laws.transformer import model_flop

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
    spent_here = {name: float(np.squeeze(its.seconds * part.calls)) * scale_here for name, (part, its) in alike.items()}
    times, squares, shared = [], [], []
    for part, its in zip(parts, priced, strict=False):
        spent = its.seconds * part.calls * scale
        times.append(spent)
        squares.append((its.deviation * spent) ** 2)
        if part.name in alike:
            same = _same_sizes(part, alike[part.name][0])
            shared.append(same * its.deviation**2 * spent * spent_here[part.name])
    cost_here = sum(spent_here.values())
    square_here = sum((its.deviation * spent_here[name]) ** 2 for name, (_, its) in alike.items())
    cost = added_up(times)
    # Var(log(a/b)) of sums a and b of parts with relative errors e: Σe²a²/A² + Σe²b²/B² - 2 Σ_same e²ab/(AB).
    variance = added_up(squares) / cost**2 + square_here / cost_here**2 - 2 * added_up(shared) / (cost * cost_here)
    return Costs(
        cost,
        np.asarray(model_flop(replace(shapes.model, vocab=present.model.vocab), 1, shapes.seq) / shapes.seq),
        np.sqrt(np.maximum(variance, 0.0)),
        np.asarray(shapes.model.parameters, dtype=np.float64),
        memory_bytes(shapes),
        _any_of(its.extrapolated for its in priced),
    )


def memory_bytes(shapes: Shapes) -> Array:
    """Bytes on each GPU; weights, gradients and optimizer state are cut over the shards too (ZeRO stage 3)."""
    need = training_memory(
        shapes.model, shapes.micro_batch, shapes.seq, shapes.sharding, data_ranks=shapes.shards, zero_stage=3
    )
    return np.asarray(need.total, dtype=np.float64)


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


def _any_of(arrays: Iterable[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Logical or of arrays that broadcast together, those of equal shape first."""
    by_shape: dict[tuple[int, ...], NDArray[np.bool_]] = {}
    for array in arrays:
        by_shape[array.shape] = by_shape[array.shape] | array if array.shape in by_shape else array
    found: Any = np.False_
    for array in sorted(by_shape.values(), key=np.size):
        found = found | array
    return np.asarray(found)
