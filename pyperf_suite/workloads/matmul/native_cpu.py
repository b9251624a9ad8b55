"""The suite's own CPU matrix product: explicit tile, workers and schedule, through the native extension."""

from __future__ import annotations

from functools import partial

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.workloads.backends import native_extension, require_cores
from pyperf_suite.workloads.matmul.parameters import MatmulParameters
from pyperf_suite.workloads.operands import Operands
from pyperf_suite.workloads.operator import Bound, HostArrays, Launches, TimedImplementation, refusing
from pyperf_suite.workloads.workload import Kernel, Place

POLICIES = ("data_parallel", "persistent", "split_k", "stream_k")


class NativeCpuMatmul(TimedImplementation[MatmulParameters]):
    """`csrc/cpu`: packed panels, a register micro-kernel for the processor's ISA, one schedule header."""

    name = "native"
    device_kind = "cpu"

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a tile the kernel does not have, a schedule it cannot follow, or too many workers."""
        parameters.require_padding(self.name, pads=False)
        schedule, tile = parameters.schedule, parameters.tile
        if schedule.policy not in POLICIES:
            raise UserError(
                f"The native matmul does not know the schedule {schedule}: choose from {', '.join(POLICIES)}."
            )
        require_cores(schedule.workers)
        if tile is not None:
            if tile.stages != 1 or tile.ctas != 1:
                raise UserError(f"Tile {tile} names stages or clusters, which a CPU kernel does not have.")
            with refusing(UserError):
                native_extension().check_tile(tile.m, tile.n, tile.k)

    def prepare(self, parameters: MatmulParameters, operands: Operands, place: Place) -> Launches:
        """Allocate the workspace and the worker threads, and look up every address."""
        native, schedule = native_extension(), parameters.schedule
        m, n, k, tile = parameters.m, parameters.n, parameters.k, parameters.tile
        with refusing(Unsupported):
            if tile is not None:
                sizes = (tile.m, tile.n, tile.k)
            else:
                sizes = native.default_tile(m, n, k, parameters.dtype, schedule.workers)
            gemm = native.Gemm(
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
        memory = HostArrays(operands, place)
        leading_a, leading_b, leading_c = parameters.leading_dimensions
        bound = []
        for each in memory.sets:
            a, b, c = (each[name].ctypes.data for name in "abc")
            launch = partial(gemm.run, a, leading_a, b, leading_b, c, leading_c)
            bound.append(Bound.into(launch, c=each["c"]))
        details = {
            "tile": "x".join(map(str, sizes)),
            "schedule": str(schedule),
            "isa": gemm.isa,
            "micro_tile": "x".join(map(str, gemm.micro_tile)),
            "pinned": gemm.pinned,
            "workspace_bytes": gemm.workspace_bytes,
        }
        return Launches(memory, bound, Kernel(f"native_gemm_{gemm.isa}", "packed", details))
