"""Products of the experts of a mixture: E of M_e x N x K, as many rows as tokens were routed to each.

A loop of products, a batched product of experts padded to the largest, torch's grouped product, and our own Triton
kernel, which takes the tiles of all experts in one launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.kernels import matmul as triton_matmul
from pyperf_suite.measure.cuda_stopwatch import CudaStopwatch
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.measure.verify import verify_product
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.dtypes import element_type
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.workload import Checked, Implementation, Kernel, Place, Prepared, Work, Workload

DTYPES = ("float32", "bfloat16", "float16")
# Beyond these a case is a mistake in typing.
MOST_EXPERTS, MOST_SIZE = 4096, 1 << 24
# Operands of all sets together are so many times the last cache, so that no launch finds its own in it.
CACHE_TURNOVER, MOST_SETS = 3, 16
TRITON_TILE = {"float32": (64, 64, 32), "bfloat16": (128, 128, 64), "float16": (128, 128, 64)}


@dataclass(frozen=True)
class GroupedMatmulParameters:
    """Rows of all experts together, and how they are spread: expert e has a share like (e + 1) to the power -skew."""

    experts: int
    rows: int
    n: int
    k: int
    skew: float = 0.0
    dtype: str = "bfloat16"
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


class GroupedMatmul(Workload[GroupedMatmulParameters]):
    """C's rows of each expert = A's rows of it times its own B."""

    name = "grouped_matmul"
    parameters_type = GroupedMatmulParameters

    def __init__(self) -> None:
        ways = (Way("loop", loop), Way("padded", padded), Way("grouped_mm", grouped_mm), Way("triton", triton))
        self.implementations: Mapping[str, Implementation[GroupedMatmulParameters]] = {way.name: way for way in ways}

    def validate(self, parameters: GroupedMatmulParameters) -> None:
        """Raise UserError for sizes, a skew or a type that cannot be."""
        for name, most in (("experts", MOST_EXPERTS), ("rows", MOST_SIZE), ("n", MOST_SIZE), ("k", MOST_SIZE)):
            if not 1 <= getattr(parameters, name) <= most:
                raise UserError(
                    f"{name}={getattr(parameters, name)} was asked for, but {name} lies between 1 and {most}."
                )
        if not 0 <= parameters.skew <= 8:
            raise UserError(f"skew={parameters.skew} was asked for, but skew lies between 0 (balanced) and 8.")
        if parameters.dtype not in DTYPES:
            raise UserError(f"Unknown dtype {parameters.dtype!r}: choose from {', '.join(DTYPES)}.")

    def footprint_bytes(self, parameters: GroupedMatmulParameters) -> int:
        """A, B and C once."""
        p = parameters
        elements = p.rows * p.k + p.experts * p.k * p.n + p.rows * p.n
        return elements * element_type(p.dtype).size_bytes

    def work(self, parameters: GroupedMatmulParameters) -> Work:
        """2·rows·N·K FLOP, whatever is padded; experts without a row are not read."""
        p = parameters
        used = sum(rows > 0 for rows in p.rows_of_experts)
        moved = (p.rows * p.k + used * p.k * p.n + p.rows * p.n) * element_type(p.dtype).size_bytes
        return Work(2 * p.rows * p.n * p.k, moved)


@dataclass
class Ready:
    """One operand set bound to a way: what launches it, its result, the memory it writes, and what really runs."""

    launch: Callable[[], Any]
    result: Callable[[], Any]
    written: Callable[[], Any]
    kernel: Kernel


class Way(Implementation[GroupedMatmulParameters]):
    """One way to compute them, on the device asked for."""

    device_kind = "any"

    def __init__(self, name: str, bind: Callable[[GroupedMatmulParameters, TorchDevice, Any, Any], Ready]) -> None:
        self.name, self._bind = name, bind  # type: ignore[misc]

    def validate(self, parameters: GroupedMatmulParameters) -> None:
        """Raise UserError for more workers than there are cores."""
        require_cores(parameters.workers)

    def prepare(self, parameters: GroupedMatmulParameters, place: Place) -> GroupedLaunches:
        """Make operand sets there. Raises Unsupported where this torch, or this machine, has no such way."""
        return GroupedLaunches(parameters, place.seed, TorchDevice(place.device, parameters.workers), self._bind)


class GroupedLaunches(Prepared):
    """Launches that rotate through operand sets."""

    def __init__(
        self,
        parameters: GroupedMatmulParameters,
        seed: int,
        where: TorchDevice,
        bind: Callable[[GroupedMatmulParameters, TorchDevice, Any, Any], Ready],
    ) -> None:
        self._parameters, self._where = parameters, where
        torch, p = where.torch, parameters
        dtype = getattr(torch, p.dtype)
        generator = torch.Generator().manual_seed(seed)
        a = torch.randn(p.rows, p.k, generator=generator).to(where.device, dtype)
        b = (torch.randn(p.experts, p.k, p.n, generator=generator) / math.sqrt(p.k)).to(where.device, dtype)
        if where.is_gpu:
            cache_bytes = torch.cuda.get_device_properties(where.device).L2_cache_size
        else:
            detected = cpu.detect()
            cache_bytes = detected.l3_total_bytes or detected.l2_total_bytes
        set_bytes = GroupedMatmul().footprint_bytes(p)
        wanted = math.ceil(CACHE_TURNOVER * cache_bytes / set_bytes)
        self.sets = max(1, min(wanted, MOST_SETS))
        self._operands = (a, b)
        self._ready = [bind(p, where, a.clone(), b.clone()) for _ in range(self.sets)]
        if isinstance(where.stopwatch, CudaStopwatch):
            where.stopwatch.sets = self.sets
        cache = "partly_warm" if wanted > MOST_SETS else "cold_l2" if wanted > 1 else "larger_than_l2"
        own = self._ready[0].kernel
        details = {**own.details, "operand_sets": self.sets, "cache": cache, **where.details()}
        self.kernel = Kernel(own.name, own.path, details)

    @property
    def stopwatch(self) -> Stopwatch:
        return self._where.stopwatch

    def launch(self, index: int) -> None:
        self._ready[index % self.sets].launch()

    def poison(self, index: int | None = None) -> None:
        """NaN wherever results are written."""
        for each in self._ready if index is None else (self._ready[index % self.sets],):
            each.written().fill_(math.nan)

    def kept(self, index: int) -> Any:
        self._where.synchronize()
        return self._ready[index % self.sets].result().clone()

    def equals(self, index: int, kept: Any) -> bool:
        self._where.synchronize()
        return bool(self._where.torch.equal(self._ready[index % self.sets].result(), kept))

    def left(self, index: int) -> Checked:
        """Every element against the float64 product of its expert."""
        self._where.synchronize()
        p, result = self._parameters, self._ready[index % self.sets].result()
        a, b = self._operands
        wrong, compared, first, row = 0, 0, "", 0
        for expert, rows in enumerate(p.rows_of_experts):
            if not rows:
                continue
            found = verify_product(result[row : row + rows], a[row : row + rows], b[expert], p.dtype, p.dtype)
            if not found.passed:
                wrong, first = wrong + 1, first or f"expert {expert}: {found.message}"
            compared, row = compared + rows * p.n, row + rows
        return Checked(wrong, compared, first)


def loop(p: GroupedMatmulParameters, where: TorchDevice, a: Any, b: Any) -> Ready:
    """One product of the library for each expert that has a row."""
    torch = where.torch
    c = a.new_empty(p.rows, p.n)
    views, row = [], 0
    for expert, rows in enumerate(p.rows_of_experts):
        if rows:
            views.append((a[row : row + rows], b[expert], c[row : row + rows]))
            row += rows

    def launch() -> None:
        for left, right, out in views:
            torch.mm(left, right, out=out)

    return Ready(launch, lambda: c, lambda: c, Kernel("torch.mm", "loop", {"calls": len(views)}))


def padded(p: GroupedMatmulParameters, where: TorchDevice, a: Any, b: Any) -> Ready:
    """One batched product of all experts, each filled up with zeros to the largest: as capacity makes them."""
    torch, rows = where.torch, p.rows_of_experts
    most = max(rows)
    full, c = a.new_zeros(p.experts, most, p.k), a.new_empty(p.experts, most, p.n)
    row = 0
    for expert, count in enumerate(rows):
        full[expert, :count] = a[row : row + count]
        row += count
    inside = torch.cat([expert * most + torch.arange(count) for expert, count in enumerate(rows)]).to(a.device)
    return Ready(
        lambda: torch.bmm(full, b, out=c),
        lambda: c.view(-1, p.n)[inside],
        lambda: c,
        Kernel("torch.bmm", "padded", {"calls": 1, "rows_computed": p.experts * most}),
    )


def grouped_mm(p: GroupedMatmulParameters, where: TorchDevice, a: Any, b: Any) -> Ready:
    """Torch's own grouped product. Raises Unsupported where there is none, or not for this."""
    torch = where.torch
    product = getattr(torch, "_grouped_mm", None)
    if product is None:
        raise Unsupported(f"This torch ({torch.__version__}) has no _grouped_mm.")
    ends = torch.tensor(p.rows_of_experts, device=a.device).cumsum(0).to(torch.int32)
    # Results are allocated at each launch: it takes no `out`.
    held: list[Any] = [a.new_empty(p.rows, p.n)]

    def launch() -> None:
        held[0] = product(a, b, offs=ends)

    try:
        launch()
    except RuntimeError as error:
        raise Unsupported(f"torch._grouped_mm refuses this: {str(error).splitlines()[0]}") from None
    return Ready(launch, lambda: held[0], lambda: held[0], Kernel("torch._grouped_mm", "one launch", {"calls": 1}))


def triton(p: GroupedMatmulParameters, where: TorchDevice, a: Any, b: Any) -> Ready:
    """Our kernel. Raises Unsupported without a GPU: Triton only interprets on a CPU, which is no time."""
    if not where.is_gpu:
        raise Unsupported("Triton compiles for GPUs, and there is none here.")
    tile = TRITON_TILE[p.dtype]
    multiprocessors = where.torch.cuda.get_device_properties(where.device).multi_processor_count
    configuration = triton_matmul.Configuration(tile, p.dtype, p.dtype, "NN", stages=3, warps=8)
    product = triton_matmul.GroupedProduct(configuration, p.rows_of_experts, p.n, p.k, multiprocessors)
    c = a.new_empty(p.rows, p.n)
    launch = product.bind(a, b, c)
    details = {"calls": 1, "tile": list(tile), "slots": multiprocessors, "tiles": product.tiles}
    return Ready(launch, lambda: c, lambda: c, Kernel("grouped_matmul", "one launch", details))


OPERATOR = GroupedMatmul()
