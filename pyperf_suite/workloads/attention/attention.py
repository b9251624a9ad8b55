"""Attention as an operator: its implementations, its float64 reference, its FLOPs and bytes, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyperf_suite.laws.attention.counted import attention_flop
from pyperf_suite.measure.tolerance import Keep
from pyperf_suite.measure.verify import Verification
from pyperf_suite.measure.verify_attention import verify_attention
from pyperf_suite.workloads.attention.flex import FlexAttention
from pyperf_suite.workloads.attention.native_cpu import NativeCpuAttention
from pyperf_suite.workloads.attention.parameters import INPUTS, AttentionParameters
from pyperf_suite.workloads.attention.torch_sdpa import TorchSdpa
from pyperf_suite.workloads.attention.triton_own import TritonAttention
from pyperf_suite.workloads.attention.two_gemm import TwoGemm
from pyperf_suite.workloads.inputs import Operand
from pyperf_suite.workloads.operator import Operator
from pyperf_suite.workloads.workload import Work, by_name


class Attention(Operator[AttentionParameters]):
    """O = softmax(Q·Kᵀ/√d)·V, or its gradients dQ, dK, dV for a given dO, of which the forward pass is no part."""

    name = "attention"
    parameters_type = AttentionParameters
    implementations = by_name(
        NativeCpuAttention(),
        TritonAttention(),
        *map(TorchSdpa, ("default", "flash", "cudnn", "efficient", "math")),
        FlexAttention(),
        TwoGemm("two_gemm"),
        TwoGemm("two_gemm_products", products_alone=True),
    )

    def work(self, parameters: AttentionParameters) -> Work:
        """4·b·h·d·Σᵢ visible(i) FLOP, backward 2.5 times that; Q, K, V, O once, backward dO, dQ, dK, dV as well."""
        p = parameters
        flop = attention_flop(p.batch, p.heads, p.head_dim, p.pairs, p.backward)
        return Work(int(flop), self.footprint_bytes(parameters))

    def described(self, parameters: AttentionParameters) -> dict[str, Operand]:
        """Standard normal Q, K, V and dO, rounded to dtype, so that scores are near standard normal too."""
        streams = {"q": 0, "k": 1, "v": 2, "do": 3}
        return {name: Operand(shape, parameters.dtype, streams.get(name)) for name, shape in parameters.shapes.items()}

    def compare(self, parameters: AttentionParameters, values: Mapping[str, Any], keep: Keep) -> Verification:
        """Against float64 attention of the rounded inputs (see measure.verify_attention)."""
        outputs = {name: values[name] for name in parameters.results}
        q, k, v = (values[name] for name in INPUTS)
        return verify_attention(outputs, q, k, v, values.get("do"), parameters.causal, parameters.dtype, keep=keep)

    def reference_key(self, parameters: AttentionParameters) -> str:
        """Shapes, element type, mask and direction; who computes, in which blocks, is of no matter."""
        shapes = f"{parameters.q_shape} {parameters.k_shape} {parameters.dtype}"
        return f"{shapes} causal={parameters.causal} backward={parameters.backward}"
