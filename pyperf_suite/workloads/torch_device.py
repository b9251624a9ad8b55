"""Where torch computes for a case: CPU cores as many as asked for, or a GPU whose current stream a stopwatch reads."""

from __future__ import annotations

import gc
import importlib.util
import sys
from typing import Any

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.stopwatch import CpuStopwatch, Stopwatch
from pyperf_suite.workloads.cuda import cuda_device


class TorchDevice:
    """`torch`, its `device`, and the `stopwatch` that sees what is computed there."""

    def __init__(self, device: Device, workers: int = 0, queueing: str = "held") -> None:
        """Take `workers` threads of a CPU (0: as many as torch does), or a stream of the GPU.

        `queueing` is how gaps between launches are hidden on a GPU; "open", not at all, is for steps of many kernels,
        more than could wait behind a held stream. Raises Unsupported where torch is absent or cannot use the GPU.
        """
        if importlib.util.find_spec("torch") is None:
            raise Unsupported("torch is not installed.")
        import torch

        self.torch = torch
        self.stopwatch: Stopwatch
        if device.kind == "cpu":
            if workers:
                torch.set_num_threads(workers)
            self.device = torch.device("cpu")
            self.stopwatch = CpuStopwatch()
            return
        if not torch.cuda.is_available():
            raise Unsupported(f"This torch ({torch.__version__}) cannot use the GPU.")
        self.device = torch.device("cuda", device.index)
        torch.cuda.set_device(self.device)
        clock = cuda_device(device.index).stopwatch(queueing)
        torch.cuda.set_stream(torch.cuda.ExternalStream(clock.stream, self.device))
        self.stopwatch = clock

    @property
    def is_gpu(self) -> bool:
        """Whether it is one, which computes while the host goes on."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until all that was launched is done."""
        if self.is_gpu:
            self.torch.cuda.synchronize(self.device)

    def details(self) -> dict[str, Any]:
        """What a record says of where torch computed."""
        if self.is_gpu:
            return {"gpu": self.torch.cuda.get_device_name(self.device)}
        return {
            "threads": self.torch.get_num_threads(),
            "capability": self.torch.backends.cpu.get_cpu_capability(),
        }


def leave_nothing_behind(device: Device) -> None:
    """Give a GPU back as a fresh process has it: torch's own stream current, garbage collected, its cache empty."""
    if device.kind != "cuda":
        return
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    torch.cuda.set_stream(torch.cuda.default_stream(device.index))
    torch.cuda.empty_cache()
