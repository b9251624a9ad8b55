"""Which neighbours of a model train faster for the work they do, beyond what the laws may err.

Candidates within bounds are thinned to a Pareto list of time, parameters and memory; what cannot be told from the
present model is not proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.sizing.candidates import Bounds, Candidates, neighbours, shapes_of
from pyperf_suite.advise.sizing.costs import Costs, costs_of
from pyperf_suite.advise.sizing.prices import NORMAL_QUANTILE, Prices
from pyperf_suite.advise.sizing.setting import Setting

Array = NDArray[np.float64]

# Two measurements of the same product on the same GPU differ by this much (aiconfigurator's tables, median).
REPEATABILITY = 0.01
# What one more changed dimension has to earn before it is worth changing.
LEAST_EARNED = 0.005
# Two candidates closer than this in parameters, or in memory, are one choice.
PARAMETER_TOLERANCE, MEMORY_TOLERANCE = 0.002, 0.03
MOST_LISTED = 8


@dataclass(frozen=True)
class Candidate:
    """A setting beside the present one.

    `time_ratio` is GPU-time a token over the present one's, `speed` how many times the present rate it does its own
    work at (FLOP/s of the model, padding not counted), between `low` and `high` in nine cases of ten. `changes` names
    dimensions with their sizes before and after.
    """

    setting: Setting
    cost_s: float
    time_ratio: float
    speed: float
    low: float
    high: float
    parameters: int
    parameter_change: float
    memory_bytes: float
    extrapolated: bool
    changes: tuple[tuple[str, int, int], ...]

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.cost_s * self.setting.tokens / self.setting.tp

    @property
    def is_faster(self) -> bool:
        """Beyond what the laws may err, and measurements repeat."""
        return self.low > 1 and self.speed > 1 + REPEATABILITY

    @property
    def is_slower(self) -> bool:
        """Beyond what the laws may err, and measurements repeat."""
        return self.high < 1 and self.speed < 1 - REPEATABILITY


@dataclass(frozen=True)
class Search:
    """What was found among `priced` candidates, of which `within` kept to the bounds and `faster` beat the noise.

    `alone` has for each dimension the best candidate that changes it alone; `pareto` the best together, the one that
    takes the least time first. `memory_limit_bytes` is what candidates were held to.
    """

    present: Candidate
    bounds: Bounds
    alone: dict[str, Candidate]
    pareto: tuple[Candidate, ...]
    priced: int
    within: int
    faster: int
    memory_limit_bytes: float


def search(setting: Setting, bounds: Bounds, prices: Prices) -> Search:
    """Price the neighbours of a setting and pick those worth telling."""
    candidates = neighbours(setting, bounds)
    grid = _Flat.of(candidates, costs_of(candidates.shapes, setting, prices))
    here = float(grid.memory_bytes[0])
    # Where the model as asked does not fit, what its parameters may grow by: a padded vocabulary fits no worse.
    limit = bounds.memory_bytes if here <= bounds.memory_bytes else here * (1 + bounds.parameter_change)
    allowed = (np.abs(grid.parameters - 1) <= bounds.parameter_change) & (grid.memory_bytes <= limit)
    within = np.flatnonzero(allowed & np.broadcast_to(candidates.trainable, candidates.shape).ravel())
    noise = np.maximum(NORMAL_QUANTILE * grid.deviation[within], np.log(1 + REPEATABILITY))
    faster = within[np.log(grid.speed[within]) > noise]
    singles = {name: np.intersect1d(where, within) for name, where in _single_changes(candidates).items()}
    alone = {name: _fastest(grid, among) for name, among in singles.items() if len(among)}
    chosen = sorted(_pareto(candidates, grid, faster), key=lambda index: -grid.speed[index])[:MOST_LISTED]
    present, *told = judged([candidates.at(index) for index in (0, *alone.values(), *chosen)], prices)
    return Search(
        present,
        bounds,
        dict(zip(alone, told, strict=False)),
        tuple(sorted(told[len(alone) :], key=lambda candidate: candidate.time_ratio)),
        len(candidates),
        len(within),
        len(faster),
        limit,
    )


def judged(settings: Sequence[Setting], prices: Prices) -> list[Candidate]:
    """Each setting beside the first one, which is the present."""
    costs = costs_of(shapes_of(settings), settings[0], prices)
    shape = (len(settings),)
    cost, flop, deviation, parameters, memory = (
        np.broadcast_to(array, shape)
        for array in (costs.cost_s, costs.flop, costs.deviation, costs.parameters, costs.memory_bytes)
    )
    extrapolated = np.broadcast_to(costs.extrapolated, shape)
    speed = (flop / cost) / (flop[0] / cost[0])
    margin = np.exp(NORMAL_QUANTILE * deviation)
    return [
        Candidate(
            settings[n],
            float(cost[n]),
            float(cost[n] / cost[0]),
            float(speed[n]),
            float(speed[n] / margin[n]),
            float(speed[n] * margin[n]),
            int(parameters[n]),
            float(parameters[n] / parameters[0] - 1),
            float(memory[n]),
            bool(extrapolated[n]),
            changes(settings[0], settings[n]),
        )
        for n in range(len(settings))
    ]


def changes(present: Setting, other: Setting) -> tuple[tuple[str, int, int], ...]:
    """Which dimensions differ, with their sizes before and after; what only follows others is not named."""
    names = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "expert_ffn", "vocab", "layers")
    pairs = [(name, getattr(present.model, name), getattr(other.model, name)) for name in names]
    models = (present.model, other.model)
    follows = {
        "expert_ffn": all(model.expert_ffn == model.ffn for model in models),
        "kv_heads": all(model.kv_heads == model.heads for model in models),
    }
    pairs = [pair for pair in pairs if not follows.get(pair[0])]
    pairs += [(name, getattr(present, name), getattr(other, name)) for name in ("micro_batch", "tp")]
    return tuple(pair for pair in pairs if pair[1] != pair[2])


@dataclass(frozen=True)
class _Flat:
    """The costs of all candidates, one entry each; `speed` and `parameters` over the present model's."""

    cost_s: Array
    speed: Array
    deviation: Array
    parameters: Array
    memory_bytes: Array

    @classmethod
    def of(cls, candidates: Candidates, costs: Costs) -> _Flat:
        rate = costs.flop / costs.cost_s
        parameters = costs.parameters / costs.parameters.flat[0]
        arrays = (costs.cost_s, rate / rate.flat[0], costs.deviation, parameters, costs.memory_bytes)
        return cls(*(np.broadcast_to(array, candidates.shape).ravel() for array in arrays))


def _fastest(grid: _Flat, among: NDArray[np.int64]) -> int:
    return int(among[np.argmax(grid.speed[among])])


def _pareto(candidates: Candidates, grid: _Flat, among: NDArray[np.int64]) -> list[int]:
    """Candidates that no other beats in time, parameters and memory at once, near ones counted as one choice.

    More parameters count as better: what is bought with time and memory is a model.
    """
    places = np.unravel_index(among, candidates.shape)
    changed = np.sum([place > 0 for place in places], axis=0)
    time = grid.cost_s[among] * (1 + LEAST_EARNED * changed)
    parameters, memory = grid.parameters[among], np.log(grid.memory_bytes[among])
    # First the best of each cell of parameters and memory, so that what remains can be compared with each other.
    cell = np.round(parameters / PARAMETER_TOLERANCE) * 1e6 + np.round(memory / MEMORY_TOLERANCE)
    order = np.lexsort((time, cell))
    first = order[np.flatnonzero(np.diff(cell[order], prepend=-np.inf))]
    kept: list[int] = []
    for place in first[np.argsort(time[first], kind="stable")]:
        more_parameters = parameters[place] > parameters[kept] + PARAMETER_TOLERANCE
        less_memory = memory[place] < memory[kept] - MEMORY_TOLERANCE
        if np.all(more_parameters | less_memory):
            kept.append(int(place))
    return [int(among[place]) for place in kept]


def _single_changes(candidates: Candidates) -> dict[str, NDArray[np.int64]]:
    """For each dimension the flat indices of candidates that change nothing else.

    What follows from it may change: head_dim with the number of heads, heads with hidden, key-value heads with heads.
    """
    attention = candidates.attention
    hidden, heads, kv_heads, head_dim = (attention == attention[0]).T
    shared = bool(attention[0, 1] != attention[0, 2])
    rows = {
        "hidden": ~hidden & head_dim & (kv_heads if shared else True),
        "heads": hidden & ~heads & (kv_heads if shared else True),
        "kv_heads": hidden & heads & ~kv_heads,
    }
    stride = int(np.prod(candidates.shape[1:], dtype=np.int64))
    found = {name: np.flatnonzero(where) * stride for name, where in rows.items()}
    for name, sizes in candidates.others.items():
        stride //= len(sizes)
        found[name] = np.arange(1, len(sizes)) * stride
    return found
