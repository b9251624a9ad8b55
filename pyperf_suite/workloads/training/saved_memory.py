"""What one step of training holds in memory, by what it is for: read from a real step, nothing is timed.

Exact on the CPU, where storages are counted; on a GPU the allocator's own figures stand beside them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import psutil

from pyperf_suite.errors import Unsupported
from pyperf_suite.workloads.training.trained_shape import TrainedShape
from pyperf_suite.workloads.workload import Exact, Implementation, Kernel, Place, Workload, exact_metric


@dataclass(frozen=True)
class TrainingMemoryParameters(TrainedShape):
    """A transformer that AdamW trains."""


class TrainingMemory(Workload[TrainingMemoryParameters]):
    """Weights, gradients, optimizer state and kept activations of a transformer, and the peak of a step."""

    name = "training_memory"
    parameters_type = TrainingMemoryParameters
    is_exact = True

    def __init__(self) -> None:
        self.implementations: Mapping[str, Implementation[TrainingMemoryParameters]] = {
            each.name: each for each in (Storages(), Allocator())
        }

    def validate(self, parameters: TrainingMemoryParameters) -> None:
        """Raise UserError for a transformer or precision that cannot be."""
        parameters.validate()

    def footprint_bytes(self, parameters: TrainingMemoryParameters) -> int:
        """Weights, gradients, moments, and what forward keeps."""
        return parameters.step_bytes(updated=True)


class Storages(Implementation[TrainingMemoryParameters]):
    """Every storage counted, on the CPU."""

    name = "storages"
    device_kind = "cpu"

    def prepare(self, parameters: TrainingMemoryParameters, place: Place) -> Exact:
        """Take two steps. Raises Unsupported where torch is not installed."""
        _require_torch()
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # to wait for others would take longer than these small products
        try:
            found = _Step(parameters, torch.device("cpu")).bytes_by_kind()
        finally:
            torch.set_num_threads(threads)
        return _exact(found | {"capacity": int(psutil.virtual_memory().total)}, "cpu")


class Allocator(Implementation[TrainingMemoryParameters]):
    """The same on the GPU that torch uses, and what its allocator says of each phase of a step."""

    name = "allocator"
    device_kind = "cuda"

    def prepare(self, parameters: TrainingMemoryParameters, place: Place) -> Exact:
        """Take three steps. Raises Unsupported where torch is not installed or has no GPU."""
        _require_torch()
        import torch

        if not torch.cuda.is_available():
            raise Unsupported(f"This torch ({torch.__version__}) cannot use a GPU.")
        device = torch.device("cuda", torch.cuda.current_device())
        step = _Step(parameters, device)
        found = step.bytes_by_kind()
        found["allocated_by_forward"] = step.allocated_by_forward()
        found["reserved"] = torch.cuda.max_memory_reserved(device)
        capacity = torch.cuda.get_device_properties(device).total_memory
        return _exact(found | {"capacity": capacity}, "cuda")


class _Step:
    """A model, its data and AdamW, on a device."""

    def __init__(self, parameters: TrainingMemoryParameters, device: Any) -> None:
        import torch

        from pyperf_suite.workloads.training import gpt

        self.torch, self.device, self._parameters = torch, device, parameters
        weights = getattr(torch, parameters.weights)
        gpt.require_attention(parameters, device, getattr(torch, parameters.element.replace("tfloat", "float")))
        self.model = gpt.build(parameters).to(device, weights)
        self._inputs = tuple(
            each.to(device, weights if each.is_floating_point() else each.dtype) for each in gpt.inputs(parameters)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def bytes_by_kind(self) -> dict[str, int]:
        """Parameters, and bytes of each kind; "peak" is the most of a whole step, weights and states included."""
        from pyperf_suite.workloads.training.peak_bytes import bytes_of, peak_bytes
        from pyperf_suite.workloads.training.saved_bytes import kept

        saved = kept(self.model, self._forward)
        self._step()  # makes the optimizer's state
        weights, state = bytes_of(list(self.model.parameters())), bytes_of(list(self.optimizer.state.values()))
        gradients = bytes_of([each.grad for each in self.model.parameters()])
        self.model.zero_grad(set_to_none=True)
        added = peak_bytes(self._step, self.device)
        return {
            "parameters": sum(each.numel() for each in self.model.parameters()),
            "weights": weights,
            "gradients": gradients,
            "optimizer": state,
            "activations": saved.activations,
            "weight_copies": saved.weight_copies,
            "peak": weights + state + added,
        }

    def allocated_by_forward(self) -> int:
        """By how much a forward pass raises what the GPU's allocator has given out, in its own blocks."""
        cuda = self.torch.cuda
        self.model.zero_grad(set_to_none=True)
        before = cuda.memory_allocated(self.device)
        result = self._forward()
        after = cuda.memory_allocated(self.device)
        del result
        return int(after - before)

    def _forward(self) -> Any:
        with self._precision():
            return self.model(*self._inputs)

    def _step(self) -> None:
        result = self._forward()
        (result if result.ndim == 0 else result.float().sum()).backward()
        self.optimizer.step()

    def _precision(self) -> AbstractContextManager[Any]:
        if not self._parameters.precision.startswith("autocast_"):
            return nullcontext()
        cast: AbstractContextManager[Any] = self.torch.autocast(
            self.device.type, getattr(self.torch, self._parameters.element)
        )
        return cast


def _exact(found: Mapping[str, int], path: str) -> Exact:
    metrics = {name: exact_metric("" if name == "parameters" else "B", float(value)) for name, value in found.items()}
    return Exact(Kernel("transformer_step", path), metrics)


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise Unsupported("torch is not installed.")
