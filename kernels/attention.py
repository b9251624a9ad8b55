"""Triton's O = softmax(scale · Q·Kᵀ)·V with explicit blocks, stages and warps: what can be requested, how it is run.

Nothing is tuned here: the requested configuration runs. Layouts are those of workloads/attention/__init__.py: Q and O
[batch, heads, seq_q, head_dim], K and V [batch, kv_heads, seq_k, head_dim], contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.kernels.triton_host import (
    OPERAND_PATHS,
    SMALLEST_BLOCK,
    TMA_ALIGNMENT_BYTES,
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
)

ELEMENT_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
LARGEST_ROWS = 1 << 30  # counted in 32 bits, with room for a block that hangs over the edge


@dataclass(frozen=True)
class Configuration:
    """Specialisation of a kernel. Raises ValueError in one sentence for an impossible one.

    A program holds `block_m` rows and steps over the other side by `block_n`: forward and for dQ it holds queries and
    steps over keys, for dK and dV it holds keys and steps over queries. `stages` is the depth of the pipeline of the
    stepped side, `warps` those of one program. `operands` "addresses" takes any head_dim, "descriptors" goes through
    TMA, for which a row is a multiple of 16 bytes.
    """

    block_m: int
    block_n: int
    head_dim: int
    dtype: str = "bfloat16"
    causal: bool = False
    backward: bool = False
    stages: int = 3
    warps: int = 4
    operands: str = "addresses"

    def __post_init__(self) -> None:
        check_known("attention", "dtype", self.dtype, ELEMENT_TYPES)
        check_known("attention", "operands", self.operands, OPERAND_PATHS)
        if self.head_dim < 1:
            raise ValueError(f"head_dim = {self.head_dim} was requested, but it is at least 1.")
        largest = largest_block(self.operands)
        nearest = tuple(nearest_block(side, largest) for side in (self.block_m, self.block_n))
        if nearest != (self.block_m, self.block_n):
            raise ValueError(
                f"Blocks {self.block_m}x{self.block_n} were requested of Triton, whose sides are powers of two from "
                f"{SMALLEST_BLOCK} to {largest}: the nearest are {nearest[0]}x{nearest[1]}."
            )
        if self.padded_head_dim > largest:
            raise ValueError(
                f"head_dim = {self.head_dim} is padded to {self.padded_head_dim}, but a descriptor takes at most "
                f"{largest}: use addresses."
            )
        check_pipeline(self.stages, self.warps)

    @property
    def name(self) -> str:
        """Return the kernel's name: `triton_attention_bf16_d64_causal_128x64_s3_w4_descriptors`."""
        parts = ["triton_attention", ELEMENT_TYPES[self.dtype], f"d{self.head_dim}"]
        parts += ["causal"] * self.causal + ["backward"] * self.backward
        return "_".join([*parts, f"{self.block_m}x{self.block_n}", f"s{self.stages}", f"w{self.warps}", self.operands])

    @property
    def requested(self) -> str:
        return f"Blocks {self.block_m}x{self.block_n} of head_dim {self.head_dim}"

    @property
    def padded_head_dim(self) -> int:
        """Return the head_dim of the products: the next power of two, and at least a tensor core's."""
        return padded(self.head_dim)

    @property
    def waste(self) -> float:
        """The share of the products' work that is spent on the padding of head_dim."""
        return 1 - self.head_dim / self.padded_head_dim

    @property
    def descriptors(self) -> bool:
        return self.operands == "descriptors"

    @property
    def options(self) -> dict[str, Any]:
        return compiler_options(self.stages, self.warps)

    def constants(self, interpreting: bool = False) -> dict[str, Any]:
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "HEAD_DIM": self.head_dim,
            "PADDED": self.padded_head_dim,
            "SCALE": math.log2(math.e) / math.sqrt(self.head_dim),
            "CAUSAL": self.causal,
            "DESCRIPTORS": self.descriptors,
            "PRECISION": "ieee",
            # As in Configuration.constants of kernels/matmul.py: the interpreter's dot cannot read bf16.
            "WIDEN": interpreting and self.dtype == "bfloat16",
        }


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention but head_dim. Raises ValueError in one sentence for what cannot be."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int

    def __post_init__(self) -> None:
        sizes = vars(self)
        if min(sizes.values()) < 1:
            requested = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            raise ValueError(f"An attention of {requested} was requested, but each is at least 1.")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.kv_heads} heads of K and V were requested, but they do not divide {self.heads}.")
        rows = max(self.rows_q, self.batch * self.kv_heads * self.seq_k)
        if rows > LARGEST_ROWS:
            raise ValueError(
                f"{rows} rows were requested in all, but the kernels count them in 32 bits: "
                f"take at most {LARGEST_ROWS}."
            )

    @property
    def rows_q(self) -> int:
        return self.batch * self.heads * self.seq_q

    @property
    def group(self) -> int:
        """Heads of Q that share one of K and V."""
        return self.heads // self.kv_heads

    @property
    def lse(self) -> tuple[int, int, int]:
        """Shape of the log-sum-exp and of the gradients' workspace."""
        return (self.batch, self.heads, self.seq_q)

    def q(self, head_dim: int) -> tuple[int, int, int, int]:
        """Shape of Q, O and their gradients."""
        return (self.batch, self.heads, self.seq_q, head_dim)

    def k(self, head_dim: int) -> tuple[int, int, int, int]:
        """Shape of K, V and their gradients."""
        return (self.batch, self.kv_heads, self.seq_k, head_dim)


class Attention:
    """The forward pass of one shape under one configuration on one device.

    Raises ValueError for a shape that the mask leaves queries without a key, or a device without TMA for descriptors.
    """

    def __init__(self, configuration: Configuration, shape: Shape, device: Any, together: int | None = None) -> None:
        """`together` is how many heads are visited at a time; by default those whose K and V half of the L2 holds."""
        self.configuration = configuration
        self.shape = shape
        self.device = checked_device(configuration, shape, device)
        self.blocks = -(-shape.seq_q // configuration.block_m)
        self.programs = shape.batch * shape.heads * self.blocks
        stepped_bytes = 2 * shape.seq_k * configuration.head_dim * ELEMENT_BYTES[configuration.dtype]
        self.together = together or heads_together(stepped_bytes, l2_bytes_of(self.device)) * shape.group

    def bind(self, q: Any, k: Any, v: Any, o: Any, lse: Any) -> Launch:
        """A launch that writes O and, in fp32, ln Σ exp of each query's scaled scores [batch, heads, seq_q].

        Raises ValueError naming the tensor for a wrong shape, dtype or device, for what is not contiguous, and, with
        descriptors, for an address or row that TMA cannot take.
        """
        from pyperf_suite.kernels.attention_device import forward

        configuration, shape = self.configuration, self.shape
        head_dim, dtype = configuration.head_dim, configuration.dtype
        for name, tensor, expected in (("Q", q, shape.q), ("K", k, shape.k), ("V", v, shape.k), ("O", o, shape.q)):
            check_operand(name, tensor, expected(head_dim), dtype, self.device, configuration.descriptors)
        check_operand("The log-sum-exp", lse, shape.lse, "float32", self.device)
        arguments = (
            operand(configuration, q, configuration.block_m),
            operand(configuration, k, configuration.block_n),
            operand(configuration, v, configuration.block_n),
            operand(configuration, o, configuration.block_m),
            lse,
            *(shape.batch * shape.heads, shape.group, shape.seq_q, shape.seq_k, self.blocks, self.together),
        )
        options = {**configuration.constants(interprets(forward)), **configuration.options}
        return Launch(forward, self.programs, arguments, options, configuration.requested)


def padded(size: int) -> int:
    """The next power of two, and at least what a tensor core takes at once."""
    return max(1 << (size - 1).bit_length(), SMALLEST_BLOCK)


def compile_for(target: str, configuration: Configuration) -> Binary:
    """Compile the forward kernel for a target such as "sm_90", for operands that start at multiples of 16 bytes.

    Raises ValueError for what is not a target, and RuntimeError where Triton interprets instead of compiling.
    """
    from pyperf_suite.kernels.attention_device import forward

    rows = {"q": configuration.block_m, "k": configuration.block_n, "v": configuration.block_n}
    types = operand_types(configuration, rows | {"o": configuration.block_m}) | {"lse": "*fp32"}
    return compile_kernel(forward, target, types, configuration.constants(), configuration.options)


def check_mask(shape: Shape, causal: bool) -> None:
    """Raise ValueError for a shape that the mask leaves queries without a key."""
    if causal and shape.seq_q > shape.seq_k:
        raise ValueError(
            f"{shape.seq_q} queries of {shape.seq_k} keys were requested, but causal leaves the first "
            f"{shape.seq_q - shape.seq_k} without a key: take at most as many queries as keys."
        )


def checked_device(configuration: Configuration, shape: Shape, device: Any) -> Any:
    """The device as torch names it. Raises ValueError for a configuration that it, or this shape, cannot have."""
    import torch

    check_mask(shape, configuration.causal)
    device = torch.device(device)
    if configuration.descriptors:
        check_tma(device)
    return device


def heads_together(stepped_bytes: int, l2_bytes: int) -> int:
    """How many heads' worth of what is stepped over half of the L2 holds; the rest is for what is held."""
    return max(l2_bytes // 2 // stepped_bytes, 1)


def l2_bytes_of(device: Any) -> int:
    """The size of a device's L2; 0 where there is no device, and nothing is cached."""
    import torch

    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


def check_operand(
    name: str, tensor: Any, shape: tuple[int, ...], dtype: str, device: Any, descriptors: bool = False
) -> None:
    """Raise ValueError for a tensor that is not as requested, not contiguous, or not for TMA."""
    check_tensor(name, tensor, shape, dtype, device, "attention")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {tensor.stride()}, but the attention kernels take contiguous tensors.")
    row_bytes = tensor.shape[-1] * tensor.element_size()
    if descriptors and row_bytes % TMA_ALIGNMENT_BYTES:
        raise ValueError(
            f"{name} has rows of {row_bytes} bytes, but TMA takes multiples of {TMA_ALIGNMENT_BYTES}: use "
            "addresses, or pad head_dim."
        )
    if descriptors:
        check_descriptor(name, tensor)


def operand(configuration: Configuration, tensor: Any, rows: int) -> Any:
    """Return a kernel's operand for a tensor [batch, heads, seq, head_dim] whose blocks have `rows` rows."""
    if not configuration.descriptors:
        return tensor
    from triton.tools.tensor_descriptor import TensorDescriptor

    batch, heads, seq, head_dim = tensor.shape
    block = [1, rows, configuration.padded_head_dim]
    return TensorDescriptor(tensor, [batch * heads, seq, head_dim], [seq * head_dim, head_dim, 1], block)


def operand_types(configuration: Configuration, rows: Mapping[str, int]) -> dict[str, str]:
    """Triton's type of each operand, given how many rows its blocks have."""
    element = ELEMENT_TYPES[configuration.dtype]
    if not configuration.descriptors:
        return dict.fromkeys(rows, f"*{element}")
    return {name: f"tensordesc<{element}{[1, held, configuration.padded_head_dim]}>" for name, held in rows.items()}
