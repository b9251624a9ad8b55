"""A training step that must fit into so many bytes: its time, what it keeps for backward, and the most it ever holds.

A batch that does not fit is unsupported and says by how much, so that a search for the largest one ends on evidence.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.hardware import memory
from pyperf_suite.laws.model_flops import PASSES
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training.shape import Checkpointing
from pyperf_suite.workloads.training.training_step import TorchSteps, TrainingStep, TrainingStepParameters
from pyperf_suite.workloads.workload import Checked, Implementation, Observed, Place, Prepared, Work, Workload

# A float64 reference of more FLOPs takes longer than what it judges; beyond, it is the same model without checkpointing
# on the same device that gradients are compared with.
FLOAT64_FLOP = 10_000_000_000


@dataclass(frozen=True)
class CheckpointedStepParameters(TrainingStepParameters):
    """A training step and the bytes that it may hold in all; 0 is all that the device has free."""

    budget_bytes: int = 0

    def validate(self) -> None:
        """Raise UserError for a transformer or a budget that cannot be."""
        super().validate()
        if self.budget_bytes < 0:
            raise UserError(f"A budget cannot be {self.budget_bytes} bytes: give at least 0, which is all there are.")


class CheckpointedStep(Workload[CheckpointedStepParameters]):
    """A training step within a budget of memory; time beside the bytes that it keeps and holds at most."""

    name = "checkpointed_step"
    parameters_type = CheckpointedStepParameters

    def __init__(self) -> None:
        self._step = TrainingStep()
        self.implementations: Mapping[str, Implementation[CheckpointedStepParameters]] = {
            "torch": TorchCheckpointedStep()
        }

    def validate(self, parameters: CheckpointedStepParameters) -> None:
        """Raise UserError for a transformer, precision, part or budget that cannot be."""
        self._step.validate(parameters)
        if parameters.compiled:
            raise UserError("What a compiled step holds cannot be watched: leave compiled off.")

    def footprint_bytes(self, parameters: CheckpointedStepParameters) -> int:
        """Of weights, gradients and moments alone: a batch that does not fit is what is looked for."""
        return parameters.state_bytes(updated=parameters.part == "train")

    def work(self, parameters: CheckpointedStepParameters) -> Work:
        """Model FLOPs of the part; what checkpointing computes again is no work done."""
        return self._step.work(parameters)


class TorchCheckpointedStep(Implementation[CheckpointedStepParameters]):
    """The model of gpt.py by torch's autograd and torch.utils.checkpoint."""

    name = "torch"
    device_kind = "any"

    def validate(self, parameters: CheckpointedStepParameters) -> None:
        """Raise UserError for more workers than there are cores."""
        require_cores(parameters.workers)

    def prepare(self, parameters: CheckpointedStepParameters, place: Place) -> Prepared:
        """Build the model and try a step. Raises Unsupported where a step needs more than the budget."""
        where = TorchDevice(place.device, parameters.workers, queueing="open")
        budget = parameters.budget_bytes or _free_bytes(where)
        # What enters the first block is kept in 2 bytes an element or more, whatever is dropped.
        if 2 * parameters.tokens * parameters.hidden > budget:
            raise Unsupported(_does_not_fit(parameters, "its input alone is too large", budget))
        try:
            return CheckpointedSteps(parameters, place.seed, where, budget)
        except where.torch.OutOfMemoryError:
            reason = f"Batch {parameters.batch} does not fit: the place.device's memory is exhausted."
        # Outside of the handler, whose traceback keeps the model alive.
        gc.collect()
        if where.is_gpu:
            where.torch.cuda.empty_cache()
        raise Unsupported(reason)


class CheckpointedSteps(TorchSteps):
    """Steps that are known to fit."""

    def __init__(self, parameters: CheckpointedStepParameters, seed: int, where: TorchDevice, budget: int) -> None:
        super().__init__(parameters, seed, where)
        self._budget = budget
        self._shares_reference &= self._affords_float64(1)
        if not self._affords_float64(parameters.batch):
            self.unchecked = self.unchecked or "A whole batch would take too long in float64: one sequence is compared."
        with self._one_sequence():
            kept_of_one = self._kept()
        # What is kept grows with the batch exactly; so a batch far too large is told without being tried.
        at_least = self._fixed() + kept_of_one * parameters.batch
        if at_least > budget:
            raise Unsupported(_does_not_fit(parameters, f"a step holds at least {at_least / 1e6:.4g} MB", budget))
        self.launch(0)  # moments are made by the first update and stay
        self._peak = self._held_at_most(lambda: self.launch(0))
        if self._peak > budget:
            raise Unsupported(_does_not_fit(parameters, f"a step holds up to {self._peak / 1e6:.4g} MB", budget))

    def check(self) -> Checked:
        """The batch against float64, or its first sequence where all of it would take too long.

        Where that would too, against the same model without checkpointing on the same device.
        """
        if self._affords_float64(self._parameters.batch):
            return super().check()
        with self._one_sequence():
            return super().check()

    def _affords_float64(self, sequences: int) -> bool:
        passes = PASSES if self._parameters.part == "forward" else 1
        flop = TrainingStep().work(self._parameters).flop * passes / self._parameters.batch
        return flop * sequences <= FLOAT64_FLOP

    def observed(self) -> Mapping[str, Observed]:
        """Bytes: `kept` for backward, `fixed` (weights and moments), the `peak`, the `budget`.

        `peak_of_one` is that of one sequence before the update, whose own peak does not grow with the batch. The most
        that is held is the largest of several straight lines (at the first gradient, in between, at the last), so a
        line from one sequence through the batch promises larger batches at least as much room as there is.
        """
        kept = self._kept()
        with self._one_sequence():
            peak_of_one = self._held_at_most(self._before_update)
        figures = {
            "kept": kept,
            "fixed": self._fixed(),
            "peak": self._peak,
            "peak_of_one": peak_of_one,
            "budget": self._budget,
        }
        return {name: Observed("B", (float(figure),)) for name, figure in figures.items()}

    def _kept(self) -> int:
        from pyperf_suite.workloads.training.saved_bytes import saved_bytes

        return saved_bytes(self.model, self.forward)

    def _before_update(self) -> None:
        result = self.forward()
        if self._parameters.part != "forward":
            self.backward(result)

    def _held_at_most(self, call: Callable[[], None]) -> int:
        """Weights and moments, and the most that a step adds to them: activations, gradients, what is passing."""
        from pyperf_suite.workloads.training.peak_bytes import peak_bytes

        self.model.zero_grad(set_to_none=True)
        return self._fixed() + peak_bytes(call, self._where.device)

    def _fixed(self) -> int:
        """Bytes that stay from step to step, inputs included."""
        from pyperf_suite.workloads.training.peak_bytes import bytes_of

        moments = self._optimizer.state_dict()["state"] if self._optimizer is not None else ()
        owned = (list(self.model.parameters()), list(self.model.buffers()), moments, self.inputs, self._upstream)
        return bytes_of(owned)

    @contextmanager
    def _one_sequence(self) -> Iterator[None]:
        """The first of the batch alone, for as long as this is entered."""
        whole, upstream = self.inputs, self._upstream
        self.inputs, self._upstream = tuple(each[:1].clone() for each in whole), None
        try:
            yield
        finally:
            self.inputs, self._upstream = whole, upstream

    def _by_formula(self, model: Any, place: Any, dtype: Any) -> dict[str, Any]:
        """Where float64 would take too long, of this very model while it drops nothing."""
        if self._affords_float64(1):
            return super()._by_formula(model, place, dtype)
        from pyperf_suite.workloads.training.gpt import Blocks

        stacks = [each for each in self.model.modules() if isinstance(each, Blocks)]
        for stack in stacks:
            stack.checkpointing = Checkpointing()
        try:
            with self._without_dropout(), self._precision():
                own_type = getattr(self._where.torch, self._parameters.weights)
                return super()._by_formula(self.model, self._where.device, own_type)
        finally:
            for stack in stacks:
                stack.checkpointing = self._parameters.checkpointing


def _does_not_fit(parameters: CheckpointedStepParameters, why: str, budget: int) -> str:
    return f"Batch {parameters.batch} does not fit: {why}, and {budget / 1e6:.4g} MB are allowed."


def _free_bytes(where: TorchDevice) -> int:
    """What the device has free for this process, before anything is placed there."""
    if where.is_gpu:
        return int(where.torch.cuda.mem_get_info(where.device)[0])
    return memory.available_bytes()
