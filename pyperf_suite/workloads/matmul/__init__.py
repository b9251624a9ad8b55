"""A matrix product C[M,N] = A[M,K]·B[K,N], C row-major, A and B in any of four layouts, and its libraries by torch.

The layout's letters are those cuBLAS is called with for a row-major C, so they match kernel names and the literature:

| layout | A is stored | B is stored | in a linear layer                |
| ------ | ----------- | ----------- | -------------------------------- |
| TN     | [M, K]      | [N, K]      | fprop, `x @ W.T`                 |
| NN     | [M, K]      | [K, N]      | dgrad, `dy @ W`; torch's `a @ b` |
| NT     | [K, M]      | [K, N]      | wgrad, `dy.T @ x`                |
| TT     | [K, M]      | [N, K]      |                                  |

What torch has no product for becomes `Unsupported` with torch's own words. The products of a mixture's experts, E of
M_e x N x K with as many rows as tokens were routed to each, are computed in a loop, batched and padded to the largest,
by torch's grouped product, and by our own Triton kernel, which takes the tiles of all experts in one launch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np

import pyperf_suite as suite
from pyperf_suite.errors import OneOf, Unsupported, UserError, Within
from pyperf_suite.kernels import matmul as triton_matmul
from pyperf_suite.laws.tiling import Schedule, Tile
from pyperf_suite.measure.tolerance import Keep
from pyperf_suite.measure.verify import Verification, verify_product
from pyperf_suite.user_kernels.api import Launch
from pyperf_suite.workloads.backends import require_cores
from pyperf_suite.workloads.kernel_names import product_kernel
from pyperf_suite.workloads.operands import ELEMENT_TYPES, Operands
from pyperf_suite.workloads.operator import (
    BoundLaunch,
    HostArrays,
    Launches,
    Operator,
    TimedImplementation,
    TorchTensors,
)
from pyperf_suite.workloads.workload import ExecutionContext, Kernel, by_name

LAYOUTS = ("NN", "TN", "NT", "TT")

# Beyond this no machine has memory for even one row of a product; it also keeps sizes inside 64-bit arithmetic.
Dimension = Annotated[int, Within(1, 1 << 31)]

# Result dtype where it differs from the operands'.
RESULTS = {"int8": "int32", "float8_e4m3fn": "bfloat16", "tfloat32": "float32"}


@dataclass(frozen=True)
class MatmulParameters:
    """One product. `tile` None lets the implementation choose.

    `pad_to` above 1 asks for each dimension to be filled up with zeros to a multiple of it, at each call; the work
    stays that of the requested product. `hints` has our Triton kernel read by addresses, of which these are hinted to
    divide by 16; "" is what Triton itself finds.
    """

    m: Dimension
    n: Dimension
    k: Dimension
    schedule: Schedule
    tile: Tile | None = None
    dtype: Annotated[str, OneOf(ELEMENT_TYPES)] = "float32"
    layout: Annotated[str, OneOf(LAYOUTS)] = "NN"
    pad_to: Dimension = 1
    hints: Annotated[str, OneOf(("", *triton_matmul.UNHINTED))] = ""

    @property
    def output_dtype(self) -> str:
        return RESULTS.get(self.dtype, self.dtype)

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
        if self.dtype == "int32":
            raise UserError("A product of int32 was requested, but operands of integers are int8: ask for that.")

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
        """Raise UserError for padding or hints that an implementation does not have."""
        if self.hints and implementation != "triton":
            raise UserError(
                f"hints={self.hints} was requested of {implementation}, but hints are Triton's: leave them out."
            )
        if pads and self.pad_to == 1:
            raise UserError(
                f"{implementation} pads dimensions, but pad_to = 1 leaves them as they are: name a multiple."
            )
        if not pads and self.pad_to != 1:
            raise UserError(
                f"{implementation} takes dimensions as they are, but pad_to={self.pad_to} was requested: use "
                "torch_padded or cublas_padded."
            )


# By element type of the operands, where torch.mm of the same type is not the product: its function.
FUNCTIONS = {"int8": "torch._int_mm", "float8_e4m3fn": "torch._scaled_mm"}
# Dtypes that no CPU has, and the reason.
ON_GPUS = {
    "tfloat32": "tfloat32 is arithmetic of GPUs, and no CPU has it",
    "int8": "Products of int8 are measured on GPUs alone",
}

# A status that cuBLAS returns without running anything is a refusal; other errors of CUDA are failures.
REFUSED_BY_STATUS = ("NOT_SUPPORTED", "INVALID_VALUE")

GROUPED_DTYPES = ("float32", "bfloat16", "float16")
# Beyond this a case is a mistake in typing.
Size = Annotated[int, Within(1, 1 << 24)]
TRITON_TILE = {"float32": (64, 64, 32), "bfloat16": (128, 128, 64), "float16": (128, 128, 64)}


class LibraryMatmul(TimedImplementation[MatmulParameters]):
    """torch's product: the CPU's BLAS that torch was built with, or cuBLAS; `pads` fills operands up at each call."""

    needs_torch = True

    def __init__(self, name: str, device_kind: str, pads: bool = False) -> None:
        self.name, self.device_kind, self._pads = name, device_kind, pads  # type: ignore[misc]

    def validate(self, parameters: MatmulParameters) -> None:
        parameters.require_padding(self.name, self._pads)
        parameters.require_library_schedule("cuBLAS" if self.device_kind == "cuda" else "torch")
        if self.device_kind == "cpu":
            require_cores(parameters.schedule.workers)

    def prepare(self, parameters: MatmulParameters, operands: Operands, place: ExecutionContext) -> Launches:
        if parameters.dtype in ON_GPUS and place.device.kind == "cpu":
            raise Unsupported(f"{ON_GPUS[parameters.dtype]}: ask for float32 or bfloat16.")
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
        chosen = {} if product is None else product.message
        # Padding launches kernels of its own around the one that multiplies.
        multiplying = [name for name in names if product is None or product.name in name]
        launches.kernel = Kernel(
            multiplying[0] if multiplying else function_name(parameters),
            "cublas",
            chosen | {"launched": names} | how_padded(parameters),
        )
        return launches


class NumpyMatmul(TimedImplementation[MatmulParameters]):
    """numpy's einsum, on one core: neither a BLAS nor torch is imported for it."""

    name, device_kind = "einsum", "cpu"

    def validate(self, parameters: MatmulParameters) -> None:
        parameters.require_padding(self.name, pads=False)
        parameters.require_library_schedule("einsum")
        if (parameters.dtype, parameters.schedule.workers) != ("float32", 1):
            raise UserError("einsum multiplies float32 on one core: ask for dtype=float32 and workers=1.")

    def prepare(self, parameters: MatmulParameters, operands: Operands, place: ExecutionContext) -> Launches:
        memory, bound = HostArrays(operands, place), []
        for each in memory.sets:
            a = each["a"].T if parameters.a_transposed else each["a"]
            b = each["b"].T if parameters.b_transposed else each["b"]
            bound.append(BoundLaunch.into(partial(np.einsum, "mk,kn->mn", a, b, out=each["c"]), c=each["c"]))
        return Launches(memory, bound, Kernel("numpy.einsum", "numpy"))


def function_name(parameters: MatmulParameters) -> str:
    """The function of torch that multiplies this element type."""
    return FUNCTIONS.get(parameters.dtype, "torch.mm")


def bind(torch: Any, parameters: MatmulParameters, a: Any, b: Any, c: Any) -> BoundLaunch:
    """The product of `a` and `b` as stored into `c` [M, N], with padding where the parameters ask for it."""
    multiply = multiplier(torch, parameters, c.device)
    if parameters.pad_to > 1:
        return bind_padded(torch, parameters, a, b, c, multiply)
    a = a.t() if parameters.a_transposed else a
    b = b.t() if parameters.b_transposed else b
    return BoundLaunch.into(partial(multiply, a, b, out=c), c=c)


def bind_padded(
    torch: Any, parameters: MatmulParameters, a: Any, b: Any, c: Any, multiply: Callable[..., object]
) -> BoundLaunch:
    """C = A·B of operands padded at each call, into memory made once; a slice of columns is copied into C."""
    padded, pad = parameters.padded, torch.nn.functional.pad
    stored = (
        (a, _margins(parameters.a_shape, padded.a_shape), parameters.a_transposed),
        (b, _margins(parameters.b_shape, padded.b_shape), parameters.b_transposed),
    )
    full = c
    if (padded.m, padded.n) != (parameters.m, parameters.n):
        full = torch.empty((padded.m, padded.n), dtype=c.dtype, device=c.device)
    part = full[: parameters.m, : parameters.n]
    copies = padded.n != parameters.n

    def logical(operand: Any, margins: tuple[int, ...] | None, transposed: bool) -> Any:
        larger = operand if margins is None else pad(operand, margins)
        return larger.t() if transposed else larger

    def launch() -> None:
        left, right = (logical(*operand) for operand in stored)
        multiply(left, right, out=full)
        # A slice of rows is contiguous already; most of what follows in a network wants columns without gaps too.
        if copies:
            c.copy_(part)

    return BoundLaunch(launch, lambda: {"c": c if copies else part}, lambda: (full, c) if copies else (full,))


def how_padded(parameters: MatmulParameters) -> dict[str, Any]:
    """Return the padding of a product for its record: sizes multiplied, operands padded, slice; empty without any."""
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
    """Return the padding before and after the last dimension, then the first; None if there is nothing to add."""
    return None if shape == padded else (0, padded[1] - shape[1], 0, padded[0] - shape[0])


def multiplier(torch: Any, parameters: MatmulParameters, device: Any) -> Callable[..., object]:
    """`multiply(a, b, out=c)` for logical A, B and C on the device; float8 operands are scaled by 1."""
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
    """The BLAS libraries torch was built with; torch does not say which of them a product takes."""
    built = {"mkl": torch.backends.mkl, "onednn": torch.backends.mkldnn}
    return "+".join(name for name, library in built.items() if library.is_available()) or "blas"


@dataclass(frozen=True)
class GroupedMatmulParameters:
    """Rows of all experts together, and how they are spread: expert e has a share like (e + 1) to the power -skew."""

    experts: Annotated[int, Within(1, 4096)]
    rows: Size
    n: Size
    k: Size
    skew: Annotated[float, Within(0, 8)] = 0.0
    dtype: Annotated[str, OneOf(GROUPED_DTYPES)] = "bfloat16"
    workers: Annotated[int, Within(0)] = 0

    @property
    def rows_of_experts(self) -> tuple[int, ...]:
        """Whole rows that add up to `rows`: remainders go to the largest of what was cut off."""
        weights = [(expert + 1) ** -self.skew for expert in range(self.experts)]
        exact = [self.rows * weight / math.fsum(weights) for weight in weights]
        found = [int(each) for each in exact]
        order = sorted(range(self.experts), key=lambda expert: (found[expert] - exact[expert], expert))
        for expert in order[: self.rows - sum(found)]:
            found[expert] += 1
        return tuple(found)

    @property
    def slices(self) -> list[tuple[int, slice]]:
        ends = list(itertools.accumulate(self.rows_of_experts))
        starts = [0, *ends]
        return [(e, slice(starts[e], end)) for e, end in enumerate(ends) if end > starts[e]]


# Binds the launch on one operand set, and says what really runs.
Bind = Callable[[GroupedMatmulParameters, TorchTensors, Mapping[str, Any]], tuple[BoundLaunch, Kernel]]


class GroupedImplementation(TimedImplementation[GroupedMatmulParameters]):
    """One way to compute them through torch's tensors, on the requested device."""

    needs_torch = True

    def __init__(self, bind: Bind) -> None:
        self.name, self._bind = bind.__name__, bind  # type: ignore[misc]

    def validate(self, parameters: GroupedMatmulParameters) -> None:
        """Raise UserError for more workers than there are cores."""
        require_cores(parameters.workers)

    def prepare(self, parameters: GroupedMatmulParameters, operands: Operands, place: ExecutionContext) -> Launches:
        """Make operand sets there. Raises Unsupported where this torch, or this machine, has no such way."""
        tensors = TorchTensors(operands, place, parameters.workers)
        bound = [self._bind(parameters, tensors, each) for each in tensors.sets]
        kernel = bound[0][1]
        details = {**kernel.details, **tensors.where.details()}
        return Launches(tensors, [each for each, _ in bound], replace(kernel, details=details))


def loop(p: GroupedMatmulParameters, tensors: TorchTensors, operands: Mapping[str, Any]) -> tuple[BoundLaunch, Kernel]:
    """One product of the library for each expert that has a row."""
    multiply, (a, b, c) = tensors.torch.mm, (operands[name] for name in "abc")
    products = [(a[rows], b[expert], c[rows]) for expert, rows in p.slices]

    def launch() -> None:
        for left, right, out in products:
            multiply(left, right, out=out)

    return BoundLaunch.into(launch, c=c), Kernel("torch.mm", "loop", {"calls": len(products)})


def padded(
    p: GroupedMatmulParameters, tensors: TorchTensors, operands: Mapping[str, Any]
) -> tuple[BoundLaunch, Kernel]:
    """One batched product of all experts, each filled up with zeros to the largest: as capacity makes them."""
    torch, a, b = tensors.torch, operands["a"], operands["b"]
    rows_each = max(p.rows_of_experts)
    full, c = a.new_zeros(p.experts, rows_each, p.k), a.new_empty(p.experts, rows_each, p.n)
    for expert, rows in p.slices:
        full[expert, : rows.stop - rows.start] = a[rows]
    held = enumerate(p.rows_of_experts)
    inside = torch.cat([expert * rows_each + torch.arange(rows) for expert, rows in held]).to(a.device)
    bound = BoundLaunch(lambda: torch.bmm(full, b, out=c), lambda: {"c": c.view(-1, p.n)[inside]}, lambda: (c,))
    return bound, Kernel("torch.bmm", "padded", {"calls": 1, "rows_computed": p.experts * rows_each})


def grouped_mm(
    p: GroupedMatmulParameters, tensors: TorchTensors, operands: Mapping[str, Any]
) -> tuple[BoundLaunch, Kernel]:
    """Torch's own grouped product, which takes no `out`. Raises Unsupported where there is none, or not for this."""
    torch, a, b = tensors.torch, operands["a"], operands["b"]
    product = getattr(torch, "_grouped_mm", None)
    if product is None:
        raise Unsupported(f"This torch ({torch.__version__}) has no _grouped_mm.")
    ends = torch.tensor(p.rows_of_experts, device=a.device).cumsum(0).to(torch.int32)
    bound = tensors.returned_by(lambda: product(a, b, offs=ends), "c")
    try:
        bound.launch()
    except RuntimeError as error:
        raise Unsupported(f"torch._grouped_mm refuses this: {str(error).splitlines()[0]}") from None
    return bound, Kernel("torch._grouped_mm", "one launch", {"calls": 1})


def triton(
    p: GroupedMatmulParameters, tensors: TorchTensors, operands: Mapping[str, Any]
) -> tuple[BoundLaunch, Kernel]:
    """Our kernel. Raises Unsupported without a GPU: Triton only interprets on a CPU, which is no time."""
    if not tensors.where.is_gpu:
        raise Unsupported("Triton compiles for GPUs, and there is none here.")
    tile = TRITON_TILE[p.dtype]
    multiprocessors = tensors.torch.cuda.get_device_properties(tensors.device).multi_processor_count
    configuration = triton_matmul.Configuration(tile, p.dtype, p.dtype, "NN", stages=3, warps=8)
    product = triton_matmul.GroupedProduct(configuration, p.rows_of_experts, p.n, p.k, multiprocessors)
    launch = product.bind(operands["a"], operands["b"], operands["c"])
    details = {"calls": 1, "tile": list(tile), "slots": multiprocessors, "tiles": product.tiles}
    return BoundLaunch.into(launch, c=operands["c"]), Kernel("grouped_matmul", "one launch", details)


GROUPED = by_name(*map(GroupedImplementation, (loop, padded, grouped_mm, triton)))


@suite.kernel(GroupedMatmulParameters)
def grouped_matmul(p: GroupedMatmulParameters) -> Launch:
    """C's rows of each expert = A's rows of it times its own B, which is not read where an expert has no row."""
    a, b = suite.randn(p.rows, p.k, dtype=p.dtype), suite.randn(p.experts, p.k, p.n, dtype=p.dtype)
    c = suite.empty(p.rows, p.n, dtype=p.dtype)
    moved = a.nbytes + b.nbytes * len(p.slices) // p.experts + c.nbytes
    flop, check = 2 * p.rows * p.n * p.k, partial(check_grouped, p)
    return suite.launch(GROUPED, a=a, b=b, c=c, check=check, flop=flop, bytes=moved)


def check_grouped(p: GroupedMatmulParameters, values: Mapping[str, Any], keep: Keep) -> Verification:
    """The worst of the verdicts on each expert's product."""
    verdicts = []
    for expert, rows in p.slices:

        def keep_its_own(name: str, compute: Any, expert: int = expert) -> Any:
            return keep(f"expert {expert}, {name}", compute)

        a, b, c = values["a"][rows], values["b"][expert], values["c"][rows]
        verdict = verify_product(c, a, b, p.dtype, p.dtype, keep=keep_its_own)
        at = (rows.start + verdict.worst_at[0], *verdict.worst_at[1:])
        verdicts.append(replace(verdict, worst_at=at, message=f"expert {expert}: {verdict.message}"))
    return max(verdicts, key=lambda verdict: (not verdict.passed, verdict.worst_element_ratio))


GROUPED_MATMUL = Operator(grouped_matmul, GROUPED)
