"""How matrices and the parts of them in shared memory look to Hopper's copy engine (TMA), and what it cannot take."""

from __future__ import annotations

import math
from dataclasses import dataclass

TMA_BYTES = 16  # what addresses and rows must be multiples of
WIDEST_SPAN_BYTES = 128


@dataclass(frozen=True)
class TensorMap:
    """Arguments of `_native.cuda.tensor_map` besides the context; shape and box begin with the inner dimension.

    A copy takes a box of one of `matrices` that follow each other; 0: a single matrix, addressed by two coordinates.
    """

    address: int
    dtype: str
    shape: tuple[int, int]
    stride_bytes: int
    box: tuple[int, int]
    swizzle_bytes: int
    l2_promotion_bytes: int = 256
    matrices: int = 0
    matrix_bytes: int = 0


@dataclass(frozen=True)
class Operand:
    """One operand's part of a stage, in panels as `tile.cuh` says: one if K-major, one a swizzle span if MN-major."""

    extent: int
    depth: int
    element_bytes: int
    mn_major: bool
    shared_by: int

    @property
    def span_bytes(self) -> int:
        """Bytes of a row of a panel, which is what the swizzle permutes."""
        return widest_span(self.extent * self.element_bytes) if self.mn_major else self.depth * self.element_bytes

    @property
    def bytes(self) -> int:
        """Bytes of one stage, the same in either storage."""
        return self.extent * self.depth * self.element_bytes

    @property
    def box(self) -> tuple[int, int]:
        """Columns and rows of one copy: a panel, or its slice where a cluster's CTAs load it together."""
        rows = self.depth if self.mn_major else self.extent
        return self.span_bytes // self.element_bytes, rows // self.shared_by


def widest_span(row_bytes: int) -> int:
    """The widest of the swizzle's spans (128, 64, 32, 16 bytes) that divides rows of `row_bytes` bytes."""
    return math.gcd(row_bytes, WIDEST_SPAN_BYTES)


def swizzle_bytes(span_bytes: int) -> int:
    """The swizzle of rows of one span: none for the narrowest, whose single 16-byte column has nothing to permute."""
    return span_bytes if span_bytes > TMA_BYTES else 0


def check_operand(letter: str, address: int, leading_dimension: int, row_length: int, element_bytes: int) -> None:
    """Raise ValueError for an operand that the copy engine cannot take, saying what it can."""
    if leading_dimension < row_length:
        raise ValueError(
            f"The leading dimension of {letter} is {leading_dimension}, less than its row of {row_length} elements."
        )
    if address % TMA_BYTES:
        raise ValueError(
            f"{letter} begins at address {address:#x}, but TMA needs a multiple of {TMA_BYTES}: align it, or take an "
            "sm_80 kernel."
        )
    step = TMA_BYTES // element_bytes
    padded = math.ceil(leading_dimension / step) * step
    if leading_dimension != padded:
        raise ValueError(
            f"The leading dimension of {letter} is {leading_dimension}, but TMA needs rows a multiple of {TMA_BYTES} "
            f"bytes apart: pad it to {padded}, or take an sm_80 kernel."
        )
