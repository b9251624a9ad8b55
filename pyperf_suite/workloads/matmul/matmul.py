"""The matrix product as an operator, and our own kernels of it: C++ on a CPU, CUDA and Triton on a GPU.

The CUDA kernels, wgmma with TMA on Hopper and mma.sync on every GPU from compute capability 8.0, are compiled at first
use with exactly the requested tile and schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

import pyperf_suite as suite
from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.catalogue import architecture
from pyperf_suite.kernels import matmul as triton_matmul
from pyperf_suite.kernels.static import families
from pyperf_suite.laws.tiling import Tile, visiting_group
from pyperf_suite.measure.tolerance import Keep
from pyperf_suite.measure.verify import Verification, verify_product
from pyperf_suite.user_kernels.api import Launch
from pyperf_suite.workloads.backends import (
    INSTRUCTION_SETS,
    CudaDevice,
    cuda_device,
    native_extension,
    require_installed,
)
from pyperf_suite.workloads.matmul import LibraryMatmul, MatmulParameters, NumpyMatmul
from pyperf_suite.workloads.operands import Operands
from pyperf_suite.workloads.operator import (
    BoundLaunch,
    DeviceMemory,
    HostArrays,
    Launches,
    NativeKernels,
    Operator,
    TimedImplementation,
    TorchTensors,
    refusing,
)
from pyperf_suite.workloads.workload import ExecutionContext, Kernel, by_name

# Fewer warps leave tensor cores idle, more leave too few registers: as in kernels.matmul.default_set.
MANY_WARPS_FROM_TILE = 128 * 128
# Stages where the tile leaves the depth of the pipeline open, each where the one before does not fit.
USUAL_STAGES = (4, 3, 2)

# The kernels' names of element types; they refuse others by the name they have.
KERNEL_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "e4m3"}

Addresses = tuple[int, int, int]  # addresses of A, B and C in the device's memory

POLICIES = ("data_parallel", "persistent", "split_k", "stream_k")


class TritonMatmul(TimedImplementation[MatmulParameters]):
    """`kernels/matmul.py`: by tensor descriptors where device and shapes allow, with fewer stages where memory asks."""

    name = "triton"
    device_kind = "cuda"

    def validate(self, parameters: MatmulParameters) -> None:
        parameters.require_own_schedule(self.name)
        with refusing(UserError):
            configuration_of(parameters, "addresses", stages_of(parameters)[0])

    def prepare(self, parameters: MatmulParameters, operands: Operands, place: ExecutionContext) -> Launches:
        require_installed("triton")
        memory = TorchTensors(operands, place)
        has_tma = "tma" in architecture(memory.torch.cuda.get_device_capability(place.device.index)).features
        paths = ("descriptors", "addresses") if has_tma and not parameters.hints else ("addresses",)
        for stages, path in itertools.product(stages_of(parameters), paths):
            try:
                configuration = configuration_of(parameters, path, stages)
                product = triton_matmul.Product(configuration, parameters.m, parameters.n, parameters.k, memory.device)
                bound = [BoundLaunch.into(product.bind(s["a"], s["b"], s["c"]), c=s["c"]) for s in memory.sets]
                launches = Launches(memory, bound)
                # How much shared memory a kernel takes is known once it is compiled, which the first launch does.
                compiled = launches.launch(0)
                break
            except ValueError as error:
                refusal = error
        else:
            raise Unsupported(str(refusal))
        memory.synchronize()
        details = {
            "schedule": str(parameters.schedule),
            "tile": str(parameters.tile),
            "stages": configuration.stages,
            "warps": configuration.warps,
            "group": configuration.group,
            "registers": getattr(compiled, "n_regs", None),
            "spills": getattr(compiled, "n_spills", None),
        }
        launches.kernel = Kernel(getattr(compiled, "name", "matmul"), path, details)
        return launches


def stages_of(parameters: MatmulParameters) -> tuple[int, ...]:
    """The depths of the pipeline to try in turn: the requested one, or what Triton's kernels usually take."""
    requested = 1 if parameters.tile is None else parameters.tile.stages
    return (requested,) if requested > 1 else USUAL_STAGES


def configuration_of(parameters: MatmulParameters, operands: str, stages: int) -> triton_matmul.Configuration:
    """The Triton configuration for a case. Raises ValueError where there is none."""
    tile, schedule = parameters.tile, parameters.schedule
    if tile is None:
        raise ValueError("Triton's matmul needs a tile: name one, as in 128x128x64:s3.")
    require_no_cluster("triton", tile)
    return triton_matmul.Configuration(
        (tile.m, tile.n, tile.k),
        parameters.dtype,
        parameters.output_dtype,
        parameters.layout,
        stages=stages,
        warps=8 if tile.m * tile.n >= MANY_WARPS_FROM_TILE else 4,
        policy=schedule.policy,
        splits=schedule.splits,
        workers=schedule.workers,
        group=visiting_group(parameters.m, parameters.n, tile, schedule.workers, schedule.splits),
        operands=operands,
        hints=parameters.hints or "all",
    )


class CudaMatmul(TimedImplementation[MatmulParameters]):
    """A family of CUDA kernels: operands on the device, a specialisation, launches on the stopwatch's stream."""

    device_kind = "cuda"

    def __init__(self, family: ModuleType) -> None:
        self.name, self.kernel = f"cuda_{family.FAMILY}", family  # type: ignore[misc]

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a schedule or a tile that the kernel can never follow."""
        parameters.require_own_schedule(self.name)
        with refusing(UserError):
            self.specialise(parameters, (0, 0, 0))

    def tile(self, parameters: MatmulParameters) -> Tile:
        """The requested tile, or the one that the kernel begins with."""
        if parameters.tile is not None:
            return parameters.tile
        m, n, k, cluster = self.kernel.default_tile(parameters.m, parameters.n, parameters.schedule.workers)
        return Tile(m, n, k, cluster=cluster)

    def specialise(self, parameters: MatmulParameters, addresses: Addresses) -> Any:
        """The instance of the kernel for these parameters. Raises ValueError if there is none."""
        tile = self.tile(parameters)
        if not self.kernel.CLUSTERS:
            require_no_cluster(self.name, tile)
        return self.kernel.for_product(
            (tile.m, tile.n, tile.k, tile.stages if tile.stages > 1 else None),  # None for as many as the kernel likes
            (tile.cluster, tile.cluster_n),
            parameters.schedule.policy,
            addresses,
            parameters.leading_dimensions,
            in_type=KERNEL_TYPES.get(parameters.dtype, parameters.dtype),
            out_type=KERNEL_TYPES.get(parameters.output_dtype, parameters.output_dtype),
            a_transposed=parameters.a_transposed,
            b_transposed=parameters.b_transposed,
        )

    def prepare(self, parameters: MatmulParameters, operands: Operands, place: ExecutionContext) -> Launches:
        """Compile for the device, place the operand sets in its memory, encode every launch."""
        gpu = cuda_device(place.device.index)
        memory = DeviceMemory(operands, place, gpu)
        with refusing(Unsupported):
            return self._bound(parameters, gpu, memory)

    def _bound(self, parameters: MatmulParameters, gpu: CudaDevice, memory: DeviceMemory) -> Launches:
        addresses = [(each["a"].address, each["b"].address, each["c"].address) for each in memory.sets]
        instance = self.specialise(parameters, addresses[0])
        instance.check_device(".".join(map(str, gpu.context.properties.compute_capability)))
        requested, tile = parameters.schedule, self.tile(parameters)
        source, headers = self.kernel.sources()
        cubin = gpu.compile(self.kernel.SOURCE, source, headers, instance.options())
        loaded = gpu.kernel(cubin, self.kernel.ENTRY)
        slots = self._slots(gpu, loaded, instance, tile)
        # Workers that stay are as many as run at once: some multiprocessors have no neighbour to make a cluster with.
        workers = min(requested.workers, slots)
        at_once = slots if requested.policy in ("data_parallel", "split_k") else workers
        group = visiting_group(parameters.m, parameters.n, tile, at_once, requested.splits)
        sizes = (parameters.m, parameters.n, parameters.k)
        encode = partial(gpu.native.tensor_map, gpu.context)
        schedule = instance.schedule(*sizes, requested.policy, requested.splits, max(1, workers // tile.ctas), group)
        workspace, flags = (
            gpu.native.DeviceMemory(gpu.context, max(16, size))
            for size in (instance.workspace_bytes(schedule), instance.flags_bytes(schedule))
        )
        # Zero before the first launch, and each launch leaves them so.
        flags.fill(0)
        grid = instance.grid(schedule)
        bound = []
        for arrays, there in zip(memory.sets, addresses, strict=True):
            arguments = instance.bind(encode, there, parameters.leading_dimensions, sizes)
            launch = gpu.native.Launch(
                loaded,
                (grid, 1, 1),
                (instance.threads, 1, 1),
                arguments(schedule, workspace.address, flags.address),
                cluster=(tile.ctas, 1, 1),
                dynamic_shared_bytes=instance.smem_bytes,
            )
            bound.append(BoundLaunch.into(partial(launch.run, memory.stopwatch.stream), c=arrays["c"]))
        memory.extra = (workspace, flags)
        details = {
            "schedule": str(requested),
            "tile": str(tile),
            "stages": instance.stages,
            "store_buffers": getattr(instance, "store_buffers", None),
            "group": schedule.group,
            "registers": loaded.registers,
            "local_bytes": loaded.local_bytes,
            "shared_bytes": instance.smem_bytes,
            "slots": slots,
            "grid": grid,
        }
        return Launches(memory, bound, Kernel(instance.name, getattr(instance, "path", "tma"), details))

    def _slots(self, gpu: CudaDevice, loaded: Any, instance: Any, tile: Tile) -> int:
        """How many blocks run at once. Raises ValueError where not one cluster fits."""
        if tile.ctas == 1:
            blocks = loaded.max_active_blocks(instance.threads, instance.smem_bytes)
            return int(gpu.context.properties.multiprocessors * blocks)
        slots = tile.ctas * loaded.max_active_clusters(instance.threads, tile.ctas, instance.smem_bytes)
        if slots == 0:
            raise ValueError(
                f"{instance.name} takes clusters of {tile.ctas} blocks, of which this device holds none at once: take "
                "a tile without a cluster."
            )
        return int(slots)


def require_no_cluster(implementation: str, tile: Tile) -> None:
    """Raise ValueError if a cluster is requested of a kernel that has none."""
    if tile.ctas > 1:
        raise ValueError(f"{implementation} launches no clusters, but tile {tile} was requested: cuda_sm90 does.")


class NativeCpuMatmul(NativeKernels[MatmulParameters]):
    """Packed panels, a register micro-kernel for the processor's ISA, one schedule header."""

    def validate(self, parameters: MatmulParameters) -> None:
        parameters.require_padding(self.name, pads=False)
        schedule, tile = parameters.schedule, parameters.tile
        if schedule.policy not in POLICIES:
            raise UserError(
                f"The native matmul does not know the schedule {schedule}: choose from {', '.join(POLICIES)}."
            )
        native = self.require_here(schedule.workers)
        if tile is not None:
            if tile.stages != 1 or tile.ctas != 1:
                raise UserError(f"Tile {tile} names stages or clusters, which a CPU kernel does not have.")
            with refusing(UserError):
                native.check_tile(tile.m, tile.n, tile.k, parameters.dtype, self.isa)

    def prepare(self, parameters: MatmulParameters, operands: Operands, place: ExecutionContext) -> Launches:
        native, schedule = native_extension(), parameters.schedule
        m, n, k, tile = parameters.m, parameters.n, parameters.k, parameters.tile
        with refusing(Unsupported):
            if tile is not None:
                sizes = (tile.m, tile.n, tile.k)
            else:
                sizes = native.default_tile(m, n, k, parameters.dtype, schedule.workers, self.isa)
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
                isa=self.isa,
            )
        memory = HostArrays(operands, place)
        leading_a, leading_b, leading_c = parameters.leading_dimensions
        bound = []
        for each in memory.sets:
            a, b, c = (each[name].ctypes.data for name in "abc")
            launch = partial(gemm.run, a, leading_a, b, leading_b, c, leading_c)
            bound.append(BoundLaunch.into(launch, c=each["c"]))
        details = {
            "tile": "x".join(map(str, sizes)),
            "schedule": str(schedule),
            **self.details(gemm, parameters.dtype, schedule.workers),
        }
        return Launches(memory, bound, Kernel(f"native_gemm_{gemm.isa}", "packed", details))


IMPLEMENTATIONS = by_name(
    *map(NativeCpuMatmul, ("", *INSTRUCTION_SETS)),
    NumpyMatmul(),
    LibraryMatmul("torch", "cpu"),
    LibraryMatmul("torch_padded", "cpu", pads=True),
    *(CudaMatmul(family) for family in families().values()),
    TritonMatmul(),
    LibraryMatmul("cublas", "cuda"),
    LibraryMatmul("cublas_padded", "cuda", pads=True),
)


@suite.kernel(MatmulParameters)
def matmul(p: MatmulParameters) -> Launch:
    """C = A·B; 2·M·N·K FLOP; each operand moved once is M·K + K·N + M·N elements."""
    a, b = suite.randn(*p.a_shape, dtype=p.dtype), suite.randn(*p.b_shape, dtype=p.dtype)
    c = suite.empty(p.m, p.n, dtype=p.output_dtype)
    moved, check = a.nbytes + b.nbytes + c.nbytes, partial(check_product, p.layout, p.dtype, p.output_dtype)
    return suite.launch(IMPLEMENTATIONS, a=a, b=b, c=c, check=check, flop=2 * p.m * p.n * p.k, bytes=moved)


def check_product(layout: str, dtype: str, output_dtype: str, values: Mapping[str, Any], keep: Keep) -> Verification:
    """Compare with the float64 product of A and B as stored in that layout."""
    a = values["a"].T if layout[1] == "T" else values["a"]
    b = values["b"].T if layout[0] == "T" else values["b"]
    return verify_product(values["c"], a, b, dtype, output_dtype, keep=keep)


MATMUL = Operator(matmul, IMPLEMENTATIONS)
