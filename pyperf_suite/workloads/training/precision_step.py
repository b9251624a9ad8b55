"""A training step in any precision that tells what it keeps in memory, and how often autocast casts its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training.training_step import TorchSteps, TrainingStep, TrainingStepParameters
from pyperf_suite.workloads.workload import Implementation, Observed, Place, Prepared, Work, Workload

# How long autocast's casts of weights are kept. "iteration": a context around each forward pass, as torch advises;
# "nested": the same inside one context around the whole step, which alone drops them; "off": as nested, but with
# cache_enabled=False, so that each use casts anew.
CAST_CACHES = ("iteration", "nested", "off")


@dataclass(frozen=True)
class PrecisionStepParameters(TrainingStepParameters):
    """A training step of `micro_batches` forward and backward passes whose gradients add up; see CAST_CACHES."""

    micro_batches: int = 1
    cast_cache: str = "iteration"


class PrecisionStep(Workload[PrecisionStepParameters]):
    """Forward and backward passes in one precision, with what they keep in memory told beside their time."""

    name = "precision_step"
    parameters_type = PrecisionStepParameters

    def __init__(self) -> None:
        self.implementations: Mapping[str, Implementation[PrecisionStepParameters]] = {"torch": TorchPrecisionStep()}

    def validate(self, parameters: PrecisionStepParameters) -> None:
        """Raise UserError for a step that cannot be, or a cache of casts where nothing is cast."""
        TrainingStep().validate(parameters)
        if parameters.part != "step":
            raise UserError(f"A precision_step is forward and backward: its part is step, not {parameters.part}.")
        if parameters.micro_batches < 1:
            raise UserError(f"A step takes at least 1 micro-batch, but {parameters.micro_batches} were asked for.")
        if parameters.cast_cache not in CAST_CACHES:
            raise UserError(f"Unknown cast_cache {parameters.cast_cache!r}: choose from {', '.join(CAST_CACHES)}.")
        if parameters.cast_cache != "iteration" and not parameters.precision.startswith("autocast_"):
            raise UserError(f"{parameters.precision} casts no weights: leave cast_cache={parameters.cast_cache} out.")

    def footprint_bytes(self, parameters: PrecisionStepParameters) -> int:
        """Weights, gradients, and what forward keeps of a micro-batch."""
        return TrainingStep().footprint_bytes(parameters)

    def work(self, parameters: PrecisionStepParameters) -> Work:
        """Model FLOPs of all micro-batches."""
        return Work(parameters.micro_batches * TrainingStep().work(parameters).flop, 0)


class TorchPrecisionStep(Implementation[PrecisionStepParameters]):
    """The model of gpt.py by torch's autograd and autocast."""

    name = "torch"
    device_kind = "any"

    def validate(self, parameters: PrecisionStepParameters) -> None:
        """Raise UserError for more workers than there are cores."""
        require_cores(parameters.workers)

    def prepare(self, parameters: PrecisionStepParameters, place: Place) -> Prepared:
        """Build the seeded model there. Raises Unsupported where torch cannot do that precision."""
        return PrecisionSteps(parameters, place.seed, TorchDevice(place.device, parameters.workers, queueing="open"))


class PrecisionSteps(TorchSteps):
    """Steps of one model over the same batch, micro_batches times each."""

    def __init__(self, parameters: PrecisionStepParameters, seed: int, where: TorchDevice) -> None:
        super().__init__(parameters, seed, where)
        self._own = parameters
        self.passes = parameters.micro_batches

    def launch(self, index: int) -> None:
        self.model.zero_grad(set_to_none=True)
        with self._around_step():
            for _ in range(self._own.micro_batches):
                self._result = None
                result = self.forward()
                self._result = result.detach()
                with self._outside():
                    self.backward(result)

    def observed(self) -> Mapping[str, Observed]:
        """Bytes between forward and backward and of the model, casts of weights in a step; a GPU's peak of a step."""
        from pyperf_suite.workloads.training.saved_bytes import kept

        own = kept(self.model, self.forward)
        weights: list[Any] = list(self.model.parameters())
        with _casts_counted(self._where.torch, weights) as casts:
            self.launch(0)
        told = {
            "activations": Observed("B", (own.activations,)),
            "weight_copies": Observed("B", (own.weight_copies,)),
            "weights": Observed("B", (sum(each.nbytes for each in weights),)),
            "gradients": Observed("B", (sum(each.nbytes for each in self._made().values()),)),
            "casts": Observed("1", (len(casts),)),
            "cast": Observed("B", (sum(casts),)),
        }
        return told | self._peak()

    def _peak(self) -> dict[str, Observed]:
        """Bytes that tensors took on the GPU at a step's most, by torch's allocator; weights and inputs among them."""
        if not self._where.is_gpu:
            return {}
        cuda = self._where.torch.cuda
        self.model.zero_grad(set_to_none=True)
        self._where.synchronize()
        cuda.reset_peak_memory_stats(self._where.device)
        self.launch(0)
        self._where.synchronize()
        return {"peak": Observed("B", (cuda.max_memory_allocated(self._where.device),))}

    def _made(self) -> dict[str, Any]:
        """The gradients that the last step left, by name."""
        return {name: each.grad for name, each in self.model.named_parameters()}

    def _around_step(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._own.cast_cache == "iteration" else self._autocast()

    def _outside(self) -> AbstractContextManager[Any]:
        """Backward belongs outside of autocast, as torch advises; leaving an inner context drops no casts."""
        return nullcontext() if self._own.cast_cache == "iteration" else self._autocast(enabled=False)

    def _precision(self) -> AbstractContextManager[Any]:
        return self._autocast() if self._own.precision.startswith("autocast_") else nullcontext()

    def _autocast(self, enabled: bool = True) -> AbstractContextManager[Any]:
        torch = self._where.torch
        context: AbstractContextManager[Any] = torch.autocast(
            self._where.device.type,
            getattr(torch, self._own.element),
            enabled=enabled,
            cache_enabled=self._own.cast_cache != "off",
        )
        return context


@contextmanager
def _casts_counted(torch: Any, weights: list[Any]) -> Iterator[list[int]]:
    """A list that grows by the bytes of each cast of one of these weights in this context."""
    from torch.utils._python_dispatch import TorchDispatchMode

    storages = {each.untyped_storage()._cdata for each in weights}
    casts: list[int] = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if function is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in storages:
                casts.append(result.nbytes)
            return result

    with Counting():
        yield casts
