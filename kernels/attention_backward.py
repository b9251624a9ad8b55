"""Triton's gradients of attention in three launches: ⟨O, dO⟩, then dK and dV by blocks of keys, then dQ by queries."""

from __future__ import annotations

from typing import Any

from pyperf_suite.kernels.attention import (
    ELEMENT_BYTES,
    Configuration,
    Shape,
    check_operand,
    checked_device,
    heads_together,
    l2_bytes_of,
    operand,
    operand_types,
)
from pyperf_suite.kernels.triton_host import Binary, Launch, compile_kernel, interprets

KERNELS = ("dk_dv", "dq")
# Elements a program of the kernel that reads O and dO: enough to keep memory busy, few enough for 4 warps' registers.
PRODUCT_ELEMENTS = 8192


class Gradients:
    """The backward pass of one shape under one configuration on one device, with its workspace.

    Launches of one of them may follow each other on a stream, never overlap: they share the workspace. Raises
    ValueError for a shape that the mask leaves queries without a key, or a device without TMA for descriptors.
    """

    def __init__(self, configuration: Configuration, shape: Shape, device: Any, together: int | None = None) -> None:
        """`together` is how many heads of K are visited at a time; by default what half of the L2 holds."""
        import torch

        if not configuration.backward:
            raise ValueError("Gradients were requested of a forward configuration: set backward.")
        self.configuration = configuration
        self.shape = shape
        self.device = checked_device(configuration, shape, device)
        row_bytes = 2 * configuration.head_dim * ELEMENT_BYTES[configuration.dtype]
        l2_bytes = l2_bytes_of(self.device)
        by_keys = together or heads_together(row_bytes * shape.seq_q * shape.group, l2_bytes)
        by_queries = together or heads_together(row_bytes * shape.seq_k, l2_bytes)
        self.together = {"dk_dv": by_keys, "dq": by_queries * shape.group}
        held = configuration.block_m
        self.blocks = {"dk_dv": -(-shape.seq_k // held), "dq": -(-shape.seq_q // held)}
        self._products = torch.empty(shape.lse, dtype=torch.float32, device=self.device)

    @property
    def programs(self) -> dict[str, int]:
        """Programs of each kernel: one a block of keys of one head of K, one a block of queries of one head of Q."""
        heads = {"dk_dv": self.shape.batch * self.shape.kv_heads, "dq": self.shape.batch * self.shape.heads}
        return {kernel: heads[kernel] * self.blocks[kernel] for kernel in KERNELS}

    @property
    def workspace_bytes(self) -> int:
        """Memory for ⟨O, dO⟩ of each query."""
        return int(4 * self._products.numel())

    def bind(self, q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any, dq: Any, dk: Any, dv: Any) -> BackwardLaunch:
        """Launches that write dQ, dK and dV, given what the forward pass read and wrote and the gradient of O.

        Raises ValueError naming the tensor for a wrong shape, dtype or device, for what is not contiguous, and, with
        descriptors, for an address or row that TMA cannot take.
        """
        configuration, shape = self.configuration, self.shape
        q_shape, k_shape = shape.q(configuration.head_dim), shape.k(configuration.head_dim)
        by_query = {"Q": q, "O": o, "dO": do, "dQ": dq}
        by_key = {"K": k, "V": v, "dK": dk, "dV": dv}
        for named, expected in ((by_query, q_shape), (by_key, k_shape)):
            for name, tensor in named.items():
                check_operand(name, tensor, expected, configuration.dtype, self.device, configuration.descriptors)
        check_operand("The log-sum-exp", lse, shape.lse, "float32", self.device)
        return BackwardLaunch(
            self._row_products(o, do),
            self._launch("dk_dv", {"q": q, "k": k, "v": v, "do": do, "dk": dk, "dv": dv}, lse),
            self._launch("dq", {"q": q, "k": k, "v": v, "do": do, "dq": dq}, lse),
        )

    def _row_products(self, o: Any, do: Any) -> Launch:
        from pyperf_suite.kernels.attention_backward_device import row_products

        configuration = self.configuration
        padded = configuration.padded_head_dim
        rows = max(PRODUCT_ELEMENTS // padded, 1)
        options = {"ROWS": rows, "HEAD_DIM": configuration.head_dim, "PADDED": padded}
        programs = -(-self.shape.rows_q // rows)
        arguments = (o, do, self._products, self.shape.rows_q)
        return Launch(row_products, programs, arguments, options, configuration.requested)

    def _launch(self, kernel: str, tensors: dict[str, Any], lse: Any) -> Launch:
        from pyperf_suite.kernels import attention_backward_device

        configuration, shape = self.configuration, self.shape
        rows = block_rows(configuration, kernel)
        heads = shape.kv_heads if kernel == "dk_dv" else shape.heads
        arguments = (
            *(operand(configuration, tensor, rows[name]) for name, tensor in tensors.items()),
            lse,
            self._products,
            *(shape.batch * heads, shape.group, shape.seq_q, shape.seq_k, self.blocks[kernel], self.together[kernel]),
        )
        device_kernel = getattr(attention_backward_device, kernel)
        options = {**configuration.constants(interprets(device_kernel)), **configuration.options}
        return Launch(device_kernel, self.programs[kernel], arguments, options, configuration.requested)


class BackwardLaunch:
    """The backward pass of given tensors, ready to be enqueued on the current stream as often as wanted."""

    def __init__(self, row_products: Launch, dk_dv: Launch, dq: Launch) -> None:
        self._row_products = row_products
        self._by_name = {"dk_dv": dk_dv, "dq": dq}

    def __call__(self) -> dict[str, Any]:
        """Enqueue it; kernels by name, or None if interpreted. Raises ValueError for too little memory or registers."""
        self._row_products()
        return {name: launch() for name, launch in self._by_name.items()}


def block_rows(configuration: Configuration, kernel: str) -> dict[str, int]:
    """Rows of the blocks by which a kernel reads or writes each operand: those it holds, those it steps over."""
    held = ("k", "v", "dk", "dv") if kernel == "dk_dv" else ("q", "do", "dq")
    stepped = ("q", "do") if kernel == "dk_dv" else ("k", "v")
    return dict.fromkeys(held, configuration.block_m) | dict.fromkeys(stepped, configuration.block_n)


def compile_for(target: str, configuration: Configuration, kernel: str) -> Binary:
    """Compile "dk_dv" or "dq" for a target such as "sm_90", for operands that start at multiples of 16 bytes.

    Raises ValueError for what is not a target, and RuntimeError where Triton interprets instead of compiling.
    """
    from pyperf_suite.kernels import attention_backward_device

    types = operand_types(configuration, block_rows(configuration, kernel)) | {"lse": "*fp32", "products": "*fp32"}
    function = getattr(attention_backward_device, kernel)
    return compile_kernel(function, target, types, configuration.constants(), configuration.options)
