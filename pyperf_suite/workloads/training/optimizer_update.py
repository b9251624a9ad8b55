"""One update of many tensors by an optimizer, in each of the ways there are to do it.

Ways: a Python loop over tensors, torch's multi-tensor operations (foreach), one fused kernel, states in 8 bits.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.workloads.cores import require_cores
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training import optimizer_reference as reference
from pyperf_suite.workloads.workload import (
    Checked,
    Implementation,
    Kernel,
    Observed,
    Place,
    Prepared,
    Work,
    Workload,
    together,
)

OPTIMIZERS = tuple(reference.UPDATES)
# Bytes of an element.
DTYPES = {"float32": 4, "bfloat16": 2}
WEIGHT_SCALE = 0.02
# At a time, in float64, which is to stay near the caches.
COMPARED_ELEMENTS = 1 << 18
# How often an update has to touch each element: weight, gradient and state read, weight and state written.
TOUCHES = {"AdamW": 7, "SGD": 5, "Adafactor": 3}
# States as large as the weight.
STATES = {"AdamW": 2, "SGD": 1, "Adafactor": 0}
MOST_ELEMENTS = 1 << 33


@dataclass(frozen=True)
class TensorSet:
    """So many matrices of one size; `parse` reads what `str` writes: TENSORSxROWSxCOLUMNS."""

    tensors: int
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.tensors}x{self.rows}x{self.columns}"

    @classmethod
    def parse(cls, text: str) -> TensorSet:
        """Read what a user wrote. Raises UserError that shows the form."""
        match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,8})", text.strip())
        if match is None:
            raise UserError(f"{text!r} is no set of tensors: write TENSORSxROWSxCOLUMNS, as in 400x256x256.")
        return cls(*map(int, match.groups()))

    @property
    def elements_each(self) -> int:
        """Of one tensor."""
        return self.rows * self.columns

    @property
    def elements(self) -> int:
        """Of all tensors."""
        return self.tensors * self.elements_each


@dataclass(frozen=True)
class OptimizerUpdateParameters:
    """The optimizer, the tensors that it updates, their type, and the CPU cores it may use."""

    tensors: TensorSet
    optimizer: str = "AdamW"
    dtype: str = "float32"
    workers: int = 1


class OptimizerUpdate(Workload[OptimizerUpdateParameters]):
    """An optimizer's step, gradients given."""

    name = "optimizer_update"
    parameters_type = OptimizerUpdateParameters

    def __init__(self) -> None:
        ways = (TorchUpdate("loop"), TorchUpdate("foreach"), TorchUpdate("fused"))
        low_memory = (LowMemoryUpdate("bitsandbytes"), LowMemoryUpdate("torchao"))
        self.implementations: Mapping[str, Implementation[OptimizerUpdateParameters]] = {
            way.name: way for way in (*ways, *low_memory)
        }

    def validate(self, parameters: OptimizerUpdateParameters) -> None:
        """Raise UserError for an optimizer or a type there is not, and for more elements than any memory has."""
        for name, allowed in (("optimizer", OPTIMIZERS), ("dtype", tuple(DTYPES))):
            if getattr(parameters, name) not in allowed:
                raise UserError(f"Unknown {name} {getattr(parameters, name)!r}: choose from {', '.join(allowed)}.")
        if parameters.tensors.elements > MOST_ELEMENTS:
            raise UserError(f"{parameters.tensors} are more than {MOST_ELEMENTS} elements: take fewer or smaller ones.")

    def footprint_bytes(self, parameters: OptimizerUpdateParameters) -> int:
        """Weights, gradients and states, and all of them as they were before the update that is checked."""
        states = STATES[parameters.optimizer]
        return (2 + states + 2 + states) * DTYPES[parameters.dtype] * parameters.tensors.elements

    def work(self, parameters: OptimizerUpdateParameters) -> Work:
        """Bytes that have to be read and written once; arithmetic is beside that nothing, and not counted."""
        return Work(0, TOUCHES[parameters.optimizer] * DTYPES[parameters.dtype] * parameters.tensors.elements)


class TorchUpdate(Implementation[OptimizerUpdateParameters]):
    """torch.optim's own, told which way to take."""

    device_kind = "any"

    def __init__(self, way: str) -> None:
        self.name = way  # type: ignore[misc]

    def validate(self, parameters: OptimizerUpdateParameters) -> None:
        """Raise UserError for more workers than there are cores, and for Adafactor fused, which torch has not."""
        require_cores(parameters.workers)
        if parameters.optimizer == "Adafactor" and self.name == "fused":
            raise UserError("torch has no fused Adafactor: choose loop or foreach.")

    def prepare(self, parameters: OptimizerUpdateParameters, place: Place) -> Prepared:
        """Make tensors and gradients there. Raises Unsupported where this torch has no such optimizer or way."""
        where = TorchDevice(place.device, parameters.workers, queueing="open")
        kind = getattr(where.torch.optim, parameters.optimizer, None)
        if kind is None:
            raise Unsupported(f"This torch ({where.torch.__version__}) has no {parameters.optimizer}.")
        flags = {"foreach": self.name == "foreach"} | ({"fused": True} if self.name == "fused" else {})

        def make(tensors: list[Any]) -> Any:
            return kind(tensors, **flags, **_settings(parameters.optimizer))

        return UpdateSteps(parameters, self.name, place.seed, where, make)


class LowMemoryUpdate(Implementation[OptimizerUpdateParameters]):
    """AdamW whose moments are kept in 8 bits, by a package that may be installed."""

    device_kind = "any"

    def __init__(self, package: str) -> None:
        self.package, self.name = package, f"{package}_8bit"  # type: ignore[misc]

    def validate(self, parameters: OptimizerUpdateParameters) -> None:
        """Raise UserError for more workers than there are cores, and for all but AdamW."""
        require_cores(parameters.workers)
        if parameters.optimizer != "AdamW":
            raise UserError(f"{self.name} is measured with AdamW alone, but {parameters.optimizer} was asked for.")

    def prepare(self, parameters: OptimizerUpdateParameters, place: Place) -> Prepared:
        """As torch's own. Raises Unsupported where the package is absent or cannot work on the device."""
        where = TorchDevice(place.device, parameters.workers, queueing="open")
        if importlib.util.find_spec(self.package) is None:
            raise Unsupported(f"{self.package} is not installed.")
        try:
            optim = importlib.import_module(f"{self.package}.optim")

            def make(tensors: list[Any]) -> Any:
                return optim.AdamW8bit(tensors, **_settings("AdamW"))

            return UpdateSteps(parameters, self.name, place.seed, where, make, low_memory=True)
        except Exception as error:  # a package of others, in whatever way it tells that it cannot
            raise Unsupported(f"{self.package} cannot do this here: {type(error).__name__}: {error}") from None


class UpdateSteps(Prepared):
    """Updates by gradients that stay the same; state lives on from one to the next, as in training."""

    def __init__(
        self,
        parameters: OptimizerUpdateParameters,
        way: str,
        seed: int,
        where: TorchDevice,
        make: Any,
        low_memory: bool = False,
    ) -> None:
        self._parameters, self._where, self._make, self._low_memory = parameters, where, make, low_memory
        torch, shape = where.torch, parameters.tensors
        self._dtype = getattr(torch, parameters.dtype)
        generator = torch.Generator().manual_seed(seed)
        self.tensors = [self._parameter(generator) for _ in range(shape.tensors)]
        self.optimizer = make(self.tensors)
        self._taken = 0
        self.launch(0)  # state is made by the first update
        self.kernel = Kernel(parameters.optimizer, way, {"elements": shape.elements, **where.details()})

    @property
    def stopwatch(self) -> Stopwatch:
        return self._where.stopwatch

    def launch(self, index: int) -> None:
        self._taken += 1
        self.optimizer.step()

    def check(self) -> Checked:
        """One more update of all tensors, weights and states element by element, against float64 from where they stand.

        States in 8 bits are known to their makers alone: there an optimizer without any makes a first update.
        """
        after = self.tensors
        before = [self._standing(group) for group in self._groups(self.tensors)]
        if self._low_memory:
            after = [self._copy(each) for each in self.tensors]
            self._make(after).step()
        else:
            self.launch(0)
        step, number, checks = 1 if self._low_memory else self._taken, 0, []
        optimizer, dtype = self._parameters.optimizer, self._parameters.dtype
        for start, group in zip(before, self._groups(after), strict=True):
            end = self._standing(group)
            checks.append(
                reference.compared(
                    optimizer, start, end, step, dtype, with_state=not self._low_memory, first_number=number
                )
            )
            number += len(group)
        return together(checks)

    def observed(self) -> Mapping[str, Observed]:
        """Bytes: `state` that stays, and `passing`, the most an update takes beside it, where that can be watched."""
        from pyperf_suite.workloads.training.peak_bytes import bytes_of, peak_bytes

        kept = [reference.states(self.optimizer.state[each]) for each in self.tensors]
        found = {"state": float(bytes_of(kept))}
        if self._where.is_gpu or not self._low_memory:
            found["passing"] = float(peak_bytes(lambda: self.launch(0), self._where.device))
        return {name: Observed("B", (value,)) for name, value in found.items()}

    def _groups(self, tensors: list[Any]) -> list[list[Any]]:
        """Tensors that are compared at once: many small ones would take longer than their elements."""
        count = max(1, COMPARED_ELEMENTS // self._parameters.tensors.elements_each)
        return [tensors[first : first + count] for first in range(0, len(tensors), count)]

    def _standing(self, group: list[Any]) -> reference.Standing:
        """Copies of weights, gradients and states, stacked; without the states that only their makers know."""
        stack = self._where.torch.stack
        states = [] if self._low_memory else [reference.states(self.optimizer.state[each]) for each in group]
        state = {name: stack([each[name] for each in states]) for name in (states[0] if states else ())}
        return reference.Standing(stack([each.detach() for each in group]), stack([each.grad for each in group]), state)

    def _parameter(self, generator: Any) -> Any:
        torch, shape = self._where.torch, self._parameters.tensors
        drawn, gradient = (torch.randn(shape.rows, shape.columns, generator=generator) for _ in range(2))
        return self._with_gradient(drawn * WEIGHT_SCALE, gradient)

    def _copy(self, tensor: Any) -> Any:
        return self._with_gradient(tensor.detach().clone(), tensor.grad.clone())

    def _with_gradient(self, values: Any, gradient: Any) -> Any:
        made = self._where.torch.nn.Parameter(values.to(self._where.device, self._dtype))
        made.grad = gradient.to(self._where.device, self._dtype)
        return made


def _settings(optimizer: str) -> dict[str, Any]:
    """Those of the reference, as torch.optim and those who follow it name them."""
    own: dict[str, dict[str, Any]] = {
        "AdamW": {"betas": reference.BETAS, "eps": reference.ADAM_EPSILON},
        "SGD": {"momentum": reference.MOMENTUM},
        "Adafactor": {"beta2_decay": reference.BETA2_DECAY, "eps": (None, reference.LEAST_SCALE), "d": reference.CLIP},
    }
    return {"lr": reference.LEARNING_RATE, "weight_decay": reference.WEIGHT_DECAY, **own[optimizer]}
