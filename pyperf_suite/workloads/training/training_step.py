"""One training step of the transformer, or a part of it, as a workload: in any precision, checkpointed or compiled."""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from pyperf_suite.errors import Unsupported, UserError, out_of_memory
from pyperf_suite.laws.model_flops import PASSES, model_flop
from pyperf_suite.measure.arrays import computed_anew
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.workloads import scratch
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training import optimizer_reference as reference
from pyperf_suite.workloads.training.gradients import fingerprint
from pyperf_suite.workloads.training.shape import Checkpointing
from pyperf_suite.workloads.training.trained_shape import TrainedShape
from pyperf_suite.workloads.workload import Checked, Implementation, Kernel, Place, Prepared, Work, Workload, together

# Forward alone, with what backward needs being kept; with backward; with AdamW's update as well.
PARTS = ("forward", "step", "train")

# Of so many at a time float64 gradients are computed: their scores take four times a half precision's memory.
REFERENCE_SEQUENCES = 4

RESULT = "the result"

# Of AdamW's updates.
LEARNING_RATE = 1e-4
DECAY = 0.01


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
        self.implementations: Mapping[str, Implementation[TrainingStepParameters]] = {"torch": TorchStep()}

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


class TorchStep(Implementation[TrainingStepParameters]):
    """The model of gpt.py by torch's autograd."""

    name = "torch"
    device_kind = "any"

    def validate(self, parameters: TrainingStepParameters) -> None:
        """Raise UserError for more workers than there are cores."""
        require_cores(parameters.workers)

    def prepare(self, parameters: TrainingStepParameters, place: Place) -> Prepared:
        """Build the seeded model there. Raises Unsupported where torch is absent or cannot use the GPU."""
        return TorchSteps(parameters, place.seed, TorchDevice(place.device, parameters.workers, queueing="open"))


def _require_compiler(where: TorchDevice) -> None:
    """Raise Unsupported where torch.compile has nothing to turn a graph into machine code with."""
    if where.is_gpu:
        if importlib.util.find_spec("triton") is None:
            raise Unsupported("torch.compile needs Triton on a GPU, and it is not installed.")
    elif shutil.which(os.environ.get("CXX", "g++")) is None:
        raise Unsupported("torch.compile needs a C++ compiler on a CPU: install g++, or name one in CXX.")


class TorchSteps(Prepared):
    """Steps of one model on one batch; gradients are made anew in each, as with zero_grad(set_to_none=True)."""

    # How many passes add up to the gradients that a step leaves.
    passes: int = 1

    def __init__(self, parameters: TrainingStepParameters, seed: int, where: TorchDevice) -> None:
        from pyperf_suite.workloads.training import gpt

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
        self._optimizer = (
            torch.optim.AdamW(self.model.parameters(), LEARNING_RATE, weight_decay=DECAY) if self._updates else None
        )
        self._upstream: Any = None
        self._result: Any = None
        self._shares_reference = not where.is_gpu
        self._due: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        if self._updates:
            self.unchecked = "Each step starts from the weights that the last one left."
        elif parameters.dropout:
            self.unchecked = "Each step drops other elements."
        self.kernel = Kernel(
            "transformer_step",
            "compiled" if parameters.compiled else "eager",
            {"parameters": sum(each.numel() for each in self.model.parameters()), **where.details()},
        )

    @property
    def stopwatch(self) -> Stopwatch:
        return self._where.stopwatch

    def launch(self, index: int) -> None:
        self._result = None
        result = self.forward()
        self._result = result.detach()
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
        result.backward(self._above() if result.ndim else None)

    def check(self) -> Checked:
        """A step without dropout, and with the seeded weights where it updates them; then every weight's update too."""
        if self._updates:
            self._start_anew()
        self._expected()
        self.poison()
        with self._without_dropout():
            self.launch(0)
        return together([self.left(0), *([self._updated()] if self._updates else ())])

    def poison(self, index: int | None = None) -> None:
        """No result and no gradients: what a step does not make is missed."""
        self._result = None
        self.model.zero_grad(set_to_none=True)

    def left(self, index: int) -> Checked:
        """The result and each parameter's gradient against float64, element by element."""
        from pyperf_suite.workloads.training.rounding import compared

        return compared(self._left(), *self._expected())

    def kept(self, index: int) -> Any:
        return fingerprint(self._present())

    def equals(self, index: int, kept: Any) -> bool:
        return fingerprint(self._present()) == kept

    def _above(self) -> Any:
        """The gradient of a last block's output."""
        if self._upstream is None:
            generator = self._where.torch.Generator().manual_seed(self._seed + 1)
            self._upstream = self._placed(self._where.torch.randn(self.inputs[0].shape, generator=generator))
        return self._upstream

    @property
    def _updates(self) -> bool:
        return self._parameters.part == "train"

    def _left(self) -> dict[str, Any]:
        """What the last step left, by name; None for a gradient that it did not make."""
        found = {RESULT: self._result}
        if self._parameters.part != "forward":
            found |= {f"the gradient of {name}": each.grad for name, each in self.model.named_parameters()}
        return found

    def _present(self) -> list[Any]:
        return [each for each in self._left().values() if each is not None]

    def _expected(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a step must leave, in float64, and by how much each element may be off.

        Of the seeded weights: computed once, on a GPU by it, and shared by the run's processes on a CPU.
        """
        sequences = len(self.inputs[0])
        if sequences not in self._due:
            backward = "" if self._parameters.part == "forward" else f"with {self.passes} backward passes"
            key = f"step of {self._plain()} {backward} seed {self._seed}, first {sequences} sequences"
            keep = scratch.shared(key) if self._shares_reference else computed_anew
            with warnings.catch_warnings():
                # What other processes map as well is not writable, and nobody writes here.
                warnings.simplefilter("ignore", UserWarning)
                found = {
                    name: self._where.torch.from_numpy(np.asarray(array))
                    for name, array in keep("expected", self._reference).items()
                }
            exact, limits = (
                {name.removeprefix(kind): each for name, each in found.items() if name.startswith(kind)}
                for kind in ("exact ", "limit ")
            )
            self._due[sequences] = (exact, limits)
        return self._due[sequences]

    def _plain(self) -> TrainedShape:
        """The model whose formula is the reference: attention written out, nothing dropped."""
        shape = TrainedShape(**{each.name: getattr(self._parameters, each.name) for each in fields(TrainedShape)})
        return replace(shape, attention="explicit", checkpointing=Checkpointing(), dropout=0.0)

    def _reference(self) -> dict[str, Any]:
        """The exact result and gradients, and limits, in host memory; by the CPU where a GPU has no room."""
        if self._where.is_gpu:
            try:
                return self._computed_on(self._where.device)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
        self._parameters.require_reference(min(len(self.inputs[0]), REFERENCE_SEQUENCES))
        return self._computed_on("cpu")

    def _computed_on(self, place: Any) -> dict[str, Any]:
        from pyperf_suite.workloads.training.rounding import RoundedOperations, Rounding, limits

        p = self._parameters
        model = self._seeded().to(place, self._where.torch.float64)
        exact = self._by_formula(model, place, self._where.torch.float64)
        # Where weights are cast for products, that rounds them too.
        cast = p.precision.startswith("autocast_") or p.element == "tfloat32"
        rounding = Rounding.of(p.element, max(p.width, p.hidden, p.vocab, p.tokens))
        with RoundedOperations(rounding, self._seed + 2, place, weights=cast):
            moved = self._by_formula(model, place, self._where.torch.float64)
        summed = 0 if self._where.is_gpu or p.weights == "float32" else p.tokens
        allowed = limits(exact, moved, rounding, summed)
        found = {}
        for name in exact:
            times = 1 if name == RESULT else self.passes
            right, limit = times * exact[name], times * allowed[name]
            if times > 1:
                # Each addition to what is there rounds the sum.
                limit += times * rounding.stored * right.abs()
            found[f"exact {name}"], found[f"limit {name}"] = right.cpu().numpy(), limit.cpu().numpy()
        return found

    def _seeded(self) -> Any:
        """The plain model on the CPU, with the weights that steps began with, as rounded there."""
        from pyperf_suite.workloads.training import gpt

        return gpt.build(self._plain(), self._seed).to(getattr(self._where.torch, self._parameters.weights))

    def _by_formula(self, model: Any, place: Any, dtype: Any) -> dict[str, Any]:
        """Result and gradients of the first step, some sequences at a time: those of a mean are a mean."""
        torch, count = self._where.torch, len(self.inputs[0])
        names, weights = zip(*model.named_parameters(), strict=True)
        results, sums = [], [torch.zeros_like(each, dtype=torch.float64) for each in weights]
        for first in range(0, count, REFERENCE_SEQUENCES):
            part = tuple(each[first : first + REFERENCE_SEQUENCES].to(place) for each in self.inputs)
            result = model(*(each.to(dtype) if each.is_floating_point() else each for each in part))
            is_loss = result.ndim == 0
            share = len(part[0]) / count if is_loss else 1.0
            results.append(result.detach().double() * share)
            if self._parameters.part == "forward":
                continue
            upstream = None if is_loss else self._above()[first : first + REFERENCE_SEQUENCES].to(place, dtype)
            for total, gradient in zip(sums, torch.autograd.grad(result, weights, upstream), strict=True):
                total += gradient.double() * share
        found = {RESULT: torch.stack(results).sum() if is_loss else torch.cat(results)}
        if self._parameters.part != "forward":
            found |= {f"the gradient of {name}": each.detach() for name, each in zip(names, sums, strict=True)}
        return found

    def _start_anew(self) -> None:
        """The seeded weights, and an optimizer that has seen no step."""
        assert self._optimizer is not None
        self.model.load_state_dict(self._seeded().state_dict())
        self._optimizer.state.clear()

    def _updated(self) -> Checked:
        """Each element of weights and moments after AdamW's first update, by the gradients that are there."""
        assert self._optimizer is not None
        seeded, checks = dict(self._seeded().named_parameters()), []
        for name, weight in self.model.named_parameters():
            before = reference.Standing(seeded[name].detach().to(weight.device), weight.grad, {})
            after = reference.Standing(weight.detach(), None, reference.states(self._optimizer.state[weight]))
            found = reference.compared("AdamW", before, after, 1, self._parameters.weights, LEARNING_RATE, DECAY)
            checks.append(replace(found, first=found.first and f"{name}: {found.first}"))
        return together(checks)

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        modules: list[Any] = [each for each in self.model.modules() if hasattr(each, "dropout")]
        kept = [(module, module.dropout) for module in modules]
        for module, _ in kept:
            module.dropout = 0.0
        try:
            yield
        finally:
            for module, share in kept:
                module.dropout = share

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
