"""Specialise `kernels/cuda/attention_sm90.cu`: options, shared memory, tensor maps, arguments. Forward only.

The arithmetic is that of `kernels/cuda/attention_tile.cuh`, which the tests compare; layouts are `attention.py`'s.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from pyperf_suite.hardware.catalogue import architecture
from pyperf_suite.kernels import gemm_sm90, nvrtc
from pyperf_suite.kernels.attention import Shape, check_mask
from pyperf_suite.kernels.gemm_sm90 import SHARED_BYTES, WARPGROUP_THREADS, register_lists
from pyperf_suite.kernels.schedule import Schedule, reciprocal
from pyperf_suite.kernels.tensor_map import TMA_BYTES, TensorMap, widest_span

FAMILY, ARCHITECTURE, WARP_ROWS = gemm_sm90.FAMILY, gemm_sm90.ARCHITECTURE, gemm_sm90.WARP_ROWS
ENTRY = "pyperf_attention"
SOURCE = "attention_sm90.cu"
HEADERS = ("attention_tile.cuh", "ptx.cuh", "schedule.cuh", "tile.cuh", "wgmma.cuh")

TYPES = {"bf16": "bfloat16", "fp16": "float16"}  # and what a tensor map calls them
ELEMENT_BYTES = 2
HEAD_DIMS = (64, 96, 128, 192, 256)  # that the products compute with
QUERIES = 64  # of a consumer: the rows of a wgmma
KEYS = range(16, 257, 16)
MOST_STAGES = 4  # by default: more in flight has nothing left to hide
# Registers of a consumer's thread that scores, weights and results may take, by consumers: of the 255, 240 or 160 that
# it has, the others are for addresses, references and totals. As far as ptxas was seen to spill none.
MOST_REGISTERS = {1: 200, 2: 200, 3: 132}

# Queries and keys of a block by head_dim. Three consumers share the registers where results are narrow; else two, with
# as many keys as scores, weights and results leave room for, if a sequence divides into them without much waste.
BLOCKS = {64: (192, 128), 96: (128, 128), 128: (128, 128), 192: (128, 112), 256: (128, 80)}
# Other candidates to measure, by FlashAttention-3's published ones and others as near.
RIVALS = {64: ((128, 128), (128, 192), (192, 96)), 128: ((128, 176), (128, 160), (128, 96), (192, 64))}
# Exponentials of eight that a polynomial computes: at head_dim 64 the unit of exponentials is busy for as many cycles
# as the tensor cores, so that an eighth of its work moves to the multiply-adds, which have room for that.
POLYNOMIAL = {64: 1}


@dataclass(frozen=True)
class Specialisation:
    """One instance of the kernel: `consumers` warpgroups of 64 queries each step over K and V by `keys`.

    `stages` of K and as many of V are in flight; of eight powers `polynomial` are computed on the units of
    multiply-adds. Raises ValueError for what cannot be, naming the limit and the nearest that can.
    """

    queries: int
    keys: int
    head_dim: int
    stages: int
    dtype: str = "bf16"
    polynomial: int = 0

    def __post_init__(self) -> None:
        check_block(self.queries, self.keys, self.head_dim, self.dtype)
        if self.stages < 2:
            raise ValueError(
                f"{self.stages} stages were requested: the keys of a step are read before the values of the one "
                "before, so there are at least 2."
            )
        if not 0 <= self.polynomial <= 8:
            raise ValueError(f"A polynomial for {self.polynomial} of 8 powers was requested: it can be for 0 to 8.")
        if self.smem_bytes > SHARED_BYTES:
            fitting = most_stages(self)
            # As many keys as there is room for in two stages besides Q.
            keys = (SHARED_BYTES - self.q_bytes - 64) // (4 * self.head_dim * ELEMENT_BYTES) // 16 * 16
            nearest = f"{fitting} stages do" if fitting >= 2 else f"take {keys} keys a step"
            raise ValueError(
                f"Blocks {self.queries}x{self.keys} of head_dim {self.head_dim} with {self.stages} stages take "
                f"{self.smem_bytes} bytes of shared memory, and a block of compute capability 9.0 has {SHARED_BYTES}: "
                f"{nearest}."
            )

    @property
    def name(self) -> str:
        """Return the kernel's name: `sm90_attention_bf16_d64_192x128_s4_p1`, without `_p0`."""
        polynomial = f"_p{self.polynomial}" if self.polynomial else ""
        return f"sm90_attention_{self.dtype}_d{self.head_dim}_{self.queries}x{self.keys}_s{self.stages}{polynomial}"

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.queries // QUERIES

    @property
    def threads(self) -> int:
        """Threads of a block: the consumers' and one warpgroup that loads."""
        return (self.consumers + 1) * WARPGROUP_THREADS

    @property
    def span_bytes(self) -> int:
        """Bytes of a row of the panels in which Q, K, V and O lie in shared memory."""
        return widest_span(self.head_dim * ELEMENT_BYTES)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage of K and one of V, and of their barriers."""
        return 2 * (self.keys * self.head_dim * ELEMENT_BYTES + 16)

    @property
    def q_bytes(self) -> int:
        """Shared memory of Q, in which results leave too, and of its barriers."""
        return self.queries * self.head_dim * ELEMENT_BYTES + 16

    @property
    def smem_bytes(self) -> int:
        return self.q_bytes + self.stages * self.stage_bytes

    @property
    def register_bound(self) -> int:
        """Registers a thread is launched with at most; setmaxnreg then moves some from producer to consumers."""
        return min(255, 65536 // self.threads // 8 * 8)

    def options(self) -> list[str]:
        macros = {
            "TILE_N": self.keys,
            "HEAD_DIM": self.head_dim,
            "STAGES": self.stages,
            "CONSUMERS": self.consumers,
            "IN_TYPE": self.dtype,
            "LAYOUT_A_TRANSPOSED": 0,
            "LAYOUT_B_TRANSPOSED": 1,
            "POLYNOMIAL": self.polynomial,
            "SHARED_BYTES": self.smem_bytes,
            **register_lists("REGISTER", self.keys),
            **register_lists("DIM", self.head_dim),
            "DIM_NEXT": 3 + self.head_dim // 2,  # operands behind those registers
            "DIM_LAST": 4 + self.head_dim // 2,
        }
        return ["--std=c++17", *(f"-D{name}={value}" for name, value in macros.items())]

    def check_device(self, capability: str) -> None:
        """Raise ValueError where a device of a compute capability such as "8.6" cannot run it."""
        if architecture(capability).cuda_kernels != FAMILY:
            raise ValueError(
                f"{self.name} needs compute capability 9.0, whose wgmma no other has, but this device has "
                f"{capability}: take triton."
            )

    def schedule(self, shape: Shape, together: int = 1, workers: int | None = None) -> Schedule:
        """A unit for each block of queries of each head, `together` heads at a time, or `workers` that take turns."""
        heads, blocks = shape.batch * shape.heads, math.ceil(shape.seq_q / self.queries)
        group = min(together, heads)
        if workers is None:
            return Schedule("data_parallel", heads, blocks, 1, group=group)
        return Schedule("persistent", heads, blocks, 1, workers=min(workers, heads * blocks), group=group)

    def tensor_maps(
        self, addresses: tuple[int, int, int, int], shape: Shape, head_dim: int
    ) -> tuple[TensorMap, TensorMap, TensorMap, TensorMap]:
        """The maps of Q, K, V and O at these addresses, which hold rows of `head_dim` elements.

        Raises ValueError for what the copy engine (TMA) cannot take: it needs addresses and rows at multiples of 16
        bytes.
        """
        check_rows(head_dim, self.head_dim)
        boxes = (self.queries, self.keys, self.keys, WARP_ROWS)
        lengths = (shape.seq_q, shape.seq_k, shape.seq_k, shape.seq_q)
        heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
        maps = []
        for letter, address, rows, seq, count in zip("QKVO", addresses, boxes, lengths, heads, strict=True):
            if address % TMA_BYTES:
                raise ValueError(f"{letter} begins at address {address:#x}, but TMA needs a multiple of {TMA_BYTES}.")
            row_bytes = head_dim * ELEMENT_BYTES
            box = (self.span_bytes // ELEMENT_BYTES, rows)
            matrices = {"matrices": shape.batch * count, "matrix_bytes": seq * row_bytes}
            maps.append(
                TensorMap(address, TYPES[self.dtype], (head_dim, seq), row_bytes, box, self.span_bytes, **matrices)
            )
        return maps[0], maps[1], maps[2], maps[3]

    def bind(
        self,
        encode: Callable[..., bytes],
        addresses: tuple[int, int, int, int],
        lse: int,
        shape: Shape,
        head_dim: int,
        causal: bool,
        schedule: Schedule,
    ) -> list[bytes]:
        """A launch's packed parameters, for Q, K, V and O at these addresses; `encode` makes a tensor map.

        To `lse` goes, in fp32, ln Σ exp of each query's scaled scores [batch, heads, seq_q].
        """
        check_mask(shape, causal)
        maps = [encode(**vars(each)) for each in self.tensor_maps(addresses, shape, head_dim)]
        sizes = (shape.seq_q, shape.seq_k, shape.group, *reciprocal(shape.group), causal)
        scale = math.log2(math.e) / math.sqrt(head_dim)
        return [*maps, schedule.packed(), struct.pack("<iiiIiif", *sizes, scale), struct.pack("<Q", lse)]


def check_block(queries: int, keys: int, head_dim: int, dtype: str) -> None:
    """Raise ValueError, with the limit and the nearest block that can be, for one that has no wgmma or registers."""
    if dtype not in TYPES:
        raise ValueError(f"Attention of {dtype} was requested, but wgmma multiplies it in {' or '.join(TYPES)}.")
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim = {head_dim} was requested to be computed with: choose from {HEAD_DIMS}.")
    consumers = min(MOST_REGISTERS, key=lambda number: abs(number * QUERIES - queries))
    # A thread holds, of each key, half a score of 32 bits and half a weight of 16, and half of each result.
    limit = (MOST_REGISTERS[consumers] - head_dim // 2) * 4 // 3 // 16 * 16
    near = min(KEYS, key=lambda number: abs(number - keys))
    nearest = (consumers * QUERIES, min(near, limit))
    if (queries, keys) != nearest and limit >= KEYS[0]:
        raise ValueError(
            f"Blocks {queries}x{keys} cannot be computed at head_dim {head_dim}: queries are 64, 128 or 192, keys a "
            f"multiple of 16 up to 256, and a thread has registers for {limit} keys; the nearest that can is "
            f"{nearest[0]}x{nearest[1]}."
        )
    if limit < KEYS[0]:
        raise ValueError(
            f"Blocks of {queries} queries leave a thread no registers at head_dim {head_dim}: take 64 or 128 queries."
        )


def check_rows(head_dim: int, padded: int) -> None:
    """Raise ValueError for a head_dim that TMA does not take, or that is wider than what is computed."""
    step = TMA_BYTES // ELEMENT_BYTES
    if head_dim % step:
        raise ValueError(
            f"head_dim = {head_dim} makes rows of {head_dim * ELEMENT_BYTES} bytes, but TMA takes multiples of "
            f"{TMA_BYTES}: pad head_dim to {math.ceil(head_dim / step) * step}, or take triton."
        )
    if head_dim > padded:
        raise ValueError(f"head_dim = {head_dim} was requested of a kernel that computes with {padded}.")


def padded_head_dim(head_dim: int) -> int:
    """Return the head_dim of the products. Raises ValueError for a head_dim that the kernel does not take."""
    check_rows(head_dim, head_dim)
    fitting = [each for each in HEAD_DIMS if each >= head_dim]
    if not fitting:
        raise ValueError(f"head_dim = {head_dim} was requested, but results of at most {HEAD_DIMS[-1]} fit registers.")
    return fitting[0]


def most_stages(kernel: Specialisation) -> int:
    """As many stages as shared memory has room for besides Q."""
    return (SHARED_BYTES - kernel.q_bytes) // kernel.stage_bytes


def specialise(
    head_dim: int,
    dtype: str = "bf16",
    queries: int | None = None,
    keys: int | None = None,
    stages: int | None = None,
    polynomial: int | None = None,
    *,
    seq_q: int | None = None,
) -> Specialisation:
    """The instance for a head_dim, no taller than `seq_q` needs. Raises ValueError for what cannot be."""
    padded = padded_head_dim(head_dim)
    usual_queries, usual_keys = BLOCKS[padded]
    if seq_q is not None:
        usual_queries = min(usual_queries, math.ceil(seq_q / QUERIES) * QUERIES)
    share = POLYNOMIAL.get(padded, 0) if polynomial is None else polynomial
    two = Specialisation(queries or usual_queries, keys or usual_keys, padded, 2, dtype, share)
    return replace(two, stages=min(MOST_STAGES, most_stages(two)) if stages is None else stages)


def default_set() -> tuple[Specialisation, ...]:
    """The instances measured where nobody names one, and the rivals: bf16. None spills."""
    rivals = (specialise(dim, "bf16", *block) for dim, blocks in RIVALS.items() for block in blocks)
    return (*map(specialise, HEAD_DIMS), *rivals)


sources = partial(nvrtc.sources, SOURCE, HEADERS)
