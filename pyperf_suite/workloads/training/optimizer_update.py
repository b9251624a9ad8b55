"""One update of many tensors by an optimizer, in each of the ways there are to do it.

Ways: a Python loop over tensors, torch's multi-tensor operations (foreach), one fused kernel, states in 8 bits.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, Unsupported, UserError
from pyperf_suite.measure.stopwatch import Stopwatch
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training import optimizer_reference as reference
from pyperf_suite.workloads.training.torch_steps import ByTorch
from pyperf_suite.workloads.workload import Checked, Kernel, Observed, Prepared, Work, Workload, by_name, together

OPTIMIZERS = tuple(reference.RULES)
# Bytes of an element.
DTYPES = {"float32": 4, "bfloat16": 2}
WEIGHT_SCALE = 0.02
# At a time, in float64, which is to stay near the caches.
COMPARED_ELEMENTS = 1 << 18
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
        return self.rows * self.columns

    @property
    def elements(self) -> int:
        return self.tensors * self.elements_each


@dataclass(frozen=True)
class OptimizerUpdateParameters:
    """The optimizer, the tensors that it updates, their type, and the CPU cores it may use."""

    tensors: TensorSet
    optimizer: Annotated[str, OneOf(OPTIMIZERS)] = "AdamW"
    dtype: Annotated[str, OneOf(DTYPES)] = "float32"
    workers: int = 1

    @property
    def states(self) -> int:
        """That are as large as the weight."""
        return reference.RULES[self.optimizer].states

    @property
    def tensor_bytes(self) -> int:
        return DTYPES[self.dtype] * self.tensors.elements

    def validate(self) -> None:
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
        self._p, self._where, self._make, self._low_memory = parameters, where, make, low_memory
        generator, shape = where.torch.Generator().manual_seed(seed), parameters.tensors
        self.tensors = [self._drawn(generator) for _ in range(shape.tensors)]
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
            after = [self._with_gradient(each, each.grad) for each in self.tensors]
            self._make(after).step()
        else:
            self.launch(0)
        p, step, checks, number = self._p, 1 if self._low_memory else self._taken, [], 0
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
        count = max(1, COMPARED_ELEMENTS // self._p.tensors.elements_each)
        return [tensors[first : first + count] for first in range(0, len(tensors), count)]

    def _standing(self, group: list[Any]) -> reference.Standing:
        """Copies of weights, gradients and states, stacked; without the states that only their makers know."""
        stack = self._where.torch.stack
        states = [] if self._low_memory else [reference.states(self.optimizer.state[each]) for each in group]
        state = {name: stack([each[name] for each in states]) for name in (states[0] if states else ())}
        return reference.Standing(stack([each.detach() for each in group]), stack([each.grad for each in group]), state)

    def _drawn(self, generator: Any) -> Any:
        torch, shape = self._where.torch, self._p.tensors
        drawn, gradient = (torch.randn(shape.rows, shape.columns, generator=generator) for _ in range(2))
        return self._with_gradient(drawn * WEIGHT_SCALE, gradient)

    def _with_gradient(self, values: Any, gradient: Any) -> Any:
        """A parameter of its own memory."""
        where, dtype = self._where.device, getattr(self._where.torch, self._p.dtype)
        made = self._where.torch.nn.Parameter(values.detach().to(where, dtype, copy=True))
        made.grad = gradient.to(where, dtype, copy=True)
        return made


class Update(ByTorch):
    """One way to update, by torch.optim with these flags, or by a package that keeps AdamW's moments in 8 bits."""

    def __init__(self, name: str, package: str = "", optimizers: Sequence[str] = OPTIMIZERS, **flags: bool) -> None:
        super().__init__(self._steps)
        self.name = name  # type: ignore[misc]
        self._package, self._optimizers, self._flags = package, optimizers, flags

    def validate(self, parameters: OptimizerUpdateParameters) -> None:
        """Raise UserError for more workers than there are cores, and for an optimizer that there is not in this way."""
        super().validate(parameters)
        if parameters.optimizer not in self._optimizers:
            raise UserError(
                f"{self.name} is measured with {' and '.join(self._optimizers)} alone, but {parameters.optimizer} was "
                "asked for."
            )

    def _steps(self, parameters: OptimizerUpdateParameters, seed: int, where: TorchDevice) -> UpdateSteps:
        if self._package:
            return self._low_memory_steps(parameters, seed, where)
        kind = getattr(where.torch.optim, parameters.optimizer, None)
        if kind is None:
            raise Unsupported(f"This torch ({where.torch.__version__}) has no {parameters.optimizer}.")
        make = functools.partial(kind, **settings(parameters.optimizer), **self._flags)
        return UpdateSteps(parameters, self.name, seed, where, make)

    def _low_memory_steps(self, parameters: OptimizerUpdateParameters, seed: int, where: TorchDevice) -> UpdateSteps:
        if importlib.util.find_spec(self._package) is None:
            raise Unsupported(f"{self._package} is not installed.")
        try:
            kind = importlib.import_module(f"{self._package}.optim").AdamW8bit
            make = functools.partial(kind, **settings("AdamW"))
            return UpdateSteps(parameters, self.name, seed, where, make, low_memory=True)
        except Exception as error:  # a package of others, in whatever way it tells that it cannot
            raise Unsupported(f"{self._package} cannot do this here: {type(error).__name__}: {error}") from None


def settings(optimizer: str) -> dict[str, Any]:
    """Those of the reference, as torch.optim and those who follow it name them."""
    own = reference.RULES[optimizer].settings
    return {"lr": reference.LEARNING_RATE, "weight_decay": reference.WEIGHT_DECAY, **own}


class OptimizerUpdate(Workload[OptimizerUpdateParameters]):
    """An optimizer's step, gradients given."""

    name = "optimizer_update"
    parameters_type = OptimizerUpdateParameters
    implementations = by_name(
        Update("loop", foreach=False),
        Update("foreach", foreach=True),
        Update("fused", optimizers=("AdamW", "SGD"), foreach=False, fused=True),
        Update("bitsandbytes_8bit", "bitsandbytes", ("AdamW",)),
        Update("torchao_8bit", "torchao", ("AdamW",)),
    )

    def footprint_bytes(self, parameters: OptimizerUpdateParameters) -> int:
        """Weights, gradients and states, and all of them as they were before the update that is checked."""
        return 2 * (2 + parameters.states) * parameters.tensor_bytes

    def work(self, parameters: OptimizerUpdateParameters) -> Work:
        """Weight, gradient and state read, weight and state written; arithmetic is beside that nothing."""
        return Work(0, (3 + 2 * parameters.states) * parameters.tensor_bytes)
