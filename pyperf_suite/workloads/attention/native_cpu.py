"""The suite's own CPU attention: explicit blocks of queries and keys, and workers, through the native extension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.attention.counted import Blocks
from pyperf_suite.workloads.attention.parameters import AttentionParameters
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.dtypes import copies_elsewhere, not_a_number
from pyperf_suite.workloads.native import native_extension
from pyperf_suite.workloads.operator import Array, Launches, TimedImplementation
from pyperf_suite.workloads.workload import Kernel


class NativeCpuAttention(TimedImplementation[AttentionParameters]):
    """`csrc/cpu`: the GEMM's packing and micro-kernels with the online softmax between them, forward only."""

    name = "native"
    device_kind = "cpu"

    def validate(self, parameters: AttentionParameters) -> None:
        """Raise UserError for the backward pass, for blocks that the kernel does not have, or too many workers."""
        if parameters.backward:
            raise UserError(
                "The native attention computes the forward pass only, but the backward pass was asked of it: "
                "ask a library for that."
            )
        require_cores(parameters.workers)
        if parameters.blocks is not None:
            if parameters.blocks.stages != 1 or parameters.blocks.warps != 1:
                raise UserError(
                    f"Blocks {parameters.blocks} name stages or warps, which a CPU kernel does not have: "
                    f"ask for {parameters.blocks.m}x{parameters.blocks.n}."
                )
            try:
                native_extension().check_blocks(parameters.blocks.m, parameters.blocks.n)
            except ValueError as error:
                raise UserError(str(error)) from None

    def prepare(
        self, parameters: AttentionParameters, operands: Mapping[str, Array], sets: int, device: Device
    ) -> Launches:
        """Allocate the workspace and the worker threads, and look up every address."""
        try:
            return NativeCpuLaunches(parameters, copies_elsewhere(operands, sets))
        except ValueError as error:
            raise Unsupported(str(error)) from None


def default_blocks(parameters: AttentionParameters) -> Blocks:
    """The blocks that the native kernel takes where none are asked for. Raises ValueError where it has none."""
    m, n = native_extension().default_blocks(
        parameters.batch,
        parameters.heads,
        parameters.seq_q,
        parameters.keys,
        parameters.head_dim,
        parameters.causal,
        parameters.workers,
    )
    return Blocks(m, n)


class NativeCpuLaunches(Launches):
    """Launches of one `_native.Attention` over rotating operand sets."""

    def __init__(self, parameters: AttentionParameters, operand_sets: list[Mapping[str, Array]]) -> None:
        blocks = parameters.blocks or default_blocks(parameters)
        self._attention: Any = native_extension().Attention(
            parameters.batch,
            parameters.heads,
            parameters.key_heads,
            parameters.seq_q,
            parameters.keys,
            parameters.head_dim,
            parameters.dtype,
            parameters.causal,
            blocks=(blocks.m, blocks.n),
            workers=parameters.workers,
        )
        # The arrays stay alive through this list; only their addresses are needed in the timed region.
        self._operand_sets = operand_sets
        self.sets = len(operand_sets)
        self._arguments = [tuple(s[name].ctypes.data for name in "qkvo") for s in operand_sets]
        self._poison = not_a_number(parameters.dtype)
        self.kernel = Kernel(
            name=f"native_attention_{self._attention.isa}",
            path="packed",
            details={
                "blocks": str(blocks),
                "isa": self._attention.isa,
                "micro_tile": "x".join(map(str, self._attention.micro_tile)),
                "padded_head_dim": self._attention.padded_head_dim,
                "slots": self._attention.workers,
                "pinned": self._attention.pinned,
                "workspace_bytes": self._attention.workspace_bytes,
            },
        )

    def launch(self, index: int) -> None:
        self._attention.run(*self._arguments[index % len(self._arguments)])

    def output(self, index: int) -> Array:
        return self._operand_sets[index % len(self._operand_sets)]["o"]

    def poison(self, index: int | None = None) -> None:
        for each in self._chosen(index):
            self._operand_sets[each]["o"].fill(self._poison)
