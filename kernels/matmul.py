"""Triton's C[M,N] = A·B with explicit tile, stages, warps and schedule: what can be asked for, and how it is run.

Nothing is tuned here: what is asked for is what runs. torch and Triton are imported when something is run or compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyperf_suite.kernels.schedule import POLICIES, Schedule

LAYOUTS = ("NN", "TN", "NT", "TT")

# Triton's names of the element types. tfloat32 is fp32 in memory, rounded to 10 bits as the tensor cores multiply it.
OPERAND_TYPES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "tfloat32": "fp32",
    "float8_e4m3fn": "fp8e4nv",
}
OUTPUT_TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}

SMALLEST_BLOCK = 16  # a side of what a tensor core takes at once
LARGEST_DESCRIPTOR_BLOCK = 256  # elements along one side of a TMA box
TMA_ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class Configuration:
    """What a kernel is specialised by. Raises ValueError in one sentence for what cannot be.

    `tile` is (m, n, k), `stages` the depth of the operand pipeline, `warps` those of one program. `layout` has the
    letters of cuBLAS for a row-major C: a T first says that B is stored [N,K], a T second that A is stored [K,M].
    `operands` "addresses" takes any shape and strides, "descriptors" goes through TMA. `splits` is for split_k,
    `workers` for persistent and stream_k, `group` is the rows of tiles visited together.
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

    def __post_init__(self) -> None:
        for name, known in (
            ("dtype", OPERAND_TYPES),
            ("out_dtype", OUTPUT_TYPES),
            ("layout", LAYOUTS),
            ("policy", POLICIES),
            ("operands", ("addresses", "descriptors")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"Triton's matmul does not know {name} {getattr(self, name)!r}: choose from {', '.join(known)}."
                )
        largest = LARGEST_DESCRIPTOR_BLOCK if self.descriptors else 1 << 20
        nearest = tuple(nearest_block(side, largest) for side in self.tile)
        if nearest != self.tile:
            raise ValueError(
                f"Tile {shown(self.tile)} was asked of Triton, whose sides are powers of two from {SMALLEST_BLOCK} to "
                f"{largest}: the nearest is {shown(nearest)}."
            )
        if self.stages < 1 or self.warps not in (1, 2, 4, 8, 16, 32):
            raise ValueError(
                f"{self.stages} stages and {self.warps} warps were asked for, but there is at least 1 stage and warps "
                "are a power of two up to 32."
            )

    @property
    def descriptors(self) -> bool:
        """Whether operands go through tensor descriptors."""
        return self.operands == "descriptors"

    @property
    def a_transposed(self) -> bool:
        """Whether A is stored [K, M]."""
        return self.layout[1] == "T"

    @property
    def b_transposed(self) -> bool:
        """Whether B is stored [N, K]."""
        return self.layout[0] == "T"

    @property
    def blocks(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """What one step reads of A and B as stored, and one tile writes of C."""
        m, n, k = self.tile
        return (k, m) if self.a_transposed else (m, k), (n, k) if self.b_transposed else (k, n), (m, n)

    @property
    def options(self) -> dict[str, Any]:
        """What Triton's compiler is told. Fused multiply-adds are asked for because its default is about to change."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    def schedule(self, m: int, n: int, k: int) -> Schedule:
        """How a product of this shape is cut up. Raises ValueError for more splits than k-tiles."""
        tiles_m, tiles_n, k_tiles = (-(-size // side) for size, side in zip((m, n, k), self.tile, strict=True))
        return Schedule(self.policy, tiles_m, tiles_n, k_tiles, self.splits, self.workers, min(self.group, tiles_m))

    def constants(self, k_is_whole: bool, interpreting: bool = False) -> dict[str, Any]:
        """The compile-time arguments of the kernel."""
        return {
            "POLICY": self.policy,
            "BLOCK_M": self.tile[0],
            "BLOCK_N": self.tile[1],
            "BLOCK_K": self.tile[2],
            "A_TRANSPOSED": self.a_transposed,
            "B_TRANSPOSED": self.b_transposed,
            "DESCRIPTORS": self.descriptors,
            "K_IS_WHOLE": k_is_whole,
            "PRECISION": "tf32" if self.dtype == "tfloat32" else "ieee",
            # The interpreter holds bf16 as its 16 bits in uint16, which its dot multiplies as if they were integers.
            # Widening is exact, and a tensor core's products of bf16 are exact in fp32 too.
            "WIDEN": interpreting and self.dtype == "bfloat16",
        }


def default_set(target: str) -> tuple[Configuration, ...]:
    """The configurations to begin with on a target such as "sm_90"; `splits` and `workers` are the caller's to set.

    Where tiles are shared, a fix-up holds a tile's sums twice, so these tiles have at most 64 sums a thread; all fit
    the registers without spills and the shared memory of the target. Raises ValueError for what is not a target.
    """
    if not 90 <= architecture_of(target) < 120:  # sm_120 has the shared memory and the instructions of sm_80
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
        Configuration((128, 256, 64), stages=3, warps=8, operands="descriptors", policy="persistent"),
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
            raise ValueError(f"A product of {m} × {n} × {k} was asked for, but each dimension is at least 1.")
        # Rows and columns of tiles that hang over the edge are counted too, in 32 bits.
        for name, size, side in zip("MNK", (m, n, k), configuration.tile, strict=True):
            if size > (1 << 31) - side:
                raise ValueError(
                    f"{name} = {size} was asked for, but with tile {shown(configuration.tile)} it is at most "
                    f"{(1 << 31) - side}, for Triton counts rows in 32 bits."
                )
        self.configuration = configuration
        self.shape = (m, n, k)
        self.schedule = configuration.schedule(m, n, k)
        device = torch.device(device)
        if configuration.descriptors and device.type == "cuda":
            capability = torch.cuda.get_device_capability(device)
            if capability < (9, 0):
                raise ValueError(
                    f"Tensor descriptors need compute capability 9.0, but {torch.cuda.get_device_name(device)} has "
                    f"{capability[0]}.{capability[1]}: use addresses."
                )
        block_m, block_n, _ = configuration.tile
        shared = self.schedule.shared_tiles
        # One element where none is needed: a kernel's argument must have an address.
        self._partial_sums = torch.empty(max(shared * block_m * block_n, 1), dtype=torch.float32, device=device)
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
        return Launch(self, a, b, c)


class Launch:
    """One product of given tensors, ready to be enqueued on the current stream as often as wanted."""

    def __init__(self, product: Product, a: Any, b: Any, c: Any) -> None:
        import triton

        from pyperf_suite.kernels.matmul_device import matmul

        configuration, schedule = product.configuration, product.schedule
        m, n, k = product.shape
        a_strides, b_strides = a.stride(), b.stride()
        operands = (a, b, c)
        if configuration.descriptors:
            from triton.tools.tensor_descriptor import TensorDescriptor

            operands = tuple(
                TensorDescriptor(tensor, list(tensor.shape), [row_stride(tensor), 1], list(block))
                for tensor, block in zip(operands, configuration.blocks, strict=True)
            )
        self._arguments = (
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
        interpreting = not isinstance(matmul, triton.runtime.JITFunction)
        self._options = {
            **configuration.constants(k % configuration.tile[2] == 0, interpreting),
            **configuration.options,
        }
        self._kernel = matmul[(schedule.units,)]
        self._out_of_resources = triton.runtime.errors.OutOfResources
        self._tile = configuration.tile

    def __call__(self) -> Any:
        """Enqueue the product and return Triton's compiled kernel, or None where Triton interprets.

        Raises ValueError where the device has too little shared memory or registers for the configuration.
        """
        try:
            return self._kernel(*self._arguments, **self._options)
        except self._out_of_resources as error:
            raise ValueError(
                f"Tile {shown(self._tile)} needs {error.required} of this device's {error.limit} of {error.name}: take "
                "a smaller tile or fewer stages."
            ) from None


@dataclass(frozen=True)
class Binary:
    """A kernel compiled for a target without a device: machine code, PTX, and what a launch of it takes."""

    name: str
    target: str
    cubin: bytes
    ptx: str
    threads: int
    shared_bytes: int


def compile_for(target: str, configuration: Configuration) -> Binary:
    """Compile the kernel for a target such as "sm_90", for dimensions and strides that are multiples of 16.

    Raises ValueError for what is not a target, and RuntimeError where Triton interprets instead of compiling.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pyperf_suite.kernels.matmul_device import matmul

    if not isinstance(matmul, triton.runtime.JITFunction):
        raise RuntimeError("Triton interprets in this process: unset TRITON_INTERPRET to compile.")
    constants = configuration.constants(k_is_whole=True)
    types = dict.fromkeys(matmul.arg_names, "i32")
    operand, output = OPERAND_TYPES[configuration.dtype], OUTPUT_TYPES[configuration.out_dtype]
    for name, element, block in zip("abc", (operand, operand, output), configuration.blocks, strict=True):
        types[name] = f"tensordesc<{element}{list(block)}>" if configuration.descriptors else f"*{element}"
    types |= {"partial_sums": "*fp32", "summed": "*i32"}
    unit_strides = {
        "a_row_stride" if configuration.a_transposed else "a_column_stride": 1,
        "b_column_stride" if not configuration.b_transposed else "b_row_stride": 1,
    }
    constants |= unit_strides
    types |= dict.fromkeys(constants, "constexpr")
    multiples_of_16 = [name for name in types if name.endswith("_stride") and name not in unit_strides]
    multiples_of_16 += ["m", "n", "k", "partial_sums", "summed"]
    multiples_of_16 += [name for name in "abc" if not configuration.descriptors]
    attributes = {(matmul.arg_names.index(name),): [["tt.divisibility", 16]] for name in multiples_of_16}
    compiled = triton.compile(
        ASTSource(matmul, types, constants, attributes),
        target=GPUTarget("cuda", architecture_of(target), 32),
        options=configuration.options,
    )
    return Binary(
        compiled.metadata.name,
        target,
        compiled.asm["cubin"],
        compiled.asm["ptx"],
        compiled.metadata.num_warps * 32,
        compiled.metadata.shared,
    )


def architecture_of(target: str) -> int:
    """The number of a target: 90 for "sm_90" and "sm_90a"; Triton adds the letter itself where there is one."""
    number = target.removeprefix("sm_").rstrip("af")
    if not number.isdecimal() or number == target:
        raise ValueError(f"{target!r} is not a target: write it as in sm_90.")
    return int(number)


def nearest_block(side: int, largest: int) -> int:
    """The power of two nearest to a side, the larger of two as near, within what a block may have."""
    below = 1 << (max(side, 1).bit_length() - 1)
    nearest = below if side - below < 2 * below - side else 2 * below
    return min(max(nearest, SMALLEST_BLOCK), largest)


def shown(tile: tuple[int, ...]) -> str:
    """A tile as people write it."""
    return "x".join(map(str, tile))


def row_stride(tensor: Any) -> int:
    """Elements from one row to the next; of a single row, its length rounded up to what TMA takes."""
    if tensor.shape[0] > 1:
        return int(tensor.stride(0))
    step = TMA_ALIGNMENT_BYTES // tensor.element_size()
    return -(-int(tensor.shape[1]) // step) * step


def check_tensor(name: str, tensor: Any, shape: tuple[int, int], dtype: str, device: Any) -> None:
    """Raise ValueError for a tensor of another shape, dtype or device than asked for."""
    found = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device)
    if found != (shape, dtype, device):
        raise ValueError(
            f"{name} is {found[1]}{list(found[0])} on {found[2]}, but this product takes {dtype}{list(shape)} on "
            f"{device}."
        )


def check_descriptor(name: str, tensor: Any) -> None:
    """Raise ValueError for an address or strides that TMA cannot take."""
    if tensor.stride(1) != 1 and tensor.shape[1] > 1:
        raise ValueError(
            f"{name} has stride {tensor.stride(1)} along its rows, but a tensor descriptor needs 1: use addresses."
        )
    for what, size_bytes in (
        ("starts at an address", tensor.data_ptr()),
        ("has a row stride", row_stride(tensor) * tensor.element_size()),
    ):
        if size_bytes % TMA_ALIGNMENT_BYTES:
            raise ValueError(
                f"{name} {what} that is {size_bytes % TMA_ALIGNMENT_BYTES} bytes past a multiple of "
                f"{TMA_ALIGNMENT_BYTES}, which TMA cannot take: pad it to a multiple, or use addresses."
            )
