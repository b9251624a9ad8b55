"""A product whose operands are padded with zeros at each call, as users pad them: pad, multiply, slice.

Whether padding pays in total is decided by timing all three together against the product of the sizes as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyperf_suite.workloads.matmul.parameters import MatmulParameters

Multiply = Callable[..., object]


class PaddedProduct:
    """C = A·B by `torch.nn.functional.pad` of what has to grow, a product of the padded sizes, and its slice.

    The memory of the padded product is made once, as that of C is for a product without padding; the padded operands
    are made anew at each call, as the function makes them. A slice that leaves only rows out is contiguous already, so
    it costs nothing and `result` is a view. One that leaves columns out is copied into C, because most of what follows
    in a network wants rows without gaps. `written` is every tensor that a call fills.
    """

    def __init__(self, torch: Any, parameters: MatmulParameters, a: Any, b: Any, c: Any, multiply: Multiply) -> None:
        """`a`, `b` and `c` are tensors as stored; `multiply(a, b, out=c)` takes logical A[M,K] and B[K,N]."""
        padded = parameters.padded
        self._pad = torch.nn.functional.pad
        self._multiply = multiply
        self._operands = [
            (a, _margins(parameters.a_shape, padded.a_shape), parameters.a_transposed),
            (b, _margins(parameters.b_shape, padded.b_shape), parameters.b_transposed),
        ]
        self._whole = c
        if (padded.m, padded.n) != (parameters.m, parameters.n):
            self._whole = torch.empty((padded.m, padded.n), dtype=c.dtype, device=c.device)
        self._slice = self._whole[: parameters.m, : parameters.n]
        self._c = c if padded.n != parameters.n else None
        self.result = self._slice if self._c is None else c
        self.written = (self._whole,) if self._c is None else (self._whole, c)

    def __call__(self) -> None:
        """Pad, multiply, slice."""
        a, b = (self._logical(*operand) for operand in self._operands)
        self._multiply(a, b, out=self._whole)
        if self._c is not None:
            self._c.copy_(self._slice)

    def _logical(self, stored: Any, margins: tuple[int, ...] | None, transposed: bool) -> Any:
        padded = stored if margins is None else self._pad(stored, margins)
        return padded.t() if transposed else padded


def how_padded(parameters: MatmulParameters) -> dict[str, Any]:
    """What padding does to a product, for its record: the sizes multiplied, the operands padded, the slice's kind.

    Empty for a product that is not padded.
    """
    if parameters.pad_to == 1:
        return {}
    padded = parameters.padded
    shapes = (("a", parameters.a_shape, padded.a_shape), ("b", parameters.b_shape, padded.b_shape))
    kind = "copy" if padded.n != parameters.n else "view" if padded.m != parameters.m else "none"
    return {
        "multiplied": f"{padded.m}x{padded.n}x{padded.k}",
        "padded": [name for name, shape, larger in shapes if shape != larger],
        "slice": kind,
    }


def _margins(shape: tuple[int, int], padded: tuple[int, int]) -> tuple[int, ...] | None:
    """What `pad` adds before and after the last dimension, then the first; None where there is nothing to add."""
    if shape == padded:
        return None
    return (0, padded[1] - shape[1], 0, padded[0] - shape[0])
