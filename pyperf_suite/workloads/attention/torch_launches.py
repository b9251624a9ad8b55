"""Launches of attention written in torch, on a CPU or a GPU, forward or backward by autograd.

What torch allocates for a result at each launch is part of the time, as it is for those who call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.workloads.attention.operands import GRADIENTS, INPUTS, join_gradients, operand_shapes
from pyperf_suite.workloads.attention.parameters import AttentionParameters
from pyperf_suite.workloads.device_tensors import DeviceTensors, launched_kernels
from pyperf_suite.workloads.dtypes import aligned_empty, copies_elsewhere, element_type, not_a_number
from pyperf_suite.workloads.operator import Array, Launches, Tensors
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.workload import Kernel

# Q, K and V to O.
Attend = Callable[[Any, Any, Any], Any]

# Scores may take what is free but for this share, which torch's allocator and the products' workspaces need.
SCORES_SHARE = 0.9


class HostTensors:
    """Operand sets as tensors that share numpy's memory; `workers` bounds torch's threads."""

    def __init__(self, operands: Mapping[str, Array], dtypes: Mapping[str, str], sets: int, workers: int) -> None:
        """Wrap. Raises Unsupported where torch is absent."""
        where = TorchDevice(Device("cpu"), workers)
        self.torch, self.device, self.clock = where.torch, where.device, where.stopwatch
        chosen = {name: operands[name] for name in dtypes}
        self.sets = [
            {name: self._wrap(array, dtypes[name]) for name, array in each.items()}
            for each in copies_elsewhere(chosen, sets)
        ]

    def _wrap(self, array: Array, dtype: str) -> Any:
        # As bytes and viewed there: numpy has no name for bfloat16.
        return self.torch.from_numpy(array.view(np.uint8)).view(getattr(self.torch, dtype))

    def download(self, tensor: Any, dtype: str) -> Array:
        """A tensor's bytes in the storage of `dtype`."""
        stored: Array = tensor.view(self.torch.uint8).numpy().view(element_type(dtype).storage)
        return stored


class TorchAttention(Launches):
    """Launches over operand sets; a backward launch differentiates a forward pass that was done when it was made."""

    kernel = Kernel("", "")

    def __init__(
        self, parameters: AttentionParameters, operands: Mapping[str, Array], sets: int, device: Device
    ) -> None:
        names = (*INPUTS, *(("do",) if parameters.backward else ()))
        dtypes = dict.fromkeys(names, parameters.dtype)
        self._parameters = parameters
        self.sets = sets
        self._tensors: HostTensors | DeviceTensors = (
            DeviceTensors(operands, dtypes, sets, device)
            if device.kind == "cuda"
            else HostTensors(operands, dtypes, sets, parameters.workers)
        )
        self.torch, self.device = self._tensors.torch, self._tensors.device
        self._bound: list[Callable[[], Any]] = []
        self._results: list[Any] = [None] * sets

    def bind(self, attend: Attend) -> None:
        """Launch this function, or its gradients by autograd."""
        self._bound = [
            self._gradients_of(attend, each) if self._parameters.backward else self._forward(attend, each)
            for each in self._tensors.sets
        ]

    def bind_each(self, bind: Callable[[Mapping[str, Any]], Callable[[], Any]]) -> None:
        """Launch what `bind` makes of each operand set: a function that returns O, or dQ, dK and dV."""
        self._bound = [bind(each) for each in self._tensors.sets]

    def _forward(self, attend: Attend, tensors: Mapping[str, Any]) -> Callable[[], Any]:
        q, k, v = (tensors[name] for name in INPUTS)
        return lambda: attend(q, k, v)

    def _gradients_of(self, attend: Attend, tensors: Mapping[str, Any]) -> Callable[[], Any]:
        inputs = tuple(tensors[name].requires_grad_() for name in INPUTS)
        output, gradient, grad = attend(*inputs), tensors["do"], self.torch.autograd.grad
        return lambda: grad(output, inputs, gradient, retain_graph=True)

    @property
    def stopwatch(self) -> Stopwatch:
        return self._tensors.clock

    def launch(self, index: int) -> None:
        at = index % len(self._bound)
        self._results[at] = self._bound[at]()

    def output(self, index: int) -> Array:
        result = self._results[index % len(self._results)]
        parameters = self._parameters
        if result is None:
            written = ("o",) if not parameters.backward else GRADIENTS
            size = sum(int(np.prod(operand_shapes(parameters)[name])) for name in written)
            nothing = aligned_empty((size,), parameters.dtype)
            nothing.fill(not_a_number(parameters.dtype))
            return nothing
        if parameters.backward:
            return join_gradients(*(self._download(gradient) for gradient in result))
        return self._download(result)

    def _download(self, tensor: Any) -> Array:
        return self._tensors.download(tensor.detach().contiguous(), self._parameters.dtype)

    def tensors(self, index: int) -> Tensors | None:
        result = self._results[index % self.sets]
        if self.device.type == "cpu" or result is None:
            return None
        self.torch.cuda.synchronize(self.device)
        inputs = {name: tensor.detach() for name, tensor in self._tensors.sets[index % self.sets].items()}
        outputs = dict(zip(GRADIENTS, result, strict=True)) if self._parameters.backward else {"o": result}
        return Tensors(inputs, {name: output.detach() for name, output in outputs.items()})

    def poison(self, index: int | None = None) -> None:
        """Fill with NaN what was returned and forget it: whoever gets that memory next and leaves it is seen."""
        for each in self._chosen(index):
            result, self._results[each] = self._results[each], None
            for tensor in result if isinstance(result, tuple) else (result,) * (result is not None):
                tensor.detach().fill_(float("nan"))

    def launched(self) -> list[str]:
        """Names of the kernels that a launch runs on a GPU; empty on a CPU."""
        return launched_kernels(self.torch, self.launch) if self.device.type == "cuda" else []

    def details(self, launched: list[str]) -> dict[str, Any]:
        """What a record should say of where it ran: torch's threads on a CPU, the kernels launched on a GPU."""
        if self.device.type == "cuda":
            return {"launched": launched}
        return {
            "threads": self.torch.get_num_threads(),
            "capability": self.torch.backends.cpu.get_cpu_capability(),
        }

    def require_score_memory(self, launch_bytes: int, kept_bytes: int) -> None:
        """Raise Unsupported where the score matrices do not fit in the memory that is free.

        `launch_bytes` of each pair of query and key live during a launch, `kept_bytes` for each operand set.
        """
        parameters = self._parameters
        pairs = parameters.batch * parameters.heads * parameters.seq_q * parameters.keys
        needed = pairs * (launch_bytes + kept_bytes * len(self._tensors.sets))
        free = self.torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else memory.available_bytes()
        if needed > SCORES_SHARE * free:
            raise Unsupported(
                f"The score matrix of {pairs} pairs of query and key needs {needed / 1e9:.3g} GB, but "
                f"{free / 1e9:.3g} GB are free: ask for fewer heads or a shorter sequence."
            )


def lower_right(torch: Any, parameters: AttentionParameters, device: Any) -> Any:
    """The causal mask as booleans [seq_q, seq_k], True where query i sees key j ≤ i + seq_k − seq_q."""
    ones = torch.ones(parameters.seq_q, parameters.keys, dtype=torch.bool, device=device)
    return ones.tril(parameters.keys - parameters.seq_q)


def masks_something(parameters: AttentionParameters) -> bool:
    """Whether causality hides any key: a single query sees all of them."""
    return parameters.causal and parameters.seq_q > 1
