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

from dataclasses import dataclass

from pyperf_suite.errors import UserError
from pyperf_suite.laws.tiling import Schedule, Tile

LAYOUTS = ("NN", "TN", "NT", "TT")


@dataclass(frozen=True)
class MatmulParameters:
    """One product. `tile` None lets the implementation choose; `out_dtype` "" is the input's dtype."""

    m: int
    n: int
    k: int
    schedule: Schedule
    tile: Tile | None = None
    dtype: str = "float32"
    out_dtype: str = ""
    layout: str = "NN"

    @property
    def output_dtype(self) -> str:
        """The element type of C."""
        return self.out_dtype or self.dtype

    @property
    def a_transposed(self) -> bool:
        """Whether A is stored [K, M]."""
        return self.layout[1] == "T"

    @property
    def b_transposed(self) -> bool:
        """Whether B is stored [N, K]."""
        return self.layout[0] == "T"

    @property
    def a_shape(self) -> tuple[int, int]:
        """Shape of A as stored."""
        return (self.k, self.m) if self.a_transposed else (self.m, self.k)

    @property
    def b_shape(self) -> tuple[int, int]:
        """Shape of B as stored."""
        return (self.n, self.k) if self.b_transposed else (self.k, self.n)


def require_library_schedule(library: str, parameters: MatmulParameters) -> None:
    """Raise UserError where a library, which chooses tile and order itself, is asked for ours."""
    if parameters.tile is not None or parameters.schedule.policy != "library":
        raise UserError(
            f"{library} chooses tile and order itself, but {parameters.schedule} was asked of it: "
            f"use library@{parameters.schedule.workers} and no tile."
        )
