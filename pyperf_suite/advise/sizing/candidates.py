"""Neighbours of a model: every combination of nearby dimensions that could be trained in its place.

Dimensions vary along axes of a grid and broadcast, so a million candidates are a handful of short arrays.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.advise.sizing.setting import Setting
from pyperf_suite.errors import UserError, offer
from pyperf_suite.laws.attention.fused import WIDTHS
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.matmul.alignment import round_up
from pyperf_suite.laws.model_grid import ModelGrid
from pyperf_suite.laws.transformer import Sharding

AXES = ("hidden", "heads", "kv_heads", "ffn", "vocab", "layers", "micro_batch", "tp")
# What attention kernels are built for; a model's own head_dim is kept beside them.
HEAD_DIMS = (64, 96, 128, 192, 256)
WIDEST_HEAD = WIDTHS[-1]
# Steps of a width: what tensor cores and TMA like, coarser where a model is so wide that fine ones say nothing new.
WIDTH_STEP = 64
MOST_WIDTHS = 33
MOST_CANDIDATES = 2_000_000


@dataclass(frozen=True)
class Bounds:
    """How far candidates may be from the model, all as shares of its own figures.

    `reach` is for each width and the number of layers, `parameter_change` for the parameters in all. Only the axes in
    `vary` move. `memory_bytes` is what one GPU has. Raises UserError for bounds that leave nothing to search.
    """

    vary: tuple[str, ...] = AXES
    parameter_change: float = 0.02
    reach: float = 0.15
    head_dims: tuple[int, ...] = HEAD_DIMS
    memory_bytes: float = float("inf")

    def __post_init__(self) -> None:
        if unknown := set(self.vary) - set(AXES):
            named = min(unknown)
            if not named:
                raise UserError("--vary has a comma with no name beside it: write names, as in heads,vocab.")
            raise UserError(f"Candidates cannot vary in {named!r}: {offer(named, AXES)}")
        if not 0 <= self.parameter_change <= 1 or not 0 <= self.reach <= 1:
            raise UserError(
                f"Bounds are shares of the model's own figures, from 0 to 1, but a change of {self.parameter_change:g} "
                f"and a reach of {self.reach:g} were asked for."
            )
        if not self.head_dims or not all(1 <= head_dim <= WIDEST_HEAD for head_dim in self.head_dims):
            raise UserError(f"Candidates need head dimensions of 1 to {WIDEST_HEAD}, as in 64,128.")


@dataclass(frozen=True)
class Shapes:
    """What the price of a step depends on: dimensions as arrays that broadcast together, the sequence one for all."""

    model: ModelGrid
    seq: int
    micro_batch: NDArray[np.int64]
    tp: NDArray[np.int64]
    shards: int
    dtype: str

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Tokens of one micro-batch."""
        return self.micro_batch * self.seq

    @property
    def sharding(self) -> Sharding:
        """How the layers are cut over the GPUs of a group."""
        return Sharding(self.tp)


def shapes_of(settings: Sequence[Setting]) -> Shapes:
    """The same few settings as arrays of one axis, in their order; they differ in nothing that is no axis here."""
    first = settings[0]
    names = (*varied_fields(first.model), "layers")
    columns = {name: [getattr(setting.model, name) for setting in settings] for name in names}
    return Shapes(
        ModelGrid.around(first.model, **columns),
        first.seq,
        np.array([setting.micro_batch for setting in settings], dtype=np.int64),
        np.array([setting.tp for setting in settings], dtype=np.int64),
        first.shards,
        first.dtype,
    )


def varied_fields(model: ModelDimensions) -> tuple[str, ...]:
    """The fields that the widths of a model are changed by; a latent attention has its own and keeps its head_dim."""
    return ("hidden", "heads", "kv_heads", "head_dim", width_of_mlp(model), "vocab")


def width_of_mlp(model: ModelDimensions) -> str:
    """The field that the widths of most of its MLPs come from."""
    return "expert_ffn" if model.experts > 1 and model.expert_ffn != model.ffn else "ffn"


@dataclass(frozen=True)
class Candidates:
    """All combinations of `attention` (hidden, heads, kv_heads, head_dim), and of the other axes.

    The first entry of each axis is the present one, so candidate 0 is the model as asked. Arrays of the grid have the
    shape `shape`; a flat index counts through it in C order.
    """

    setting: Setting
    attention: NDArray[np.int64]
    others: Mapping[str, NDArray[np.int64]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Entries along each axis: attention, then the others in their order."""
        return (len(self.attention), *map(len, self.others.values()))

    def __len__(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @functools.cached_property
    def shapes(self) -> Shapes:
        """The grid, each axis along its own dimension."""
        ndim = len(self.shape)
        along = {
            name: sizes.reshape([-1 if axis == place else 1 for axis in range(ndim)])
            for place, (name, sizes) in enumerate(self.others.items(), 1)
        }
        hidden, heads, kv_heads, head_dim = (
            column.reshape([-1] + [1] * (ndim - 1)) for column in np.ascontiguousarray(self.attention.T)
        )
        micro_batch, tp = along.pop("micro_batch"), along.pop("tp")
        model = ModelGrid.around(
            self.setting.model, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, **along
        )
        return Shapes(model, self.setting.seq, micro_batch, tp, self.setting.shards, self.setting.dtype)

    @functools.cached_property
    def trainable(self) -> NDArray[np.bool_]:
        """Where there is such a model and its GPUs can share the layers; of a shape that broadcasts to the grid's."""
        shapes = self.shapes
        return np.asarray(shapes.model.valid & shapes.sharding.divides(shapes.model))

    def at(self, index: int) -> Setting:
        """One candidate by its flat index."""
        places = np.unravel_index(index, self.shape)
        sizes = dict(zip(("hidden", "heads", "kv_heads", "head_dim"), self.attention[places[0]].tolist(), strict=True))
        for (name, along), place in zip(self.others.items(), places[1:], strict=True):
            sizes[name] = int(along[place])
        micro_batch, tp = sizes.pop("micro_batch"), sizes.pop("tp")
        # All are named, for what follows from a changed dimension may not follow as it did before.
        same = all(getattr(self.setting.model, name) == size for name, size in sizes.items())
        model = self.setting.model if same else self.setting.model.resized(**sizes)
        return replace(self.setting, model=model, micro_batch=micro_batch, tp=tp)


def neighbours(setting: Setting, bounds: Bounds) -> Candidates:
    """Every candidate within the bounds' reach; parameters and memory are for the search to judge, which counts them.

    Where these would be more than `MOST_CANDIDATES`, widths take coarser steps.
    """
    model = setting.model
    width = width_of_mlp(model)
    for most in (MOST_WIDTHS, MOST_WIDTHS // 2, MOST_WIDTHS // 4, MOST_WIDTHS // 8):
        candidates = Candidates(
            setting,
            np.array(_attention_shapes(setting, bounds, most), dtype=np.int64),
            {
                width: _axis(bounds, "ffn", getattr(model, width), _widths(getattr(model, width), bounds, most)),
                "vocab": _axis(bounds, "vocab", model.vocab, _paddings(model.vocab)),
                "layers": _axis(bounds, "layers", model.layers, _layers(model, bounds)),
                "micro_batch": _axis(bounds, "micro_batch", setting.micro_batch, _doublings(setting.micro_batch, 2)),
                "tp": _axis(bounds, "tp", setting.tp, _doublings(setting.tp, 1) if setting.tp > 1 else []),
            },
        )
        if len(candidates) <= MOST_CANDIDATES:
            break
    return candidates


def _axis(bounds: Bounds, name: str, present: int, sizes: Sequence[int]) -> NDArray[np.int64]:
    """The present size first, then the others that the bounds let it take."""
    return np.array(list(dict.fromkeys([present, *(sizes if name in bounds.vary else [])])), dtype=np.int64)


def _attention_shapes(setting: Setting, bounds: Bounds, most: int) -> list[tuple[int, int, int, int]]:
    """(hidden, heads, kv_heads, head_dim) as asked first; heads keep filling hidden where they did."""
    model = setting.model
    here = (model.hidden, model.heads, model.kv_heads, model.head_dim)
    if model.latent_rank:
        head_dims = {model.head_dim}  # one of several ranks that only make sense together
    else:
        head_dims = {model.head_dim, *bounds.head_dims} if "heads" in bounds.vary else {model.head_dim}
    hiddens = [model.hidden, *(_widths(model.hidden, bounds, most) if "hidden" in bounds.vary else [])]
    fills = model.heads * model.head_dim == model.hidden
    found = [here]
    for hidden, head_dim in itertools.product(dict.fromkeys(hiddens), sorted(head_dims)):
        # Where heads do not fill hidden, as many queries in all are kept.
        queries = hidden if fills else model.heads * model.head_dim
        if queries % head_dim or ("heads" not in bounds.vary and queries // head_dim != model.heads):
            continue
        heads = queries // head_dim
        for kv_heads in _kv_heads(model, heads, "kv_heads" in bounds.vary):
            found.append((hidden, heads, kv_heads, head_dim))
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


def _paddings(vocab: int) -> list[int]:
    """A vocabulary can be padded, never cut."""
    return [round_up(vocab, multiple) for multiple in (8, 64, 128, 256, 512, 1024)]


def _layers(model: ModelDimensions, bounds: Bounds) -> list[int]:
    most = int(min(2, max(1, model.layers * bounds.reach)))
    fewest = max(1, model.dense_layers + (model.experts > 1))
    return [layers for change in range(1, most + 1) for layers in (model.layers - change, model.layers + change)
            if layers >= fewest]  # fmt: skip


def _doublings(size: int, up: int) -> list[int]:
    """Half of it where that is whole, and so many doublings."""
    return [*([size // 2] if size % 2 == 0 else []), *(size << power for power in range(1, up + 1))]
