"""Which neighbours of a model train faster for the work they do, by more than the laws' error.

Neighbours are all combinations of nearby dimensions, along the axes of a grid that broadcasts: a million of them are a
handful of short arrays. Those within bounds are thinned to a Pareto list of time, parameters and memory.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError, offer
from pyperf_suite.laws.tiling import round_up
from pyperf_suite.laws.training.memory import LAST_STAGE
from pyperf_suite.laws.transformer import ModelDimensions, model_flop
from pyperf_suite.planner.laws.explained import KernelPrices
from pyperf_suite.planner.laws.training.layer_work import KernelCall
from pyperf_suite.planner.laws.training.memory import training_memory
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.sizing.step import (
    ModelGrid,
    Setting,
    grid_of,
    parts_of,
    plan_of,
    price,
    resized,
    width_of_mlp,
)

Floats = NDArray[np.float64]

AXES = ("hidden", "heads", "kv_heads", "ffn", "vocab", "layers", "micro_batch", "tp")
ATTENTION = ("hidden", "heads", "kv_heads", "head_dim")
# What attention kernels are built for; a model's own head_dim is kept as well.
HEAD_DIMS = (64, 96, 128, 192, 256)
# Steps of a width: what tensor cores and TMA like, coarser for a model so wide that fine ones say nothing new.
WIDTH_STEP = 64
MOST_WIDTHS = 33
MOST_CANDIDATES = 2_000_000
# Two measurements of the same product on the same GPU differ by this much (aiconfigurator's tables, median).
REPEATABILITY = 0.01
# What one more changed dimension has to earn before it is worth changing.
LEAST_EARNED = 0.005
# Two candidates closer than this in parameters, or in memory, are one choice.
PARAMETER_TOLERANCE, MEMORY_TOLERANCE = 0.002, 0.03
MOST_LISTED = 8
ROUNDING = 1e-14


@dataclass(frozen=True)
class Bounds:
    """How far candidates may be from the model, as shares of its own figures.

    `reach` is for each width and the number of layers, `parameter_change` for the parameters in all. Only the axes in
    `vary` move. `memory_bytes` is what one GPU has. Raises UserError for an unknown axis.
    """

    vary: tuple[str, ...] = AXES
    parameter_change: float = 0.02
    reach: float = 0.15
    memory_bytes: float = float("inf")

    def __post_init__(self) -> None:
        if unknown := set(self.vary) - set(AXES):
            raise UserError(f"Candidates cannot vary in {min(unknown)!r}: {offer(min(unknown), AXES)}")


@dataclass(frozen=True)
class Candidates:
    """All combinations of `attention` (hidden, heads, kv_heads, head_dim) and of the other axes.

    The first entry of each axis is the present one, so candidate 0 is the model as given. A flat index counts through
    the grid in C order.
    """

    setting: Setting
    attention: NDArray[np.int64]
    others: Mapping[str, NDArray[np.int64]]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.attention), *map(len, self.others.values()))

    def __len__(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @functools.cached_property
    def grid(self) -> tuple[ModelGrid, ParallelPlan]:
        """Models and plans, each axis along its own dimension."""
        columns = dict(zip(ATTENTION, np.ascontiguousarray(self.attention.T), strict=True))
        axes = [0] * len(ATTENTION) + list(range(1, len(self.shape)))
        sizes = {
            name: column.reshape([-1 if axis == place else 1 for axis in range(len(self.shape))])
            for place, (name, column) in zip(axes, {**columns, **self.others}.items(), strict=True)
        }
        micro_batch, tp = sizes.pop("micro_batch"), sizes.pop("tp")
        present = self.setting
        plan = plan_of(micro_batch, present.seq, tp, present.shards, present.dtype)
        return ModelGrid.around(present.model, **sizes), plan

    @functools.cached_property
    def trainable(self) -> NDArray[np.bool_]:
        """Where there is such a model and its GPUs can share the layers; broadcasts to the grid."""
        model, plan = self.grid
        return np.asarray(model.valid & plan.divides(model))

    def at(self, index: int) -> Setting:
        places = np.unravel_index(index, self.shape)
        sizes = dict(zip(ATTENTION, self.attention[places[0]].tolist(), strict=True))
        sizes |= {name: int(along[at]) for (name, along), at in zip(self.others.items(), places[1:], strict=True)}
        micro_batch, tp = sizes.pop("micro_batch"), sizes.pop("tp")
        # All sizes are named, for what follows from a changed one may not follow as it did before.
        same = all(getattr(self.setting.model, name) == size for name, size in sizes.items())
        model = self.setting.model if same else resized(self.setting.model, **sizes)
        return replace(self.setting, model=model, micro_batch=micro_batch, tp=tp)


def neighbours(setting: Setting, bounds: Bounds) -> Candidates:
    """Every candidate within the bounds' reach; the search judges parameters and memory.

    More than `MOST_CANDIDATES` are avoided by coarser steps of widths.
    """
    model = setting.model
    width = width_of_mlp(model)

    def axis(name: str, present: int, sizes: Sequence[int]) -> NDArray[np.int64]:
        return np.array(list(dict.fromkeys([present, *(sizes if name in bounds.vary else [])])), dtype=np.int64)

    for most in (MOST_WIDTHS, MOST_WIDTHS // 2, MOST_WIDTHS // 4, MOST_WIDTHS // 8):
        candidates = Candidates(
            setting,
            np.array(_attention_shapes(setting, bounds, most), dtype=np.int64),
            {
                width: axis("ffn", getattr(model, width), _widths(getattr(model, width), bounds, most)),
                # A vocabulary can be padded, never cut.
                "vocab": axis(
                    "vocab", model.vocab, [round_up(model.vocab, 8 << power) for power in (0, 3, 4, 5, 6, 7)]
                ),
                "layers": axis("layers", model.layers, _layers(model, bounds)),
                "micro_batch": axis("micro_batch", setting.micro_batch, _doublings(setting.micro_batch, 2)),
                "tp": axis("tp", setting.tp, _doublings(setting.tp, 1) if setting.tp > 1 else []),
            },
        )
        if len(candidates) <= MOST_CANDIDATES:
            break
    return candidates


def _attention_shapes(setting: Setting, bounds: Bounds, most: int) -> list[tuple[int, int, int, int]]:
    """(hidden, heads, kv_heads, head_dim), the present ones first; heads keep filling hidden where they did."""
    model = setting.model
    head_dims = {model.head_dim}
    if "heads" in bounds.vary and not model.latent_rank:  # a latent's ranks only make sense together
        head_dims |= set(HEAD_DIMS)
    hiddens = [model.hidden, *(_widths(model.hidden, bounds, most) if "hidden" in bounds.vary else [])]
    fills = model.heads * model.head_dim == model.hidden
    found = [(model.hidden, model.heads, model.kv_heads, model.head_dim)]
    for hidden, head_dim in itertools.product(dict.fromkeys(hiddens), sorted(head_dims)):
        # Where heads do not fill hidden, as many queries in all are kept.
        queries = hidden if fills else model.heads * model.head_dim
        if queries % head_dim or ("heads" not in bounds.vary and queries // head_dim != model.heads):
            continue
        heads = queries // head_dim
        found += [(hidden, heads, shared, head_dim) for shared in _kv_heads(model, heads, "kv_heads" in bounds.vary)]
    return list(dict.fromkeys(found))


def _kv_heads(model: ModelDimensions, heads: int, varied: bool) -> list[int]:
    """As many as heads where it was so; else the present number and, where that may vary, half and twice of it."""
    if model.kv_heads == model.heads:
        return [heads]
    wanted = [model.kv_heads, *([model.kv_heads // 2, 2 * model.kv_heads] if varied else [])]
    return [kv_heads for kv_heads in wanted if 1 <= kv_heads < heads and heads % kv_heads == 0]


def _widths(size: int, bounds: Bounds, most: int) -> list[int]:
    """Multiples of a power of two, at least `WIDTH_STEP`, within reach; at most about `most` of them."""
    step = WIDTH_STEP
    while 2 * bounds.reach * size / step > most:
        step *= 2
    first = round_up(max(1, int(np.ceil(size * (1 - bounds.reach)))), step)
    return list(range(first, int(size * (1 + bounds.reach)) + 1, step))


def _layers(model: ModelDimensions, bounds: Bounds) -> list[int]:
    most = int(min(2, max(1, model.layers * bounds.reach)))
    fewest = max(1, model.dense_layers + (model.experts > 1))
    around = (layers for change in range(1, most + 1) for layers in (model.layers - change, model.layers + change))
    return [layers for layers in around if layers >= fewest]


def _doublings(size: int, up: int) -> list[int]:
    """Half of it where that is whole, and so many doublings."""
    return [*([size // 2] if size % 2 == 0 else []), *(size << power for power in range(1, up + 1))]


@dataclass(frozen=True)
class Costs:
    """The cost of each candidate, as arrays that broadcast to the candidates' shape.

    `cost_s` is GPU-seconds a token: the time of a micro-batch times the GPUs that share it, over its tokens. `flop` is
    the model's own work a token, without the padding of the vocabulary. In nine cases of ten the logarithm of the speed
    relative to the present model's is at most `margin_low` below and `margin_high` above what is predicted: parts with
    equal shapes err equally and cancel, others err independently.
    """

    cost_s: Floats
    flop: Floats
    margin_low: Floats
    margin_high: Floats
    parameters: Floats
    memory_bytes: Floats
    extrapolated: NDArray[np.bool_]

    def flat(self, shape: tuple[int, ...]) -> Costs:
        return Costs(*(np.broadcast_to(array, shape).ravel() for array in vars(self).values()))

    @property
    def speed(self) -> Floats:
        """How many times the present rate each does its own work at."""
        rate = self.flop / self.cost_s
        return np.asarray(rate / rate.flat[0])


def costs_of(grid: tuple[ModelGrid, ParallelPlan], present: Setting, prices: KernelPrices) -> Costs:
    """Price every candidate, and how surely it differs from the present model."""
    model, plan = grid
    parts, here = parts_of(model, plan), parts_of(*grid_of([present]))
    # Both at once, so that what they share is priced once.
    priced = price([*parts, *here], prices)
    similar = {part.name: (part, its) for part, its in zip(here, priced[len(parts) :], strict=True)}
    scale, scale_here = np.asarray(plan.tensor) / np.asarray(plan.tokens), present.tp / present.tokens
    spent_here = {
        name: float(np.squeeze(its.seconds * part.calls)) * scale_here for name, (part, its) in similar.items()
    }
    times = []
    levels: dict[tuple[Any, ...], list[tuple[Any, float]]] = {}
    # Squares that add up to how much slower than predicted a candidate can be and the present one faster, and the
    # other way round; and what the two have in common.
    slower, faster, shared = [], [], []
    here_faster, here_slower = [], []
    for part, its in zip(parts, priced, strict=False):
        spent, here_s = its.seconds * part.calls * scale, spent_here[part.name]
        below, above = map(its.at, its.explained.margins)
        present_part, price_here = similar[part.name]
        below_here, above_here = (float(np.squeeze(price_here.at(side))) for side in price_here.explained.margins)
        same = _same_sizes(part, present_part)
        even, even_here = (below + above) / 2, (below_here + above_here) / 2
        times.append(spent)
        slower.append((np.where(same, even, above) * spent) ** 2)
        faster.append((np.where(same, even, below) * spent) ** 2)
        shared.append(same * even**2 * spent * here_s)
        here_faster.append((np.where(same, even_here, below_here) * here_s) ** 2)
        here_slower.append((np.where(same, even_here, above_here) * here_s) ** 2)
        if np.any(its.explained.common):
            common_here = float(np.squeeze(price_here.at(price_here.explained.common))) * here_s
            levels.setdefault((part.law, part.fixed), []).append((its.at(its.explained.common) * spent, common_here))
    cost_here = sum(spent_here.values())
    cost = _combined(times, operator.add)
    # Of log(a/b) of sums a and b of parts with relative errors e: Σe²a²/A² + Σe²b²/B² - 2 Σ_same e²ab/(AB).
    common = 2 * _combined(shared, operator.add) / (cost * cost_here)
    # A level that all sizes of a law share changes the ratio by how much more of one's time than of the other's it is.
    level: Any = 0.0
    for of_law in levels.values():
        here_s = sum(common_here for _, common_here in of_law)
        level = level + (sum(spent for spent, _ in of_law) / cost - here_s / cost_here) ** 2
    low, high = (
        _root(of_others / cost**2 + of_present / cost_here**2 - common + level)
        for of_others, of_present in (
            (_combined(slower, operator.add), _combined(here_faster, operator.add)),
            (_combined(faster, operator.add), _combined(here_slower, operator.add)),
        )
    )
    # Of the shards, weights, gradients and optimizer state are shared (ZeRO stage 3).
    need = training_memory(model, plan.micro_batch, plan.seq, plan, data_ranks=plan.data, zero_stage=LAST_STAGE)
    return Costs(
        cost,
        np.asarray(model_flop(replace(model, vocab=present.model.vocab), 1, plan.seq) / plan.seq),
        low,
        high,
        np.asarray(model.parameters, dtype=np.float64),
        np.asarray(need.total, dtype=np.float64),
        _combined((its.at(its.explained.extrapolated) for its in priced), operator.or_),
    )


def _root(square: Floats) -> Floats:
    """What is left of squares that cancel is rounding."""
    return np.sqrt(np.where(square > ROUNDING, square, 0.0))


def _combined(arrays: Iterable[Any], combine: Callable[[Any, Any], Any]) -> NDArray[Any]:
    """All arrays combined by broadcasting, those of equal shape first: few operations are of the whole grid."""
    by_shape: dict[tuple[int, ...], Any] = {}
    for array in arrays:
        shape = np.shape(array)
        by_shape[shape] = combine(by_shape[shape], array) if shape in by_shape else array
    return np.asarray(functools.reduce(combine, sorted(by_shape.values(), key=np.size)))


def _same_sizes(part: KernelCall, other: KernelCall) -> NDArray[np.bool_]:
    same = [np.asarray(size) == np.asarray(here).item() for size, here in zip(part.sizes, other.sizes, strict=True)]
    return np.asarray(functools.reduce(operator.and_, same))


@dataclass(frozen=True)
class Candidate:
    """A setting compared with the present one.

    `time_ratio` is GPU-time a token relative to the present one's, `speed` how many times the present rate it does its
    own work at (FLOP/s of the model, padding not counted), between `low` and `high` in nine cases of ten. `changes`
    names dimensions with their sizes before and after.
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
        """By more than the laws' error and the repeatability of measurements."""
        return self.low > 1 and self.speed > 1 + REPEATABILITY

    @property
    def is_slower(self) -> bool:
        return self.high < 1 and self.speed < 1 - REPEATABILITY


@dataclass(frozen=True)
class Search:
    """The result of a search among `priced` candidates, of which `within` kept the bounds and `faster` beat the error.

    `alone` has for each dimension the best candidate that changes it alone; `pareto` the best together, the one that
    takes the least time first. `memory_limit_bytes` is what candidates were allowed.
    """

    present: Candidate
    bounds: Bounds
    alone: dict[str, Candidate]
    pareto: tuple[Candidate, ...]
    priced: int
    within: int
    faster: int
    memory_limit_bytes: float


def search(setting: Setting, bounds: Bounds, prices: KernelPrices) -> Search:
    """Price the neighbours of a setting and pick those worth reporting."""
    candidates = neighbours(setting, bounds)
    grid = costs_of(candidates.grid, setting, prices).flat(candidates.shape)
    here, change = float(grid.memory_bytes[0]), np.abs(grid.parameters / grid.parameters[0] - 1)
    # Where the model as given does not fit, what its parameters may grow by: a padded vocabulary fits no worse.
    limit = bounds.memory_bytes if here <= bounds.memory_bytes else here * (1 + bounds.parameter_change)
    allowed = (change <= bounds.parameter_change) & (grid.memory_bytes <= limit)
    within = np.flatnonzero(allowed & np.broadcast_to(candidates.trainable, candidates.shape).ravel())
    noise = np.maximum(grid.margin_low[within], np.log(1 + REPEATABILITY))
    speed = grid.speed
    faster = within[np.log(speed[within]) > noise]
    singles = {name: np.intersect1d(where, within) for name, where in _single_changes(candidates).items()}
    # Of those that are surely faster the fastest, of others only where there is none.
    beaten = {name: np.intersect1d(among, faster) for name, among in singles.items()}
    alone = {
        name: int(best[np.argmax(speed[best])])
        for name, among in singles.items()
        if len(best := beaten[name] if len(beaten[name]) else among)
    }
    chosen = sorted(_pareto(candidates, grid, faster), key=lambda index: -speed[index])[:MOST_LISTED]
    present, *others = judged([candidates.at(index) for index in (0, *alone.values(), *chosen)], prices)
    return Search(
        present,
        bounds,
        dict(zip(alone, others, strict=False)),
        tuple(sorted(others[len(alone) :], key=lambda candidate: candidate.time_ratio)),
        len(candidates),
        len(within),
        len(faster),
        limit,
    )


def judged(settings: Sequence[Setting], prices: KernelPrices) -> list[Candidate]:
    """Each setting compared with the first one, which is the present."""
    costs = costs_of(grid_of(settings), settings[0], prices).flat((len(settings),))
    speed = costs.speed
    low, high = speed * np.exp(-costs.margin_low), speed * np.exp(costs.margin_high)
    return [
        Candidate(
            setting,
            float(costs.cost_s[n]),
            float(costs.cost_s[n] / costs.cost_s[0]),
            float(speed[n]),
            float(low[n]),
            float(high[n]),
            int(costs.parameters[n]),
            float(costs.parameters[n] / costs.parameters[0] - 1),
            float(costs.memory_bytes[n]),
            bool(costs.extrapolated[n]),
            changes(settings[0], setting),
        )
        for n, setting in enumerate(settings)
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
    pairs += [(name, getattr(present, name), getattr(other, name)) for name in ("seq", "micro_batch", "tp")]
    return tuple(pair for pair in pairs if pair[1] != pair[2])


def _pareto(candidates: Candidates, grid: Costs, among: NDArray[np.int64]) -> list[int]:
    """Candidates that no other beats in time, parameters and memory at once; near ones count as one choice.

    More parameters count as better: what is bought with time and memory is a model.
    """
    changed = np.sum([place > 0 for place in np.unravel_index(among, candidates.shape)], axis=0)
    time = grid.cost_s[among] * (1 + LEAST_EARNED * changed)
    parameters, memory = grid.parameters[among] / grid.parameters[0], np.log(grid.memory_bytes[among])
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
