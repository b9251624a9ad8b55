"""One update of many tensors by an optimizer, in each of the ways there are to do it.

Ways: a Python loop over tensors, torch's multi-tensor operations (foreach), one fused kernel, states in 8 bits.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.limits import OneOf
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training import optimizer_reference as reference
from pyperf_suite.workloads.training.torch_steps import ByTorch
from pyperf_suite.workloads.workload import Checked, Kernel, Observed, Prepared, Work, Workload, by_name, together

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

Make = Callable[[list[Any]], Any]  # an optimizer of these tensors


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
    optimizer: Annotated[str, OneOf(OPTIMIZERS)] = "AdamW"
    dtype: Annotated[str, OneOf(DTYPES)] = "float32"
    workers: int = 1

    def validate(self) -> None:
        """Raise UserError for more elements than any memory has."""
        if self.tensors.elements > MOST_ELEMENTS:
            raise UserError(f"{self.tensors} are more than {MOST_ELEMENTS} elements: take fewer or smaller ones.")


class UpdateSteps(Prepared):
    """Updates by gradients that stay the same; state lives on from one to the next, as in training."""

    unchecked = "Each step starts from what the last one left."

    def __init__(
        self,
        parameters: OptimizerUpdateParameters,
        way: str,
        seed: int,
        where: TorchDevice,
        make: Make,
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
        p, step, number, checks = self._parameters, 1 if self._low_memory else self._taken, 0, []
        for start, group in zip(before, self._groups(after), strict=True):
            end, with_state = self._standing(group), not self._low_memory
            checks.append(
                reference.compared(p.optimizer, start, end, step, p.dtype, with_state=with_state, first_number=number)
            )
            number += len(group)
        return together(checks)

    def observed(self) -> Mapping[str, Observed]:
        """Bytes: `state` that stays, and `passing`, the most an update takes beside it, where that can be watched."""
        from pyperf_suite.workloads.training.held_bytes import bytes_of, peak_bytes

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


class TorchUpdate(ByTorch):
    """torch.optim's own, told which way to take."""

    def __init__(self, way: str) -> None:
        super().__init__(self._steps)
        self.name = way  # type: ignore[misc]

    def validate(self, parameters: OptimizerUpdateParameters) -> None:
        """Raise UserError for more workers than there are cores, and for Adafactor fused, which torch has not."""
        super().validate(parameters)
        if parameters.optimizer == "Adafactor" and self.name == "fused":
            raise UserError("torch has no fused Adafactor: choose loop or foreach.")

    def _steps(self, parameters: OptimizerUpdateParameters, seed: int, where: TorchDevice) -> UpdateSteps:
        kind = getattr(where.torch.optim, parameters.optimizer, None)
        if kind is None:
            raise Unsupported(f"This torch ({where.torch.__version__}) has no {parameters.optimizer}.")
        flags = {"foreach": self.name == "foreach"} | ({"fused": True} if self.name == "fused" else {})
        flags |= _settings(parameters.optimizer)
        return UpdateSteps(parameters, self.name, seed, where, lambda tensors: kind(tensors, **flags))


class LowMemoryUpdate(ByTorch):
    """AdamW whose moments are kept in 8 bits, by a package that may be installed."""

    def __init__(self, package: str) -> None:
        super().__init__(self._steps)
        self.package, self.name = package, f"{package}_8bit"  # type: ignore[misc]

    def validate(self, parameters: OptimizerUpdateParameters) -> None:
        """Raise UserError for more workers than there are cores, and for all but AdamW."""
        super().validate(parameters)
        if parameters.optimizer != "AdamW":
            raise UserError(f"{self.name} is measured with AdamW alone, but {parameters.optimizer} was asked for.")

    def _steps(self, parameters: OptimizerUpdateParameters, seed: int, where: TorchDevice) -> UpdateSteps:
        if importlib.util.find_spec(self.package) is None:
            raise Unsupported(f"{self.package} is not installed.")
        try:
            kind, settings = importlib.import_module(f"{self.package}.optim").AdamW8bit, _settings("AdamW")
            return UpdateSteps(
                parameters, self.name, seed, where, lambda tensors: kind(tensors, **settings), low_memory=True
            )
        except Exception as error:  # a package of others, in whatever way it tells that it cannot
            raise Unsupported(f"{self.package} cannot do this here: {type(error).__name__}: {error}") from None


class OptimizerUpdate(Workload[OptimizerUpdateParameters]):
    """An optimizer's step, gradients given."""

    name = "optimizer_update"
    parameters_type = OptimizerUpdateParameters
    implementations = by_name(
        *(TorchUpdate(way) for way in ("loop", "foreach", "fused")),
        *(LowMemoryUpdate(package) for package in ("bitsandbytes", "torchao")),
    )

    def footprint_bytes(self, parameters: OptimizerUpdateParameters) -> int:
        """Weights, gradients and states, and all of them as they were before the update that is checked."""
        states = STATES[parameters.optimizer]
        return (2 + states + 2 + states) * DTYPES[parameters.dtype] * parameters.tensors.elements

    def work(self, parameters: OptimizerUpdateParameters) -> Work:
        """Bytes that have to be read and written once; arithmetic is beside that nothing, and not counted."""
        return Work(0, TOUCHES[parameters.optimizer] * DTYPES[parameters.dtype] * parameters.tensors.elements)


def _settings(optimizer: str) -> dict[str, Any]:
    """Those of the reference, as torch.optim and those who follow it name them."""
    own: dict[str, dict[str, Any]] = {
        "AdamW": {"betas": reference.BETAS, "eps": reference.ADAM_EPSILON},
        "SGD": {"momentum": reference.MOMENTUM},
        "Adafactor": {"beta2_decay": reference.BETA2_DECAY, "eps": (None, reference.LEAST_SCALE), "d": reference.CLIP},
    }
    return {"lr": reference.LEARNING_RATE, "weight_decay": reference.WEIGHT_DECAY, **own[optimizer]}
