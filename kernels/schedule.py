"""Map programs to parts of C = A·B, and order them: `kernels/cuda/schedule.cuh` for Triton.

The functions are plain integer arithmetic. Triton compiles this very text for the device and the tests run it as
Python against the C++ form, so the two cannot diverge unseen.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

POLICIES = ("data_parallel", "persistent", "split_k", "stream_k")


@dataclass(frozen=True)
class Schedule:
    """The counts of one product: `tiles_m × tiles_n` output tiles of `k_tiles` steps, and who visits them.

    `splits` is read by split_k only, `workers` by persistent and stream_k only. `group` rows of tiles are visited
    together, for reuse in L2; 1 is plain row-major order.
    """

    policy: str
    tiles_m: int
    tiles_n: int
    k_tiles: int
    splits: int = 1
    workers: int = 1
    group: int = 1

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"Schedule {self.policy!r} is unknown: choose from {', '.join(POLICIES)}.")
        if min(self.workers, self.group) < 1:
            raise ValueError(
                f"{self.workers} workers and {self.group} rows a group were requested, but there is at least 1 of each."
            )
        if self.policy != "split_k" and self.splits != 1:
            raise ValueError(f"{self.splits} slices of K were requested of {self.policy}: only split_k takes several.")
        if not 1 <= self.splits <= self.k_tiles:
            raise ValueError(
                f"{self.splits} slices of K were requested, but these {self.k_tiles} k-tiles give between 1 and "
                f"{self.k_tiles}."
            )
        slices, streamed = self.splits * self.k_tiles, self.streamed_tiles * self.k_tiles
        largest = max(self.units, self.tiles + self.stride, slices, streamed, self.workers**2)
        if largest >= 1 << 31:
            raise ValueError(f"This schedule counts up to {largest}, but a device counts in 32 bits.")

    @property
    def tiles(self) -> int:
        return self.tiles_m * self.tiles_n

    @property
    def units(self) -> int:
        """Programs launched: one a tile, one a slice of a tile, or one a worker."""
        if self.policy == "data_parallel":
            return self.tiles
        return self.tiles * self.splits if self.policy == "split_k" else self.workers

    @property
    def stride(self) -> int:
        """From a unit's tile to its next one: beyond the last where it has a single one."""
        return self.workers if self.policy in ("persistent", "stream_k") else self.tiles

    @property
    def streamed_tiles(self) -> int:
        """Tiles at the end of the order whose k-tiles stream_k shares out evenly among the workers.

        They are the partial wave and the full wave before it, or none where the waves divide evenly (the two-tile
        hybrid of Osama et al. 2023, "Stream-K").
        """
        if self.policy != "stream_k" or self.tiles % self.workers == 0:
            return 0
        return self.tiles - max(self.tiles // self.workers - 1, 0) * self.workers

    @property
    def shared_tiles(self) -> int:
        """Tiles, at the end of the order, whose sum more than one program may form."""
        return self.tiles if self.policy == "split_k" and self.splits > 1 else self.streamed_tiles

    def packed(self) -> bytes:
        """The struct Schedule of `kernels/cuda/schedule.cuh` as a GPU takes it, with the reciprocal of each divisor."""
        group = min(self.group, self.tiles_m)
        share, rest = divmod(self.streamed_tiles * self.k_tiles, self.workers)
        numbers = [POLICIES.index(self.policy), self.tiles_m, self.tiles_n, self.k_tiles, self.splits, self.workers]
        numbers += [group, self.stride, self.streamed_tiles, share, rest]
        parts = self.splits if self.policy == "split_k" else self.workers
        for divisor in (parts, self.k_tiles, group * self.tiles_n, group, self.tiles_m % group or group):
            numbers += reciprocal(divisor)
        return struct.pack("<11i" + 5 * "Ii", *numbers)


def reciprocal(divisor: int) -> tuple[int, int]:
    """Factor and shift: n // divisor is (2·n · factor >> 32) >> shift for all n from 0 to 2^31 − 1."""
    shift = (divisor - 1).bit_length()
    return -(-(1 << 31 + shift) // divisor), shift


# The functions below call no other and leave a string unannotated, because in their text Triton knows its own names
# and `int` only. `begin` and `end` are the unit's share: `boundary` of `unit % splits` among the k-tiles of a tile for
# split_k, of `unit` among all streamed for stream_k.


def boundary(number: int, total: int, parts: int) -> int:
    """⌊number · total / parts⌋, where part `number` of `total` steps begins; never leaves 32 bits on the way."""
    return number * (total // parts) + number * (total % parts) // parts


def visits(  # type: ignore[no-untyped-def]
    policy, unit: int, tiles: int, k_tiles: int, streamed: int, workers: int, begin: int, end: int
) -> int:
    """How many segments a unit has."""
    count = 1
    if policy == "persistent" or policy == "stream_k":
        count = max(tiles - streamed - unit + workers - 1, 0) // workers
    if policy == "stream_k" and begin < end:
        count += (end - 1) // k_tiles - begin // k_tiles + 1
    return count


def segment(  # type: ignore[no-untyped-def]
    policy,
    unit: int,
    visit: int,
    tiles: int,
    k_tiles: int,
    streamed: int,
    splits: int,
    workers: int,
    begin: int,
    end: int,
) -> tuple[int, int, int]:
    """The unit's segment number `visit`: a tile's place in the visiting order, and its k-tiles [k_begin, k_end).

    The segments of one tile are summed in ascending k, and the one with k_end == k_tiles finishes the tile.
    """
    tile = unit
    k_begin = 0
    k_end = k_tiles
    if policy == "split_k":
        tile = unit // splits
        k_begin = begin
        k_end = end
    elif policy == "persistent" or policy == "stream_k":
        tile = unit + visit * workers
    if policy == "stream_k" and tile >= tiles - streamed:
        # From the back: the tile a unit begins for its successor comes first and the tile it must finish for its
        # predecessor comes last, so that the predecessor's part has long been written and nobody waits.
        whole = max(tiles - streamed - unit + workers - 1, 0) // workers
        in_stream = (end - 1) // k_tiles - (visit - whole)
        tile = tiles - streamed + in_stream
        k_begin = max(begin - in_stream * k_tiles, 0)
        k_end = min(end - in_stream * k_tiles, k_tiles)
    return tile, k_begin, k_end


def place(tile: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Row and column of a tile of the visiting order: bands of `group` rows of tiles, column by column inside."""
    band_row = tile // (group * tiles_n) * group
    rows = min(tiles_m - band_row, group)
    inside = tile % (group * tiles_n)
    return band_row + inside % rows, inside // rows
