"""Matrix products on a GPU through torch's tensors: cuBLAS as the baseline, and our Triton kernels.

Both launch into the stopwatch's stream, which is made torch's current one when a case is prepared.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.kernels import matmul as triton_matmul
from pyperf_suite.laws.matmul.tiling import visiting_group
from pyperf_suite.measure.cuda_stopwatch import CudaStopwatch
from pyperf_suite.workloads.device_tensors import DeviceTensors, launched_kernels
from pyperf_suite.workloads.dtypes import poison_tensor
from pyperf_suite.workloads.matmul.cuda_own import require_no_cluster
from pyperf_suite.workloads.matmul.kernel_names import product_kernel
from pyperf_suite.workloads.matmul.padding import how_padded
from pyperf_suite.workloads.matmul.parameters import MatmulParameters, require_library_schedule, require_padding
from pyperf_suite.workloads.matmul.torch_products import (
    BoundProduct,
    bind,
    product_name,
    refusals,
    require_torch_result,
)
from pyperf_suite.workloads.operator import Array, Launches, Tensors, TimedImplementation
from pyperf_suite.workloads.workload import Kernel

# Fewer warps leave tensor cores idle, more leave too few registers: as in kernels.matmul.default_set.
MANY_WARPS_FROM_TILE = 128 * 128
# Where the tile leaves the depth of the pipeline open; each where those before do not fit.
USUAL_STAGES = (4, 3, 2)


class CublasMatmul(TimedImplementation[MatmulParameters]):
    """torch's product on a GPU: cuBLAS, with the tile it chose read from its kernel's name."""

    name = "cublas"
    device_kind = "cuda"
    pads: ClassVar[bool] = False

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a tile or schedule of ours, or a result that torch's product never has."""
        require_padding(self.name, self.pads, parameters)
        require_library_schedule("cuBLAS", parameters)
        require_torch_result(parameters)

    def prepare(
        self, parameters: MatmulParameters, operands: Mapping[str, Array], sets: int, device: Device
    ) -> Launches:
        """Place the operand sets, see that torch takes the case, and ask the profiler which kernels run."""
        tensors = product_tensors(parameters, operands, sets, device)
        torch = tensors.torch
        products = [bind(torch, parameters, each["a"], each["b"], each["c"]) for each in tensors.sets]
        launches = TorchGpuLaunches(tensors, parameters.output_dtype, products)
        with refusals(torch, parameters):
            names = launched_kernels(torch, launches.launch)
        product = product_kernel(names)
        chosen = {} if product is None else {name: value for name, value in vars(product).items() if value is not None}
        # Padding launches kernels of its own around the one that multiplies.
        multiplying = [name for name in names if product is None or product.name in name]
        launches.kernel = Kernel(
            multiplying[0] if multiplying else product_name(parameters),
            "cublas",
            chosen | {"launched": names} | how_padded(parameters),
        )
        return launches


class PaddedCublasMatmul(CublasMatmul):
    """The same product of operands padded to multiples of `pad_to` at each call."""

    name = "cublas_padded"
    pads = True


class TritonMatmul(TimedImplementation[MatmulParameters]):
    """`kernels/matmul.py`: through tensor descriptors where the device and the shapes allow, else through addresses.

    Where neither fits the device's shared memory and the tile leaves the stages open, the same with fewer stages.
    """

    name = "triton"
    device_kind = "cuda"

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a tile, schedule or type that the Triton kernel does not have."""
        require_padding(self.name, False, parameters)
        if parameters.schedule.policy == "library":
            raise UserError(f"Triton's matmul needs a schedule of ours, not {parameters.schedule}.")
        try:
            configuration_of(parameters, "addresses", stages_of(parameters)[0])
        except ValueError as error:
            raise UserError(str(error)) from None

    def prepare(
        self, parameters: MatmulParameters, operands: Mapping[str, Array], sets: int, device: Device
    ) -> Launches:
        """Compile for the device through Triton and bind a launch to each operand set."""
        if importlib.util.find_spec("triton") is None:
            raise Unsupported("triton is not installed.")
        tensors = product_tensors(parameters, operands, sets, device)
        hopper = tensors.torch.cuda.get_device_capability(device.index) >= (9, 0)
        paths = ("descriptors", "addresses") if hopper else ("addresses",)
        for stages, path in itertools.product(stages_of(parameters), paths):
            try:
                configuration = configuration_of(parameters, path, stages)
                product = triton_matmul.Product(configuration, parameters.m, parameters.n, parameters.k, tensors.device)
                products = [
                    BoundProduct(product.bind(each["a"], each["b"], each["c"]), each["c"], (each["c"],))
                    for each in tensors.sets
                ]
                launches = TorchGpuLaunches(tensors, parameters.output_dtype, products)
                # How much shared memory a kernel takes is known once it is compiled, which the first launch does.
                compiled = launches.launch(0)
                break
            except ValueError as error:
                refusal = error
        else:
            raise Unsupported(str(refusal))
        tensors.torch.cuda.synchronize(device.index)
        launches.kernel = Kernel(
            name=getattr(compiled, "name", "matmul"),
            path=path,
            details={
                "schedule": str(parameters.schedule),
                "tile": str(parameters.tile),
                "stages": configuration.stages,
                "warps": configuration.warps,
                "group": configuration.group,
                "registers": getattr(compiled, "n_regs", None),
                "spills": getattr(compiled, "n_spills", None),
            },
        )
        return launches


class TorchGpuLaunches(Launches):
    """Launches bound to each operand set."""

    kernel = Kernel("", "")

    def __init__(self, tensors: DeviceTensors, output_dtype: str, products: list[BoundProduct]) -> None:
        self._tensors = tensors
        self._output_dtype = output_dtype
        self._products = products
        self.sets = len(products)

    @property
    def stopwatch(self) -> CudaStopwatch:
        return self._tensors.clock

    def launch(self, index: int) -> Any:
        return self._products[index % len(self._products)].launch()

    def output(self, index: int) -> Array:
        return self._tensors.download(self._products[index % len(self._products)].result, self._output_dtype)

    def tensors(self, index: int) -> Tensors:
        at = index % self.sets
        self._tensors.torch.cuda.synchronize(self._tensors.device)
        inputs = {name: self._tensors.sets[at][name] for name in "ab"}
        return Tensors(inputs, {"c": self._products[at].result})

    def poison(self, index: int | None = None) -> None:
        for each in self._chosen(index):
            for tensor in self._products[each].written:
                poison_tensor(tensor)
        self._tensors.torch.cuda.synchronize(self._tensors.device)


def product_tensors(
    parameters: MatmulParameters, operands: Mapping[str, Array], sets: int, device: Device
) -> DeviceTensors:
    """The operands of a product on the device."""
    dtypes = {"a": parameters.dtype, "b": parameters.dtype, "c": parameters.output_dtype}
    return DeviceTensors(operands, dtypes, sets, device)


def stages_of(parameters: MatmulParameters) -> tuple[int, ...]:
    """The depths of the pipeline to try in turn: the one asked for, or what Triton's kernels usually take."""
    asked = 1 if parameters.tile is None else parameters.tile.stages
    return (asked,) if asked > 1 else USUAL_STAGES


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
    )
