"""Products of the experts of a mixture: E of M_e x N x K, as many rows as tokens were routed to each.

A loop of products, a batched product of experts padded to the largest, torch's grouped product, and our own Triton
kernel, which takes the tiles of all experts in one launch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, Unsupported, Within
from pyperf_suite.kernels import matmul as triton_matmul
from pyperf_suite.measure.tolerance import Keep
from pyperf_suite.measure.verify import Verification, verify_product
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.inputs import Operand, Operands
from pyperf_suite.workloads.operand_sets import Bound, TorchTensors
from pyperf_suite.workloads.operator import Launches, Operator, TimedImplementation
from pyperf_suite.workloads.workload import Kernel, Place, Work, by_name

DTYPES = ("float32", "bfloat16", "float16")
# Beyond this a case is a mistake in typing.
Size = Annotated[int, Within(1, 1 << 24)]
TRITON_TILE = {"float32": (64, 64, 32), "bfloat16": (128, 128, 64), "float16": (128, 128, 64)}


@dataclass(frozen=True)
class GroupedMatmulParameters:
    """Rows of all experts together, and how they are spread: expert e has a share like (e + 1) to the power -skew."""

    experts: Annotated[int, Within(1, 4096)]
    rows: Size
    n: Size
    k: Size
    skew: Annotated[float, Within(0, 8)] = 0.0
    dtype: Annotated[str, OneOf(DTYPES)] = "bfloat16"
    workers: int = 0

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
        """Of each expert that has rows its number, and where they are."""
        ends = list(itertools.accumulate(self.rows_of_experts))
        starts = [0, *ends]
        return [(e, slice(starts[e], end)) for e, end in enumerate(ends) if end > starts[e]]


# Binds the launch on one operand set, and tells what really runs.
Bind = Callable[[GroupedMatmulParameters, TorchTensors, Mapping[str, Any]], tuple[Bound, Kernel]]


class Way(TimedImplementation[GroupedMatmulParameters]):
    """One way to compute them through torch's tensors, on the device asked for."""

    needs_torch = True

    def __init__(self, bind: Bind) -> None:
        self.name, self._bind = bind.__name__, bind  # type: ignore[misc]

    def validate(self, parameters: GroupedMatmulParameters) -> None:
        """Raise UserError for more workers than there are cores."""
        require_cores(parameters.workers)

    def prepare(self, parameters: GroupedMatmulParameters, operands: Operands, place: Place) -> Launches:
        """Make operand sets there. Raises Unsupported where this torch, or this machine, has no such way."""
        tensors = TorchTensors(operands, place, parameters.workers)
        bound = [self._bind(parameters, tensors, each) for each in tensors.sets]
        kernel = bound[0][1]
        details = {**kernel.details, **tensors.where.details()}
        return Launches(tensors, [each for each, _ in bound], replace(kernel, details=details))


def loop(p: GroupedMatmulParameters, tensors: TorchTensors, operands: Mapping[str, Any]) -> tuple[Bound, Kernel]:
    """One product of the library for each expert that has a row."""
    multiply, (a, b, c) = tensors.torch.mm, (operands[name] for name in "abc")
    products = [(a[rows], b[expert], c[rows]) for expert, rows in p.slices]

    def launch() -> None:
        for left, right, out in products:
            multiply(left, right, out=out)

    return Bound.into(launch, c=c), Kernel("torch.mm", "loop", {"calls": len(products)})


def padded(p: GroupedMatmulParameters, tensors: TorchTensors, operands: Mapping[str, Any]) -> tuple[Bound, Kernel]:
    """One batched product of all experts, each filled up with zeros to the largest: as capacity makes them."""
    torch, a, b = tensors.torch, operands["a"], operands["b"]
    most = max(p.rows_of_experts)
    full, c = a.new_zeros(p.experts, most, p.k), a.new_empty(p.experts, most, p.n)
    for expert, rows in p.slices:
        full[expert, : rows.stop - rows.start] = a[rows]
    held = enumerate(p.rows_of_experts)
    inside = torch.cat([expert * most + torch.arange(rows) for expert, rows in held]).to(a.device)
    bound = Bound(lambda: torch.bmm(full, b, out=c), lambda: {"c": c.view(-1, p.n)[inside]}, lambda: (c,))
    return bound, Kernel("torch.bmm", "padded", {"calls": 1, "rows_computed": p.experts * most})


def grouped_mm(p: GroupedMatmulParameters, tensors: TorchTensors, operands: Mapping[str, Any]) -> tuple[Bound, Kernel]:
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


def triton(p: GroupedMatmulParameters, tensors: TorchTensors, operands: Mapping[str, Any]) -> tuple[Bound, Kernel]:
    """Our kernel. Raises Unsupported without a GPU: Triton only interprets on a CPU, which is no time."""
    if not tensors.where.is_gpu:
        raise Unsupported("Triton compiles for GPUs, and there is none here.")
    tile = TRITON_TILE[p.dtype]
    multiprocessors = tensors.torch.cuda.get_device_properties(tensors.device).multi_processor_count
    configuration = triton_matmul.Configuration(tile, p.dtype, p.dtype, "NN", stages=3, warps=8)
    product = triton_matmul.GroupedProduct(configuration, p.rows_of_experts, p.n, p.k, multiprocessors)
    launch = product.bind(operands["a"], operands["b"], operands["c"])
    details = {"calls": 1, "tile": list(tile), "slots": multiprocessors, "tiles": product.tiles}
    return Bound.into(launch, c=operands["c"]), Kernel("grouped_matmul", "one launch", details)


class GroupedMatmul(Operator[GroupedMatmulParameters]):
    """C's rows of each expert = A's rows of it times its own B."""

    name = "grouped_matmul"
    parameters_type = GroupedMatmulParameters
    implementations = by_name(*map(Way, (loop, padded, grouped_mm, triton)))

    def work(self, parameters: GroupedMatmulParameters) -> Work:
        """2·rows·N·K FLOP, whatever is padded; experts without a row are not read."""
        p = parameters
        unread = p.experts - len(p.slices)
        of_one_expert = Operand((p.k, p.n), p.dtype).size_bytes
        return Work(2 * p.rows * p.n * p.k, self.footprint_bytes(p) - unread * of_one_expert)

    def described(self, parameters: GroupedMatmulParameters) -> dict[str, Operand]:
        """A's rows one expert after the other, a B for each, and C's rows."""
        p = parameters
        return {
            "a": Operand((p.rows, p.k), p.dtype, stream=0),
            "b": Operand((p.experts, p.k, p.n), p.dtype, stream=1),
            "c": Operand((p.rows, p.n), p.dtype),
        }

    def compare(self, parameters: GroupedMatmulParameters, values: Mapping[str, Any], keep: Keep) -> Verification:
        """Each expert's rows against their float64 product; the verdict on the expert that is worst."""
        p, found = parameters, []
        for expert, rows in p.slices:
            a, b, c = values["a"][rows], values["b"][expert], values["c"][rows]

            def keep_its_own(name: str, compute: Any, expert: int = expert) -> Any:
                return keep(f"expert {expert}, {name}", compute)

            verdict = verify_product(c, a, b, p.dtype, p.dtype, keep=keep_its_own)
            at = (rows.start + verdict.worst_at[0], *verdict.worst_at[1:])
            found.append(replace(verdict, worst_at=at, message=f"expert {expert}: {verdict.message}"))
        return max(found, key=lambda verdict: (not verdict.passed, verdict.worst_element_ratio))

    def reference_key(self, parameters: GroupedMatmulParameters) -> str:
        """Sizes, how rows are spread, and element type."""
        p = parameters
        return f"{p.rows_of_experts} {p.n} {p.k} {p.dtype}"
