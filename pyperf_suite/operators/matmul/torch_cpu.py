"""torch's matrix product: the library baseline that stands beside our own kernels."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.cores import require_cores
from pyperf_suite.operators.dtypes import copies_elsewhere, not_a_number
from pyperf_suite.operators.matmul.parameters import MatmulParameters, require_library_schedule
from pyperf_suite.operators.operator import Array, Kernel, Launches, TimedImplementation


class TorchCpuMatmul(TimedImplementation[MatmulParameters]):
    """`torch.mm` on the CPU: MKL, oneDNN or OpenBLAS, as torch was built."""

    name = "torch"
    device_kind = "cpu"

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a tile or schedule of ours: a library chooses its own."""
        require_library_schedule("torch", parameters)
        require_cores(parameters.schedule.workers)
        if parameters.output_dtype != parameters.dtype:
            raise UserError(
                f"torch.mm writes its inputs' dtype {parameters.dtype}, but {parameters.out_dtype} was asked for."
            )

    def prepare(
        self, parameters: MatmulParameters, operands: Mapping[str, Array], sets: int, device: Device
    ) -> Launches:
        """Wrap the operand sets as tensors without a copy and bound torch's threads."""
        if importlib.util.find_spec("torch") is None:
            raise Unsupported("torch is not installed.")
        return TorchCpuLaunches(parameters, copies_elsewhere(operands, sets))


class TorchCpuLaunches(Launches):
    """Launches of `torch.mm(a, b, out=c)` over rotating operand sets."""

    def __init__(self, parameters: MatmulParameters, operand_sets: list[Mapping[str, Array]]) -> None:
        import torch

        torch.set_num_threads(parameters.schedule.workers)
        dtype = getattr(torch, parameters.dtype)

        def tensor(array: Array) -> Any:
            # torch reads bfloat16 from the same 16 bits that numpy holds as uint16.
            return torch.from_numpy(array) if dtype == torch.float32 else torch.from_numpy(array).view(dtype)

        self._mm = torch.mm
        self._outputs = [operands["c"] for operands in operand_sets]
        self._poison = not_a_number(parameters.output_dtype)
        self._tensors = []
        for operands in operand_sets:
            a, b, c = (tensor(operands[name]) for name in ("a", "b", "c"))
            self._tensors.append((a.t() if parameters.a_transposed else a, b.t() if parameters.b_transposed else b, c))
        self.kernel = Kernel(
            name="torch.mm",
            path=_libraries(torch),
            details={
                "threads": torch.get_num_threads(),
                "capability": torch.backends.cpu.get_cpu_capability(),
            },
        )

    def launch(self, index: int) -> None:
        a, b, c = self._tensors[index % len(self._tensors)]
        self._mm(a, b, out=c)

    def output(self, index: int) -> Array:
        return self._outputs[index % len(self._outputs)]

    def poison(self) -> None:
        for output in self._outputs:
            output.fill(self._poison)


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
