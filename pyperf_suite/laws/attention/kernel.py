"""The law of one library's attention kernel on one GPU, at one head dimension: what was fitted, and its causes.

Seconds = launch + pairs of the busiest slot + pairs spread evenly + tiles + bytes, times what neighbouring shapes
showed the sum to miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.laws.attention.work import AttentionShape, spread
from pyperf_suite.laws.calibration import Block
from pyperf_suite.laws.matmul.octave_grid import read_grid

Array = NDArray[np.float64]

# What the softmax of a pair costs, in columns of the head that its products would take: a straight line through what a
# pair costs on H200 in heads of 64 to 256 (TensorRT-LLM). Asked where a GPU's table has no head dimension on one side.
SOFTMAX_COLUMNS = 25.0
ARRAYS = ("library", "head_dim", "block", "resident", "costs", "grid")


@dataclass(frozen=True)
class Costs:
    """Seconds by what is counted; pairs, tiles are those of a slot, bytes those of all."""

    launch_s: float
    busiest_pair_s: float
    even_pair_s: float
    tile_s: float
    byte_s: float

    @property
    def pair_s(self) -> float:
        """Seconds of a pair where slots are loaded evenly."""
        return self.busiest_pair_s + self.even_pair_s


@dataclass(frozen=True)
class KernelLaw:
    """One kernel: tiles of `block` queries, `resident` on a multiprocessor at once, of `sms`.

    `grid` is log(measured / counted) at powers of two of batch·heads, of the sequence and of the heads that share keys.
    """

    library: str
    head_dim: int
    block: int
    resident: int
    sms: int
    costs: Costs
    grid: Array

    def features(self, shape: AttentionShape) -> Array:
        """What the costs are of: one row a shape, one column a cost."""
        work = spread(shape, self.block, self.resident * self.sms)
        one, nbytes = np.ones(shape.batch.shape), shape.nbytes(self.head_dim)
        return np.stack([one, work.busiest_pairs, work.even_pairs, work.rounds, nbytes], axis=-1)

    def counted_seconds(self, shape: AttentionShape) -> Array:
        """Seconds without the grid, of one axis of shapes."""
        return np.asarray(self.features(shape) @ np.array(astuple(self.costs)))

    def seconds(self, shape: AttentionShape) -> Array:
        """Seconds, of one axis of shapes."""
        return self.counted_seconds(shape) * np.exp(read_grid(self.grid, grid_sizes(shape)))

    def parts(self, shape: AttentionShape, filled: Array, flop_per_s: float) -> dict[str, Array]:
        """Seconds by cause, of one axis of shapes; where all of the width is `filled` they add up to `seconds`.

        `filled` is the share of the kernel's width that is the model's head dimension, the rest being computed in vain.
        """
        work = spread(shape, self.block, self.resident * self.sms)
        counting = work.visible_pairs * self.costs.pair_s
        ideal = 4 * shape.visible_pairs * self.head_dim * filled / flop_per_s
        padding = counting * (1 - filled)
        parts = {
            "ideal": ideal,
            "alignment": padding,
            "tile": (work.even_pairs - work.visible_pairs) * self.costs.pair_s + work.rounds * self.costs.tile_s,
            "wave": (work.busiest_pairs - work.even_pairs) * self.costs.busiest_pair_s,
            "rate": counting - padding - ideal,
            "bandwidth": shape.nbytes(self.head_dim * filled) * self.costs.byte_s,
            "launch": np.full(shape.batch.shape, self.costs.launch_s),
        }
        counted = np.asarray(sum(parts.values()))
        return {**parts, "measured": counted * np.expm1(read_grid(self.grid, grid_sizes(shape)))}

    def at_head_dim(self, head_dim: int) -> KernelLaw:
        """The same kernel for heads of another width, its pairs as much dearer as their products and softmax."""
        dearer = (head_dim + SOFTMAX_COLUMNS) / (self.head_dim + SOFTMAX_COLUMNS)
        costs = replace(
            self.costs,
            busiest_pair_s=self.costs.busiest_pair_s * dearer,
            even_pair_s=self.costs.even_pair_s * dearer,
        )
        return replace(self, head_dim=head_dim, costs=costs)

    def on(self, sms: int, faster_sm: float, faster_memory: float) -> KernelLaw:
        """The same kernel on another GPU, whose multiprocessors and memory are so many times as fast."""
        costs = Costs(
            self.costs.launch_s,
            self.costs.busiest_pair_s / faster_sm,
            self.costs.even_pair_s / faster_sm,
            self.costs.tile_s / faster_sm,
            self.costs.byte_s / faster_memory,
        )
        return replace(self, sms=sms, costs=costs)


def grid_sizes(shape: AttentionShape) -> tuple[Array, Array, Array]:
    """The sizes that a kernel's grid is over."""
    return shape.instances, np.sqrt(shape.seq_q * shape.seq_k), shape.group


def pack_kernels(kernels: list[KernelLaw]) -> Mapping[str, NDArray[np.generic]]:
    """Kernels as the arrays of a calibration's block, one row each."""
    return {
        "library": np.array([kernel.library for kernel in kernels]),
        "head_dim": np.array([kernel.head_dim for kernel in kernels]),
        "block": np.array([kernel.block for kernel in kernels]),
        "resident": np.array([kernel.resident for kernel in kernels]),
        "costs": np.array([astuple(kernel.costs) for kernel in kernels]),
        # A thousandth of the logarithm is a thousandth of the time; what is finer would only not compress.
        "grid": np.array([np.round(kernel.grid * 500).astype(np.int16) for kernel in kernels]),
    }


def unpack_kernels(block: Block, sms: int) -> list[KernelLaw]:
    """The inverse of `pack_kernels`, for a GPU of `sms` multiprocessors."""
    return [
        KernelLaw(str(library), int(head_dim), int(rows), int(resident), sms, Costs(*costs.tolist()), grid / 500)
        for library, head_dim, rows, resident, costs, grid in zip(*(block.arrays[name] for name in ARRAYS), strict=True)
    ]
