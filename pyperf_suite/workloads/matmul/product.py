"""The matrix product as an operator: its implementations, its float64 reference, its FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.measure.arrays import Keep, computed_anew
from pyperf_suite.measure.verify import Verification, verify_product
from pyperf_suite.workloads.dtypes import element_type, widen
from pyperf_suite.workloads.inputs import Operand, Operands
from pyperf_suite.workloads.matmul.cuda_own import Sm80Matmul, Sm90Matmul
from pyperf_suite.workloads.matmul.native_cpu import NativeCpuMatmul
from pyperf_suite.workloads.matmul.parameters import LAYOUTS, RESULTS, MatmulParameters
from pyperf_suite.workloads.matmul.torch_cpu import PaddedTorchCpuMatmul, TorchCpuMatmul
from pyperf_suite.workloads.matmul.torch_gpu import CublasMatmul, PaddedCublasMatmul, TritonMatmul
from pyperf_suite.workloads.operator import Array, Operator, Tensors, TimedImplementation
from pyperf_suite.workloads.workload import Work

# Beyond this no machine has memory for even one row of a product; it also keeps sizes inside 64-bit arithmetic.
LARGEST_DIMENSION = 1 << 31


class Matmul(Operator[MatmulParameters]):
    """C = A·B; 2·M·N·K FLOP; each operand moved once is M·K + K·N + M·N elements."""

    name = "matmul"
    parameters_type = MatmulParameters
    implementations: Mapping[str, TimedImplementation[MatmulParameters]] = {
        implementation.name: implementation
        for implementation in (
            NativeCpuMatmul(),
            TorchCpuMatmul(),
            PaddedTorchCpuMatmul(),
            Sm90Matmul(),
            Sm80Matmul(),
            TritonMatmul(),
            CublasMatmul(),
            PaddedCublasMatmul(),
        )
    }

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a dimension, dtype or layout that cannot be."""
        for name in ("m", "n", "k"):
            size = getattr(parameters, name)
            if not 1 <= size <= LARGEST_DIMENSION:
                raise UserError(
                    f"{name.upper()} = {size} was asked for, but a dimension lies between 1 and {LARGEST_DIMENSION}."
                )
        if not 1 <= parameters.pad_to <= LARGEST_DIMENSION:
            raise UserError(
                f"pad_to = {parameters.pad_to} was asked for, but dimensions are padded to multiples of 1 to "
                f"{LARGEST_DIMENSION}."
            )
        element_type(parameters.dtype)
        element_type(parameters.output_dtype)
        require_types(parameters)
        if parameters.layout not in LAYOUTS:
            raise UserError(f"Unknown layout {parameters.layout!r}: choose from {', '.join(LAYOUTS)}.")

    def work(self, parameters: MatmulParameters) -> Work:
        """2·M·N·K FLOP (a multiply and an add), and the footprint as bytes."""
        return Work(2 * parameters.m * parameters.n * parameters.k, self.footprint_bytes(parameters))

    def footprint_bytes(self, parameters: MatmulParameters) -> int:
        """Bytes of A, B and C."""
        m, n, k = parameters.m, parameters.n, parameters.k
        inputs = (m * k + k * n) * element_type(parameters.dtype).size_bytes
        return inputs + m * n * element_type(parameters.output_dtype).size_bytes

    def operands(self, parameters: MatmulParameters, seed: int) -> Operands:
        """Normal A and B, rounded to dtype: values move a processor's power, and zeros run faster."""
        described = {
            "a": Operand(parameters.a_shape, parameters.dtype, stream=0),
            "b": Operand(parameters.b_shape, parameters.dtype, stream=1),
            "c": Operand((parameters.m, parameters.n), parameters.output_dtype),
        }
        return Operands(described, seed)

    def verify(
        self,
        parameters: MatmulParameters,
        operands: Mapping[str, Array],
        output: Array,
        keep: Keep = computed_anew,
    ) -> Verification:
        """Against the float64 product of the rounded inputs (see measure.verify)."""
        a, b = (widen(operands[name], parameters.dtype) for name in "ab")
        return _verified(parameters, a, b, widen(output, parameters.output_dtype), keep)

    def verify_tensors(self, parameters: MatmulParameters, tensors: Tensors) -> Verification:
        """The same by torch's float64 product."""
        return _verified(parameters, tensors.inputs["a"], tensors.inputs["b"], tensors.outputs["c"])

    def reference_key(self, parameters: MatmulParameters) -> str:
        """Sizes, element types and layout; who multiplies, in which tiles, is of no matter."""
        sizes = f"{parameters.m}x{parameters.n}x{parameters.k}"
        return f"{sizes} {parameters.dtype} {parameters.output_dtype} {parameters.layout}"


def _verified(parameters: MatmulParameters, a: Any, b: Any, c: Any, keep: Keep = computed_anew) -> Verification:
    """The verdict on C, given A and B as stored."""
    return verify_product(
        c,
        a.T if parameters.a_transposed else a,
        b.T if parameters.b_transposed else b,
        parameters.dtype,
        parameters.output_dtype,
        keep=keep,
    )


def require_types(parameters: MatmulParameters) -> None:
    """Raise UserError for operands or a result of a type that products do not have."""
    dtype, result = parameters.dtype, parameters.output_dtype
    if dtype == "int32":
        raise UserError("A product of int32 was asked for, but operands of integers are int8: ask for that.")
    if result in ("tfloat32", "int8"):
        raise UserError(
            f"A result in {result} was asked for, but that is a type of operands: products of {result} are stored as "
            f"{RESULTS[result]}."
        )
    if (dtype == "int8") != (result == "int32"):
        raise UserError(
            f"A product of {dtype} into {result} was asked for, but int8 is summed in int32 and nothing else is."
        )
