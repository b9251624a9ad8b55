"""torch's matrix product for each element type, under one form: multiply A[M,K] by B[K,N] into C.

What torch has no product for becomes `Unsupported` with torch's own words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.workloads.matmul.padding import PaddedProduct
from pyperf_suite.workloads.matmul.parameters import MatmulParameters

NAMES = {"int8": "torch._int_mm", "float8_e4m3fn": "torch._scaled_mm"}
SCALED_RESULTS = ("bfloat16", "float16", "float32")


def product_name(parameters: MatmulParameters) -> str:
    """The function of torch that multiplies this element type."""
    return NAMES.get(parameters.dtype, "torch.mm")


def require_torch_result(parameters: MatmulParameters) -> None:
    """Raise UserError for a result of a type that torch's product of these operands never has."""
    own = {"int8": ("int32",), "float8_e4m3fn": SCALED_RESULTS, "tfloat32": ("float32",)}
    results = own.get(parameters.dtype, (parameters.dtype,))
    if parameters.output_dtype not in results:
        raise UserError(
            f"{product_name(parameters)} of {parameters.dtype} writes {' or '.join(results)}, but "
            f"{parameters.output_dtype} was asked for."
        )


@dataclass(frozen=True)
class BoundProduct:
    """A product of given tensors: what launches it, the tensor that holds C then, and every tensor it writes."""

    launch: Callable[[], Any]
    result: Any
    written: tuple[Any, ...]


def bind(torch: Any, parameters: MatmulParameters, a: Any, b: Any, c: Any) -> BoundProduct:
    """The product of `a` and `b` as stored into `c` [M, N], with padding where the parameters ask for it."""
    multiply = multiplier(torch, parameters, c.device)
    if parameters.pad_to > 1:
        padded = PaddedProduct(torch, parameters, a, b, c, multiply)
        return BoundProduct(padded, padded.result, padded.written)
    a = a.t() if parameters.a_transposed else a
    b = b.t() if parameters.b_transposed else b
    return BoundProduct(functools.partial(multiply, a, b, out=c), c, (c,))


def multiplier(torch: Any, parameters: MatmulParameters, device: Any) -> Callable[..., object]:
    """`multiply(a, b, out=c)` for logical A, B and C on the device.

    float8 operands are scaled by 1, and torch's default of the more exact accumulation stands.
    """
    if parameters.dtype == "int8":
        multiply: Callable[..., object] = torch._int_mm
    elif parameters.dtype == "float8_e4m3fn":
        one = torch.ones((), dtype=torch.float32, device=device)
        result = getattr(torch, parameters.output_dtype)
        multiply = functools.partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=result)
    elif parameters.dtype == "tfloat32":
        multiply = functools.partial(multiply_as_tfloat32, torch)
    else:
        multiply = torch.mm
    return multiply


def multiply_as_tfloat32(torch: Any, a: Any, b: Any, out: Any) -> None:
    """`torch.mm` of float32 by tensor cores: a setting of the whole process, so it is never left behind."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        torch.mm(a, b, out=out)
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def refusals(torch: Any, parameters: MatmulParameters) -> Iterator[None]:
    """Turn torch's refusal of a product into Unsupported with its first line; what breaks a device stays an error."""
    try:
        yield
    except (RuntimeError, ValueError, NotImplementedError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")
        # A status that cuBLAS returns without running anything is a refusal; other errors of CUDA are failures.
        broke = "CUDA error" in first_line and not any(
            status in first_line for status in ("NOT_SUPPORTED", "INVALID_VALUE")
        )
        if broke or isinstance(error, torch.OutOfMemoryError):
            raise
        raise Unsupported(
            f"{product_name(parameters)} refuses {parameters.m}x{parameters.n}x{parameters.k} of {parameters.dtype} in "
            f"layout {parameters.layout}: {first_line}."
        ) from None
