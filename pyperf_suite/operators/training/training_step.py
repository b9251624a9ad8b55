"""One training step of the transformer, or a part of it, as a workload: in any precision, checkpointed or compiled."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.model_flops import PASSES, model_flop
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.operators.cores import require_cores
from pyperf_suite.operators.operator import Checked, Kernel, Work
from pyperf_suite.operators.torch_device import TorchDevice
from pyperf_suite.operators.training.trained_shape import TrainedShape
from pyperf_suite.operators.workload import Steps, Workload, WorkloadImplementation

# Forward alone, with what backward needs being kept; with backward; with AdamW's update as well.
PARTS = ("forward", "step", "train")

# Relative norm of a parameter's gradient against float64: rounding of each element times what a dozen layers make of
# it. A wrong mask, a lost residual or a missing term is an error of order 1.
GRADIENT_LIMIT = {"float32": 1e-3, "tfloat32": 3e-2, "bfloat16": 0.15, "float16": 3e-2}


@dataclass(frozen=True)
class TrainingStepParameters(TrainedShape):
    """A transformer, the precision it is trained in, the part of a step that is timed, and the CPU cores it may use."""

    part: str = "step"
    compiled: bool = False
    workers: int = 1


class TrainingStep(Workload[TrainingStepParameters]):
    """Forward and backward of a transformer, and its update."""

    name = "training_step"
    parameters_type = TrainingStepParameters

    def __init__(self) -> None:
        self.implementations: Mapping[str, WorkloadImplementation[TrainingStepParameters]] = {"torch": TorchStep()}

    def validate(self, parameters: TrainingStepParameters) -> None:
        """Raise UserError for a transformer, precision or part that cannot be."""
        parameters.validate()
        if parameters.part not in PARTS:
            raise UserError(f"Unknown part {parameters.part!r}: choose from {', '.join(PARTS)}.")

    def footprint_bytes(self, parameters: TrainingStepParameters) -> int:
        """Weights, gradients, moments where they are updated, and what forward keeps."""
        return parameters.step_bytes(updated=parameters.part == "train")

    def work(self, parameters: TrainingStepParameters) -> Work:
        """Model FLOPs of the part, causal pairs alone (laws/model_flops.py); what is recomputed is no work done."""
        flop = model_flop(parameters.dimensions, parameters.batch, parameters.seq)
        if not parameters.vocab:
            # The laws' model has logits over a vocabulary of one.
            flop -= PASSES * 2 * parameters.tokens * parameters.hidden
        return Work(round(flop / PASSES if parameters.part == "forward" else flop), 0)


class TorchStep(WorkloadImplementation[TrainingStepParameters]):
    """The model of gpt.py by torch's autograd."""

    name = "torch"
    device_kind = "any"

    def validate(self, parameters: TrainingStepParameters) -> None:
        """Raise UserError for more workers than there are cores."""
        require_cores(parameters.workers)

    def prepare(self, parameters: TrainingStepParameters, seed: int, device: Device) -> Steps:
        """Build the seeded model there. Raises Unsupported where torch is absent or cannot use the GPU."""
        return TorchSteps(parameters, seed, TorchDevice(device, parameters.workers, queueing="open"))


def _require_compiler(where: TorchDevice) -> None:
    """Raise Unsupported where torch.compile has nothing to turn a graph into machine code with."""
    if where.is_gpu:
        if importlib.util.find_spec("triton") is None:
            raise Unsupported("torch.compile needs Triton on a GPU, and it is not installed.")
    elif shutil.which(os.environ.get("CXX", "g++")) is None:
        raise Unsupported("torch.compile needs a C++ compiler on a CPU: install g++, or name one in CXX.")


class TorchSteps(Steps):
    """Steps of one model on one batch; gradients are made anew in each, as with zero_grad(set_to_none=True)."""

    def __init__(self, parameters: TrainingStepParameters, seed: int, where: TorchDevice) -> None:
        from pyperf_suite.operators.training import gpt

        self._parameters, self._seed, self._where = parameters, seed, where
        torch = where.torch
        if where.is_gpu:
            torch.set_float32_matmul_precision("high" if parameters.element == "tfloat32" else "highest")
        elif parameters.element == "tfloat32":
            raise Unsupported("A CPU has no tfloat32.")
        gpt.require_attention(parameters, where.device, getattr(torch, parameters.element.replace("tfloat", "float")))
        self.model = gpt.build(parameters, seed).to(where.device, getattr(torch, parameters.weights))
        self.inputs = tuple(self._placed(each) for each in gpt.inputs(parameters, seed))
        if parameters.compiled:
            _require_compiler(where)
        self._call = torch.compile(self.model) if parameters.compiled else self.model
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4) if parameters.part == "train" else None
        self._upstream: Any = None
        self._exact: dict[str, Any] = {}
        self.kernel = Kernel(
            "transformer_step",
            "compiled" if parameters.compiled else "eager",
            {"parameters": sum(each.numel() for each in self.model.parameters()), **where.details()},
        )

    @property
    def stopwatch(self) -> Stopwatch:
        return self._where.stopwatch

    def step(self, index: int) -> None:
        result = self.forward()
        if self._parameters.part == "forward":
            return
        self.model.zero_grad(set_to_none=True)
        self.backward(result)
        if self._optimizer is not None:
            self._optimizer.step()

    def forward(self) -> Any:
        """The loss, or the last block's output."""
        with self._precision():
            return self._call(*self.inputs)

    def backward(self, result: Any) -> None:
        """Gradients of the loss, or of the output's product with a seeded standard normal."""
        if result.ndim == 0:
            result.backward()
            return
        if self._upstream is None:
            generator = self._where.torch.Generator().manual_seed(self._seed + 1)
            drawn = self._where.torch.randn(result.shape, generator=generator)
            self._upstream = drawn.to(result.device, result.dtype)
        result.backward(self._upstream)

    def check(self) -> Checked:
        """Each parameter's gradient against float64, without dropout; and that weights are finite after an update."""
        limit = GRADIENT_LIMIT[self._parameters.element]
        found = self._gradients(self.model, self.inputs, self._precision())
        if not self._exact or self._optimizer is not None:
            self._exact = self._reference()  # stays right as long as nothing updates the weights
        wrong = []
        for (name, gradient), reference in zip(found.items(), self._exact.values(), strict=True):
            error = float((gradient - reference).norm() / reference.norm())
            if not error <= limit:
                wrong.append(f"the gradient of {name} is {error:.2g} off in norm, and {limit:g} is allowed")
        self.step(0)
        for name, weight in self.model.named_parameters():
            if not weight.isfinite().all():
                wrong.append(f"{name} is no longer finite")
        return Checked(len(wrong), 2 * len(found), wrong[0] if wrong else "")

    def _reference(self) -> dict[str, Any]:
        """Gradients in float64 on the CPU, of the plain model with these very weights."""
        from pyperf_suite.operators.training import gpt
        from pyperf_suite.operators.training.shape import Checkpointing

        self._parameters.require_reference()
        plain = replace(self._parameters, attention="explicit", checkpointing=Checkpointing(), dropout=0.0)
        model = gpt.build(plain).double()
        state = {name: each.detach().cpu().double() for name, each in self.model.state_dict().items()}
        model.load_state_dict(state)
        inputs = tuple(each.cpu().double() if each.is_floating_point() else each.cpu() for each in self.inputs)
        return self._gradients(model, inputs, nullcontext())

    def _gradients(self, model: Any, inputs: tuple[Any, ...], precision: AbstractContextManager[Any]) -> dict[str, Any]:
        """By parameter's name, in float64 on the CPU, of the model as it is but for dropout."""
        kept = [(module, module.dropout) for module in model.modules() if hasattr(module, "dropout")]
        for module, _ in kept:
            module.dropout = 0.0
        try:
            model.zero_grad(set_to_none=True)
            with precision:
                result = (self._call if model is self.model else model)(*inputs)
            self.backward(result)
        finally:
            for module, share in kept:
                module.dropout = share
        # A weight that got no gradient has one that no limit takes for right.
        gradients = {
            name: (each.new_full(each.shape, float("nan")) if each.grad is None else each.grad).detach().cpu().double()
            for name, each in model.named_parameters()
        }
        model.zero_grad(set_to_none=True)
        return gradients

    def _precision(self) -> AbstractContextManager[Any]:
        torch = self._where.torch
        if self._parameters.precision.startswith("autocast_"):
            cast: AbstractContextManager[Any] = torch.autocast(
                self._where.device.type, getattr(torch, self._parameters.element)
            )
            return cast
        return nullcontext()

    def _placed(self, tensor: Any) -> Any:
        dtype = getattr(self._where.torch, self._parameters.weights)
        return tensor.to(self._where.device, dtype if tensor.is_floating_point() else tensor.dtype)
