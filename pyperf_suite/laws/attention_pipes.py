"""Cycles of attention's forward pass on a Hopper GPU, from the instructions of a step and the units that execute them.

A step is a block of queries times a block of keys. Its two products take the tensor cores. Its softmax takes the
exponential units, then those of maxima and packing, one after the other; multiply-adds hide behind exponentials. Parts
of a multiprocessor that compute in turns (consumer warpgroups, resident programs) queue for both: a step lasts as long
as a round of a closed network of two queues (Reiser and Lavenberg 1980). A single part waits for each in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyperf_suite.laws.tiled_attention import TiledAttention

# Dense FLOP a cycle of a multiprocessor's tensor cores in 16 bits (NVIDIA H100 Tensor Core GPU Architecture).
TENSOR_FLOP = 4096
# Cycles for which a warp's instruction takes its unit: 16 exponentials a cycle of a multiprocessor, 64 maxima,
# comparisons, integer operations or packed pairs, 128 multiply-adds (CUDA C++ Programming Guide, throughput of 9.0).
EXPONENTIAL, COMPARISON, MULTIPLICATION = 8, 2, 1
# Instructions a score: a maximum and half of a packed pair; scaled and added up. A masked score is compared and
# selected too. A polynomial in place of an exponential: a shift and an addition of integers, five multiply-adds.
COMPARISONS, MULTIPLICATIONS, MASKING, POLYNOMIAL = 1.5, 2, 2, (2, 5)
WARPGROUP_ROWS = 64  # queries of a warpgroup's wgmma, of which a thread has two rows and a quarter of the keys of each
# Fitted to our Triton kernel on an H200: a barrier of all warps and the latencies around it; keys that are fetched only
# after the step before, as with two stages. By its machine code three barriers a step.
BARRIER_CYCLES, FETCH_CYCLES, TRITON_BARRIERS, HIDING_STAGES = 48, 700, 3, 3
ELEMENT_BYTES = 2
# Columns of head_dim that take the tensor cores as long as the exponentials take: 4 FLOP and one of 16 a cycle a score.
EXPONENTIAL_COLUMNS = TENSOR_FLOP // 4 // 16


def tensor_cycles(rows: float, keys: int, head_dim: int) -> float:
    """Cycles of a multiprocessor's tensor cores for both products of these queries and keys."""
    return 4 * rows * keys * head_dim / TENSOR_FLOP


def softmax_cycles(rows: float, keys: int, head_dim: int, masked: bool = False, polynomial: float = 0.0) -> float:
    """Cycles of the other units for a step: weights, of which `polynomial` by multiply-adds, and the correction."""
    compared, multiplied = (polynomial * instructions for instructions in POLYNOMIAL)
    comparing = COMPARISON * (COMPARISONS + MASKING * masked + compared)
    weighing = max(EXPONENTIAL * (1 - polynomial), MULTIPLICATION * (MULTIPLICATIONS + multiplied))
    correcting = 2 * EXPONENTIAL + MULTIPLICATION * head_dim / 2
    return rows / WARPGROUP_ROWS * (keys / 2 * (comparing + weighing) + correcting)


def bounding_unit(head_dim: int) -> str:
    """The unit that a step over 128 keys takes longest."""
    size = (WARPGROUP_ROWS, 128, head_dim)
    return "softmax" if softmax_cycles(*size) > tensor_cycles(*size) else "tensor cores"


def round_cycles(parts: int, tensor: float, softmax: float, waits: float = 0.0) -> float:
    """Cycles until each of `parts` has been served once by both and has waited; the mean value of a closed network."""
    lasts = at_tensor = at_softmax = 0.0
    for count in range(1, parts + 1):
        # Whoever comes next meets the queues that there are with one part less.
        by_tensor, by_softmax = tensor * (1 + at_tensor), softmax * (1 + at_softmax)
        lasts = by_tensor + by_softmax + waits
        at_tensor, at_softmax = count * by_tensor / lasts, count * by_softmax / lasts
    return lasts


@dataclass(frozen=True)
class HopperForward:
    """A forward pass on `multiprocessors` of a Hopper GPU, of whose work in each `parts` compute in turns.

    `barriers` are those of a step at which all warps of a program wait, `fetches_late` says that its keys are waited
    for; `polynomial` as in `softmax_cycles`.
    """

    tiled: TiledAttention
    multiprocessors: int
    parts: int
    barriers: int = 0
    fetches_late: bool = False
    polynomial: float = 0.0

    @classmethod
    def in_turns(cls, tiled: TiledAttention, multiprocessors: int, polynomial: float = 0.0) -> HopperForward:
        """A kernel whose warpgroups of 64 queries compute in turns, as those of FlashAttention-3 do."""
        parts = max(1, tiled.blocks.m * tiled.slots // multiprocessors // WARPGROUP_ROWS)
        return cls(tiled, multiprocessors, parts, polynomial=polynomial)

    @classmethod
    def by_triton(cls, tiled: TiledAttention, multiprocessors: int) -> HopperForward:
        """Our Triton kernel, of which all warps move together: what computes in turns are resident programs."""
        late = tiled.blocks.stages < HIDING_STAGES
        return cls(tiled, multiprocessors, tiled.slots // multiprocessors, TRITON_BARRIERS, late)

    def step(self, masked: bool = False) -> float:
        """Cycles until all parts have computed a step."""
        tiled = self.tiled
        rows = tiled.blocks.m * tiled.slots / self.multiprocessors / self.parts
        size = (rows, tiled.blocks.n, tiled.padded_head_dim)
        waits = self.barriers * BARRIER_CYCLES + self.fetches_late * FETCH_CYCLES
        return round_cycles(self.parts, tensor_cycles(*size), softmax_cycles(*size, masked, self.polynomial), waits)

    def cycles(self, memory_bytes: float) -> float:
        """Cycles of the pass at these bytes a cycle of memory, which reading queries and writing results take too."""
        tiled = self.tiled
        steps, tiles = tiled.busiest
        masks = min(-(-tiled.blocks.m // tiled.blocks.n), steps // tiles) if tiled.causal else 0
        moved = 2 * ELEMENT_BYTES * tiled.blocks.m * tiled.head_dim * tiled.slots / memory_bytes
        return steps * self.step() + tiles * (masks * (self.step(masked=True) - self.step()) + moved)
