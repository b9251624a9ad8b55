"""Operand sets as torch tensors on a GPU, with a stopwatch whose stream is torch's current one.

What an implementation launches through torch or Triton then runs between the stopwatch's events, whatever the operator.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.cuda_stopwatch import CudaStopwatch
from pyperf_suite.workloads.cuda import CudaDevice, cuda_device
from pyperf_suite.workloads.dtypes import element_type, poison_tensor, torch_name
from pyperf_suite.workloads.inputs import Operands, fill_on_device
from pyperf_suite.workloads.operator import Array
from pyperf_suite.workloads.torch_device import TorchDevice


class DeviceTensors:
    """`sets` copies of the operands in the device's memory; `dtypes` names the element type of each operand."""

    def __init__(self, operands: Mapping[str, Array], dtypes: Mapping[str, str], sets: int, device: Device) -> None:
        """Upload. Raises Unsupported where torch is absent or cannot use the GPU."""
        where = TorchDevice(device)
        assert isinstance(where.stopwatch, CudaStopwatch)
        self.torch, self.device, self.clock = where.torch, where.device, where.stopwatch
        self.clock.sets = sets
        self.sets = self._placed(operands, dtypes, sets, device)

    def _placed(
        self, operands: Mapping[str, Array], dtypes: Mapping[str, str], sets: int, device: Device
    ) -> list[dict[str, Any]]:
        first = {name: self._place(operands, name, dtype, device) for name, dtype in dtypes.items()}
        # Outputs of the copies are copied as well, as uninitialised as they are.
        return [first, *({name: tensor.clone() for name, tensor in first.items()} for _ in range(sets - 1))]

    def _place(self, operands: Mapping[str, Array], name: str, dtype: str, device: Device) -> Any:
        """An operand made on the device where it is described, else uploaded."""
        if not isinstance(operands, Operands):
            return self._upload(operands[name], dtype)
        operand = operands.described[name]
        tensor = self.torch.empty(operand.shape, dtype=getattr(self.torch, torch_name(dtype)), device=self.device)
        if operand.stream is not None:
            fill_on_device(cuda_device(device.index), tensor.data_ptr(), operand, operands.seed)
        return tensor

    def _upload(self, array: Array, dtype: str) -> Any:
        # As bytes and viewed there: numpy has no name for bfloat16 and float8.
        raw = self.torch.from_numpy(array.view(np.uint8)).to(self.device)
        return raw.view(getattr(self.torch, torch_name(dtype)))

    def download(self, tensor: Any, dtype: str) -> Array:
        """A tensor's bytes in the host's memory, in the storage of `dtype`."""
        self.torch.cuda.synchronize(self.device)
        stored: Array = tensor.view(self.torch.uint8).cpu().numpy().view(element_type(dtype).storage)
        return stored

    def poison(self, names: tuple[str, ...], sets: Iterable[int]) -> None:
        """Fill these operands of these sets with what no correct output holds."""
        for index in sets:
            for name in names:
                poison_tensor(self.sets[index][name])
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


def seen_by_torch(gpu: CudaDevice, memory: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Memory of ours as a torch tensor that shares it; None where there is no torch that can use the GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    described = {"shape": (memory.bytes,), "typestr": "|u1", "data": (memory.address, False), "version": 3}
    holder = SimpleNamespace(__cuda_array_interface__=described)
    raw = torch.as_tensor(holder, device=torch.device("cuda", gpu.index))
    return raw.view(getattr(torch, torch_name(dtype))).view(shape)
