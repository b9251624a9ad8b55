"""The work of one micro-batch on one GPU, forward and backward, and its price by the laws of kernels.

It is the work that the law of an iteration prices, so that `size` and `layout` agree. Here each kind of work is apart,
and dimensions may be arrays that broadcast over a grid of models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import UserError
from pyperf_suite.laws.layer_kinds import (
    activation_widths,
    attention_calls,
    expert_block,
    is_deepseeks_latent,
)
from pyperf_suite.laws.transformer import ModelDimensions, ModelGrid, Sharding, products
from pyperf_suite.planner.laws.explained import Causes, Explained, KernelPrices
from pyperf_suite.planner.laws.prices import ChangedPrices
from pyperf_suite.planner.laws.training.framework import StepConstants
from pyperf_suite.planner.laws.training.layer_work import (
    ALL_REDUCES_PER_PASS,
    BACKWARD_BYTES_RATIO,
    HALF,
    LOSS_BYTES_PER_ELEMENT,
    MLP_BYTES_PER_ELEMENT,
    WHOLE_BYTES_PER_ELEMENT,
)
from pyperf_suite.planner.laws.training.step import ParallelPlan

Sizes = NDArray[np.int64]

# Of an attention or of experts, with whether it is the backward one.
PASSES = (("forward", False), ("backward", True))
# The cause of what a kernel takes longer within a step than alone.
IN_STEP = "slower within a step"
# Far above what anyone trains with, and low enough that a product's sizes stay exact.
LARGEST = {"seq": 1 << 24, "micro_batch": 1 << 16, "tp": 1 << 10, "shards": 1 << 16}
MOST_TOKENS = 1 << 26
# A law that was compared with no measurement is trusted this far, in %: the error on a GPU that was left out whole.
UNTESTED_ERROR_PERCENT = 15.0
# The standard deviation of a normal error over its mean absolute value.
DEVIATION_OVER_MEAN = (np.pi / 2) ** 0.5
# Nine in ten: the interval given with each gain.
NORMAL_QUANTILE = 1.645


@dataclass(frozen=True)
class Setting:
    """A model as it is trained: `micro_batch` sequences of `seq` tokens, over `tp` GPUs that share each layer.

    `shards` data-parallel GPUs share weights, gradients and optimizer state (ZeRO-3, FSDP). Raises UserError for what
    cannot be trained so.
    """

    model: ModelDimensions
    seq: int
    micro_batch: int = 1
    tp: int = 1
    shards: int = 1
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        for name, most in LARGEST.items():
            if not 1 <= getattr(self, name) <= most:
                raise UserError(f"{name} has to lie between 1 and {most}, but {getattr(self, name)} was asked for.")
        if self.tokens > MOST_TOKENS:
            raise UserError(
                f"{self.micro_batch} sequences of {self.seq} are {self.tokens} tokens at a time, beyond the "
                f"{MOST_TOKENS} that are counted with: ask for less."
            )
        try:
            Sharding(self.tp).check(self.model)
        except UserError as uneven:
            raise UserError(f"{str(uneven).rstrip('.')}: take tp = {self._nearest_tp()}.") from None

    @property
    def tokens(self) -> int:
        return self.seq * self.micro_batch

    @property
    def plan(self) -> ParallelPlan:
        """The iteration of this one micro-batch on each data-parallel GPU."""
        return ParallelPlan(
            self.micro_batch * self.shards,
            self.micro_batch,
            self.seq,
            tensor=self.tp,
            data=self.shards,
            zero_stage=3 if self.shards > 1 else 0,
        )

    def _nearest_tp(self) -> str:
        """The numbers of GPUs on either side of the one asked for that can share the layers evenly."""
        ranks = np.arange(1, 2 * self.tp + 1)
        dividing = ranks[np.broadcast_to(Sharding(ranks).divides(self.model), ranks.shape)].tolist()
        below = [tp for tp in dividing if tp < self.tp]
        above = [tp for tp in dividing if tp > self.tp]
        return " or ".join(map(str, below[-1:] + above[:1]))


@dataclass(frozen=True)
class Shapes:
    """What the price of a micro-batch depends on: dimensions as arrays that broadcast together."""

    model: ModelGrid
    seq: int | Sizes
    micro_batch: Sizes
    tp: Sizes
    shards: int

    @property
    def tokens(self) -> Sizes:
        return self.micro_batch * self.seq

    @property
    def sharding(self) -> Sharding:
        return Sharding(self.tp)


def shapes_of(settings: Sequence[Setting]) -> Shapes:
    """The same few settings as arrays of one axis, in their order."""
    first = settings[0].model
    names = ("hidden", "heads", "kv_heads", "head_dim", width_of_mlp(first), "vocab", "layers")
    columns = {name: [getattr(setting.model, name) for setting in settings] for name in names}
    return Shapes(
        ModelGrid.around(first, **columns),
        np.array([setting.seq for setting in settings], dtype=np.int64),
        np.array([setting.micro_batch for setting in settings], dtype=np.int64),
        np.array([setting.tp for setting in settings], dtype=np.int64),
        settings[0].shards,
    )


def width_of_mlp(model: ModelDimensions) -> str:
    """The field that the widths of most of its MLPs come from."""
    return "expert_ffn" if model.experts > 1 and model.expert_ffn != model.ffn else "ffn"


@dataclass(frozen=True)
class Part:
    """One kind of work: `calls` of a method `law` of the prices, with `fixed` arguments and sizes that broadcast.

    `flags` are fixed arguments behind the sizes.
    """

    name: str
    law: str
    fixed: tuple[Any, ...]
    sizes: tuple[Any, ...]
    calls: Any
    flags: tuple[Any, ...] = ()


def parts_of(shapes: Shapes) -> list[Part]:
    """Every kind of work of one micro-batch on one GPU.

    A grid has places where a group of GPUs is larger than what it shares. Laws refuse such sizes, so there they are
    asked for the nearest possible ones, and `Candidates.trainable` leaves those places out.
    """
    kinds = (_products, _experts, _attention, _memory_bound, _collectives)
    return [part for kind in kinds for part in kind(shapes)]


def _products(shapes: Shapes) -> Iterator[Part]:
    for product in products(shapes.model, shapes.tokens, shapes.sharding):
        if product.routed:
            continue
        sizes = tuple(np.maximum(size, 1) for size in (product.m, product.n, product.k))
        yield Part(f"{product.part}, {product.phase}", "gemm", (product.layout,), sizes, product.calls)


def _experts(shapes: Shapes) -> Iterator[Part]:
    """Routed experts with their activation function: one grouped product forward, and one for both gradients."""
    block = expert_block(shapes.model, shapes.tokens, shapes.sharding)
    if block is None:
        return
    *sizes, tp = map(np.asarray, block.sizes)
    tp = np.where(np.asarray(block.width) % tp == 0, tp, 1)
    for phase, backward in PASSES:
        yield Part(f"experts, {phase}", "grouped_gemm", (), (*sizes, tp), block.calls, (block.gated, backward))


def _attention(shapes: Shapes) -> Iterator[Part]:
    for call in attention_calls(shapes.model, shapes.micro_batch, shapes.seq, shapes.sharding):
        heads = np.maximum(call.heads, 1)
        kv_heads = np.where(heads % call.kv_heads == 0, call.kv_heads, 1)
        # Queries and values of latent attention differ in width: as much work is done at their mean.
        head_dim = (np.asarray(call.head_dim) + call.value_head_dim) // 2
        # A window as long as the sequence is none.
        window = np.where(np.asarray(call.seq) > call.window, call.window, 0)
        for phase, backward in PASSES:
            name = f"{call.name}, {phase}"
            if is_deepseeks_latent(shapes.model):
                yield Part(name, "latent_attention", (backward,), (call.batch, call.seq, heads), call.calls)
            else:
                sizes = (call.batch, call.seq, heads, kv_heads, head_dim, window)
                yield Part(name, "attention", (call.causal, backward), sizes, call.calls)


def _memory_bound(shapes: Shapes) -> Iterator[Part]:
    model, tokens, tp = shapes.model, shapes.tokens, shapes.tp
    passes = 1 + BACKWARD_BYTES_RATIO
    stream = WHOLE_BYTES_PER_ELEMENT * tokens * model.hidden
    yield Part("norms and residuals", "memory_bound", (), (stream,), passes * np.asarray(model.layers))
    for name, width, layers in activation_widths(model):
        activation = MLP_BYTES_PER_ELEMENT * (2 if model.gated else 1) * tokens * np.asarray(width) / tp
        yield Part(name, "memory_bound", (), (activation,), passes * np.asarray(layers))
    logits = LOSS_BYTES_PER_ELEMENT * tokens * np.asarray(model.vocab) / tp
    yield Part("loss", "memory_bound", (), (logits,), np.asarray(1))


def _collectives(shapes: Shapes) -> Iterator[Part]:
    """The all_reduces of tensor parallelism, of which none is hidden (Shoeybi et al. 2019, Megatron-LM, section 3)."""
    tp = np.asarray(shapes.tp)
    if not np.any(tp > 1):
        return
    nbytes = HALF * shapes.tokens * shapes.model.hidden
    # Forward and backward of each layer, and both ends. A group of one sends nothing; laws need at least two.
    calls = np.where(tp > 1, 2 * ALL_REDUCES_PER_PASS * np.asarray(shapes.model.layers) + 2, 0)
    yield Part("all_reduce", "collective", ("all_reduce",), (nbytes, np.maximum(tp, 2)), calls)


class StepPrices(ChangedPrices):
    """Prices of kernels within a training step, where they take so many times as long as alone, by a step's constants.

    Collectives take as long there as alone.
    """

    def __init__(self, alone: KernelPrices, constants: StepConstants | float = 1.0) -> None:
        super().__init__(alone)
        c = constants if isinstance(constants, StepConstants) else StepConstants(constants, 0.0)
        attention = c.slowdown * c.attention
        self.slower = {
            "gemm": c.slowdown,
            "attention": attention,
            "latent_attention": attention,
            "grouped_gemm": c.slowdown * c.experts,
            "memory_bound": c.slowdown * c.memory,
        }

    def changed(self, law: str, price: Explained) -> Explained:
        self.note(law, price)
        if law not in self.slower:
            return price
        slower = self.slower[law]
        extra = (slower - 1) * price.seconds
        parts = Causes(lambda: {**price.parts, IN_STEP: extra})
        low, high = (None if side is None else slower * side for side in (price.low, price.high))
        return replace(price, seconds=price.seconds + extra, parts=parts, low=low, high=high)


@dataclass(frozen=True)
class PricedPart:
    """The price of one call of a part; `back` has the shape of its sizes and holds their places in `explained`."""

    explained: Explained
    back: NDArray[np.int64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        return np.asarray(self.explained.seconds)[self.back]

    @property
    def causes(self) -> dict[str, NDArray[np.float64]]:
        """Seconds of one call by cause; they add up to `seconds`."""
        whole = np.shape(self.explained.seconds)
        return {cause: np.broadcast_to(part, whole)[self.back] for cause, part in self.explained.parts.items()}

    @property
    def extrapolated(self) -> NDArray[np.bool_]:
        return np.broadcast_to(self.explained.extrapolated, np.shape(self.explained.seconds))[self.back]

    @property
    def margins(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        below, above = (self._of_calls(side) for side in margins_of(self.explained))
        return below, above

    @property
    def common(self) -> NDArray[np.float64]:
        """The part of each call's interval that all sizes of the law share."""
        return self._of_calls(self.explained.common)

    def _of_calls(self, values: Any) -> NDArray[np.float64]:
        return np.broadcast_to(values, np.shape(self.explained.seconds))[self.back]


def margins_of(explained: Explained) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far below and above a law's time nine of ten measurements lie, as logarithms; broadcast to the times.

    Without what is common to all sizes of the law.
    """
    if explained.low is not None and explained.high is not None:
        seconds = np.asarray(explained.seconds)
        below, above = (
            # Where a law is biased its time can lie outside of its own interval.
            np.sqrt(np.maximum(np.maximum(np.log(ratio), 0.0) ** 2 - np.square(explained.common), 0.0))
            for ratio in (seconds / explained.low, explained.high / seconds)
        )
        return below, above
    error = explained.error_percent
    usual = NORMAL_QUANTILE * DEVIATION_OVER_MEAN * (UNTESTED_ERROR_PERCENT if error is None else error) / 100
    return np.asarray(usual), np.asarray(usual)


def price(parts: Sequence[Part], prices: KernelPrices) -> list[PricedPart]:
    """The price of each part, in order. Equal sizes of a law are priced once, all sizes of a law together."""
    priced: dict[int, PricedPart] = {}
    requested: dict[tuple[str, tuple[Any, ...], tuple[Any, ...]], list[int]] = {}
    for place, part in enumerate(parts):
        requested.setdefault((part.law, part.fixed, part.flags), []).append(place)
    for (law, fixed, flags), places in requested.items():
        columns = [np.broadcast_arrays(*map(np.asarray, parts[place].sizes)) for place in places]
        flat = [np.concatenate([column[n].ravel() for column in columns]) for n in range(len(columns[0]))]
        rows, inverse = distinct(flat)
        explained = getattr(prices, law)(*fixed, *rows, *flags)
        ends = np.cumsum([column[0].size for column in columns])
        for place, column, back in zip(places, columns, np.split(inverse, ends[:-1]), strict=True):
            priced[place] = PricedPart(explained, back.reshape(column[0].shape))
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
