"""How far a correct matrix product may lie from the exact one: one table, by dtype, with reasons.

Two limits go together: one on the relative norm, for errors everywhere, and one per element, for errors
anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyperf_suite.measure.arrays import Array


@dataclass(frozen=True)
class Precision:
    """What a dtype does to a product, as operand (`accumulation`) and as result (`rounding`, `smallest`).

    `accumulation` is the unit roundoff of the sums that kernels form of products of this dtype, `rounding`
    that of storing a result in it, and `smallest` the magnitude below which a stored result may lose all
    digits.
    """

    accumulation: float
    rounding: float
    smallest: float
    reason: str


TABLE: dict[str, Precision] = {
    "float64": Precision(2.0**-53, 2.0**-53, 2.0**-1022, "IEEE double throughout"),
    "float32": Precision(2.0**-24, 2.0**-24, 2.0**-126, "IEEE single throughout; subnormals may be flushed"),
    "tfloat32": Precision(2.0**-24, 2.0**-24, 2.0**-126, "exact products, sums and result in fp32"),
    "bfloat16": Precision(2.0**-24, 2.0**-8, 2.0**-126, "exact products, sums in fp32, stored with 8 bits"),
    "float16": Precision(2.0**-24, 2.0**-11, 2.0**-24, "exact products, sums in fp32, stored with 11 bits"),
    "float8_e4m3fn": Precision(2.0**-13, 2.0**-4, 2.0**-9, "sums in tensor cores keep about 14 bits"),
    "float8_e5m2": Precision(2.0**-13, 2.0**-3, 2.0**-16, "sums in tensor cores keep about 14 bits"),
    "int8": Precision(0.0, 0.0, 0.5, "integers are multiplied and summed exactly"),
    "int32": Precision(0.0, 0.0, 0.5, "an integer less than half away from another is that integer"),
}
"""The 14 bits: DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3.2."""

_SAFETY = 4.0

_REFERENCE = 2.0**-50
"""What the float64 reference may itself be off by, in relative norm: no limit can be tighter."""


_TF32_OPERAND = 2.0**-11

CARRIED = 16.0
"""Of results of many operations, limits per element are this many times the root mean square by which the element
moves when each operation is off at random (workloads/training/rounding.py). Five would do for independent normal
errors of a million elements; measured over float32, bfloat16 and float16 steps of 3 and 4 layers the largest was 9.4,
where the errors of a few tokens outweigh the rest."""

SUMMED = 4.0
"""A sum of K terms of random sign that is itself kept in a type of unit roundoff u is off by 0.4·√K·u of its size, in
root mean square; limits per element are ten times that."""


@dataclass(frozen=True)
class ElementLimit:
    """|out − ref| <= accumulation·(|A|·|B|) + rounding·|ref| + smallest, for each element."""

    accumulation: float
    rounding: float
    smallest: float

    def of(self, magnitude: Array | float, reference: Array) -> Array:
        """The limit of each element, given |A|·|B| and the reference, all of one shape."""
        return self.accumulation * magnitude + self.rounding * abs(reference) + self.smallest


def element_limit(dtype: str, out_dtype: str, inner: int) -> ElementLimit:
    """The limit per element of a product over `inner` (K) terms of `dtype`, stored as `out_dtype`.

    A sum of K terms is off by at most K·u·(|A|·|B|) (Higham, *Accuracy and Stability of Numerical
    Algorithms*, 2002, section 3.1) and, rounding errors being independent, by a small multiple of
    √K·u·(|A|·|B|) with near certainty (Higham & Mary, *SIAM J. Sci. Comput.* 41, 2019, theorem 2.4). The
    multiple is 4, which is above the certain bound for K < 16 and leaves room for tensor cores, which
    truncate. The storing of the result is kept apart, as it errs relative to |ref|: charged to |A|·|B|, it
    would in bf16 hide errors as large as the elements themselves.

    Raises ValueError for a dtype that is not in the table, or K < 1.
    """
    operand, result = _look_up(dtype), _look_up(out_dtype)
    if inner < 1:
        raise ValueError(f"a product sums over at least one term, not {inner}")
    sums_in_float32 = out_dtype not in ("float64", "int32")
    unit = max(operand.accumulation, TABLE["float32"].rounding if sums_in_float32 else 0.0)
    return ElementLimit(_SAFETY * math.sqrt(inner) * unit, result.rounding, result.smallest)


def relative_norm_limit(dtype: str, out_dtype: str, inner: int) -> float:
    """The limit of ‖out − ref‖/‖ref‖ (Frobenius) for operands of random sign.

    Then ‖ref‖ is as √K where |A|·|B| is as K, and each of K roundings errs by u times a partial sum of size
    √k: the relative norm is near 0.4·√K·u plus the storing of the result, less than half its unit roundoff on
    average. The limit takes four times the first and once the second: tight enough that a few lost terms show
    in any dtype. Integers are exact, and so held to what float64 can tell.

    Raises ValueError as `element_limit` does.
    """
    limit = element_limit(dtype, out_dtype, inner)
    return max(limit.accumulation + limit.rounding, _REFERENCE)


def operation_unit(dtype: str, inner: int) -> float:
    """The share by which one operation on operands of `dtype` may be off, sums of up to `inner` terms included.

    Tensor cores read float32 operands with 11 bits where asked for TF32; what is then computed is exact to float32.

    Raises ValueError as `element_limit` does.
    """
    return relative_norm_limit(dtype, dtype, inner) + (_TF32_OPERAND if dtype == "tfloat32" else 0.0)


def _look_up(dtype: str) -> Precision:
    if dtype not in TABLE:
        raise ValueError(f"no tolerance is known for dtype {dtype!r}; known are {', '.join(TABLE)}")
    return TABLE[dtype]
