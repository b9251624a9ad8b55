"""Measure the memory of a training step: read from a real step, or limited to a budget while it is timed.

`training_memory` is exact on the CPU, where storages are counted; on a GPU the allocator counts peaks. Of
`checkpointed_step` a batch that does not fit is unsupported and says by how much, so that a search for the largest one
ends on evidence.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import psutil

from pyperf_suite.errors import Failed, Unsupported, out_of_memory
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.devices import Device, Unavailable, gpus
from pyperf_suite.hardware.nvml import nvml
from pyperf_suite.laws.transformer import PASSES
from pyperf_suite.workloads.backends import ByTorch, TorchDevice, leave_nothing_behind
from pyperf_suite.workloads.operands import torch_name
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.training.training_step import StepWorkload, TorchSteps, TrainingStep, TrainingStepParameters
from pyperf_suite.workloads.workload import (
    ByFunction,
    Checked,
    Exact,
    ExecutionContext,
    Kernel,
    Observed,
    Prepared,
    by_name,
    exact_metric,
)

# A float64 reference of more FLOPs takes longer than what it judges; beyond, it is the same model without checkpointing
# on the same device that gradients are compared with.
FLOAT64_FLOP = 10_000_000_000
STEPS_SHOWN = 3  # the optimizer's state is made by the first one, and the allocator has what it keeps after the second
# Within which a process of its own has to answer, so that it is ended before the worker that waits for it.
PART_OF_DEADLINE = 0.9


class WatchedSteps(TorchSteps):
    """Steps with AdamW whose bytes are counted by what they are for."""

    def __init__(self, parameters: TrainingStepParameters, seed: int, where: TorchDevice) -> None:
        # The bytes of tfloat32, an arithmetic, are those of float32, on a CPU too.
        super().__init__(replace(parameters, precision=torch_name(parameters.precision), part="train"), seed, where)

    def bytes_by_kind(self) -> dict[str, int]:
        """Parameters, and bytes of each kind; "peak" is the most of a whole step, weights and states included."""
        assert self._optimizer is not None
        found = super().bytes_by_kind()
        found["parameters"] = sum(each.numel() for each in self.model.parameters())
        found["optimizer"] = self._held_bytes.bytes_of(list(self._optimizer.state.values()))
        found["peak"] = found["weights"] + found["optimizer"] + self.added_bytes(lambda: self.launch(0))
        return found


def counted(parameters: TrainingStepParameters, place: ExecutionContext, kind: Literal["cpu", "cuda"]) -> Exact:
    """Every storage on the CPU; on a GPU peaks are those of torch's allocator."""
    # On a CPU to wait for others would take longer than these small products.
    where = TorchDevice(Device(kind, place.device.index), workers=1, queueing="open")
    found = WatchedSteps(parameters, place.seed, where).bytes_by_kind()
    of_gpu = where.torch.cuda.get_device_properties(where.device) if where.is_gpu else None
    return _exact(found | {"capacity": int(of_gpu.total_memory if of_gpu else psutil.virtual_memory().total)}, kind)


def by_own_process(parameters: TrainingStepParameters, place: ExecutionContext) -> Exact:
    """Return the memory that the system shows of a process that only trains: nvidia-smi, or a CPU's resident set."""
    allowed_s = PART_OF_DEADLINE * place.deadline_s
    with multiprocessing.get_context("spawn").Pool(1) as alone:
        answer = alone.apply_async(process_bytes, (parameters, place.device, place.seed))
        try:
            found = answer.get(allowed_s)
        except multiprocessing.TimeoutError:
            raise Failed(f"No answer within {allowed_s:g} s: take a smaller batch, or a longer --deadline.") from None
    return _exact(found, place.device.kind)


def process_bytes(parameters: TrainingStepParameters, device: Device, seed: int) -> dict[str, int]:
    """Bytes after some steps with AdamW; for a process that did nothing before.

    `shown` is what the system shows: on a GPU by NVML, and what its context and libraries take of it is `context`,
    besides what the allocator has `reserved` and, at most, `allocated`; on a CPU the peak of the resident set, and what
    Python and torch had of it before there was a model. `tensors` are counted, at most at any time.
    """
    manager, uuid = nvml(), gpus()[device.index].uuid if device.kind == "cuda" else ""
    on_gpu = None if isinstance(manager, Unavailable) else manager
    used_before = on_gpu.used_bytes(uuid) if on_gpu and uuid else None
    where = TorchDevice(device, queueing="open")
    context = psutil.Process().memory_info().rss
    steps = WatchedSteps(parameters, seed, where)
    for index in range(STEPS_SHOWN):
        steps.launch(index)
    sizes = {"shown": memory.resident_peak_bytes(), "context": context}
    if uuid:
        cuda, used = where.torch.cuda, on_gpu.used_bytes(uuid) if on_gpu else None
        cuda.synchronize(where.device)
        reserved = cuda.memory_reserved(where.device)
        sizes = {"reserved": reserved, "allocated": cuda.max_memory_allocated(where.device)}
        own = dict((on_gpu and on_gpu.processes(uuid)) or ()).get(os.getpid())
        # In a container NVML may name other numbers for processes.
        shown = own or (used - used_before if used is not None and used_before is not None else None)
        sizes |= {} if shown is None else {"shown": shown, "context": shown - reserved}
    return sizes | {"tensors": steps.bytes_by_kind()["peak"]}


def _exact(sizes: Mapping[str, int], path: str) -> Exact:
    metrics = {name: exact_metric("" if name == "parameters" else "B", float(value)) for name, value in sizes.items()}
    return Exact(Kernel("transformer_step", path), metrics)


class TrainingMemory(StepWorkload):
    """Weights, gradients, AdamW's state and kept activations of a transformer, and the peak of a step."""

    name = "training_memory"
    implementations = by_name(
        ByFunction("storages", partial(counted, kind="cpu"), "cpu"),
        ByFunction("allocator", partial(counted, kind="cuda"), "cuda"),
        ByFunction("process", by_own_process),
    )
    is_exact = True

    def footprint_bytes(self, parameters: TrainingStepParameters) -> int:
        return replace(parameters, part="train").step_bytes


class CheckpointedSteps(TorchSteps):
    """Steps that are known to fit into a budget."""

    def __init__(self, parameters: TrainingStepParameters, seed: int, where: TorchDevice) -> None:
        free_bytes = where.torch.cuda.mem_get_info(where.device)[0] if where.is_gpu else memory.available_bytes()
        self._batch, self._budget = parameters.batch, parameters.budget_bytes or int(free_bytes)
        # The input of the first block is kept in 2 bytes an element or more, whatever is dropped.
        self._require_fits(2 * parameters.tokens * parameters.hidden, "its input alone is too large")
        super().__init__(parameters, seed, where)
        self._shares_reference &= self._affords_float64(1)
        if not self._affords_float64(self._batch):
            self.unchecked = self.unchecked or "A whole batch would take too long in float64: one sequence is compared."
        with self._one_sequence():
            kept_of_one = int(self._held_bytes.kept(self.model, self.forward).total)
        # Kept bytes grow with the batch exactly; so a batch far too large is refused without being tried.
        self._require_fits(self._fixed() + kept_of_one * self._batch, "a step holds at least {:.4g} MB")
        self.launch(0)  # moments are made by the first update and stay
        # Weights and moments, and the most that a step adds: activations, gradients, temporary memory.
        self._peak = self._fixed() + self.added_bytes(lambda: self.launch(0))
        self._require_fits(self._peak, "a step holds up to {:.4g} MB")

    def _require_fits(self, nbytes: int, why: str) -> None:
        if nbytes > self._budget:
            why = why.format(nbytes / 1e6)
            raise Unsupported(f"Batch {self._batch} does not fit: {why}, and {self._budget / 1e6:.4g} MB are allowed.")

    def check(self) -> Checked:
        """Compare the batch with float64, else its first sequence, else with the model without checkpointing."""
        if self._affords_float64(self._batch):
            return super().check()
        with self._one_sequence():
            return super().check()

    def observed(self) -> Mapping[str, Observed]:
        """Bytes: `kept` for backward, `fixed` (weights and moments), the `peak`, the `budget`.

        `peak_of_one` is that of one sequence before the update, whose own peak does not grow with the batch. The most
        that is held is the largest of several straight lines (at the first gradient, in between, at the last), so a
        line from one sequence through the batch promises larger batches at least as much room as there is.
        """
        kept = int(self._held_bytes.kept(self.model, self.forward).total)
        figures = {"kept": kept, "fixed": self._fixed(), "peak": self._peak, "budget": self._budget}
        with self._one_sequence():
            figures["peak_of_one"] = self._fixed() + self.added_bytes(self.passes)
        return {name: Observed("B", (float(figure),)) for name, figure in figures.items()}

    def _affords_float64(self, sequences: int) -> bool:
        passes = 1 if self._p.goes_back else PASSES
        return CheckpointedStep().work(self._p).flop * passes / self._batch * sequences <= FLOAT64_FLOP

    def _fixed(self) -> int:
        moments = self._optimizer.state_dict()["state"] if self._optimizer is not None else ()
        owned = (list(self.model.parameters()), list(self.model.buffers()), moments, self.inputs, self._upstream)
        return int(self._held_bytes.bytes_of(owned))

    @contextmanager
    def _one_sequence(self) -> Iterator[None]:
        whole, upstream = self.inputs, self._upstream
        self.inputs, self._upstream = tuple(each[:1].clone() for each in whole), None
        try:
            yield
        finally:
            self.inputs, self._upstream = whole, upstream

    def _by_formula(self, model: Any, device: Any, dtype: Any) -> dict[str, Any]:
        """Use, where float64 would take too long, this very model while it drops nothing."""
        if self._affords_float64(1):
            return super()._by_formula(model, device, dtype)
        keeping_all = self._modules_with("checkpointing", Checkpointing())
        with keeping_all, self._modules_with("dropout", 0.0), self._precision():
            own_type = getattr(self._where.torch, self._p.weights)
            return super()._by_formula(self.model, self._where.device, own_type)


class WithinBudget(ByTorch):
    """The model of gpt.py by torch's autograd and torch.utils.checkpoint."""

    def prepare(self, parameters: TrainingStepParameters, place: ExecutionContext) -> Prepared:
        try:
            return super().prepare(parameters, place)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside of the handler, whose traceback keeps the model alive.
        leave_nothing_behind(place.device)
        raise Unsupported(f"Batch {parameters.batch} does not fit: the device's memory is exhausted.")


class CheckpointedStep(TrainingStep):
    """A training step within a budget of memory: its time, and the bytes that it keeps and holds at most."""

    name = "checkpointed_step"
    takes_turns = False  # what others hold would count
    # The tensors of a compiled step cannot be watched.
    options = ("part", "workers", "budget_bytes")
    implementations = by_name(WithinBudget(CheckpointedSteps))

    def footprint_bytes(self, parameters: TrainingStepParameters) -> int:
        return parameters.state_bytes
