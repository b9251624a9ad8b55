"""The parameters of a matrix product C[M,N] = A[M,K]·B[K,N], C row-major, A and B in any of four layouts.

The layout's letters are those cuBLAS is called with for a row-major C, so they match kernel names and the literature:

| layout | A is stored | B is stored | in a linear layer                |
| ------ | ----------- | ----------- | -------------------------------- |
| TN     | [M, K]      | [N, K]      | fprop, `x @ W.T`                 |
| NN     | [M, K]      | [K, N]      | dgrad, `dy @ W`; torch's `a @ b` |
| NT     | [K, M]      | [K, N]      | wgrad, `dy.T @ x`                |
| TT     | [K, M]      | [N, K]      |                                  |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.workloads.operands import ELEMENT_TYPES, element_type

LAYOUTS = ("NN", "TN", "NT", "TT")

# Beyond this no machine has memory for even one row of a product; it also keeps sizes inside 64-bit arithmetic.
Dimension = Annotated[int, Within(1, 1 << 31)]

# Results of products whose operands' type is not one to keep sums in.
RESULTS = {"tfloat32": "float32", "float8_e4m3fn": "bfloat16", "int8": "int32"}


@dataclass(frozen=True)
class MatmulParameters:
    """One product. `tile` None lets the implementation choose; `out_dtype` "" is what `RESULTS` says, or the input's.

    `pad_to` above 1 asks for each dimension to be filled up with zeros to a multiple of it, at each call; the work
    stays that of the requested product.
    """

    m: Dimension
    n: Dimension
    k: Dimension
    schedule: Schedule
    tile: Tile | None = None
    dtype: Annotated[str, OneOf(ELEMENT_TYPES)] = "float32"
    out_dtype: str = ""
    layout: Annotated[str, OneOf(LAYOUTS)] = "NN"
    pad_to: Dimension = 1

    @property
    def output_dtype(self) -> str:
        return self.out_dtype or RESULTS.get(self.dtype, self.dtype)

    @property
    def a_transposed(self) -> bool:
        return self.layout[1] == "T"

    @property
    def b_transposed(self) -> bool:
        return self.layout[0] == "T"

    @property
    def a_shape(self) -> tuple[int, int]:
        return (self.k, self.m) if self.a_transposed else (self.m, self.k)

    @property
    def b_shape(self) -> tuple[int, int]:
        return (self.n, self.k) if self.b_transposed else (self.k, self.n)

    @property
    def leading_dimensions(self) -> tuple[int, int, int]:
        """Row lengths of A, B and C as stored, in elements."""
        return self.a_shape[1], self.b_shape[1], self.n

    @property
    def padded(self) -> MatmulParameters:
        m, n, k = (-(-size // self.pad_to) * self.pad_to for size in (self.m, self.n, self.k))
        return replace(self, m=m, n=n, k=k, pad_to=1)

    def validate(self) -> None:
        dtype, result = self.dtype, self.output_dtype
        element_type(result)
        if dtype == "int32":
            raise UserError("A product of int32 was requested, but operands of integers are int8: ask for that.")
        if result in ("tfloat32", "int8"):
            raise UserError(
                f"A result in {result} was requested, but that is a type of operands: products of {result} are stored "
                f"as {RESULTS[result]}."
            )
        if (dtype == "int8") != (result == "int32"):
            raise UserError(
                f"A product of {dtype} into {result} was requested, but int8 is summed in int32 and nothing else is."
            )

    def require_own_schedule(self, implementation: str) -> None:
        self.require_padding(implementation, pads=False)
        if self.schedule.policy == "library":
            raise UserError(f"{implementation} is a kernel of ours and needs a schedule of ours, not {self.schedule}.")

    def require_library_schedule(self, library: str) -> None:
        if self.tile is not None or self.schedule.policy != "library":
            raise UserError(
                f"{library} chooses tile and order itself, but {self.schedule} was requested of it: "
                f"use library@{self.schedule.workers} and no tile."
            )

    def require_padding(self, implementation: str, pads: bool) -> None:
        if pads and self.pad_to == 1:
            raise UserError(
                f"{implementation} pads dimensions, but pad_to = 1 leaves them as they are: name a multiple."
            )
        if not pads and self.pad_to != 1:
            raise UserError(
                f"{implementation} takes dimensions as they are, but pad_to={self.pad_to} was requested: use "
                "torch_padded or cublas_padded."
            )
