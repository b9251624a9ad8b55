"""Specialise `kernels/cuda/gemm_sm80.cu`: its options, threads, shared memory and arguments.

The kernel takes any M, N, K, leading dimensions and element-aligned addresses. How wide it reads and writes global
memory is part of the specialisation and has a name, because the divisibility probe measures exactly that.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyperf_suite.hardware.catalogue import architecture
from pyperf_suite.kernels import nvrtc
from pyperf_suite.kernels.schedule import Schedule

FAMILY = "sm80"  # as gpus.toml names it
ENTRY = "pyperf_gemm"
CLUSTERS = False
K_STEP = 32  # of a tile of 128x128 in probes of shapes
MEASURED_TILES = ("128x128x32",)  # by the baseline probe
ARCHITECTURE = "sm_80"  # the least; compiled for the device at hand it runs on every later one
SOURCE = "gemm_sm80.cu"
HEADERS = ("operand_sm80.cuh", "ptx_sm80.cuh", "schedule.cuh")

INPUT_TYPES = ("bf16", "fp16")
OUTPUT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
WIDEST_ACCESS_BYTES = 16
PATHS = {16: "16-byte", 8: "8-byte", 4: "4-byte", 2: "predicated"}

SHARED_BYTES = architecture(ARCHITECTURE).shared_block_bytes  # for which stages are chosen; a device may have less

FRAGMENT = 16  # rows and columns of a warp's share come in these: mma.sync m16n8k16, twice along n
MOST_WARPS = 8  # 256 threads: the most that can have 255 registers each
REGISTERS = 65536  # of a multiprocessor
MOST_SHARE_REGISTERS = 192  # of a thread's 255, for its part of the warp's sums and fragments
OTHER_REGISTERS = 56  # besides those, for addresses and loops: with fewer it spills
TILE_K = (32, 64, 128)
MOST_TILE_SIDE = 256
MOST_STAGES = 4  # by default: more in flight has nothing left to hide
WORK_BYTES = 128  # before the pipeline: where the block stands in its schedule
# Tile origins are counted in 32 bits, and a tile may begin below the last row and end a tile beyond it.
MOST_DIMENSION = 2**31 - 1 - MOST_TILE_SIDE


@dataclass(frozen=True)
class Specialisation:
    """One instance of the kernel: a tile `m × n` in steps of `k`, and everything else that is fixed in its code.

    `access_a`, `access_b`, `access_c` are bytes of one access to global memory. Raises ValueError for what cannot be,
    naming the limit and the nearest tile that can.
    """

    m: int
    n: int
    k: int
    stages: int
    warps_m: int
    warps_n: int
    in_type: str = "bf16"
    out_type: str = "bf16"
    a_transposed: bool = False
    b_transposed: bool = True
    access_a: int = WIDEST_ACCESS_BYTES
    access_b: int = WIDEST_ACCESS_BYTES
    access_c: int = WIDEST_ACCESS_BYTES

    def __post_init__(self) -> None:
        if self.in_type not in INPUT_TYPES or self.out_type not in OUTPUT_BYTES:
            raise ValueError(
                f"A product of {self.in_type} into {self.out_type} was requested, but mma.sync takes "
                f"{' or '.join(INPUT_TYPES)} here and results are {', '.join(OUTPUT_BYTES)}."
            )
        for operand, access, least in (("A", self.access_a, 2), ("B", self.access_b, 2), ("C", self.access_c, None)):
            least = least or self.out_bytes
            if access not in PATHS or access < least:
                raise ValueError(
                    f"{operand} cannot be accessed by {access} bytes: choose {least} to {WIDEST_ACCESS_BYTES}, "
                    "a power of two."
                )
        check_tile(self.m, self.n, self.k, self.stages)
        if self.m % (FRAGMENT * self.warps_m) or self.n % (FRAGMENT * self.warps_n) or self.warps > MOST_WARPS:
            raise ValueError(
                f"{self.warps_m} × {self.warps_n} warps cannot share a tile of {self.m}x{self.n}: each computes a "
                f"multiple of {FRAGMENT} rows and columns, and {MOST_WARPS} is the most; `warps` finds a division."
            )

    @property
    def name(self) -> str:
        """Return the kernel's name: `sm80_bf16_bf16_tn_128x128x32_s4_w2x2`, with the path if it is not the widest."""
        path = "" if self.path == PATHS[WIDEST_ACCESS_BYTES] else f"_{self.path}"
        return (
            f"sm80_{self.in_type}_{self.out_type}_{self.layout.lower()}_{self.m}x{self.n}x{self.k}_s{self.stages}"
            f"_w{self.warps_m}x{self.warps_n}{path}"
        )

    @property
    def layout(self) -> str:
        """How B and A are stored, in cuBLAS's letters for a row-major C: TN is A [M,K], B [N,K]."""
        return ("T" if self.b_transposed else "N") + ("T" if self.a_transposed else "N")

    @property
    def path(self) -> str:
        """How global memory is accessed: "16-byte", "8-byte", "4-byte" or "predicated", the narrowest of A, B and C.

        Down to 4 bytes operands are copied asynchronously (cp.async); "predicated" reads element by element.
        """
        return PATHS[min(self.access_a, self.access_b, self.access_c)]

    @property
    def warps(self) -> int:
        return self.warps_m * self.warps_n

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def out_bytes(self) -> int:
        return OUTPUT_BYTES[self.out_type]

    @property
    def pipeline_bytes(self) -> int:
        """Shared memory of all stages of both operands."""
        return pipeline_bytes(self.m, self.n, self.k, self.stages)

    @property
    def patches_bytes(self) -> int:
        """Shared memory through which results leave: 16 rows a warp, 8 elements of padding a row."""
        return self.warps * FRAGMENT * (self.n // self.warps_n + 8) * self.out_bytes

    @property
    def smem_bytes(self) -> int:
        return WORK_BYTES + max(self.pipeline_bytes, self.patches_bytes)

    @property
    def resident_blocks(self) -> int:
        """Blocks of a multiprocessor that the compiler is to leave registers for, so that they hide each other's waits.

        As many as shared memory of 228 KB holds (9.0 and later), if each thread keeps 56 registers besides its share.
        """
        by_shared_memory = (228 << 10) // (self.smem_bytes + 1024)
        share = share_registers(self.m // self.warps_m, self.n // self.warps_n)
        return max(1, min(by_shared_memory, REGISTERS // (self.threads * (share + OTHER_REGISTERS))))

    @property
    def register_bound(self) -> int:
        """Registers that a thread may have for `resident_blocks` to fit; they are allocated in eights, 255 at most."""
        return min(255, REGISTERS // (self.threads * self.resident_blocks) // 8 * 8)

    def options(self) -> list[str]:
        macros = {
            "TILE_M": self.m,
            "TILE_N": self.n,
            "TILE_K": self.k,
            "STAGES": self.stages,
            "WARPS_M": self.warps_m,
            "WARPS_N": self.warps_n,
            "IN_TYPE": self.in_type,
            "OUT_TYPE": self.out_type,
            "LAYOUT_A_TRANSPOSED": int(self.a_transposed),
            "LAYOUT_B_TRANSPOSED": int(self.b_transposed),
            "ACCESS_A": self.access_a,
            "ACCESS_B": self.access_b,
            "ACCESS_C": self.access_c,
            "RESIDENT_BLOCKS": self.resident_blocks,
            "PIPELINE_BYTES": self.pipeline_bytes,
            "PATCHES_BYTES": self.patches_bytes,
        }
        return ["--std=c++20", "--device-as-default-execution-space", *(f"-D{k}={v}" for k, v in macros.items())]

    def check_device(self, capability: str) -> None:
        """Raise ValueError where a device of a compute capability such as "8.6" cannot run it."""
        device = architecture(capability)
        if device.cuda_kernels is None:
            raise ValueError(f"{self.name} needs compute capability 8.0 or later, but this device has {capability}.")
        limit = device.shared_block_bytes
        if self.smem_bytes > limit:
            fitting = (limit - WORK_BYTES) // pipeline_bytes(self.m, self.n, self.k, 1)
            nearest = f"{fitting} stages do" if fitting >= 2 else "ask for a smaller tile"
            raise ValueError(
                f"Tile {self.m}x{self.n}x{self.k} with {self.stages} stages takes {self.smem_bytes} bytes of shared "
                f"memory, and a block of compute capability {capability} has {limit}: {nearest}."
            )

    def schedule(
        self, m: int, n: int, k: int, policy: str, splits: int = 1, workers: int = 1, group: int = 1
    ) -> Schedule:
        """The schedule of a product in this tile. Raises ValueError for one that cannot be."""
        for letter, size in (("M", m), ("N", n), ("K", k)):
            if not 1 <= size <= MOST_DIMENSION:
                raise ValueError(f"{letter} = {size} is out of range: it must be between 1 and {MOST_DIMENSION}.")
        tiles_m, tiles_n, k_tiles = (-(-size // side) for size, side in ((m, self.m), (n, self.n), (k, self.k)))
        return Schedule(policy, tiles_m, tiles_n, k_tiles, splits, workers, min(group, tiles_m))

    def grid(self, schedule: Schedule) -> int:
        return schedule.units

    def workspace_bytes(self, schedule: Schedule) -> int:
        """Device memory for partial sums: a tile of fp32 for each tile that units share; not initialised."""
        return 4 * self.m * self.n * schedule.shared_tiles

    def flags_bytes(self, schedule: Schedule) -> int:
        """Device memory for flags: zero before the first launch; each launch leaves them zero."""
        return 4 * schedule.shared_tiles

    def bind(
        self,
        encode: Callable[..., bytes],
        addresses: tuple[int, int, int],
        leading_dimensions: tuple[int, int, int],
        sizes: tuple[int, int, int],
    ) -> Callable[..., list[bytes]]:
        """A launch's packed parameters as a function of schedule, workspace and flags; no tensor map is needed."""
        return partial(self.arguments, *addresses, leading_dimensions, sizes)

    def arguments(
        self,
        a: int,
        b: int,
        c: int,
        leading_dimensions: tuple[int, int, int],
        sizes: tuple[int, int, int],
        schedule: Schedule,
        workspace: int = 0,
        flags: int = 0,
    ) -> list[bytes]:
        """The kernel's parameters in order, packed: addresses, leading dimensions of A, B, C in elements, M N K.

        Raises ValueError for an address or leading dimension that this instance's accesses do not allow.
        """
        m, n, k = sizes
        rows = (m if self.a_transposed else k, k if self.b_transposed else n, n)
        operands = zip(
            "ABC",
            (a, b, c),
            leading_dimensions,
            rows,
            (self.access_a, self.access_b, self.access_c),
            (2, 2, self.out_bytes),
            strict=True,
        )
        for name, address, leading, row, access, element in operands:
            if leading < row:
                raise ValueError(f"The leading dimension of {name} is {leading}, less than its row of {row} elements.")
            widest = access_bytes(address, leading, element)
            if widest < access:
                raise ValueError(
                    f"{name} at address {address:#x} with leading dimension {leading} can be accessed by {widest} "
                    f"bytes, not by the {access} of {self.name}: `specialise` chooses by address and leading dimension."
                )
        return [
            *(struct.pack("<Q", address) for address in (a, b, c)),
            *(struct.pack("<q", leading) for leading in leading_dimensions),
            *(struct.pack("<i", size) for size in sizes),
            schedule.packed(),
            struct.pack("<Q", workspace),
            struct.pack("<Q", flags),
        ]


def access_bytes(address: int, leading_dimension: int, element_bytes: int) -> int:
    """The widest access, up to 16 bytes, by which every row of a matrix can be reached from its first element."""
    return math.gcd(address, leading_dimension * element_bytes, WIDEST_ACCESS_BYTES)


def pipeline_bytes(m: int, n: int, k: int, stages: int) -> int:
    """Shared memory of `stages` k-tiles of both operands, of 2 bytes an element."""
    return stages * (m + n) * k * 2


def check_tile(m: int, n: int, k: int, stages: int) -> None:
    """Raise ValueError, with the limit and the nearest tile that can be, for one that this kernel does not have."""
    if stages < 2:
        raise ValueError(
            f"{stages} stages were requested, but one is read while another is filled: ask for 2 at least."
        )
    sides_fit = all(side % FRAGMENT == 0 and FRAGMENT <= side <= MOST_TILE_SIDE for side in (m, n))
    if sides_fit and k in TILE_K and any(True for _ in warp_divisions(m, n)):
        return
    near_m, near_n = (min(max(round(side / FRAGMENT), 1) * FRAGMENT, MOST_TILE_SIDE) for side in (m, n))
    near_k = min(TILE_K, key=lambda depth: abs(depth - k))
    while not any(True for _ in warp_divisions(near_m, near_n)):
        near_m, near_n = (near_m - FRAGMENT, near_n) if near_m >= near_n else (near_m, near_n - FRAGMENT)
    raise ValueError(
        f"Tile {m}x{n}x{k} cannot be computed with mma.sync here: m and n are multiples of {FRAGMENT} up to "
        f"{MOST_TILE_SIDE} that the registers of at most {MOST_WARPS} warps can hold, k is one of "
        f"{', '.join(map(str, TILE_K))}; the nearest tile that can is {near_m}x{near_n}x{near_k}."
    )


def warp_divisions(m: int, n: int) -> Iterator[tuple[int, int]]:
    """The ways to share a tile among a grid of warps whose registers hold their share."""
    for warps_m in range(1, MOST_WARPS + 1):
        for warps_n in range(1, MOST_WARPS // warps_m + 1):
            divides = m % (FRAGMENT * warps_m) == 0 and n % (FRAGMENT * warps_n) == 0
            if divides and share_registers(m // warps_m, n // warps_n) <= MOST_SHARE_REGISTERS:
                yield warps_m, warps_n


def share_registers(warp_m: int, warp_n: int) -> int:
    """Registers of a thread for its warp's share: one a sum, and fragments of 16-bit operands two steps deep."""
    return warp_m * warp_n // 32 + 2 * (warp_m + warp_n) * FRAGMENT // 2 // 32


def warps(m: int, n: int) -> tuple[int, int]:
    """The warps along m and n that share a tile.

    As few as registers allow, since fragments are reused within a warp, but four where the tile has as many fragments:
    each of a multiprocessor's four schedulers then has one. Among equals the squarest share, which reads the least
    shared memory for the same products.
    """

    def cost(division: tuple[int, int]) -> tuple[bool, int, int]:
        warps_m, warps_n = division
        count = warps_m * warps_n
        return count < 4, count if count >= 4 else -count, m // warps_m + n // warps_n

    return min(warp_divisions(m, n), key=cost)


def specialise(
    m: int,
    n: int,
    k: int,
    stages: int | None = None,
    *,
    in_type: str = "bf16",
    out_type: str = "bf16",
    a_transposed: bool = False,
    b_transposed: bool = True,
    addresses: tuple[int, int, int] = (0, 0, 0),
    leading_dimensions: tuple[int, int, int] = (0, 0, 0),
) -> Specialisation:
    """The instance for a tile and for operands A, B, C at these addresses with these leading dimensions.

    Addresses and leading dimensions of 0 count as aligned. Stages, where not named, are as many as compute capability
    8.0 has shared memory for, up to 4. Raises ValueError for a tile or type that cannot be.
    """
    check_tile(m, n, k, 2 if stages is None else stages)
    if stages is None:
        stages = max(2, min(MOST_STAGES, (SHARED_BYTES - WORK_BYTES) // pipeline_bytes(m, n, k, 1)))
    element_bytes = (2, 2, OUTPUT_BYTES.get(out_type, WIDEST_ACCESS_BYTES))
    access = map(access_bytes, addresses, leading_dimensions, element_bytes)
    return Specialisation(m, n, k, stages, *warps(m, n), in_type, out_type, a_transposed, b_transposed, *access)


def default_set() -> tuple[Specialisation, ...]:
    """The tiles measured where nobody names one: bf16, TN, 16-byte accesses; all fit a block of compute capability 8.0.

    In none of the layouts does one spill on sm_80, sm_90, sm_100a or sm_120a; 128x128 in steps of 64 did. Three
    stages leave room for a second block where four did not.
    """
    tiles = (
        (256, 128, 64, 3),
        (128, 256, 32, 4),
        (128, 128, 32, 4),
        (128, 64, 64, 3),
        (64, 128, 64, 3),
        (64, 64, 64, 4),
        (32, 128, 64, 4),
        (128, 32, 64, 4),
    )
    return tuple(specialise(*tile) for tile in tiles)


def default_tile(_m: int, _n: int, _workers: int) -> tuple[int, int, int, int]:
    """M, N, K and CTAs of a cluster: steps not too deep for two blocks of a multiprocessor to have the registers."""
    return 128, 128, 32, 1


def for_product(
    sizes: tuple[int, int, int, int | None],
    _cluster: tuple[int, int],
    _policy: str,
    addresses: tuple[int, int, int],
    leading_dimensions: tuple[int, int, int],
    **types: Any,
) -> Specialisation:
    """The instance for a tile's M, N, K and stages, None for as many as fit. One instance follows every policy."""
    return specialise(*sizes, addresses=addresses, leading_dimensions=leading_dimensions, **types)


def in_layout(specialisation: Specialisation, layout: str) -> Specialisation:
    """The same tile for operands stored otherwise: "TN", "NN", "NT" or "TT"."""
    return replace(specialisation, a_transposed=layout[1] == "T", b_transposed=layout[0] == "T")


sources = partial(nvrtc.sources, SOURCE, HEADERS)
