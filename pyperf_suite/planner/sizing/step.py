"""The work of one micro-batch on one GPU, forward and backward, itemised and priced by the laws of kernels.

It is the list of kernel calls that the law of an iteration sums, so that `size` and `layout` agree. Dimensions may be
arrays that broadcast over a grid of models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.findings.rows import grouped
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.training.memory import LAST_STAGE
from pyperf_suite.laws.transformer import LARGEST, ModelDimensions, Sharding
from pyperf_suite.planner.laws.explained import Explained
from pyperf_suite.planner.laws.prices import Prices
from pyperf_suite.planner.laws.training.framework import DTYPES, StepConstants
from pyperf_suite.planner.laws.training.layer_work import (
    ALL_REDUCES_PER_PASS,
    KernelCall,
    exchange_of_tokens,
    kernel_calls,
    passes_and_slowdown,
)
from pyperf_suite.planner.laws.training.plan import ParallelPlan, as_published

Sizes = NDArray[np.int64]

# The cause of what a kernel takes longer within a step than alone.
IN_STEP = "slower within a step"
# Far above what anyone trains with, and low enough that a product's sizes stay exact.
LARGEST_SETTING = {"seq": 1 << 24, "micro_batch": 1 << 16, "tp": 1 << 10, "shards": 1 << 16, "ep": 1 << 10}
MOST_TOKENS = 1 << 26
# GPUs of a node.
NODE = 8


def following(model: ModelDimensions, changes: dict[str, Any]) -> dict[str, Any]:
    """All fields of the changed model, 0 where they follow from others as they did before. Values may be arrays."""
    values = {field.name: getattr(model, field.name) for field in fields(model)}
    if model.kv_heads == model.heads:
        values["kv_heads"] = 0
    if model.head_dim * model.heads == model.hidden:
        values["head_dim"] = 0
    if model.expert_ffn == model.ffn:
        values["expert_ffn"] = 0
    if not model.latent_rank:
        values["value_head_dim"] = 0
    if "layers" in changes and model.windowed_layers:
        # They keep their share of all.
        windowed = 2 * model.windowed_layers * changes["layers"] + model.layers
        values["windowed_layers"] = windowed // (2 * model.layers)
    return values | changes


def resized(model: ModelDimensions, **changes: int) -> ModelDimensions:
    """The model with other dimensions; what followed from them before follows again.

    As many key-value heads as heads, and a head_dim of hidden / heads, stay so unless they are named. Raises
    UserError for dimensions that no model can have.
    """
    return ModelDimensions(**following(model, changes))


class ModelGrid(ModelDimensions):
    """Models whose dimensions are integers or int64 arrays that broadcast together; made by `around`.

    Every property of ModelDimensions is then an array of that shape. What only divides unevenly is not refused: `valid`
    says which of them ModelDimensions would take.
    """

    _heads_fill_hidden: NDArray[np.bool_]

    @classmethod
    def around(cls, model: ModelDimensions, **changes: ArrayLike) -> ModelGrid:
        """The model with some dimensions varied; what followed from them before follows again, as in `resized`.

        What a formula branches on, as `experts`, is one for all models of a grid.
        """
        varied = {name: np.asarray(sizes, dtype=np.int64) for name, sizes in changes.items()}
        return cls(**following(model, varied))

    def __post_init__(self) -> None:
        head_dim_follows = isinstance(self.head_dim, int) and not self.head_dim
        fill = self.hidden % self.heads == 0 if head_dim_follows else True
        object.__setattr__(self, "_heads_fill_hidden", np.asarray(fill))
        self._fill_in()

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Mask of dimensions that a model can have: within bounds, and dividing as they must."""
        valid = self._heads_fill_hidden & (self.heads % self.kv_heads == 0) & (self.dense_layers <= self.layers)
        valid = valid & (self.windowed_layers <= self.layers)
        for name, most in LARGEST.items():
            valid = valid & (getattr(self, name) <= most)
        return np.asarray(valid)


@dataclass(frozen=True)
class Setting:
    """A model as it is trained: `micro_batch` sequences of `seq` tokens, over `tp` GPUs that share each layer.

    `shards` data-parallel GPUs share weights, gradients and optimizer state (ZeRO-3, FSDP), `ep` of a node the experts.
    Raises UserError for what cannot be trained so.
    """

    model: ModelDimensions
    seq: int
    micro_batch: int = 1
    tp: int = 1
    shards: int = 1
    dtype: str = "bf16"
    ep: int = 1

    def __post_init__(self) -> None:
        for name, most in LARGEST_SETTING.items():
            if not 1 <= getattr(self, name) <= most:
                raise UserError(f"{name} has to lie between 1 and {most}, but {getattr(self, name)} was requested.")
        if self.tokens > MOST_TOKENS:
            raise UserError(
                f"{self.micro_batch} sequences of {self.seq} are {self.tokens} tokens at a time, beyond the "
                f"{MOST_TOKENS} that are counted with: ask for less."
            )
        self._check_divides("tp", self.tp, Sharding)
        self._check_divides("ep", self.ep, lambda ep: Sharding(expert=ep))
        if self.ep > 1 and self.tp * self.ep > NODE:
            raise UserError(
                f"EP over {self.ep} groups of {self.tp} tensor-parallel GPUs needs more than a node of {NODE}: ask "
                "layout, which prices the network too."
            )
        if self.shards % self.ep and self.shards > 1:
            raise UserError(
                f"{self.shards} data-parallel GPUs cannot be cut into groups of {self.ep} that share experts: take a "
                f"multiple of {self.ep} shards."
            )

    def _check_divides(self, name: str, ranks: int, sharding: Callable[[int], Sharding]) -> None:
        try:
            sharding(ranks).check(self.model)
        except UserError as uneven:
            divisors = [other for other in range(1, 2 * ranks + 1) if sharding(other).divides(self.model)]
            nearest = [
                *[other for other in divisors if other < ranks][-1:],
                *[more for more in divisors if more > ranks][:1],
            ]
            raise UserError(f"{str(uneven).rstrip('.')}: take {name} = {' or '.join(map(str, nearest))}.") from None

    @property
    def tokens(self) -> int:
        return self.seq * self.micro_batch

    def plan_on(self, gpu: GpuSpec) -> ParallelPlan:
        """The iteration of this one micro-batch on each data-parallel GPU, as `layout` plans it."""
        return as_published(self.plan, gpu)

    @property
    def plan(self) -> ParallelPlan:
        return plan_of(self, self.micro_batch, self.seq, self.tp)


def plan_of(setting: Setting, micro_batch: int | Sizes, seq: int | Sizes, tp: int | Sizes) -> ParallelPlan:
    """The setting's plan of one micro-batch on each data-parallel GPU, with other sizes, which may be arrays."""
    data, of_products = max(setting.shards, setting.ep), setting.dtype if setting.dtype in DTYPES else "bf16"
    return ParallelPlan(
        global_batch=micro_batch * data, micro_batch=micro_batch, seq=seq, tensor=tp, data=data, expert=setting.ep,
        zero_stage=LAST_STAGE if setting.shards > 1 else 0, dtype=of_products, sequence_parallel=True,
        overlap_gradients=True, framework="megatron",
    )  # fmt: skip


def grid_of(settings: Sequence[Setting]) -> tuple[ModelGrid, ParallelPlan]:
    """The models and plans of a few settings as arrays of one axis, in their order."""
    first = settings[0]
    names = ("hidden", "heads", "kv_heads", "head_dim", width_of_mlp(first.model), "vocab", "layers")
    columns = {name: [getattr(setting.model, name) for setting in settings] for name in names}
    micro_batch, seq, tp = np.array([(each.micro_batch, each.seq, each.tp) for each in settings], dtype=np.int64).T
    return ModelGrid.around(first.model, **columns), plan_of(first, micro_batch, seq, tp)


def width_of_mlp(model: ModelDimensions) -> str:
    """The field that the widths of most of its MLPs come from."""
    return "expert_ffn" if model.experts > 1 and model.expert_ffn != model.ffn else "ffn"


def parts_of(model: ModelDimensions, plan: ParallelPlan) -> list[KernelCall]:
    """Every kind of work of one micro-batch on one GPU, with its calls in all passes."""
    times = passes_and_slowdown(plan, StepConstants(1.0))
    calls_of_step = []
    exchange = (exchange_of_tokens(model, plan),) if np.any(np.asarray(plan.expert) > 1) else ()
    for call in (*kernel_calls(model, plan), *exchange):
        calls = np.asarray(call.calls)
        # TP sums up once more at both ends of the model.
        at_ends = np.where(calls > 0, ALL_REDUCES_PER_PASS, 0) if call.kind == "summed" else 0
        calls_of_step.append(replace(call, calls=times[call.kind][0] * calls + at_ends))
    return calls_of_step


@dataclass(frozen=True)
class PricedPart:
    """The price of one call of a part; `back` has the shape of its sizes and holds their places in `explained`.

    Within a step it takes `slower` times as long as alone.
    """

    explained: Explained
    back: NDArray[np.int64]
    slower: float = 1.0

    def at(self, values: Any) -> NDArray[np.float64]:
        """Values of `explained` in the shape of the part's sizes."""
        return np.broadcast_to(values, np.shape(self.explained.seconds))[self.back]

    @property
    def seconds(self) -> NDArray[np.float64]:
        return self.slower * self.at(self.explained.seconds)

    @property
    def causes(self) -> dict[str, NDArray[np.float64]]:
        """Seconds of one call by cause; they add up to `seconds`. Each cause is hidden by the call's own share."""
        parts = {cause: min(self.slower, 1.0) * self.at(part) for cause, part in self.explained.parts.items()}
        return parts if self.slower <= 1 else {**parts, IN_STEP: self.seconds - self.at(self.explained.seconds)}


def price(parts: Sequence[KernelCall], prices: Prices) -> list[PricedPart]:
    """The price of each part, in order. Equal sizes of a law are priced once, all sizes of a law together."""
    priced: dict[int, PricedPart] = {}

    def call_of(place: int) -> tuple[Any, ...]:
        part = parts[place]
        return part.law, part.fixed, part.flags, part.wide and prices.wide is not prices

    for (law, fixed, flags, stays_wide), places in grouped(range(len(parts)), call_of).items():
        columns = [np.broadcast_arrays(*map(np.asarray, parts[place].sizes)) for place in places]
        flat = [np.concatenate([column[n].ravel() for column in columns]) for n in range(len(columns[0]))]
        rows, inverse = distinct(flat)
        explained = getattr(prices.wide if stays_wide else prices, law)(*fixed, *rows, *flags)
        ends = np.cumsum([column[0].size for column in columns])
        for place, column, back in zip(places, columns, np.split(inverse, ends[:-1]), strict=True):
            its_slower = prices.slower.get(parts[place].kind, 1.0)
            priced[place] = PricedPart(explained, back.reshape(column[0].shape), its_slower)
    return [priced[place] for place in range(len(parts))]


def distinct(columns: Sequence[Sizes]) -> tuple[list[Sizes], NDArray[np.int64]]:
    """The distinct rows of columns of equal length, as columns, and the place of each row among them."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        # The key so far and the column are renumbered before they are combined: their product stays far below 2⁶³.
        values, places = np.unique(column, return_inverse=True)
        _, key = np.unique(key, return_inverse=True)
        key = key * len(values) + places
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return [np.asarray(column[first], dtype=np.int64) for column in columns], np.asarray(inverse, dtype=np.int64)
