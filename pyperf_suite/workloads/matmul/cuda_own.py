"""The suite's own CUDA matrix products: wgmma with TMA on Hopper, mma.sync on every GPU from compute capability 8.0.

Both are compiled for the device at first use with exactly the tile and schedule asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels import gemm_sm80, gemm_sm90
from pyperf_suite.laws.matmul.tiling import Tile, cluster_count, visiting_group
from pyperf_suite.measure.cuda_stopwatch import CudaStopwatch
from pyperf_suite.workloads.cuda import CudaDevice, cuda_device
from pyperf_suite.workloads.device_tensors import seen_by_torch
from pyperf_suite.workloads.dtypes import element_type
from pyperf_suite.workloads.inputs import place
from pyperf_suite.workloads.matmul.parameters import MatmulParameters, require_padding
from pyperf_suite.workloads.operator import Array, Launches, Tensors, TimedImplementation
from pyperf_suite.workloads.workload import Kernel

# What the kernels call an element type; they refuse others by the name they have.
KERNEL_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "e4m3"}


class CudaMatmul(TimedImplementation[MatmulParameters]):
    """What the two kernels share: operands on the device, a specialisation, launches on the stopwatch's stream."""

    device_kind = "cuda"

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a schedule or a tile that the kernel can never follow."""
        require_padding(self.name, False, parameters)
        if parameters.schedule.policy == "library":
            raise UserError(f"{self.name} is a kernel of ours and needs a schedule of ours, not {parameters.schedule}.")
        try:
            self.specialise(parameters, addresses=(0, 0, 0))
        except ValueError as error:
            raise UserError(str(error)) from None

    def prepare(
        self, parameters: MatmulParameters, operands: Mapping[str, Array], sets: int, device: Device
    ) -> Launches:
        """Compile for the device, place the operand sets in its memory, encode every launch."""
        gpu = cuda_device(device.index)
        try:
            return CudaLaunches(self, gpu, parameters, operands, sets)
        except ValueError as error:
            raise Unsupported(str(error)) from None

    @abstractmethod
    def tile(self, parameters: MatmulParameters) -> Tile:
        """The tile asked for, or the one that the kernel begins with."""

    @abstractmethod
    def specialise(self, parameters: MatmulParameters, addresses: tuple[int, int, int]) -> Any:
        """The instance of the kernel for these parameters. Raises ValueError where there is none."""

    @abstractmethod
    def sources(self) -> tuple[str, str, Mapping[str, str]]:
        """Name and text of the source, and its headers."""

    @abstractmethod
    def arguments(
        self, gpu: CudaDevice, instance: Any, addresses: tuple[int, int, int], parameters: MatmulParameters, tail: Any
    ) -> list[bytes]:
        """A launch's packed parameters; `tail` is (schedule, workspace address, flags address)."""


class Sm90Matmul(CudaMatmul):
    """`kernels/cuda/gemm_sm90.cu`: TMA, wgmma, warp-specialised; compute capability 9.0 alone."""

    name = "cuda_sm90"

    def tile(self, parameters: MatmulParameters) -> Tile:
        """By default a pair of the largest tiles, which reads the least, where there is one for each two workers."""
        pair = Tile(128, 256, 64, cluster=2)
        pairs = int(cluster_count(parameters.m, parameters.n, pair))
        enough = pairs * pair.ctas >= parameters.schedule.workers
        return parameters.tile or (pair if enough else Tile(128, 128, 64))

    def specialise(self, parameters: MatmulParameters, addresses: tuple[int, int, int]) -> gemm_sm90.Specialisation:
        tile = self.tile(parameters)
        return gemm_sm90.specialise(
            tile.m,
            tile.n,
            tile.k,
            tile.stages if tile.stages > 1 else None,
            cluster_m=tile.cluster,
            cluster_n=tile.cluster_n,
            in_type=kernel_type(parameters.dtype),
            out_type=kernel_type(parameters.output_dtype),
            a_transposed=parameters.a_transposed,
            b_transposed=parameters.b_transposed,
            shared_tiles=parameters.schedule.policy in ("split_k", "stream_k"),
        )

    def sources(self) -> tuple[str, str, Mapping[str, str]]:
        return (gemm_sm90.SOURCE, *gemm_sm90.sources())

    def arguments(
        self, gpu: CudaDevice, instance: Any, addresses: tuple[int, int, int], parameters: MatmulParameters, tail: Any
    ) -> list[bytes]:
        leading = leading_dimensions(parameters)
        sizes = (parameters.m, parameters.n, parameters.k)
        maps = tuple(
            gpu.native.tensor_map_2d(
                gpu.context,
                found.address,
                found.dtype,
                found.shape,
                found.stride_bytes,
                found.box,
                found.swizzle_bytes,
                found.l2_promotion_bytes,
            )
            for found in instance.tensor_maps(*addresses, leading, sizes)
        )
        packed: list[bytes] = instance.arguments(maps, *tail)
        return packed


class Sm80Matmul(CudaMatmul):
    """`kernels/cuda/gemm_sm80.cu`: cp.async, ldmatrix, mma.sync; any shape, and it tells how it reached memory."""

    name = "cuda_sm80"

    def tile(self, parameters: MatmulParameters) -> Tile:
        """By default one whose steps are not too deep for two blocks of a multiprocessor to have the registers."""
        return parameters.tile or Tile(128, 128, 32)

    def specialise(self, parameters: MatmulParameters, addresses: tuple[int, int, int]) -> gemm_sm80.Specialisation:
        tile = self.tile(parameters)
        require_no_cluster(self.name, tile)
        return gemm_sm80.specialise(
            tile.m,
            tile.n,
            tile.k,
            tile.stages if tile.stages > 1 else None,
            in_type=kernel_type(parameters.dtype),
            out_type=kernel_type(parameters.output_dtype),
            a_transposed=parameters.a_transposed,
            b_transposed=parameters.b_transposed,
            addresses=addresses,
            leading_dimensions=leading_dimensions(parameters),
        )

    def sources(self) -> tuple[str, str, Mapping[str, str]]:
        return (gemm_sm80.SOURCE, *gemm_sm80.sources())

    def arguments(
        self, gpu: CudaDevice, instance: Any, addresses: tuple[int, int, int], parameters: MatmulParameters, tail: Any
    ) -> list[bytes]:
        sizes = (parameters.m, parameters.n, parameters.k)
        packed: list[bytes] = instance.arguments(*addresses, leading_dimensions(parameters), sizes, *tail)
        return packed


class CudaLaunches(Launches):
    """Encoded launches of one kernel over operand sets in the device's memory."""

    def __init__(
        self,
        kernel: CudaMatmul,
        gpu: CudaDevice,
        parameters: MatmulParameters,
        operands: Mapping[str, Array],
        sets: int,
    ) -> None:
        self._gpu, self._parameters = gpu, parameters
        self.sets = sets
        self._memory = place(gpu, operands, sets)
        addresses = [tuple(memory[name].address for name in "abc") for memory in self._memory]
        instance = kernel.specialise(parameters, addresses[0])
        instance.check_device(".".join(map(str, gpu.context.properties.compute_capability)))
        asked, tile = parameters.schedule, kernel.tile(parameters)
        source, text, headers = kernel.sources()
        cubin = gpu.compile(source, text, headers, instance.options())
        loaded = gpu.kernel(cubin, gemm_sm90.ENTRY)
        if tile.ctas > 1:
            slots = tile.ctas * loaded.max_active_clusters(instance.threads, tile.ctas, instance.smem_bytes)
        else:
            blocks = loaded.max_active_blocks(instance.threads, instance.smem_bytes)
            slots = gpu.context.properties.multiprocessors * blocks
        if slots == 0:
            raise ValueError(
                f"{instance.name} takes clusters of {tile.ctas} blocks, of which this device holds none at once: take "
                "a tile without a cluster."
            )
        # Workers that stay are as many as run at once: some multiprocessors have no neighbour to make a cluster with.
        workers = min(asked.workers, slots)
        at_once = slots if asked.policy in ("data_parallel", "split_k") else workers
        schedule = instance.schedule(
            parameters.m,
            parameters.n,
            parameters.k,
            asked.policy,
            asked.splits,
            max(1, workers // tile.ctas),
            visiting_group(parameters.m, parameters.n, tile, at_once, asked.splits),
        )
        # Flags are zero before the first launch, and each launch leaves them so.
        self._shared = [
            gpu.native.DeviceMemory(gpu.context, max(16, size))
            for size in (instance.workspace_bytes(schedule), instance.flags_bytes(schedule))
        ]
        self._shared[1].fill(0)
        tail = (schedule, *(memory.address for memory in self._shared))

        grid = instance.grid(schedule)
        self._launches = [
            gpu.native.Launch(
                loaded,
                (grid, 1, 1),
                (instance.threads, 1, 1),
                kernel.arguments(gpu, instance, each, parameters, tail),
                cluster=(tile.ctas, 1, 1),
                dynamic_shared_bytes=instance.smem_bytes,
            )
            for each in addresses
        ]
        self._clock = gpu.stopwatch()
        self._clock.sets = sets
        self.kernel = Kernel(
            name=instance.name,
            path=getattr(instance, "path", "tma"),
            details={
                "schedule": str(asked),
                "tile": str(tile),
                "stages": instance.stages,
                "store_buffers": getattr(instance, "store_buffers", None),
                "group": schedule.group,
                "registers": loaded.registers,
                "local_bytes": loaded.local_bytes,
                "shared_bytes": instance.smem_bytes,
                "slots": slots,
                "grid": grid,
            },
        )

    @property
    def stopwatch(self) -> CudaStopwatch:
        return self._clock

    def launch(self, index: int) -> None:
        self._launches[index % len(self._launches)].run(self._clock.stream)

    def output(self, index: int) -> Array:
        self._gpu.context.synchronize()
        stored = self._memory[index % len(self._memory)]["c"].read()
        storage = element_type(self._parameters.output_dtype).storage
        return np.frombuffer(stored, dtype=storage).reshape(self._parameters.m, self._parameters.n)

    def tensors(self, index: int) -> Tensors | None:
        self._gpu.context.synchronize()
        parameters, memory = self._parameters, self._memory[index % self.sets]
        described = {
            "a": (parameters.a_shape, parameters.dtype),
            "b": (parameters.b_shape, parameters.dtype),
            "c": ((parameters.m, parameters.n), parameters.output_dtype),
        }
        seen = {name: seen_by_torch(self._gpu, memory[name], *each) for name, each in described.items()}
        if any(tensor is None for tensor in seen.values()):
            return None
        return Tensors({name: seen[name] for name in "ab"}, {"c": seen["c"]})

    def poison(self, index: int | None = None) -> None:
        # All bits set is not a number in every output type.
        for each in self._chosen(index):
            self._memory[each]["c"].fill(0xFF)
        self._gpu.context.synchronize()


def leading_dimensions(parameters: MatmulParameters) -> tuple[int, int, int]:
    """Row lengths of A, B and C as stored, in elements."""
    return parameters.a_shape[1], parameters.b_shape[1], parameters.n


def require_no_cluster(implementation: str, tile: Tile) -> None:
    """Raise ValueError where a kernel that has no clusters is asked for one."""
    if tile.ctas > 1:
        raise ValueError(f"{implementation} launches no clusters, but tile {tile} was asked for: cuda_sm90 does.")


def kernel_type(dtype: str) -> str:
    """What the kernels call an element type, those included that they do not take."""
    return KERNEL_TYPES.get(dtype, dtype)
