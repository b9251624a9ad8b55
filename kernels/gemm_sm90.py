"""Specialise `kernels/cuda/gemm_sm90.cu`: its options, threads, shared memory, tensor maps and arguments.

The arithmetic is that of `kernels/cuda/tile.cuh`; the tests compare the two. A tile is one CTA's; a schedule counts in
tiles of a cluster, `m·cluster_m` by `n·cluster_n`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyperf_suite.hardware.catalogue import architecture
from pyperf_suite.kernels import nvrtc
from pyperf_suite.kernels.schedule import Schedule
from pyperf_suite.kernels.tensor_map import Operand, TensorMap, check_operand, swizzle_bytes, widest_span

FAMILY = "sm90"  # as gpus.toml names it
ENTRY = "pyperf_gemm"
CLUSTERS = True
K_STEP = 64  # of a tile of 128x128 in probes of shapes
# By the baseline probe, by what a wave of tiles reads of L2: a pair of the largest, along either side, reads two thirds
# of what one does and half of what the smaller does, which fits narrow products. A stage less leaves room to store a
# tile without waiting.
MEASURED_TILES = ("128x256x64:c2", "128x256x64:s3:c2", "256x128x64:c1x2", "128x256x64", "128x128x64")
SOURCE = "gemm_sm90.cu"
HEADERS = ("ptx.cuh", "schedule.cuh", "tile.cuh", "wgmma.cuh")
ARCHITECTURE = "sm_90a"  # wgmma and setmaxnreg are not in plain sm_90

# Bytes of an element, and what a tensor map calls the type.
INPUT_TYPES = {"bf16": (2, "bfloat16"), "fp16": (2, "float16"), "e4m3": (1, "float8_e4m3")}
OUTPUT_TYPES = {"bf16": (2, "bfloat16"), "fp16": (2, "float16"), "fp32": (4, "float32")}

TILE_M = (64, 128, 192, 256)  # wgmma has 64 rows; a box of the copy engine at most 256
TILE_N = range(16, 257, 8)
TILE_K_BYTES = (64, 128)  # a row of a K-major tile is one swizzle span
# Registers of a consumer's thread that its sums may take, by consumers. Of the 255, 232 or 160 that a thread has, the
# others are for addresses and loops; and ptxas compiles a wgmma against the registers at launch, of which four
# warpgroups have 128 each, so that there n = 200 is the widest it takes (message C7602).
MOST_SUMS = {1: 192, 2: 192, 3: 100}
SHARED_BYTES = architecture(ARCHITECTURE).shared_block_bytes
STORE_BUFFERS = 2  # of a warp: one is filled while the copy engine reads the other
AMPLE_STORE_BUFFERS = 4  # all that a warp stores of 256 columns of 16 bits, so that it waits for none
MOST_STAGES = 8  # by default: more in flight has nothing left to hide
WARPGROUP_THREADS = 128
WARP_ROWS = 16
# A tile's begin is counted in 32 bits, and a tile of a cluster may end beyond the last row.
MOST_DIMENSION = 2**31 - 1 - 512


@dataclass(frozen=True)
class Specialisation:
    """One instance of the kernel: a tile `m × n` in steps of `k` elements, and all else that is fixed in its code.

    `consumers` warpgroups share the rows; `cluster_m × cluster_n` CTAs load what they share once; each warp has
    `store_buffers` for results on their way out. `shared_tiles` is for schedules in which units share tiles (split_k,
    stream_k); without it the kernel is smaller. Raises ValueError for what cannot be, naming the limit and the nearest
    that can.
    """

    m: int
    n: int
    k: int
    stages: int
    consumers: int
    cluster_m: int = 1
    cluster_n: int = 1
    store_buffers: int = STORE_BUFFERS
    in_type: str = "bf16"
    out_type: str = "bf16"
    a_transposed: bool = False
    b_transposed: bool = True
    shared_tiles: bool = False

    def __post_init__(self) -> None:
        check_types(self.in_type, self.out_type, self.a_transposed, self.b_transposed)
        check_tile(self.m, self.n, self.k, self.consumers, self.in_type)
        if (self.cluster_m, self.cluster_n) not in ((1, 1), (2, 1), (1, 2)):
            raise ValueError(
                f"A cluster of {self.cluster_m}x{self.cluster_n} CTAs was requested: it can be 1x1, 2x1 or 1x2."
            )
        if self.cluster_m == 2 and self.b_transposed and self.n % 16:
            raise ValueError(
                f"Two CTAs cannot load a B tile of {self.n} columns together: each takes a multiple of 8, so "
                f"take n = {self.n - 8} or n = {self.n + 8}."
            )
        if self.stages < 2 or self.store_buffers < 1:
            raise ValueError(
                f"{self.stages} stages and {self.store_buffers} store buffers were requested: loading and multiplying "
                "overlap from 2 stages on, and results leave through at least 1 buffer."
            )
        if self.smem_bytes > SHARED_BYTES:
            fitting = most_stages(self)
            nearest = f"{fitting} stages do" if fitting >= 2 else "ask for a smaller tile"
            raise ValueError(
                f"Tile {self.m}x{self.n}x{self.k} with {self.stages} stages takes {self.smem_bytes} bytes of shared "
                f"memory, and a block of compute capability 9.0 has {SHARED_BYTES}: {nearest}."
            )

    @property
    def name(self) -> str:
        """Return the kernel's name: `sm90_bf16_bf16_tn_128x256x64_s4_c2x1`, `_b4` after it where buffers are not 2."""
        shared = "_shared" if self.shared_tiles else ""
        buffers = f"_b{self.store_buffers}" if self.store_buffers != STORE_BUFFERS else ""
        return (
            f"sm90_{self.in_type}_{self.out_type}_{self.layout.lower()}_{self.m}x{self.n}x{self.k}_s{self.stages}"
            f"_c{self.cluster_m}x{self.cluster_n}{buffers}{shared}"
        )

    @property
    def layout(self) -> str:
        """How B and A are stored, in cuBLAS's letters for a row-major C: TN is A [M,K], B [N,K]."""
        return ("T" if self.b_transposed else "N") + ("T" if self.a_transposed else "N")

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def in_bytes(self) -> int:
        return INPUT_TYPES[self.in_type][0]

    @property
    def out_bytes(self) -> int:
        return OUTPUT_TYPES[self.out_type][0]

    @property
    def a(self) -> Operand:
        """A's part of a stage."""
        return Operand(self.m, self.k, self.in_bytes, self.a_transposed, self.cluster_n)

    @property
    def b(self) -> Operand:
        """B's part of a stage."""
        return Operand(self.n, self.k, self.in_bytes, not self.b_transposed, self.cluster_m)

    @property
    def threads(self) -> int:
        """Threads of a block: the consumers' and one warpgroup that loads."""
        return (self.consumers + 1) * WARPGROUP_THREADS

    @property
    def store_span_bytes(self) -> int:
        """Bytes of a row of the boxes in which results leave."""
        return widest_span(self.n * self.out_bytes)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage: each operand begins where a swizzle pattern may."""
        return sum(math.ceil(operand.bytes / 1024) * 1024 for operand in (self.a, self.b))

    @property
    def store_bytes(self) -> int:
        """Shared memory through which results leave."""
        return self.consumers * 4 * self.store_buffers * WARP_ROWS * self.store_span_bytes

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a block: stages, store buffers, two barriers a stage."""
        return self.stages * (self.stage_bytes + 16) + self.store_bytes

    @property
    def register_bound(self) -> int:
        """Registers a thread is launched with at most; setmaxnreg then moves some from producer to consumers."""
        return min(255, 65536 // self.threads // 8 * 8)

    def options(self) -> list[str]:
        macros = {
            "TILE_M": self.m,
            "TILE_N": self.n,
            "TILE_K": self.k,
            "STAGES": self.stages,
            "CONSUMERS": self.consumers,
            "CLUSTER_M": self.cluster_m,
            "CLUSTER_N": self.cluster_n,
            "STORE_BUFFERS": self.store_buffers,
            "IN_TYPE": self.in_type,
            "OUT_TYPE": self.out_type,
            "LAYOUT_A_TRANSPOSED": int(self.a_transposed),
            "LAYOUT_B_TRANSPOSED": int(self.b_transposed),
            "SHARED_TILES": int(self.shared_tiles),
            "SHARED_BYTES": self.smem_bytes,
            **register_lists("REGISTER", self.n),
        }
        return ["--std=c++17", *(f"-D{name}={value}" for name, value in macros.items())]

    def check_device(self, capability: str) -> None:
        """Raise ValueError where a device of a compute capability such as "8.6" cannot run it."""
        if architecture(capability).cuda_kernels != FAMILY:
            raise ValueError(
                f"{self.name} needs compute capability 9.0, whose wgmma no other has, but this device has "
                f"{capability}: take an sm_80 kernel."
            )

    def schedule(
        self, m: int, n: int, k: int, policy: str, splits: int = 1, workers: int = 1, group: int = 1
    ) -> Schedule:
        """The schedule in tiles of a cluster; workers are clusters too.

        Raises ValueError for one that cannot be, or that needs `shared_tiles`.
        """
        for letter, size in (("M", m), ("N", n), ("K", k)):
            if not 1 <= size <= MOST_DIMENSION:
                raise ValueError(f"{letter} = {size} is out of range: it must be between 1 and {MOST_DIMENSION}.")
        tiles_m, tiles_n = math.ceil(m / (self.m * self.cluster_m)), math.ceil(n / (self.n * self.cluster_n))
        schedule = Schedule(policy, tiles_m, tiles_n, math.ceil(k / self.k), splits, workers, min(group, tiles_m))
        if schedule.shared_tiles and not self.shared_tiles:
            raise ValueError(f"In this {policy} schedule units share tiles, but {self.name} has shared_tiles=False.")
        return schedule

    def grid(self, schedule: Schedule) -> int:
        return schedule.units * self.cluster

    def workspace_bytes(self, schedule: Schedule) -> int:
        """Device memory for partial sums: a cluster's tile of fp32 for each tile that units share; not initialised."""
        return 4 * self.cluster * self.m * self.n * schedule.shared_tiles

    def flags_bytes(self, schedule: Schedule) -> int:
        """Device memory for flags: zero before the first launch; each launch leaves them zero."""
        return 4 * self.cluster * self.consumers * 4 * schedule.shared_tiles

    def tensor_maps(
        self, a: int, b: int, c: int, leading_dimensions: tuple[int, int, int], sizes: tuple[int, int, int]
    ) -> tuple[TensorMap, TensorMap, TensorMap]:
        """The maps of A, B and C at these addresses; leading dimensions in elements of A, B, C; sizes M, N, K.

        Raises ValueError for what the copy engine (TMA) cannot take: it needs addresses and rows at multiples of 16
        bytes. Which kernel can is said too.
        """
        m, n, k = sizes
        in_dtype, out_dtype = INPUT_TYPES[self.in_type][1], OUTPUT_TYPES[self.out_type][1]
        operands = (
            ("A", a, in_dtype, self.in_bytes, (m, k) if self.a_transposed else (k, m), self.a.box, self.a.span_bytes),
            ("B", b, in_dtype, self.in_bytes, (k, n) if self.b_transposed else (n, k), self.b.box, self.b.span_bytes),
            (
                *("C", c, out_dtype, self.out_bytes, (n, m)),
                (self.store_span_bytes // self.out_bytes, WARP_ROWS),
                self.store_span_bytes,
            ),
        )
        maps = []
        for (letter, address, dtype, size, shape, box, span), leading in zip(operands, leading_dimensions, strict=True):
            check_operand(letter, address, leading, shape[0], size)
            maps.append(TensorMap(address, dtype, shape, leading * size, box, swizzle_bytes(span)))
        return maps[0], maps[1], maps[2]

    def bind(
        self,
        encode: Callable[..., bytes],
        addresses: tuple[int, int, int],
        leading_dimensions: tuple[int, int, int],
        sizes: tuple[int, int, int],
    ) -> Callable[..., list[bytes]]:
        """A launch's packed parameters as a function of schedule, workspace and flags; `encode` makes a tensor map."""
        a, b, c = (encode(**vars(each)) for each in self.tensor_maps(*addresses, leading_dimensions, sizes))
        return partial(self.arguments, (a, b, c))

    def arguments(
        self, maps: tuple[bytes, bytes, bytes], schedule: Schedule, workspace: int = 0, flags: int = 0
    ) -> list[bytes]:
        """The kernel's parameters in order, packed: the maps of A, B and C as encoded, the schedule, two addresses."""
        return [*maps, schedule.packed(), struct.pack("<Q", workspace), struct.pack("<Q", flags)]


def register_lists(name: str, n: int) -> dict[str, int]:
    """The macros by which wgmma.cuh lists the n / 2 registers of a wgmma: in twenties, and a rest of 4 to 20."""
    twenties = (n // 2 - 4) // 20
    return {f"{name}_TWENTIES": twenties, f"{name}_REST": n // 2 - 20 * twenties}


def check_types(in_type: str, out_type: str, a_transposed: bool, b_transposed: bool) -> None:
    """Raise ValueError for types or storage that wgmma does not take."""
    if in_type not in INPUT_TYPES or out_type not in OUTPUT_TYPES:
        raise ValueError(
            f"A product of {in_type} into {out_type} was requested: operands can be {', '.join(INPUT_TYPES)}, results "
            f"{', '.join(OUTPUT_TYPES)}."
        )
    if in_type == "e4m3" and (a_transposed or not b_transposed):
        raise ValueError("wgmma reads e4m3 only with K contiguous: store A [M,K] and B [N,K], which is layout TN.")


def check_tile(m: int, n: int, k: int, consumers: int, in_type: str) -> None:
    """Raise ValueError, with the limit and the nearest tile that can be, for one that has no wgmma or registers."""
    if consumers not in MOST_SUMS or (m in TILE_M and m // 64 % consumers):
        fitting = [number for number in MOST_SUMS if m // 64 % number == 0]
        raise ValueError(
            f"{consumers} consumers cannot share {m} rows: each warpgroup takes whole blocks of 64, so "
            f"{' or '.join(map(str, fitting))} can."
        )
    element_bytes = INPUT_TYPES[in_type][0]
    depths = [size // element_bytes for size in TILE_K_BYTES]
    near_m = min(TILE_M, key=lambda rows: abs(rows - m))
    near_n = min(TILE_N, key=lambda columns: abs(columns - n))
    near_k = min(depths, key=lambda depth: abs(depth - k))
    blocks = max(1, near_m // 64 // consumers)
    near_n = min(near_n, MOST_SUMS[consumers] * 2 // blocks // 8 * 8)
    if (m, n, k) != (near_m, near_n, near_k):
        raise ValueError(
            f"Tile {m}x{n}x{k} of {in_type} cannot be computed with wgmma by {consumers} consumers: m is one of "
            f"{', '.join(map(str, TILE_M))}, n a multiple of 8 from 16 to 256, k one of {', '.join(map(str, depths))}, "
            f"and a thread has registers for {MOST_SUMS[consumers]} sums; the nearest tile that can is "
            f"{near_m}x{near_n}x{near_k}."
        )


def most_stages(specialisation: Specialisation) -> int:
    """As many stages as shared memory has room for besides the store buffers."""
    return (SHARED_BYTES - specialisation.store_bytes) // (specialisation.stage_bytes + 16)


def specialise(
    m: int,
    n: int,
    k: int | None = None,
    stages: int | None = None,
    *,
    consumers: int | None = None,
    cluster_m: int = 1,
    cluster_n: int = 1,
    store_buffers: int | None = None,
    in_type: str = "bf16",
    out_type: str = "bf16",
    a_transposed: bool = False,
    b_transposed: bool = True,
    shared_tiles: bool = False,
) -> Specialisation:
    """The instance for a tile, what is not named chosen: k of 128 bytes, as many stages as fit up to 8, and consumers.

    A consumer has 64 rows, or 128 where a fourth warpgroup would leave too few registers to each. Stages that are named
    leave the rest of shared memory to 4 store buffers, where they fit. Raises ValueError for what cannot be.
    """
    check_types(in_type, out_type, a_transposed, b_transposed)
    two = Specialisation(
        m,
        n,
        128 // INPUT_TYPES[in_type][0] if k is None else k,
        2,
        {64: 1, 192: 3}.get(m, 2) if consumers is None else consumers,
        cluster_m,
        cluster_n,
        STORE_BUFFERS if store_buffers is None else store_buffers,
        in_type,
        out_type,
        a_transposed,
        b_transposed,
        shared_tiles,
    )
    if stages is None:
        return replace(two, stages=min(MOST_STAGES, most_stages(two)))
    spare = SHARED_BYTES - stages * (two.stage_bytes + 16)
    if store_buffers is None and two.store_bytes // STORE_BUFFERS * AMPLE_STORE_BUFFERS <= spare:
        return replace(two, stages=stages, store_buffers=AMPLE_STORE_BUFFERS)
    return replace(two, stages=stages)


def default_tile(m: int, n: int, workers: int) -> tuple[int, int, int, int]:
    """M, N, K and CTAs along M: a pair of the largest tiles, which reads the least, if each two workers get one."""
    pairs = math.ceil(m / 256) * math.ceil(n / 256)
    return (128, 256, 64, 2) if 2 * pairs >= workers else (128, 128, 64, 1)


def tile_of_columns(n: int) -> str:
    """A tile of 128 rows and n columns as a probe writes it, a pair where two CTAs can load B together."""
    return f"128x{n}x{K_STEP}{':c2' if n % 16 == 0 else ''}"


def for_product(
    sizes: tuple[int, int, int, int | None],
    cluster: tuple[int, int],
    policy: str,
    _addresses: tuple[int, int, int],
    _leading_dimensions: tuple[int, int, int],
    **types: Any,
) -> Specialisation:
    """The instance for a tile's M, N, K and stages, None for as many as fit. Addresses change nothing in its code."""
    shared_tiles = policy in ("split_k", "stream_k")
    return specialise(*sizes, cluster_m=cluster[0], cluster_n=cluster[1], shared_tiles=shared_tiles, **types)


def in_layout(specialisation: Specialisation, layout: str) -> Specialisation:
    """The same tile for operands stored otherwise: "TN", "NN", "NT" or "TT"."""
    return replace(specialisation, a_transposed=layout[1] == "T", b_transposed=layout[0] == "T")


def default_set() -> tuple[Specialisation, ...]:
    """The tiles measured where nobody names one: bf16, TN. None spills, with `shared_tiles` either.

    256x192 is missing: with its 192 sums and `shared_tiles` two registers spill.
    """
    tiles = (
        (64, 64, 1, 1),
        (64, 128, 1, 1),
        (64, 256, 1, 1),
        (128, 32, 1, 1),
        (128, 64, 1, 1),
        (128, 128, 1, 1),
        (128, 128, 2, 1),
        (128, 192, 2, 1),
        (128, 256, 1, 1),
        (128, 256, 2, 1),
        (192, 128, 1, 1),
        (192, 192, 2, 1),
        (256, 128, 1, 1),
        (256, 128, 1, 2),
        (256, 128, 2, 1),
    )
    pair_with_ample_buffers = specialise(128, 256, stages=3, cluster_m=2)
    usual = (specialise(m, n, cluster_m=rows, cluster_n=columns) for m, n, rows, columns in tiles)
    return (*usual, pair_with_ample_buffers)


sources = partial(nvrtc.sources, SOURCE, HEADERS)
