"""Attention as an operator: its implementations, its float64 reference, its FLOPs and bytes, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.laws.attention.counted import attention_flop
from pyperf_suite.measure.arrays import Keep, computed_anew
from pyperf_suite.measure.verify import Verification
from pyperf_suite.measure.verify_attention import verify_attention
from pyperf_suite.workloads.attention.flex import FlexAttention
from pyperf_suite.workloads.attention.native_cpu import NativeCpuAttention
from pyperf_suite.workloads.attention.operands import INPUTS, operand_shapes, split_output
from pyperf_suite.workloads.attention.parameters import AttentionParameters
from pyperf_suite.workloads.attention.torch_sdpa import SdpaCudnn, SdpaDefault, SdpaEfficient, SdpaFlash, SdpaMath
from pyperf_suite.workloads.attention.triton_own import TritonAttention
from pyperf_suite.workloads.attention.two_gemm import TwoGemm, TwoGemmProducts
from pyperf_suite.workloads.dtypes import element_type, widen
from pyperf_suite.workloads.inputs import Operand, Operands
from pyperf_suite.workloads.operator import Array, Operator, Tensors, TimedImplementation
from pyperf_suite.workloads.workload import Work

DTYPES = ("float32", "float16", "bfloat16")

# Beyond this no machine has memory for one head; it also keeps sizes inside 64-bit arithmetic.
LARGEST_SIZE = 1 << 24


class Attention(Operator[AttentionParameters]):
    """O = softmax(Q·Kᵀ/√d)·V, or its gradients dQ, dK, dV for a given dO, of which the forward pass is no part."""

    name = "attention"
    parameters_type = AttentionParameters
    implementations: Mapping[str, TimedImplementation[AttentionParameters]] = {
        implementation.name: implementation
        for implementation in (
            NativeCpuAttention(),
            TritonAttention(),
            SdpaDefault(),
            SdpaFlash(),
            SdpaCudnn(),
            SdpaEfficient(),
            SdpaMath(),
            FlexAttention(),
            TwoGemm(),
            TwoGemmProducts(),
        )
    }

    def validate(self, parameters: AttentionParameters) -> None:
        """Raise UserError for a size, dtype, number of key heads or causal mask that cannot be."""
        for name, smallest in (
            *((name, 1) for name in ("batch", "heads", "head_dim", "seq_q", "workers")),
            *((name, 0) for name in ("seq_k", "kv_heads")),
        ):
            size = getattr(parameters, name)
            if not smallest <= size <= LARGEST_SIZE:
                raise UserError(f"{name} = {size} was asked for, but it lies between {smallest} and {LARGEST_SIZE}.")
        if parameters.dtype not in DTYPES:
            raise UserError(f"Attention has no dtype {parameters.dtype!r}: choose from {', '.join(DTYPES)}.")
        heads, key_heads = parameters.heads, parameters.key_heads
        if heads % key_heads:
            allowed = ", ".join(str(each) for each in range(1, heads + 1) if heads % each == 0)
            raise UserError(
                f"{key_heads} key heads were asked for, but they must divide the {heads} heads: choose from {allowed}."
            )
        if parameters.causal and parameters.seq_q > parameters.keys:
            raise UserError(
                f"Causal attention of {parameters.seq_q} queries to {parameters.keys} keys was asked for, but the "
                f"first {parameters.seq_q - parameters.keys} queries would see no key: ask for at least as many keys."
            )

    def work(self, parameters: AttentionParameters) -> Work:
        """4·b·h·d·Σᵢ visible(i) FLOP, backward 2.5 times that; Q, K, V, O once, backward dO, dQ, dK, dV as well."""
        flop = attention_flop(
            parameters.batch, parameters.heads, parameters.head_dim, parameters.pairs, parameters.backward
        )
        return Work(int(flop), self.footprint_bytes(parameters))

    def footprint_bytes(self, parameters: AttentionParameters) -> int:
        """Bytes of all operands; what an implementation keeps beside them (log-sum-exp, scores) is its own."""
        elements = sum(int(np.prod(shape)) for shape in operand_shapes(parameters).values())
        return elements * element_type(parameters.dtype).size_bytes

    def operands(self, parameters: AttentionParameters, seed: int) -> Operands:
        """Standard normal Q, K, V and dO, rounded to dtype, so that scores are near standard normal too."""
        streams = {name: number for number, name in enumerate((*INPUTS, "do"))}
        described = {
            name: Operand(shape, parameters.dtype, streams.get(name))
            for name, shape in operand_shapes(parameters).items()
        }
        return Operands(described, seed)

    def verify(
        self,
        parameters: AttentionParameters,
        operands: Mapping[str, Array],
        output: Array,
        keep: Keep = computed_anew,
    ) -> Verification:
        """Against float64 attention of the rounded inputs (see measure.verify_attention)."""
        names = (*INPUTS, "do") if parameters.backward else INPUTS
        inputs = {name: widen(operands[name], parameters.dtype) for name in names}
        outputs = {name: widen(stored, parameters.dtype) for name, stored in split_output(parameters, output).items()}
        return _verified(parameters, inputs, outputs, keep)

    def verify_tensors(self, parameters: AttentionParameters, tensors: Tensors) -> Verification:
        """The same by torch's float64 arithmetic."""
        return _verified(parameters, tensors.inputs, tensors.outputs)

    def reference_key(self, parameters: AttentionParameters) -> str:
        """Shapes, element type, mask and direction; who computes, in which blocks, is of no matter."""
        shapes = f"{parameters.q_shape} {parameters.k_shape} {parameters.dtype}"
        return f"{shapes} causal={parameters.causal} backward={parameters.backward}"


def _verified(
    parameters: AttentionParameters,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    keep: Keep = computed_anew,
) -> Verification:
    q, k, v = (inputs[name] for name in INPUTS)
    gradient = inputs["do"] if parameters.backward else None
    return verify_attention(outputs, q, k, v, gradient, parameters.causal, parameters.dtype, keep=keep)
