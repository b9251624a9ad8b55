"""The suite's own CPU matrix product: explicit tile, workers and schedule, through the native extension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.dtypes import copies_elsewhere, not_a_number
from pyperf_suite.workloads.matmul.parameters import MatmulParameters, require_padding
from pyperf_suite.workloads.native import native_extension
from pyperf_suite.workloads.operator import Array, Launches, TimedImplementation
from pyperf_suite.workloads.workload import Kernel

POLICIES = ("data_parallel", "persistent", "split_k", "stream_k")


class NativeCpuMatmul(TimedImplementation[MatmulParameters]):
    """`csrc/cpu`: packed panels, a register micro-kernel for the processor's ISA, one schedule header."""

    name = "native"
    device_kind = "cpu"

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a tile the kernel does not have, a schedule it cannot follow, or too many workers."""
        require_padding("native", False, parameters)
        schedule = parameters.schedule
        if schedule.policy not in POLICIES:
            raise UserError(
                f"The native matmul does not know the schedule {schedule}: choose from {', '.join(POLICIES)}."
            )
        require_cores(schedule.workers)
        if parameters.tile is not None:
            if parameters.tile.stages != 1 or parameters.tile.ctas != 1:
                raise UserError(f"Tile {parameters.tile} names stages or clusters, which a CPU kernel does not have.")
            try:
                native_extension().check_tile(parameters.tile.m, parameters.tile.n, parameters.tile.k)
            except ValueError as error:
                raise UserError(str(error)) from None

    def prepare(
        self, parameters: MatmulParameters, operands: Mapping[str, Array], sets: int, device: Device
    ) -> Launches:
        """Allocate the workspace and the worker threads, and look up every address."""
        try:
            return NativeCpuLaunches(parameters, copies_elsewhere(operands, sets))
        except ValueError as error:
            raise Unsupported(str(error)) from None


class NativeCpuLaunches(Launches):
    """Launches of one `_native.Gemm` over rotating operand sets."""

    def __init__(self, parameters: MatmulParameters, operand_sets: list[Mapping[str, Array]]) -> None:
        native = native_extension()
        schedule = parameters.schedule
        m, n, k = parameters.m, parameters.n, parameters.k
        tile = parameters.tile
        sizes = (
            (tile.m, tile.n, tile.k)
            if tile is not None
            else native.default_tile(m, n, k, parameters.dtype, schedule.workers)
        )
        self._gemm: Any = native.Gemm(
            m,
            n,
            k,
            dtype=parameters.dtype,
            out_dtype=parameters.output_dtype,
            a_transposed=parameters.a_transposed,
            b_transposed=parameters.b_transposed,
            tile=sizes,
            schedule=schedule.policy,
            splits=schedule.splits,
            workers=schedule.workers,
        )
        self.sets = len(operand_sets)
        self._outputs = [operands["c"] for operands in operand_sets]
        self._poison = not_a_number(parameters.output_dtype)
        leading_a, leading_b = parameters.a_shape[1], parameters.b_shape[1]
        # The arrays stay alive through the closure; only their addresses are needed in the timed region.
        self._operand_sets = operand_sets
        self._arguments = [
            (s["a"].ctypes.data, leading_a, s["b"].ctypes.data, leading_b, s["c"].ctypes.data, n) for s in operand_sets
        ]
        self.kernel = Kernel(
            name=f"native_gemm_{self._gemm.isa}",
            path="packed",
            details={
                "tile": "x".join(map(str, sizes)),
                "schedule": str(schedule),
                "isa": self._gemm.isa,
                "micro_tile": "x".join(map(str, self._gemm.micro_tile)),
                "pinned": self._gemm.pinned,
                "workspace_bytes": self._gemm.workspace_bytes,
            },
        )

    def launch(self, index: int) -> None:
        self._gemm.run(*self._arguments[index % len(self._arguments)])

    def output(self, index: int) -> Array:
        return self._outputs[index % len(self._outputs)]

    def poison(self, index: int | None = None) -> None:
        for each in self._chosen(index):
            self._outputs[each].fill(self._poison)
