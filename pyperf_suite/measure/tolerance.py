"""How far a correct result may lie from the exact one: one table, by dtype, with reasons.

Two limits go together: one on the relative norm, for errors everywhere, and one per element, for errors anywhere. What
arrays of numpy and tensors of torch have in common stands here too, so that one reference serves the host and a GPU.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # or a torch tensor, on any device, of any element type that torch converts
Keep = Callable[[str, Callable[[], Mapping[str, Array]]], Mapping[str, Array]]
"""`keep(name, compute)` is what `compute()` returned here, or under the same name in another process."""


def computed_anew(_name: str, compute: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
    """Keeps nothing."""
    return compute()


def module_of(values: Array) -> Any:
    """Return the module with functions of these values: numpy or torch."""
    return np if isinstance(values, np.ndarray) else sys.modules["torch"]


def like(values: NDArray[Any], array: Array) -> Array:
    """A numpy array as `array` is: itself, or a tensor on the same device."""
    return values if isinstance(array, np.ndarray) else sys.modules["torch"].as_tensor(values, device=array.device)


def as_float64(values: Array) -> Array:
    """The values in float64, exactly."""
    return values.astype(np.float64) if isinstance(values, np.ndarray) else values.double()


def as_float32(values: Array) -> Array:
    """The values rounded to float32."""
    return values.astype(np.float32) if isinstance(values, np.ndarray) else values.float()


def magnitudes(values: Array) -> Array:
    """|values| in float32, exact for all narrower types; those of float64 stay in float64."""
    is_double = str(values.dtype).endswith("float64")
    return abs(values if is_double else as_float32(values))


def inner_product(left: Array, right: Array) -> float:
    """The sum of the products of all elements."""
    return float(module_of(left).dot(left.reshape(-1), right.reshape(-1)))


def largest(values: Array) -> tuple[int, int]:
    """Row and column of the largest element of a matrix; of a NaN where there is one."""
    row, column = divmod(int(values.argmax()), values.shape[1])
    return row, column


def first_not_finite(values: Array, most_elements: int = 1 << 22) -> tuple[int, ...] | None:
    """Return the index of the first NaN or infinity, None if all values are finite."""
    module, lead = module_of(values), values.shape[:-2]
    for head in np.ndindex(*lead):
        matrix = values[head]
        step = max(1, most_elements // max(1, matrix.shape[1]))
        for begin in range(0, matrix.shape[0], step):
            panel = matrix[begin : begin + step]
            finite = module.isfinite(panel if module is np else as_float32(panel))
            if not bool(finite.all()):
                row, column = divmod(int((~finite).reshape(-1).nonzero()[0][0]), panel.shape[1])
                return (*head, begin + row, column)
    return None


@dataclass(frozen=True)
class Precision:
    """Unit roundoffs of the sums that kernels form of a dtype's products (`accumulation`) and of storing in it.

    `smallest` is the magnitude below which a stored result may lose all digits.
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
    "float8_e4m3fnuz": Precision(2.0**-13, 2.0**-4, 2.0**-10, "sums in tensor cores keep about 14 bits"),
    "float8_e5m2fnuz": Precision(2.0**-13, 2.0**-3, 2.0**-17, "sums in tensor cores keep about 14 bits"),
    "float8_e8m0fnu": Precision(2.0**-13, 2.0**-1, 2.0**-127, "a power of two"),
    "int8": Precision(0.0, 0.0, 0.5, "integers are multiplied and summed exactly"),
    "int32": Precision(0.0, 0.0, 0.5, "an integer less than half away from another is that integer"),
}
"""The 14 bits: DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3.2."""

_SAFETY = 4.0
_REFERENCE = 2.0**-50  # relative norm by which the float64 reference may itself be off: no limit can be tighter


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
    in any dtype. Integers are exact, and so held to what float64 can resolve.

    Raises ValueError as `element_limit` does.
    """
    limit = element_limit(dtype, out_dtype, inner)
    return max(limit.accumulation + limit.rounding, _REFERENCE)


def _look_up(dtype: str) -> Precision:
    if dtype not in TABLE:
        raise ValueError(f"no tolerance is known for dtype {dtype!r}; known are {', '.join(TABLE)}")
    return TABLE[dtype]
