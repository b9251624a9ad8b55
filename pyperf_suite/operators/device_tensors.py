"""Operand sets as torch tensors on a GPU, with a stopwatch whose stream is torch's current one.

What an implementation launches through torch or Triton then runs between the stopwatch's events, whatever the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.cuda_stopwatch import CudaStopwatch
from pyperf_suite.operators.dtypes import element_type, poison_tensor, torch_name
from pyperf_suite.operators.operator import Array
from pyperf_suite.operators.torch_device import TorchDevice


class DeviceTensors:
    """`sets` copies of the operands in the device's memory; `dtypes` names the element type of each operand."""

    def __init__(self, operands: Mapping[str, Array], dtypes: Mapping[str, str], sets: int, device: Device) -> None:
        """Upload. Raises Unsupported where torch is absent or cannot use the GPU."""
        where = TorchDevice(device)
        assert isinstance(where.stopwatch, CudaStopwatch)
        self.torch, self.device, self.clock = where.torch, where.device, where.stopwatch
        self.clock.sets = sets
        self.sets = [{name: self._upload(operands[name], dtype) for name, dtype in dtypes.items()} for _ in range(sets)]

    def _upload(self, array: Array, dtype: str) -> Any:
        # As bytes and viewed there: numpy has no name for bfloat16 and float8.
        raw = self.torch.from_numpy(array.view(np.uint8)).to(self.device)
        return raw.view(getattr(self.torch, torch_name(dtype)))

    def download(self, tensor: Any, dtype: str) -> Array:
        """A tensor's bytes in the host's memory, in the storage of `dtype`."""
        self.torch.cuda.synchronize(self.device)
        stored: Array = tensor.view(self.torch.uint8).cpu().numpy().view(element_type(dtype).storage)
        return stored

    def poison(self, names: tuple[str, ...]) -> None:
        """Fill these operands of every set with what no correct output holds."""
        for each in self.sets:
            for name in names:
                poison_tensor(each[name])
        self.torch.cuda.synchronize(self.device)


def launched_kernels(torch: Any, launch: Any) -> list[str]:
    """Names of the kernels that `launch(0)` runs, as torch's profiler sees them; empty where it sees none."""
    launch(0)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        launch(0)
        torch.cuda.synchronize()
    on_device = (event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    return [event.name for event in on_device if not event.name.startswith("Mem")]
