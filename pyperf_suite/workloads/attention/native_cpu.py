"""The suite's own CPU attention: explicit blocks of queries and keys, and workers, through the native extension."""

from __future__ import annotations

from functools import partial

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.laws.attention.counted import Blocks
from pyperf_suite.workloads.attention.parameters import AttentionParameters
from pyperf_suite.workloads.backends import native_extension, require_cores
from pyperf_suite.workloads.operands import Operands
from pyperf_suite.workloads.operator import Bound, HostArrays, Launches, TimedImplementation, refusing
from pyperf_suite.workloads.workload import Kernel, Place


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
        blocks = parameters.blocks
        if blocks is not None:
            if blocks.stages != 1 or blocks.warps != 1:
                raise UserError(
                    f"Blocks {blocks} name stages or warps, which a CPU kernel does not have: "
                    f"ask for {blocks.m}x{blocks.n}."
                )
            with refusing(UserError):
                native_extension().check_blocks(blocks.m, blocks.n)

    def prepare(self, parameters: AttentionParameters, operands: Operands, place: Place) -> Launches:
        """Allocate the workspace and the worker threads, and look up every address."""
        p = parameters
        with refusing(Unsupported):
            blocks = p.blocks or default_native_blocks(p)
            attention = native_extension().Attention(
                p.batch,
                p.heads,
                p.key_heads,
                p.seq_q,
                p.keys,
                p.head_dim,
                p.dtype,
                p.causal,
                blocks=(blocks.m, blocks.n),
                workers=p.workers,
            )
        memory = HostArrays(operands, place)
        bound = [
            Bound.into(partial(attention.run, *(each[name].ctypes.data for name in "qkvo")), o=each["o"])
            for each in memory.sets
        ]
        details = {
            "blocks": str(blocks),
            "isa": attention.isa,
            "micro_tile": "x".join(map(str, attention.micro_tile)),
            "padded_head_dim": attention.padded_head_dim,
            "slots": attention.workers,
            "pinned": attention.pinned,
            "workspace_bytes": attention.workspace_bytes,
        }
        return Launches(memory, bound, Kernel(f"native_attention_{attention.isa}", "packed", details))


def default_native_blocks(parameters: AttentionParameters) -> Blocks:
    """The blocks that the native kernel takes where none are asked for. Raises ValueError where it has none."""
    p = parameters
    sizes = native_extension().default_blocks(p.batch, p.heads, p.seq_q, p.keys, p.head_dim, p.causal, p.workers)
    return Blocks(*sizes)
