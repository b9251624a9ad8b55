"""One pass of one layer as a workload: forward, or the gradients of its input, of its weights, or of both."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware import cpu
from pyperf_suite.measure.cuda_stopwatch import CudaStopwatch
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.cuda import cuda_device
from pyperf_suite.workloads.dtypes import torch_name
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training import layers
from pyperf_suite.workloads.training.layers import LayerPassParameters
from pyperf_suite.workloads.workload import Checked, Implementation, Kernel, Observed, Place, Prepared, Work, Workload

# An element may be off by so much of its own size and the tensor's root mean square together, the whole in norm by the
# second: rounding of operands and results, and what sums over tokens make of it. An element nobody wrote is off by 1.
ELEMENT_LIMIT = {"float32": 1e-3, "tfloat32": 3e-2, "bfloat16": 0.1, "float16": 2e-2}
NORM_LIMIT = {"float32": 1e-4, "tfloat32": 3e-3, "bfloat16": 2e-2, "float16": 3e-3}

# Operands that together exceed the caches this many times over are cold when their turn comes (see runner/measuring);
# of operands that small that it took more sets, the caches are part of the answer.
CACHE_TURNOVER = 3
MOST_SETS = 8


class LayerPass(Workload[LayerPassParameters]):
    """A layer's forward pass, or its gradients by autograd."""

    name = "layer_pass"
    parameters_type = LayerPassParameters

    def __init__(self) -> None:
        self.implementations: Mapping[str, Implementation[LayerPassParameters]] = {"torch": TorchLayer()}

    def validate(self, parameters: LayerPassParameters) -> None:
        """Raise UserError for a layer or pass that cannot be."""
        parameters.validate()

    def footprint_bytes(self, parameters: LayerPassParameters) -> int:
        """One set of operands and results, with gradients where they are asked for."""
        return parameters.elements * parameters.element_bytes * (1 if parameters.phase == "forward" else 2)

    def work(self, parameters: LayerPassParameters) -> Work:
        """FLOPs of the products and compulsory bytes (see layers.work)."""
        return layers.work(parameters)


class TorchLayer(Implementation[LayerPassParameters]):
    """torch's own functions, convolutions in channels-last as NVIDIA and oneDNN advise."""

    name = "torch"
    device_kind = "any"

    def validate(self, parameters: LayerPassParameters) -> None:
        """Raise UserError for more workers than there are cores."""
        require_cores(parameters.workers)

    def prepare(self, parameters: LayerPassParameters, place: Place) -> Prepared:
        """Draw operands, and run forward where a gradient is asked for. Raises Unsupported for what torch cannot do."""
        if place.device.kind == "cpu" and parameters.dtype == "tfloat32":
            raise Unsupported("A CPU has no tfloat32.")
        cache_bytes = (
            cuda_device(place.device.index).context.properties.l2_bytes
            if place.device.kind == "cuda"
            else cpu.detect().l2_total_bytes
        )
        return LayerSteps(parameters, place.seed, TorchDevice(place.device, parameters.workers), cache_bytes)


@dataclass(frozen=True)
class _Set:
    """Operands of one pass: the result, with its graph, where a gradient of it is asked for."""

    inputs: tuple[Any, ...]
    weights: tuple[Any, ...]
    upstream: Any
    result: Any


class LayerSteps(Prepared):
    """Passes that rotate through sets of operands; results are allocated at each, as they are in training."""

    def __init__(self, parameters: LayerPassParameters, seed: int, where: TorchDevice, cache_bytes: int) -> None:
        p, torch = parameters, where.torch
        self._parameters, self._where = p, where
        if where.is_gpu:
            torch.set_float32_matmul_precision("high" if p.dtype == "tfloat32" else "highest")
            torch.backends.cudnn.allow_tf32 = p.dtype == "tfloat32"
        set_elements = p.elements + math.prod(p.output)  # the result's gradient beside it
        wanted = math.ceil(CACHE_TURNOVER * cache_bytes / (set_elements * p.element_bytes))
        self.sets = min(wanted, MOST_SETS)
        self._sets = [self._set(seed) for _ in range(self.sets)]
        self._results: list[tuple[Any, ...] | None] = [None] * self.sets
        if isinstance(where.stopwatch, CudaStopwatch):
            where.stopwatch.sets = len(self._sets)
        details = {
            "operand_sets": len(self._sets),
            "cache": "partly_warm" if wanted > MOST_SETS else "cold_l2" if wanted > 1 else "larger_than_l2",
        }
        path = "channels_last" if p.layer == "conv" else "autograd"
        self.kernel = Kernel(f"{p.layer}_{p.phase}", path, details | where.details())

    @property
    def stopwatch(self) -> Stopwatch:
        return self._where.stopwatch

    def launch(self, index: int) -> None:
        place = index % self.sets
        self._results[place] = None
        self._results[place] = self._run(self._sets[place])

    def poison(self, index: int | None = None) -> None:
        """No results: those that no pass makes are missed."""
        for place in range(self.sets) if index is None else (index,):
            self._results[place] = None

    def kept(self, index: int) -> Any:
        return [each.detach().clone() for each in self._results[index] or ()]

    def equals(self, index: int, kept: Any) -> bool:
        found = self._results[index]
        return found is not None and all(map(self._where.torch.equal, found, kept))

    def left(self, index: int) -> Checked:
        """What the last pass over those operands gave, element by element and in norm, against float64."""
        results = self._results[index]
        if results is None:
            return Checked(1, 1, "no result")
        wrong, compared, first = 0, 0, ""
        for name, found, exact in zip(self._names, results, self._exact, strict=True):
            off = (found.detach().to(exact.device).double() - exact).abs()
            limit = ELEMENT_LIMIT[self._parameters.dtype] * (exact.abs() + exact.square().mean().sqrt())
            bad = ~(off <= limit)
            norm = float(off.norm() / exact.norm())
            here = int(bad.sum())
            if not here and not norm <= NORM_LIMIT[self._parameters.dtype]:
                here = 1
            if here and not first:
                at = tuple(bad.nonzero()[0].tolist()) if bad.any() else "all of it"
                first = f"{name} at {at}; {norm:.2g} off in norm"
            wrong, compared = wrong + here, compared + off.numel()
        return Checked(wrong, compared, first)

    def observed(self) -> Mapping[str, Observed]:
        """Bytes that a forward pass keeps for backward, beside weights."""
        if self._parameters.phase != "forward":
            return {}
        return {"saved": Observed("B", (self._kept_bytes(),))}

    def _kept_bytes(self) -> int:
        """Of the storages that autograd saves, each once and whole; of a single layer hooks see all of them.

        saved_bytes.py says the same of any model, but its dispatch mode has torch import its compiler for seconds.
        """
        torch, own = self._where.torch, self._sets[0]
        kept: dict[int, int] = {}

        def saw(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(saw, lambda tensor: tensor):
            result = layers.apply(torch, self._parameters, own.inputs, own.weights)
        for weight in own.weights:
            kept.pop(weight.untyped_storage()._cdata, None)
        del result  # which has held what was saved, so that no address was taken twice
        return sum(kept.values())

    @property
    def _names(self) -> tuple[str, ...]:
        p = self._parameters
        if p.phase == "forward":
            return ("the result",)
        inputs = [f"the gradient of input {number}" for number in range(len(p.inputs))]
        weights = [f"the gradient of weight {number}" for number in range(len(p.weights))]
        return (*(inputs if p.phase != "wgrad" else ()), *(weights if p.phase != "dgrad" else ()))

    def _run(self, own: _Set) -> tuple[Any, ...]:
        """The result, or the gradients that the pass is about."""
        if own.result is None:
            return (layers.apply(self._where.torch, self._parameters, own.inputs, own.weights),)
        gradients: tuple[Any, ...] = self._where.torch.autograd.grad(
            own.result, self._wanted(own.inputs, own.weights), own.upstream, retain_graph=True
        )
        return gradients

    def _wanted(self, inputs: tuple[Any, ...], weights: tuple[Any, ...]) -> tuple[Any, ...]:
        phase = self._parameters.phase
        return (*(inputs if phase != "wgrad" else ()), *(weights if phase != "dgrad" else ()))

    def _set(self, seed: int) -> _Set:
        """Seeded standard normals, weights such that results are about as large as inputs."""
        p, torch = self._parameters, self._where.torch
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, torch_name(p.dtype))

        def drawn(shape: tuple[int, ...], scale: float = 1.0) -> Any:
            made = (torch.randn(shape, generator=generator) * scale).to(self._where.device, dtype)
            return made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 and p.layer == "conv" else made

        inputs = tuple(drawn(shape).requires_grad_() for shape in p.inputs)
        scales = (1 / math.sqrt(math.prod(shape[1:])) for shape in p.weights)
        weights = tuple(torch.nn.Parameter(drawn(shape, scale)) for shape, scale in zip(p.weights, scales, strict=True))
        upstream = drawn(p.output)
        result = layers.apply(torch, p, inputs, weights) if p.phase != "forward" else None
        return _Set(inputs, weights, upstream, result)

    @functools.cached_property
    def _exact(self) -> tuple[Any, ...]:
        """What the pass must compute of the operands, in float64, where they are."""
        torch, p, own = self._where.torch, self._parameters, self._sets[0]
        place = self._where.device
        inputs = tuple(each.detach().to(place, torch.float64).requires_grad_() for each in own.inputs)
        weights = tuple(each.detach().to(place, torch.float64).requires_grad_() for each in own.weights)
        result = layers.written_out(torch, p, inputs, weights)
        if p.phase == "forward":
            return (result.detach(),)
        upstream = own.upstream.to(place, torch.float64)
        gradients = torch.autograd.grad(result, self._wanted(inputs, weights), upstream)
        return tuple(gradients)
