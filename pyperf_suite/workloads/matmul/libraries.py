"""torch's matrix products on a CPU and on a GPU: the libraries' baseline beside our own kernels, as it is and padded.

What torch has no product for becomes `Unsupported` with torch's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.workloads.backends import require_cores
from pyperf_suite.workloads.kernel_names import product_kernel
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.operands import Operands
from pyperf_suite.workloads.operator import Bound, Launches, TimedImplementation, TorchTensors
from pyperf_suite.workloads.workload import Kernel, Place

# By element type of the operands, where torch.mm of the same type is not the product: its function, its results.
FUNCTIONS = {"int8": "torch._int_mm", "float8_e4m3fn": "torch._scaled_mm"}
RESULTS = {"int8": ("int32",), "float8_e4m3fn": ("bfloat16", "float16", "float32"), "tfloat32": ("float32",)}

# A status that cuBLAS returns without running anything is a refusal; other errors of CUDA are failures.
REFUSED_BY_STATUS = ("NOT_SUPPORTED", "INVALID_VALUE")


class LibraryMatmul(TimedImplementation[MatmulParameters]):
    """torch's product: MKL, oneDNN or OpenBLAS on a CPU, as torch was built, and cuBLAS on a GPU.

    What `pads` fills the operands up to multiples of `pad_to` at each call, as users do it.
    """

    needs_torch = True

    def __init__(self, name: str, device_kind: str, pads: bool = False) -> None:
        self.name, self.device_kind, self._pads = name, device_kind, pads  # type: ignore[misc]

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a tile or schedule of ours, since a library chooses its own, or a result it never has."""
        parameters.require_padding(self.name, self._pads)
        parameters.require_library_schedule("cuBLAS" if self.device_kind == "cuda" else "torch")
        if self.device_kind == "cpu":
            require_cores(parameters.schedule.workers)
        results = RESULTS.get(parameters.dtype, (parameters.dtype,))
        if parameters.output_dtype not in results:
            raise UserError(
                f"{function_name(parameters)} of {parameters.dtype} writes {' or '.join(results)}, but "
                f"{parameters.output_dtype} was asked for."
            )

    def prepare(self, parameters: MatmulParameters, operands: Operands, place: Place) -> Launches:
        """Make the operand sets tensors, see that torch takes the case, and on a GPU ask which kernels run."""
        if parameters.dtype == "tfloat32" and place.device.kind == "cpu":
            raise Unsupported("tfloat32 is arithmetic of GPUs, and no CPU has it: ask for float32 or bfloat16.")
        memory = TorchTensors(operands, place, parameters.schedule.workers)
        bound = [bind(memory.torch, parameters, each["a"], each["b"], each["c"]) for each in memory.sets]
        launches = Launches(memory, bound)
        with refusals(memory.torch, parameters):
            if function_name(parameters) != "torch.mm":  # which takes every shape
                launches.launch(0)
            names = memory.launched_kernels(launches.launch)
        if self.device_kind == "cpu":
            details = memory.where.details() | how_padded(parameters)
            launches.kernel = Kernel(function_name(parameters), _libraries(memory.torch), details)
            return launches
        product = product_kernel(names)
        chosen = {} if product is None else product.told
        # Padding launches kernels of its own around the one that multiplies.
        multiplying = [name for name in names if product is None or product.name in name]
        launches.kernel = Kernel(
            multiplying[0] if multiplying else function_name(parameters),
            "cublas",
            chosen | {"launched": names} | how_padded(parameters),
        )
        return launches


def function_name(parameters: MatmulParameters) -> str:
    """The function of torch that multiplies this element type."""
    return FUNCTIONS.get(parameters.dtype, "torch.mm")


def bind(torch: Any, parameters: MatmulParameters, a: Any, b: Any, c: Any) -> Bound:
    """The product of `a` and `b` as stored into `c` [M, N], with padding where the parameters ask for it."""
    multiply = multiplier(torch, parameters, c.device)
    if parameters.pad_to > 1:
        return bind_padded(torch, parameters, a, b, c, multiply)
    a = a.t() if parameters.a_transposed else a
    b = b.t() if parameters.b_transposed else b
    return Bound.into(partial(multiply, a, b, out=c), c=c)


def bind_padded(
    torch: Any, parameters: MatmulParameters, a: Any, b: Any, c: Any, multiply: Callable[..., object]
) -> Bound:
    """C = A·B by `torch.nn.functional.pad` of what has to grow, a product of the padded sizes, and its slice.

    The memory of the padded product is made once, as that of C is for a product without padding; the padded operands
    are made anew at each call, as the function makes them. A slice that leaves only rows out is contiguous already, so
    it costs nothing and the result is a view. One that leaves columns out is copied into C, because most of what
    follows in a network wants rows without gaps.
    """
    padded, pad = parameters.padded, torch.nn.functional.pad
    stored = (
        (a, _margins(parameters.a_shape, padded.a_shape), parameters.a_transposed),
        (b, _margins(parameters.b_shape, padded.b_shape), parameters.b_transposed),
    )
    whole = c
    if (padded.m, padded.n) != (parameters.m, parameters.n):
        whole = torch.empty((padded.m, padded.n), dtype=c.dtype, device=c.device)
    part = whole[: parameters.m, : parameters.n]
    copies = padded.n != parameters.n

    def logical(operand: Any, margins: tuple[int, ...] | None, transposed: bool) -> Any:
        larger = operand if margins is None else pad(operand, margins)
        return larger.t() if transposed else larger

    def launch() -> None:
        left, right = (logical(*operand) for operand in stored)
        multiply(left, right, out=whole)
        if copies:
            c.copy_(part)

    return Bound(launch, lambda: {"c": c if copies else part}, lambda: (whole, c) if copies else (whole,))


def how_padded(parameters: MatmulParameters) -> dict[str, Any]:
    """What padding does to a product, for its record: the sizes multiplied, the operands padded, the slice's kind.

    Empty for a product that is not padded.
    """
    if parameters.pad_to == 1:
        return {}
    padded = parameters.padded
    shapes = (("a", parameters.a_shape, padded.a_shape), ("b", parameters.b_shape, padded.b_shape))
    return {
        "multiplied": f"{padded.m}x{padded.n}x{padded.k}",
        "padded": [name for name, shape, larger in shapes if shape != larger],
        "slice": "copy" if padded.n != parameters.n else "view" if padded.m != parameters.m else "none",
    }


def _margins(shape: tuple[int, int], padded: tuple[int, int]) -> tuple[int, ...] | None:
    """What `pad` adds before and after the last dimension, then the first; None where there is nothing to add."""
    return None if shape == padded else (0, padded[1] - shape[1], 0, padded[0] - shape[0])


def multiplier(torch: Any, parameters: MatmulParameters, device: Any) -> Callable[..., object]:
    """`multiply(a, b, out=c)` for logical A, B and C on the device.

    float8 operands are scaled by 1, and torch's default of the more exact accumulation stands.
    """
    multiply: Callable[..., object] = torch.mm
    if parameters.dtype == "int8":
        multiply = torch._int_mm
    elif parameters.dtype == "float8_e4m3fn":
        one = torch.ones((), dtype=torch.float32, device=device)
        result = getattr(torch, parameters.output_dtype)
        multiply = partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=result)
    elif parameters.dtype == "tfloat32":
        multiply = partial(multiply_as_tfloat32, torch)
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
        broke = "CUDA error" in first_line and not any(status in first_line for status in REFUSED_BY_STATUS)
        if broke or isinstance(error, torch.OutOfMemoryError):
            raise
        raise Unsupported(
            f"{function_name(parameters)} refuses {parameters.m}x{parameters.n}x{parameters.k} of {parameters.dtype} "
            f"in layout {parameters.layout}: {first_line}."
        ) from None


def _libraries(torch: Any) -> str:
    """The BLAS libraries torch was built with; which of them a product takes is not told by torch."""
    built = {"mkl": torch.backends.mkl, "onednn": torch.backends.mkldnn}
    return "+".join(name for name, library in built.items() if library.is_available()) or "blas"
