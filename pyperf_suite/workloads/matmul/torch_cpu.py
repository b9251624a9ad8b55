"""torch's matrix product on the CPU: the library baseline that stands beside our own kernels, as it is and padded.

Padded means as users do it: the operands filled up with zeros at each call, multiplied, and the result sliced.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, ClassVar

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.dtypes import copies_elsewhere, element_type, poison_tensor, torch_name
from pyperf_suite.workloads.matmul.padding import how_padded
from pyperf_suite.workloads.matmul.parameters import MatmulParameters, require_library_schedule, require_padding
from pyperf_suite.workloads.matmul.torch_products import bind, product_name, refusals, require_torch_result
from pyperf_suite.workloads.operator import Array, Launches, TimedImplementation
from pyperf_suite.workloads.workload import Kernel


class TorchCpuMatmul(TimedImplementation[MatmulParameters]):
    """torch's product on the CPU: MKL, oneDNN or OpenBLAS, as torch was built."""

    name = "torch"
    device_kind = "cpu"
    pads: ClassVar[bool] = False

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a tile or schedule of ours, since a library chooses its own, or a result it never has."""
        require_padding(self.name, self.pads, parameters)
        require_library_schedule("torch", parameters)
        require_cores(parameters.schedule.workers)
        require_torch_result(parameters)

    def prepare(
        self, parameters: MatmulParameters, operands: Mapping[str, Array], sets: int, device: Device
    ) -> Launches:
        """Wrap the operand sets as tensors without a copy, bound torch's threads, and see that torch takes the case."""
        if importlib.util.find_spec("torch") is None:
            raise Unsupported("torch is not installed.")
        if parameters.dtype == "tfloat32":
            raise Unsupported("tfloat32 is arithmetic of GPUs, and no CPU has it: ask for float32 or bfloat16.")
        return TorchCpuLaunches(parameters, copies_elsewhere(operands, sets))


class PaddedTorchCpuMatmul(TorchCpuMatmul):
    """The same product of operands padded to multiples of `pad_to` at each call."""

    name = "torch_padded"
    pads = True


class TorchCpuLaunches(Launches):
    """Launches of torch's product over rotating operand sets."""

    def __init__(self, parameters: MatmulParameters, operand_sets: list[Mapping[str, Array]]) -> None:
        import torch

        torch.set_num_threads(parameters.schedule.workers)
        self.sets = len(operand_sets)
        self._byte = torch.uint8
        self._storage = element_type(parameters.output_dtype).storage
        dtypes = {"a": parameters.dtype, "b": parameters.dtype, "c": parameters.output_dtype}
        # The arrays stay alive through the tensors, which share their memory.
        self._products = [
            bind(torch, parameters, *(_tensor(torch, operands[name], dtypes[name]) for name in "abc"))
            for operands in operand_sets
        ]
        if product_name(parameters) != "torch.mm":  # which takes every shape
            with refusals(torch, parameters):
                self.launch(0)
        self.kernel = Kernel(
            name=product_name(parameters),
            path=_libraries(torch),
            details={
                "threads": torch.get_num_threads(),
                "capability": torch.backends.cpu.get_cpu_capability(),
                **how_padded(parameters),
            },
        )

    def launch(self, index: int) -> None:
        self._products[index % len(self._products)].launch()

    def output(self, index: int) -> Array:
        result = self._products[index % len(self._products)].result
        stored: Array = result.view(self._byte).numpy().view(self._storage)
        return stored

    def poison(self, index: int | None = None) -> None:
        for each in self._chosen(index):
            for tensor in self._products[each].written:
                poison_tensor(tensor)


def _tensor(torch: Any, array: Array, dtype: str) -> Any:
    """The same memory as torch names its type: bfloat16 and float8 are bits in numpy."""
    return torch.from_numpy(array).view(getattr(torch, torch_name(dtype)))


def _libraries(torch: Any) -> str:
    """The BLAS libraries torch was built with; which of them a product takes is not told by torch."""
    found = [
        name
        for name, there in (
            ("mkl", torch.backends.mkl.is_available()),
            ("onednn", torch.backends.mkldnn.is_available()),
        )
        if there
    ]
    return "+".join(found) or "blas"
