"""One pass of one layer as a workload: forward, or the gradients of its input, of its weights, or of both."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.stopwatch import CudaStopwatch
from pyperf_suite.workloads.dtypes import torch_name
from pyperf_suite.workloads.operator import sets_to_rotate
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training import layers
from pyperf_suite.workloads.training.layers import LayerPassParameters
from pyperf_suite.workloads.training.torch_steps import RESULT, ByTorch, Due, Passes, use_products_of
from pyperf_suite.workloads.workload import Kernel, Observed, Work, Workload, by_name

# An element may be off by so much of its own size and the tensor's root mean square together, the whole in norm by the
# second: rounding of operands and results, and what sums over tokens make of it. An element nobody wrote is off by 1.
ELEMENT_LIMIT = {"float32": 1e-3, "tfloat32": 3e-2, "bfloat16": 0.1, "float16": 2e-2}
NORM_LIMIT = {"float32": 1e-4, "tfloat32": 3e-3, "bfloat16": 2e-2, "float16": 3e-3}

# Of operands that small that it took more sets to leave caches cold, the caches are part of the answer.
MOST_SETS = 8


@dataclass(frozen=True)
class Operands:
    """Of one pass: the result, with its graph, where a gradient of it is asked for."""

    inputs: tuple[Any, ...]
    weights: tuple[Any, ...]
    upstream: Any
    result: Any


class LayerSteps(Passes):
    """torch's own functions, convolutions in channels-last as NVIDIA and oneDNN advise."""

    def __init__(self, parameters: LayerPassParameters, seed: int, where: TorchDevice) -> None:
        use_products_of(where, parameters.dtype)
        self._p, self._where, p = parameters, where, parameters
        # The result's gradient lies beside it.
        set_bytes = (p.elements + math.prod(p.output)) * p.element_bytes
        sets, cache = sets_to_rotate(
            set_bytes, Device("cuda" if where.is_gpu else "cpu", where.device.index or 0), MOST_SETS
        )
        if isinstance(where.stopwatch, CudaStopwatch):
            where.stopwatch.sets = sets
        path = "channels_last" if p.layer == "conv" else "autograd"
        details = {"operand_sets": sets, "cache": cache, **where.details()}
        names = p.of_phase(
            [f"the gradient of input {number}" for number in range(len(p.inputs))],
            [f"the gradient of weight {number}" for number in range(len(p.weights))],
        )
        super().__init__(
            where,
            Kernel(f"{p.layer}_{p.phase}", path, details),
            [self._drawn(seed) for _ in range(sets)],
            (RESULT,) if p.phase == "forward" else names,
        )

    def _drawn(self, seed: int) -> Operands:
        """Seeded standard normals, weights such that results are about as large as inputs."""
        p, torch = self._p, self._where.torch
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, torch_name(p.dtype))

        def drawn(shape: tuple[int, ...], scale: float = 1.0) -> Any:
            made = (torch.randn(shape, generator=generator) * scale).to(self._where.device, dtype)
            return made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 and p.layer == "conv" else made

        inputs = tuple(drawn(shape).requires_grad_() for shape in p.inputs)
        weights = tuple(torch.nn.Parameter(drawn(shape, math.prod(shape[1:]) ** -0.5)) for shape in p.weights)
        upstream = drawn(p.output)
        result = layers.apply(torch, p.layer, inputs, weights) if p.phase != "forward" else None
        return Operands(inputs, weights, upstream, result)

    def _run(self, operands: Operands) -> tuple[Any, ...]:
        if operands.result is None:
            return (layers.apply(self._where.torch, self._p.layer, operands.inputs, operands.weights),)
        return self._gradients(operands, again=True)

    def _gradients(self, of: Operands, again: bool) -> tuple[Any, ...]:
        """Those that the pass is about; the graph stays where they are computed again."""
        wanted = self._p.of_phase(of.inputs, of.weights)
        found: tuple[Any, ...] = self._where.torch.autograd.grad(of.result, wanted, of.upstream, retain_graph=again)
        return found

    def due(self) -> Due:
        """What the pass must compute of the operands, in float64, where they are."""
        return self._due

    @functools.cached_property
    def _due(self) -> Due:
        torch, p, own = self._where.torch, self._p, self._sets[0]
        inputs, weights = (
            tuple(each.detach().double().requires_grad_() for each in group) for group in (own.inputs, own.weights)
        )
        result = layers.written_out(torch, p.layer, inputs, weights)
        wide = Operands(inputs, weights, own.upstream.double(), result)
        found = (result.detach(),) if p.phase == "forward" else self._gradients(wide, again=False)
        exact = dict(zip(self._names, found, strict=True))
        share = ELEMENT_LIMIT[p.dtype]
        allowed = {name: share * (each.abs() + each.square().mean().sqrt()) for name, each in exact.items()}
        return Due(exact, allowed, NORM_LIMIT[p.dtype])

    def observed(self) -> Mapping[str, Observed]:
        """Bytes that a forward pass keeps for backward, beside weights."""
        if self._p.phase != "forward":
            return {}
        return {"saved": Observed("B", (self._kept_bytes(),))}

    def _kept_bytes(self) -> int:
        """Of the storages that autograd saves, each once and whole; of a single layer hooks see all of them.

        held_bytes.kept says the same of any model, but its dispatch mode has torch import its compiler for seconds.
        """
        torch, own = self._where.torch, self._sets[0]
        kept: dict[int, int] = {}

        def saw(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(saw, lambda tensor: tensor):
            result = layers.apply(torch, self._p.layer, own.inputs, own.weights)
        for weight in own.weights:
            kept.pop(weight.untyped_storage()._cdata, None)
        del result  # which has held what was saved, so that no address was taken twice
        return sum(kept.values())


class LayerPass(Workload[LayerPassParameters]):
    """A layer's forward pass, or its gradients by autograd."""

    name = "layer_pass"
    parameters_type = LayerPassParameters
    implementations = by_name(ByTorch(LayerSteps, queueing="held"))

    def footprint_bytes(self, parameters: LayerPassParameters) -> int:
        return parameters.elements * parameters.element_bytes * (1 if parameters.phase == "forward" else 2)

    def work(self, parameters: LayerPassParameters) -> Work:
        return layers.work(parameters)
