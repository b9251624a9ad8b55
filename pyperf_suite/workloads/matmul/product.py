"""The matrix product as an operator: its implementations, its float64 reference, its FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyperf_suite.measure.tolerance import Keep
from pyperf_suite.measure.verify import Verification, verify_product
from pyperf_suite.workloads.inputs import Operand
from pyperf_suite.workloads.matmul.cuda_own import Sm80Matmul, Sm90Matmul
from pyperf_suite.workloads.matmul.libraries import LibraryMatmul
from pyperf_suite.workloads.matmul.native_cpu import NativeCpuMatmul
from pyperf_suite.workloads.matmul.parameters import MatmulParameters
from pyperf_suite.workloads.matmul.triton_own import TritonMatmul
from pyperf_suite.workloads.operator import Operator
from pyperf_suite.workloads.workload import Work, by_name


class Matmul(Operator[MatmulParameters]):
    """C = A·B; 2·M·N·K FLOP; each operand moved once is M·K + K·N + M·N elements."""

    name = "matmul"
    parameters_type = MatmulParameters
    implementations = by_name(
        NativeCpuMatmul(),
        LibraryMatmul("torch", "cpu"),
        LibraryMatmul("torch_padded", "cpu", pads=True),
        Sm90Matmul(),
        Sm80Matmul(),
        TritonMatmul(),
        LibraryMatmul("cublas", "cuda"),
        LibraryMatmul("cublas_padded", "cuda", pads=True),
    )

    def work(self, parameters: MatmulParameters) -> Work:
        """2·M·N·K FLOP (a multiply and an add), and the footprint as bytes."""
        return Work(2 * parameters.m * parameters.n * parameters.k, self.footprint_bytes(parameters))

    def described(self, parameters: MatmulParameters) -> dict[str, Operand]:
        """Normal A and B, rounded to dtype: values move a processor's power, and zeros run faster."""
        return {
            "a": Operand(parameters.a_shape, parameters.dtype, stream=0),
            "b": Operand(parameters.b_shape, parameters.dtype, stream=1),
            "c": Operand((parameters.m, parameters.n), parameters.output_dtype),
        }

    def compare(self, parameters: MatmulParameters, values: Mapping[str, Any], keep: Keep) -> Verification:
        """Against the float64 product of the rounded inputs (see measure.verify)."""
        a = values["a"].T if parameters.a_transposed else values["a"]
        b = values["b"].T if parameters.b_transposed else values["b"]
        return verify_product(values["c"], a, b, parameters.dtype, parameters.output_dtype, keep=keep)

    def reference_key(self, parameters: MatmulParameters) -> str:
        """Sizes, element types and layout; who multiplies, in which tiles, is of no matter."""
        sizes = f"{parameters.m}x{parameters.n}x{parameters.k}"
        return f"{sizes} {parameters.dtype} {parameters.output_dtype} {parameters.layout}"
