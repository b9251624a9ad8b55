"""Search for neighbours of a model that train faster for the work they do, by more than the laws' error.

Neighbours are all combinations of nearby dimensions. Those within bounds are priced, and thinned to a Pareto list of
time, parameters and memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError, offer
from pyperf_suite.laws.tiling import round_up
from pyperf_suite.laws.transformer import ModelDimensions, model_flop
from pyperf_suite.planner.laws.prices import Prices
from pyperf_suite.planner.laws.training.memory import need_of
from pyperf_suite.planner.laws.training.plan import ParallelPlan
from pyperf_suite.planner.sizing.step import (
    NODE,
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
# Heads whose forward and backward were published (FlashAttention-2 and -3); a model's own head_dim is kept as well.
HEAD_DIMS = (64, 128)
# Largest change of hidden size and of layers, as a share, in proposals that change dimensions together. The number of
# GPUs that share a micro-batch, and its size, are no dimensions of a model.
MAX_SIZE_CHANGE = 0.05
OF_THE_RUN = ("micro_batch", "tp")
# Steps of a width: what tensor cores and TMA like, coarser for a model so wide that fine ones say nothing new.
WIDTH_STEP = 64
MOST_WIDTHS = 33
MOST_CANDIDATES = 200_000
# Two measurements of the same product on the same GPU differ by this much (aiconfigurator's tables, median).
REPEATABILITY = 0.01
# Share that one more changed dimension has to earn before it is worth changing.
LEAST_EARNED = 0.005
# Two candidates closer than this in parameters, or in memory, are one choice.
PARAMETER_TOLERANCE, MEMORY_TOLERANCE = 0.002, 0.03
MOST_LISTED = 8
ROUNDING = 1e-14


@dataclass(frozen=True)
class Bounds:
    """Limits of candidates, as shares of the model's own figures.

    `reach` is for each width and the number of layers, `parameter_change` for the parameters in all. Only the axes in
    `vary` move. `memory_bytes` is what one GPU has. Raises UserError for an unknown axis.
    """

    vary: tuple[str, ...] = AXES
    parameter_change: float = 0.02
    reach: float = 0.15
    memory_bytes: float = float("inf")

    def __post_init__(self) -> None:
        if "" in self.vary:
            raise UserError("--vary has a comma without a name: write names, as in heads,vocab.")
        if unknown := set(self.vary) - set(AXES):
            raise UserError(f"Candidates cannot vary in {min(unknown)!r}: {offer(min(unknown), AXES)}")


@dataclass(frozen=True)
class Candidates:
    """The settings of a search: `setting` with other `sizes`, a column each; the first row is the present one."""

    setting: Setting
    sizes: Mapping[str, NDArray[np.int64]]

    def grid(self, rows: Any = ...) -> tuple[ModelGrid, ParallelPlan]:
        """Models and plans of these rows, by default of all."""
        sizes = {name: column[rows] for name, column in self.sizes.items()}
        micro_batch, tp, present = sizes.pop("micro_batch"), sizes.pop("tp"), self.setting
        plan = plan_of(present, micro_batch, present.seq, tp)
        return ModelGrid.around(present.model, **sizes), plan

    def at(self, row: int) -> Setting:
        sizes = {name: int(column[row]) for name, column in self.sizes.items()}
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
    tensors = _doublings(setting.tp, 1) if setting.tp > 1 else []
    most_layers = int(min(2, max(1, model.layers * bounds.reach)))
    fewest_layers = max(1, model.dense_layers + (model.experts > 1))
    layers = [model.layers + sign * change for change in range(1, most_layers + 1) for sign in (-1, 1)]

    def axis(name: str, present: int, sizes: Sequence[int]) -> NDArray[np.int64]:
        return np.array(list(dict.fromkeys([present, *(sizes if name in bounds.vary else [])])), dtype=np.int64)

    for most in (MOST_WIDTHS, MOST_WIDTHS // 2, MOST_WIDTHS // 4, MOST_WIDTHS // 8):
        attention = np.array(_attention_shapes(setting, bounds, most), dtype=np.int64)
        others = {
            width: axis("ffn", getattr(model, width), _widths(getattr(model, width), bounds, most)),
            # A vocabulary can be padded, never cut.
            "vocab": axis("vocab", model.vocab, [round_up(model.vocab, 8 << power) for power in (0, 3, 4, 5, 6, 7)]),
            "layers": axis("layers", model.layers, [count for count in layers if count >= fewest_layers]),
            "micro_batch": axis("micro_batch", setting.micro_batch, _doublings(setting.micro_batch, 2)),
            "tp": axis("tp", setting.tp, [tp for tp in tensors if setting.ep == 1 or tp * setting.ep <= NODE]),
        }
        shape = (len(attention), *map(len, others.values()))
        if math.prod(shape) <= MOST_CANDIDATES:
            break
    shapes, *places = np.indices(shape).reshape(len(shape), -1)
    sizes = dict(zip(ATTENTION, attention[shapes].T, strict=True))
    return Candidates(setting, sizes | {name: others[name][along] for name, along in zip(others, places, strict=True)})


def _attention_shapes(setting: Setting, bounds: Bounds, max_widths: int) -> list[tuple[int, int, int, int]]:
    """(hidden, heads, kv_heads, head_dim), the present ones first; heads keep filling hidden where they did."""
    model = setting.model
    head_dims = {model.head_dim}
    if "heads" in bounds.vary and not model.latent_rank:  # a latent's ranks only make sense together
        head_dims |= set(HEAD_DIMS)
    hiddens = [model.hidden, *(_widths(model.hidden, bounds, max_widths) if "hidden" in bounds.vary else [])]
    fills = model.heads * model.head_dim == model.hidden
    shapes = [(model.hidden, model.heads, model.kv_heads, model.head_dim)]
    for hidden, head_dim in itertools.product(dict.fromkeys(hiddens), sorted(head_dims)):
        # Queries keep their total width where heads do not fill hidden.
        queries = hidden if fills else model.heads * model.head_dim
        if queries % head_dim or ("heads" not in bounds.vary and queries // head_dim != model.heads):
            continue
        heads = queries // head_dim
        # As many key-value heads as heads where it was so, else the present ones, half and twice of them.
        kv_heads = [model.kv_heads, *([model.kv_heads // 2, 2 * model.kv_heads] if "kv_heads" in bounds.vary else [])]
        kv_heads = [each for each in kv_heads if 1 <= each < heads and heads % each == 0]
        for shared in [heads] if model.kv_heads == model.heads else kv_heads:
            shapes.append((hidden, heads, shared, head_dim))
    return list(dict.fromkeys(shapes))


def _widths(size: int, bounds: Bounds, max_widths: int) -> list[int]:
    """Multiples of a power of two, at least `WIDTH_STEP`, within reach; at most about `max_widths` of them."""
    step = WIDTH_STEP
    while 2 * bounds.reach * size / step > max_widths:
        step *= 2
    first = round_up(max(1, int(np.ceil(size * (1 - bounds.reach)))), step)
    return list(range(first, int(size * (1 + bounds.reach)) + 1, step))


def _doublings(size: int, up: int) -> list[int]:
    """Return half of it if that is whole, and `up` doublings."""
    return [*([size // 2] if size % 2 == 0 else []), *(size << power for power in range(1, up + 1))]


@dataclass(frozen=True)
class Costs:
    """The cost of each of several settings; the first is the present one.

    `cost_s` is GPU-seconds a token: the time of a micro-batch times the GPUs that share it, over its tokens. `speed` is
    how many times the present rate each does its own work at, without the padding of the vocabulary. In nine cases of
    ten its logarithm is at most `margin_low` below and `margin_high` above what is predicted: parts with equal shapes
    err equally and cancel, others err independently. `extrapolated` has those in which a part that differs lies beyond
    what a law was fitted on, `unknown` those in which that part is attention.
    """

    cost_s: Floats
    speed: Floats
    margin_low: Floats
    margin_high: Floats
    extrapolated: NDArray[np.bool_]
    unknown: NDArray[np.bool_]


def costs_of(model: ModelGrid, plan: ParallelPlan, prices: Prices) -> Costs:
    """Price every setting, and how surely it differs from the first one."""
    parts = parts_of(model, plan)
    count = np.size(plan.tensor)
    scale = np.asarray(plan.tensor) / np.asarray(plan.tokens)
    cost, common = np.zeros(count), np.zeros(count)
    # Squares that add up to how far a time can be above and below its prediction, the present one's and the others'.
    above, below = np.zeros((2, count)), np.zeros((2, count))
    levels: dict[tuple[Any, ...], Any] = {}
    extrapolated, unknown = np.zeros((2, count), dtype=np.bool_)
    for part, its in zip(parts, price(parts, prices), strict=True):
        spent = its.seconds * part.calls * scale
        cost += spent
        same = np.all([np.broadcast_to(size, count) == np.ravel(size)[0] for size in part.sizes], axis=0)
        beyond = np.broadcast_to(its.at(its.explained.extrapolated), count).astype(np.bool_)
        beyond = ~same & (beyond | beyond[0])
        extrapolated |= beyond
        unknown |= beyond & (part.law == "attention")
        under, over = (np.broadcast_to(its.at(side), count) for side in its.explained.margins)
        even = (under + over) / 2
        for squares, side in ((above, over), (below, under)):
            squares[0] += (np.where(same, even, side[0]) * spent[0]) ** 2
            squares[1] += (np.where(same, even, side) * spent) ** 2
        common += same * even**2 * spent * spent[0]
        if np.any(its.explained.common):
            key = (part.law, part.fixed)
            levels[key] = levels.get(key, 0.0) + its.at(its.explained.common) * spent
    # Error of log(a/b) of sums a and b of parts with relative errors e: Σe²a²/A² + Σe²b²/B² - 2 Σ_same e²ab/(AB).
    shared = 2 * common / (cost * cost[0])
    # A level that all sizes of a law share changes the ratio by how much more of one's time than of the other's it is.
    level = sum(((spent / cost - spent[0] / cost[0]) ** 2 for spent in levels.values()), np.zeros(count))
    low, high = (
        _root(of_others[1] / cost**2 + of_present[0] / cost[0] ** 2 - shared + level)
        for of_others, of_present in ((above, below), (below, above))
    )
    flop = np.asarray(model_flop(replace(model, vocab=np.ravel(model.vocab)[0]), 1, plan.seq) / plan.seq)
    rate = flop / cost
    return Costs(cost, rate / rate[0], low, high, extrapolated, unknown)


def memory_of(model: ModelDimensions, plan: ParallelPlan) -> Floats:
    """Bytes on each GPU; the shards have weights, gradients and optimizer state in common (ZeRO stage 3)."""
    return np.broadcast_to(np.asarray(need_of(model, plan).total, dtype=np.float64), np.shape(plan.tensor))


def _root(square: Floats) -> Floats:
    """Square root, 0 for the rounding that is left of squares that cancel."""
    return np.sqrt(np.where(square > ROUNDING, square, 0.0))


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
    unknown: bool
    changes: tuple[tuple[str, int, int], ...]

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.cost_s * self.setting.tokens / self.setting.tp

    @property
    def is_faster(self) -> bool:
        """True if known to be faster by more than the laws' error and the repeatability of measurements."""
        return self.low > 1 and self.speed > 1 + REPEATABILITY and not self.unknown

    @property
    def is_slower(self) -> bool:
        return self.high < 1 and self.speed < 1 - REPEATABILITY and not self.unknown


@dataclass(frozen=True)
class Search:
    """The result of a search among `priced` candidates, of which `within` kept the bounds and `faster` beat the error.

    `alone` has for each dimension the best candidate that changes it alone; `pareto` the best together, the one that
    takes the least time first.
    """

    present: Candidate
    bounds: Bounds
    alone: dict[str, Candidate]
    pareto: tuple[Candidate, ...]
    priced: int
    within: int
    faster: int


def search(setting: Setting, bounds: Bounds, prices: Prices) -> Search:
    """Price the neighbours of a setting and pick those worth reporting."""
    candidates = neighbours(setting, bounds)
    model, plan = candidates.grid()
    parameters, memory = np.asarray(model.parameters, dtype=np.float64), memory_of(model, plan)
    # Parameters may grow by this where the model as given does not fit: a padded vocabulary fits no worse.
    fits = memory[0] <= bounds.memory_bytes
    limit = bounds.memory_bytes if fits else float(memory[0]) * (1 + bounds.parameter_change)
    allowed = (np.abs(parameters / parameters[0] - 1) <= bounds.parameter_change) & (memory <= limit)
    within = np.flatnonzero(allowed & model.valid & plan.divides(model))
    costs = costs_of(*candidates.grid(within), prices)
    faster = (np.log(costs.speed) > np.maximum(costs.margin_low, np.log(1 + REPEATABILITY))) & ~costs.unknown
    differs = {name: column[within] != column[0] for name, column in candidates.sizes.items()}
    alone, follows = {}, {"hidden": {"heads"}, "heads": {"head_dim"}}
    if setting.model.kv_heads == setting.model.heads:
        follows = {name: {*names, "kv_heads"} for name, names in follows.items()}
    for name in [name for name in differs if name != "head_dim"]:
        # Rows in which no other dimension changes but those that follow from it.
        kept = differs.keys() - follows.get(name, set()) - {name}
        where = differs[name] & ~np.any([differs[other] for other in kept], axis=0)
        # Take the fastest of those that are surely faster, others only where there is none.
        among = np.flatnonzero(where & faster if np.any(where & faster) else where)
        if len(among):
            alone[name] = among[np.argmax(costs.speed[among])]
    hidden, layers = (candidates.sizes[name][within] for name in ("hidden", "layers"))
    is_near = np.abs(hidden / hidden[0] - 1) <= MAX_SIZE_CHANGE
    is_near &= np.abs(layers - layers[0]) <= max(1, MAX_SIZE_CHANGE * layers[0])
    is_near &= ~np.any([differs[name] for name in OF_THE_RUN], axis=0)
    among = np.flatnonzero(faster & is_near)
    changed = np.any([differs[name] for name in ATTENTION], axis=0) + sum(
        differs[name].astype(int) for name in differs if name not in ATTENTION
    )
    time = costs.cost_s[among] * (1 + LEAST_EARNED * changed[among])
    best = among[_pareto(time, parameters[within[among]] / parameters[0], np.log(memory[within[among]]))]
    chosen = sorted(best, key=lambda place: -costs.speed[place])[:MOST_LISTED]
    present, *others = judged([candidates.at(within[place]) for place in (0, *alone.values(), *chosen)], prices)
    return Search(
        present,
        bounds,
        dict(zip(alone, others, strict=False)),
        tuple(sorted(others[len(alone) :], key=lambda candidate: candidate.time_ratio)),
        len(candidates.sizes["hidden"]),
        len(within),
        int(faster.sum()),
    )


def judged(settings: Sequence[Setting], prices: Prices) -> list[Candidate]:
    """Each setting compared with the first one, which is the present."""
    model, plan = grid_of(settings)
    costs, parameters, memory = costs_of(model, plan, prices), np.asarray(model.parameters), memory_of(model, plan)
    return [
        Candidate(
            setting,
            float(costs.cost_s[n]),
            float(costs.cost_s[n] / costs.cost_s[0]),
            float(costs.speed[n]),
            float(costs.speed[n] * np.exp(-costs.margin_low[n])),
            float(costs.speed[n] * np.exp(costs.margin_high[n])),
            int(parameters[n]),
            float(parameters[n] / parameters[0] - 1),
            float(memory[n]),
            bool(costs.extrapolated[n]),
            bool(costs.unknown[n]),
            changes(settings[0], setting),
        )
        for n, setting in enumerate(settings)
    ]


def changes(present: Setting, changed: Setting) -> tuple[tuple[str, int, int], ...]:
    """List the dimensions that differ, with both sizes, except those that only follow others."""
    names = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "expert_ffn", "vocab", "layers")
    pairs = [(name, getattr(present.model, name), getattr(changed.model, name)) for name in names]
    models = (present.model, changed.model)
    follows = {
        "expert_ffn": all(model.expert_ffn == model.ffn for model in models),
        "kv_heads": all(model.kv_heads == model.heads for model in models),
    }
    pairs = [pair for pair in pairs if not follows.get(pair[0])]
    pairs += [(name, getattr(present, name), getattr(changed, name)) for name in ("seq", "micro_batch", "tp")]
    return tuple(pair for pair in pairs if pair[1] != pair[2])


def _pareto(time: Floats, parameters: Floats, memory: Floats) -> list[int]:
    """Candidates that no other beats in time, parameters and memory at once; near ones count as one choice.

    More parameters count as better: time and memory buy a model.
    """
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
    return kept
