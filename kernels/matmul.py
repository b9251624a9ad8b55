"""Triton's C[M,N] = A·B with explicit tile, stages, warps and schedule: what can be requested, and how it is run.

Nothing is tuned here: the requested configuration runs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyperf_suite.hardware.catalogue import architecture
from pyperf_suite.kernels.schedule import POLICIES, Schedule
from pyperf_suite.kernels.triton_host import (
    OPERAND_PATHS,
    SMALLEST_BLOCK,
    Binary,
    Launch,
    check_descriptor,
    check_known,
    check_pipeline,
    check_tensor,
    check_tma,
    compile_kernel,
    compiler_options,
    interprets,
    largest_block,
    nearest_block,
    row_stride,
    shown,
)

LAYOUTS = ("NN", "TN", "NT", "TT")

# Triton's names of the element types. tfloat32 is fp32 in memory, rounded to 10 bits as the tensor cores multiply it.
OPERAND_TYPES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "tfloat32": "fp32",
    "float8_e4m3fn": "fp8e4nv",
    "int8": "i8",
}
OUTPUT_TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "int32": "i32"}

HALVED_FROM = 128  # columns of a tile

# By which arguments are hinted to divide by 16, those that are not; of what does not divide Triton has no hint anyway.
POINTERS = ("a", "b", "c", "partial_sums", "summed")
STRIDES = ("m", "n", "k", "a_row_stride", "a_column_stride", "b_row_stride", "b_column_stride", "c_row_stride")
UNHINTED: dict[str, tuple[str, ...]] = {
    "all": (),
    "pointers": STRIDES,
    "strides": POINTERS,
    "none": POINTERS + STRIDES,
    "odd_a": ("a_row_stride", "a_column_stride"),
    "odd_c": ("c_row_stride",),
}

# Tensor cores take 32 terms of 8 bits at once, and Triton no fewer.
SMALLEST_DEPTH = {"float8_e4m3fn": 32, "int8": 32}


@dataclass(frozen=True)
class Configuration:
    """Specialisation of a kernel. Raises ValueError in one sentence for an impossible one.

    `tile` is (m, n, k), `stages` the depth of the operand pipeline, `warps` those of one program. `layout` has the
    letters of cuBLAS for a row-major C: a T first says that B is stored [N,K], a T second that A is stored [K,M].
    `operands` "addresses" takes any shape and strides, "descriptors" goes through TMA. `splits` is for split_k,
    `workers` for persistent and stream_k, `group` is the rows of tiles visited together. `hints` says which arguments
    Triton's compiler is told to divide by 16.
    """

    tile: tuple[int, int, int]
    dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    layout: str = "TN"
    stages: int = 3
    warps: int = 4
    policy: str = "data_parallel"
    splits: int = 1
    workers: int = 1
    group: int = 8
    operands: str = "addresses"
    hints: str = "all"

    def __post_init__(self) -> None:
        for name, choices in (
            ("dtype", OPERAND_TYPES),
            ("out_dtype", OUTPUT_TYPES),
            ("layout", LAYOUTS),
            ("policy", POLICIES),
            ("operands", OPERAND_PATHS),
            ("hints", UNHINTED),
        ):
            check_known("matmul", name, getattr(self, name), choices)
        if (self.dtype == "int8") != (self.out_dtype == "int32"):
            raise ValueError(
                f"A product of {self.dtype} into {self.out_dtype} was requested of Triton's matmul, but int8 is summed "
                "in int32 and nothing else is."
            )
        largest, depth = largest_block(self.operands), SMALLEST_DEPTH.get(self.dtype, SMALLEST_BLOCK)
        near_m, near_n, near_k = (nearest_block(side, largest) for side in self.tile)
        nearest = near_m, near_n, max(near_k, depth)
        if nearest != self.tile:
            deep = f", k from {depth} for {self.dtype}" if depth > SMALLEST_BLOCK else ""
            raise ValueError(
                f"Tile {shown(self.tile)} was requested of Triton, whose sides are powers of two from {SMALLEST_BLOCK} "
                f"to {largest}{deep}: the nearest is {shown(nearest)}."
            )
        check_pipeline(self.stages, self.warps)

    @property
    def name(self) -> str:
        """Return the kernel's name: `triton_bf16_tn_128x256x64_s4_w8_persistent_descriptors`."""
        return (
            f"triton_{OPERAND_TYPES[self.dtype]}_{self.layout.lower()}_{shown(self.tile)}_s{self.stages}_w{self.warps}"
            f"_{self.policy}_{self.operands}{'' if self.hints == 'all' else f'_hints_{self.hints}'}"
        )

    @property
    def descriptors(self) -> bool:
        return self.operands == "descriptors"

    @property
    def a_transposed(self) -> bool:
        """True if A is stored [K, M]."""
        return self.layout[1] == "T"

    @property
    def b_transposed(self) -> bool:
        """True if B is stored [N, K]."""
        return self.layout[0] == "T"

    @property
    def sums_dtype(self) -> str:
        """The element type in which products are summed, also between units that share a tile."""
        return "int32" if self.dtype == "int8" else "float32"

    @property
    def halves(self) -> bool:
        """True if C leaves in halves of a tile: a wide one would take the shared memory of a stage on its way."""
        return self.descriptors and self.tile[1] >= HALVED_FROM

    @property
    def blocks(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Return the blocks that one step reads of A and B as stored, and that one store writes of C."""
        m, n, k = self.tile
        stored = (m, n // 2 if self.halves else n)
        return (k, m) if self.a_transposed else (m, k), (n, k) if self.b_transposed else (k, n), stored

    @property
    def options(self) -> dict[str, Any]:
        return compiler_options(self.stages, self.warps)

    def schedule(self, m: int, n: int, k: int) -> Schedule:
        """How a product of this shape is cut up. Raises ValueError for more splits than k-tiles."""
        tiles_m, tiles_n, k_tiles = (-(-size // side) for size, side in zip((m, n, k), self.tile, strict=True))
        return Schedule(self.policy, tiles_m, tiles_n, k_tiles, self.splits, self.workers, min(self.group, tiles_m))

    def constants(self, k_is_whole: bool, interpreting: bool = False) -> dict[str, Any]:
        return {
            "POLICY": self.policy,
            "BLOCK_M": self.tile[0],
            "BLOCK_N": self.tile[1],
            "BLOCK_K": self.tile[2],
            "A_TRANSPOSED": self.a_transposed,
            "B_TRANSPOSED": self.b_transposed,
            "DESCRIPTORS": self.descriptors,
            "HALVES": self.halves,
            "K_IS_WHOLE": k_is_whole,
            "PRECISION": "tf32" if self.dtype == "tfloat32" else "ieee",
            # The interpreter holds bf16 as its 16 bits in uint16, which its dot multiplies as if they were integers.
            # Widening is exact, and a tensor core's products of bf16 are exact in fp32 too.
            "WIDEN": interpreting and self.dtype == "bfloat16",
        }


def default_set(target: str) -> tuple[Configuration, ...]:
    """The configurations to begin with on a target such as "sm_90"; `splits` and `workers` are the caller's to set.

    Where tiles are shared, a fix-up holds a tile's sums twice: what was left of it and what is added, which passes
    through shared memory from one layout to the other. So these tiles have at most 64 sums a thread: 128x256 and
    256x128 have 128, and spill on Hopper, in halves even more. All here fit the registers without spills and the
    shared memory of the target. Raises ValueError for what is not a target.
    """
    if architecture(target).generation == "Ampere":
        return (
            Configuration((128, 128, 32), stages=4, warps=4),
            Configuration((128, 256, 32), stages=3, warps=8),
            Configuration((128, 256, 32), stages=3, warps=8, policy="persistent"),
            Configuration((64, 64, 64), stages=4, warps=4),
            Configuration((128, 128, 32), stages=4, warps=8, policy="split_k"),
            Configuration((128, 128, 32), stages=4, warps=8, policy="stream_k"),
        )
    return (
        Configuration((128, 256, 64), stages=4, warps=8, operands="descriptors"),
        Configuration((128, 256, 64), stages=4, warps=8, operands="descriptors", policy="persistent"),
        Configuration((128, 128, 64), stages=4, warps=8, operands="descriptors"),
        Configuration((64, 128, 64), stages=4, warps=4, operands="descriptors"),
        Configuration((128, 128, 64), stages=4, warps=8, operands="descriptors", policy="split_k"),
        Configuration((128, 128, 64), stages=4, warps=8, operands="descriptors", policy="stream_k"),
        Configuration((128, 256, 64), stages=3, warps=8),
        Configuration((128, 256, 128), "float8_e4m3fn", stages=3, warps=8, operands="descriptors"),
    )


class Product:
    """C[M,N] = A·B of one shape under one configuration on one device, with its workspace.

    Launches of one product may follow each other on a stream, never overlap: they share the workspace. Raises
    ValueError for a shape that the schedule cannot cut or a device that has no TMA for descriptors.
    """

    def __init__(self, configuration: Configuration, m: int, n: int, k: int, device: Any) -> None:
        import torch

        if min(m, n, k) < 1:
            raise ValueError(f"A product of {m} × {n} × {k} was requested, but each dimension is at least 1.")
        # Rows and columns of tiles that hang over the edge are counted too, in 32 bits.
        for name, size, side in zip("MNK", (m, n, k), configuration.tile, strict=True):
            if size > (1 << 31) - side:
                raise ValueError(
                    f"{name} = {size} was requested, but with tile {shown(configuration.tile)} it is at most "
                    f"{(1 << 31) - side}, for Triton counts rows in 32 bits."
                )
        self.configuration = configuration
        self.shape = (m, n, k)
        self.schedule = configuration.schedule(m, n, k)
        device = torch.device(device)
        if configuration.descriptors:
            check_tma(device)
        block_m, block_n, _ = configuration.tile
        shared = self.schedule.shared_tiles
        sums = getattr(torch, configuration.sums_dtype)
        # One element where none is needed: a kernel's argument must have an address.
        self._partial_sums = torch.empty(max(shared * block_m * block_n, 1), dtype=sums, device=device)
        self._summed = torch.zeros(max(shared, 1), dtype=torch.int32, device=device)

    @property
    def workspace_bytes(self) -> int:
        """Memory for the partial sums of shared tiles and the counts of k-tiles in them."""
        return 4 * (self._partial_sums.numel() + self._summed.numel())

    def bind(self, a: Any, b: Any, c: Any) -> Launch:
        """A launch for these tensors: A and B as `layout` says they are stored, C row-major.

        Raises ValueError naming the tensor and the limit for a wrong shape, dtype or device, for a C whose rows are
        not contiguous, and, with descriptors, for an address or stride that TMA cannot take.
        """
        m, n, k = self.shape
        configuration = self.configuration
        operand = "float32" if configuration.dtype == "tfloat32" else configuration.dtype
        a_shape = (k, m) if configuration.a_transposed else (m, k)
        b_shape = (n, k) if configuration.b_transposed else (k, n)
        for name, tensor, shape, dtype in (
            ("A", a, a_shape, operand),
            ("B", b, b_shape, operand),
            ("C", c, (m, n), configuration.out_dtype),
        ):
            check_tensor(name, tensor, shape, dtype, self._summed.device)
            if configuration.descriptors:
                check_descriptor(name, tensor)
        if c.stride(1) != 1 and n > 1:
            raise ValueError(f"C has stride {c.stride(1)} along its rows, but C is row-major: its last stride is 1.")
        return launch_of(self, a, b, c)


@functools.cache
def kernel_of(hints: str) -> Any:
    """The kernel as Triton specialises it by these hints when it is launched."""
    from pyperf_suite.kernels.matmul_device import matmul

    if hints == "all" or interprets(matmul):
        return matmul
    import triton

    unhinted = list(UNHINTED[hints])
    usual = list(matmul.do_not_specialize)
    return triton.jit(matmul.fn, do_not_specialize=usual, do_not_specialize_on_alignment=unhinted)


def launch_of(product: Product, a: Any, b: Any, c: Any) -> Launch:
    """One product of tensors that `bind` has checked."""
    configuration, schedule = product.configuration, product.schedule
    matmul = kernel_of(configuration.hints)
    m, n, k = product.shape
    a_strides, b_strides = a.stride(), b.stride()
    operands = (a, b, c)
    if configuration.descriptors:
        from triton.tools.tensor_descriptor import TensorDescriptor

        operands = tuple(
            TensorDescriptor(tensor, list(tensor.shape), [row_stride(tensor), 1], list(block))
            for tensor, block in zip(operands, configuration.blocks, strict=True)
        )
    arguments = (
        *operands,
        product._partial_sums,
        product._summed,
        *(m, n, k),
        *(reversed(a_strides) if configuration.a_transposed else a_strides),
        *(reversed(b_strides) if configuration.b_transposed else b_strides),
        row_stride(c),
        *(schedule.tiles_m, schedule.tiles_n, schedule.k_tiles, schedule.streamed_tiles),
        *(schedule.splits, schedule.workers, schedule.group),
    )
    options = {**configuration.constants(k % configuration.tile[2] == 0, interprets(matmul)), **configuration.options}
    return Launch(matmul, schedule.units, arguments, options, f"Tile {shown(configuration.tile)}")


def compile_for(target: str, configuration: Configuration) -> Binary:
    """Compile the kernel for a target such as "sm_90", for hinted dimensions and strides that are multiples of 16.

    Raises ValueError for what is not a target, and RuntimeError where Triton interprets instead of compiling.
    """
    from pyperf_suite.kernels.matmul_device import matmul

    operand, output = OPERAND_TYPES[configuration.dtype], OUTPUT_TYPES[configuration.out_dtype]
    types = {"partial_sums": f"*{OUTPUT_TYPES[configuration.sums_dtype]}", "summed": "*i32"}
    for name, element, block in zip("abc", (operand, operand, output), configuration.blocks, strict=True):
        types[name] = f"tensordesc<{element}{list(block)}>" if configuration.descriptors else f"*{element}"
    unit_strides = {
        "a_row_stride" if configuration.a_transposed else "a_column_stride": 1,
        "b_column_stride" if not configuration.b_transposed else "b_row_stride": 1,
    }
    strides = {f"{each}_stride" for each in ("a_row", "a_column", "b_row", "b_column", "c_row")} - unit_strides.keys()
    addresses = () if configuration.descriptors else tuple("abc")
    aligned = {"m", "n", "k", "partial_sums", "summed", *addresses, *strides} - {*UNHINTED[configuration.hints]}
    constants = configuration.constants(k_is_whole=True) | unit_strides
    return compile_kernel(matmul, target, types, constants, configuration.options, sorted(aligned))


class GroupedProduct:
    """C[rows, N] = A[rows, K]·B[e, K, N] for the rows of each expert e: products of all experts in one launch.

    `rows` are those of each expert, in order; an expert may have none. `workers` programs take tiles of all experts in
    turn. Raises ValueError for experts without any row, and what `Configuration` cannot have.
    """

    def __init__(self, configuration: Configuration, rows: Sequence[int], n: int, k: int, workers: int) -> None:
        if min(rows, default=0) < 0 or sum(rows) < 1 or min(n, k, workers) < 1:
            raise ValueError(f"Products of {list(rows)[:8]} rows x {n} x {k} were requested, but each is at least 1.")
        self.configuration, self.rows, self.n, self.k = configuration, tuple(rows), n, k
        tile_m, tile_n, _ = configuration.tile
        self.tiles_n = -(-n // tile_n)
        of_experts = [-(-each // tile_m) * self.tiles_n for each in rows]
        self.tiles = sum(of_experts)
        self.workers = min(workers, self.tiles)
        self._first_rows = [0, *itertools.accumulate(rows)]
        self._first_tiles = [0, *itertools.accumulate(of_experts)]

    def bind(self, a: Any, b: Any, c: Any) -> Launch:
        """A launch for contiguous tensors on one device. Raises ValueError for a wrong shape, dtype or device."""
        import torch

        from pyperf_suite.kernels.matmul_device import grouped_matmul

        count, device = len(self.rows), a.device
        for name, tensor, shape, dtype in (
            ("A", a, (sum(self.rows), self.k), self.configuration.dtype),
            ("B", b, (count, self.k, self.n), self.configuration.dtype),
            ("C", c, (sum(self.rows), self.n), self.configuration.out_dtype),
        ):
            check_tensor(name, tensor, shape, dtype, device)
            if not tensor.is_contiguous():
                raise ValueError(f"{name} is not contiguous, but grouped products take it as it is stored.")
        begins = (self._first_rows, self._first_tiles)
        places = [torch.tensor(each, dtype=torch.int32, device=device) for each in begins]
        arguments = (a, b, c, *places, self.n, self.k, self.tiles, self.tiles_n, self.workers)
        every = self.configuration.constants(self.k % self.configuration.tile[2] == 0, interprets(grouped_matmul))
        options = {name: every[name] for name in GROUPED_CONSTANTS} | self.configuration.options
        return Launch(grouped_matmul, self.workers, arguments, options, f"Tile {shown(self.configuration.tile)}")


GROUPED_CONSTANTS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "K_IS_WHOLE", "PRECISION", "WIDEN")


def compile_grouped_for(target: str, configuration: Configuration) -> Binary:
    """Compile the grouped kernel for a target such as "sm_90", for dimensions that are multiples of 16."""
    from pyperf_suite.kernels.matmul_device import grouped_matmul

    operand, output = OPERAND_TYPES[configuration.dtype], OUTPUT_TYPES[configuration.out_dtype]
    types = {"a": f"*{operand}", "b": f"*{operand}", "c": f"*{output}", "first_rows": "*i32", "first_tiles": "*i32"}
    every = configuration.constants(k_is_whole=True)
    constants = {name: every[name] for name in GROUPED_CONSTANTS}
    return compile_kernel(grouped_matmul, target, types, constants, configuration.options, (*types, "n", "k"))
