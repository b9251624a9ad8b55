"""One update of many tensors by an optimizer, in each of the ways there are to do it, and what float64 makes of it.

Ways: a Python loop over tensors, torch's multi-tensor operations (foreach), one fused kernel, states in 8 bits. State
has the names that torch gives it, so that a running optimizer's own can be taken and compared.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, Unsupported, UserError, Within
from pyperf_suite.workloads.backends import ByTorch, TorchDevice, require_installed
from pyperf_suite.workloads.on_ranks import DTYPES
from pyperf_suite.workloads.training.shapes import SHAPES, tensor_sizes
from pyperf_suite.workloads.workload import Checked, Kernel, Observed, Prepared, Work, Workload, by_name, together

# An array of float64, torch's or numpy's.
Array = Any
State = Mapping[str, Array]
After = tuple[Array, dict[str, Array]]  # weight and state
# weight, gradient, state before, the number of this step from 1, learning rate and decay, to what is there after.
UpdateRule = Callable[[Array, Array, State, int, float, float], After]

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.1
MOMENTUM = 0.9
BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
# Adafactor's: how fast the decay of its averages nears 1, the least scale of an update, and the most of its size.
BETA2_DECAY = -0.8
LEAST_SCALE = 1e-3
CLIP = 1.0

# By how much an update or a state may differ from float64's, and the spacing of weights near 1.
SHARE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}

WEIGHT_SCALE = 0.02
# At a time, in float64, which is to stay near the caches.
COMPARED_ELEMENTS = 1 << 18
MOST_ELEMENTS = 1 << 33

Make = Callable[[list[Any]], Any]  # an optimizer of these tensors


def adamw(weight: Array, gradient: Array, state: State, step: int, rate: float, decay: float) -> After:
    """Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2."""
    first, second = BETAS
    mean = first * state.get("exp_avg", 0.0) + (1 - first) * gradient
    square = second * state.get("exp_avg_sq", 0.0) + (1 - second) * gradient**2
    scale = (square / (1 - second**step)) ** 0.5 + ADAM_EPSILON
    after = weight * (1 - rate * decay) - rate * mean / (1 - first**step) / scale
    return after, {"exp_avg": mean, "exp_avg_sq": square}


def sgd(weight: Array, gradient: Array, state: State, _step: int, rate: float, decay: float) -> After:
    """Momentum as Sutskever et al. 2013 have it but for the learning rate, which torch applies last; decay as L2."""
    velocity = MOMENTUM * state.get("momentum_buffer", 0.0) + gradient + decay * weight
    return weight - rate * velocity, {"momentum_buffer": velocity}


def adafactor(weight: Array, gradient: Array, state: State, step: int, rate: float, decay: float) -> After:
    """Shazeer and Stern 2018, algorithm 4: the second moment of a matrix by the means of its rows and columns."""
    fresh = step**BETA2_DECAY
    rows = _moved(state.get("row_var", 0.0), (gradient**2).mean(axis=-1, keepdims=True), fresh)
    columns = _moved(state.get("col_var", 0.0), (gradient**2).mean(axis=-2, keepdims=True), fresh)
    update = gradient / (rows * columns / rows.mean(axis=-2, keepdims=True)) ** 0.5
    update = update / (_root_mean_square(update) / CLIP).clip(min=1.0)
    scaled = _root_mean_square(weight).clip(min=LEAST_SCALE) * min(rate, step**-0.5)
    return weight * (1 - rate * decay) - scaled * update, {"row_var": rows, "col_var": columns}


@dataclass(frozen=True)
class Rule:
    """An optimizer: its update, how many states are as large as the weight, its settings as torch.optim names them."""

    update: UpdateRule
    states: int
    settings: Mapping[str, Any]


OF_ALL = {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}
RULES = {
    "AdamW": Rule(adamw, 2, OF_ALL | {"betas": BETAS, "eps": ADAM_EPSILON}),
    "SGD": Rule(sgd, 1, OF_ALL | {"momentum": MOMENTUM}),
    "Adafactor": Rule(adafactor, 0, OF_ALL | {"beta2_decay": BETA2_DECAY, "eps": (None, LEAST_SCALE), "d": CLIP}),
}


@dataclass(frozen=True)
class OptimizerState:
    """A tensor, its gradient, and the optimizer's state of it that grows with it; or several of one size, stacked."""

    weight: Any
    gradient: Any
    state: State


def tensor_states(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states that grow with the tensor, as the count of steps does not."""
    return {name: value for name, value in state.items() if hasattr(value, "numel") and value.ndim > 0}


def compared_update(
    optimizer: str,
    before: OptimizerState,
    after: OptimizerState,
    step: int,
    dtype: str,
    rate: float = LEARNING_RATE,
    decay: float = WEIGHT_DECAY,
    with_state: bool = True,
    first_number: int = 0,
) -> Checked:
    """Each element of weight and state after an update against float64.

    An element of a weight may be off by rounding of itself, twice, and by a share of its update and of their root mean
    square; one of a state by that share of itself and of their root mean square: some roundings each. Of matrices that
    are stacked the first has number `first_number`.
    """
    from pyperf_suite.workloads.rounding import compared

    share, epsilon = SHARE[dtype], EPSILON[dtype]
    if optimizer == "Adafactor":
        # It is scaled by norms, whose sums torch keeps in float32 on a CPU: 0.12 % short over 22 million elements.
        share = max(share, 6 * EPSILON["float32"] * before.weight[0].numel() ** 0.5)
    weight = before.weight.double()
    state = {name: value.double() for name, value in before.state.items()}
    right, right_state = RULES[optimizer].update(weight, before.gradient.double(), state, step, rate, decay)
    change = right - weight
    exact = {"weight": right, **(right_state if with_state else {})}
    allowed = {name: share * (abs(values) + _root_mean_square(values)) for name, values in exact.items()}
    allowed["weight"] = 2 * epsilon * abs(right) + share * (abs(change) + _root_mean_square(change))
    found = {"weight": after.weight, **after.state}
    return compared(found, exact, allowed, in_norm=math.inf, first_number=first_number)


def _moved(average: Array | float, value: Array, share: float) -> Array:
    return average + share * (value - average)


def _root_mean_square(values: Array) -> Array:
    return (values**2).mean(axis=tuple(range(max(-2, -values.ndim), 0)), keepdims=True) ** 0.5


OPTIMIZERS = tuple(RULES)


@dataclass(frozen=True)
class TensorSet:
    """`tensors` matrices of one size, or the parameters of a named shape; `parse` reads what `str` writes."""

    tensors: int
    rows: int
    columns: int
    shape: str = ""

    def __str__(self) -> str:
        return self.shape or f"{self.tensors}x{self.rows}x{self.columns}"

    @classmethod
    def parse(cls, text: str) -> TensorSet:
        if text.strip() in SHAPES:
            return cls(len(tensor_sizes(SHAPES[text.strip()])), 0, 0, text.strip())
        match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,8})", text.strip())
        if match is None:
            names = ", ".join(SHAPES)
            raise UserError(
                f"{text!r} is no set of tensors: write TENSORSxROWSxCOLUMNS, as in 400x256x256, or one of {names}."
            )
        tensors, rows, columns = map(int, match.groups())
        return cls(tensors, rows, columns)

    @functools.cached_property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of each."""
        return tensor_sizes(SHAPES[self.shape]) if self.shape else ((self.rows, self.columns),) * self.tensors

    @property
    def elements_each(self) -> int:
        """Mean elements of a tensor."""
        return self.elements // self.tensors

    @property
    def elements(self) -> int:
        if self.shape:
            return sum(rows * columns for rows, columns in self.sizes)
        return self.tensors * self.rows * self.columns


@dataclass(frozen=True)
class OptimizerUpdateParameters:
    """The optimizer, the tensors that it updates, their type, and the CPU cores it may use."""

    tensors: TensorSet
    optimizer: Annotated[str, OneOf(OPTIMIZERS)] = "AdamW"
    dtype: Annotated[str, OneOf(DTYPES)] = "float32"
    workers: Annotated[int, Within(1)] = 1

    @property
    def states(self) -> int:
        return RULES[self.optimizer].states

    @property
    def moved_bytes(self) -> int:
        """Weights and states are read and written, gradients read."""
        return (3 + 2 * self.states) * DTYPES[self.dtype] * self.tensors.elements

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
        self.stopwatch = where.stopwatch
        generator, shape = where.torch.Generator().manual_seed(seed), parameters.tensors
        self.tensors = [self._drawn(generator, *size) for size in shape.sizes]
        self.optimizer = make(self.tensors)
        self._steps = 0
        self.launch(0)  # state is made by the first update
        self.kernel = Kernel(parameters.optimizer, way, {"elements": shape.elements, **where.details()})

    def launch(self, index: int) -> None:
        self._steps += 1
        self.optimizer.step()

    def check(self) -> Checked:
        """One more update of all tensors, weights and states, against float64 from where they stand.

        States in 8 bits are known to their makers alone: there an optimizer without any makes a first update.
        """
        after = self.tensors
        before = [self._standing(group) for group in self._groups(self.tensors)]
        if self._low_memory:
            after = [self._with_gradient(each, each.grad) for each in self.tensors]
            self._make(after).step()
        else:
            self.launch(0)
        p, step, checks, number = self._p, 1 if self._low_memory else self._steps, [], 0
        for start, group in zip(before, self._groups(after), strict=True):
            end, with_state = self._standing(group), not self._low_memory
            checks.append(
                compared_update(p.optimizer, start, end, step, p.dtype, with_state=with_state, first_number=number)
            )
            number += len(group)
        return together(checks)

    def observed(self) -> Mapping[str, Observed]:
        """Bytes: `state` that stays, and `passing`, the most temporary memory of an update where that is known."""
        from pyperf_suite.workloads.training.held_bytes import bytes_of, peak_bytes

        kept = [tensor_states(self.optimizer.state[each]) for each in self.tensors]
        found = {"state": float(bytes_of(kept))}
        if self._where.is_gpu or not self._low_memory:
            found["passing"] = float(peak_bytes(lambda: self.launch(0), self._where.device))
        return {name: Observed("B", (value,)) for name, value in found.items()}

    def _groups(self, tensors: list[Any]) -> list[list[Any]]:
        """Tensors that are compared at once: many small ones would take longer than their elements."""
        found = []
        for _, similar in itertools.groupby(tensors, key=lambda each: tuple(each.shape)):
            group = list(similar)
            count = max(1, COMPARED_ELEMENTS // group[0].numel())
            found += [group[first : first + count] for first in range(0, len(group), count)]
        return found

    def _standing(self, group: list[Any]) -> OptimizerState:
        stack = self._where.torch.stack
        states = [] if self._low_memory else [tensor_states(self.optimizer.state[each]) for each in group]
        state = {name: stack([each[name] for each in states]) for name in (states[0] if states else ())}
        return OptimizerState(stack([each.detach() for each in group]), stack([each.grad for each in group]), state)

    def _drawn(self, generator: Any, rows: int, columns: int) -> Any:
        torch = self._where.torch
        drawn, gradient = (torch.randn(rows, columns, generator=generator) for _ in range(2))
        return self._with_gradient(drawn * WEIGHT_SCALE, gradient)

    def _with_gradient(self, values: Any, gradient: Any) -> Any:
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
        super().validate(parameters)
        if parameters.optimizer not in self._optimizers:
            raise UserError(
                f"{self.name} is measured with {' and '.join(self._optimizers)} alone, but {parameters.optimizer} was "
                "requested."
            )

    def _steps(self, parameters: OptimizerUpdateParameters, seed: int, where: TorchDevice) -> UpdateSteps:
        optimizer = parameters.optimizer
        settings = RULES[optimizer].settings
        if not self._package:
            kind = getattr(where.torch.optim, optimizer, None)
            if kind is None:
                raise Unsupported(f"This torch ({where.torch.__version__}) has no {optimizer}.")
            make = functools.partial(kind, **settings, **self._flags)
            return UpdateSteps(parameters, self.name, seed, where, make)
        require_installed(self._package)
        try:
            kind = importlib.import_module(f"{self._package}.optim").AdamW8bit
            make = functools.partial(kind, **settings)
            return UpdateSteps(parameters, self.name, seed, where, make, low_memory=True)
        except Exception as error:  # a package of others, in whatever way it says that it cannot
            raise Unsupported(f"{self._package} cannot do this here: {type(error).__name__}: {error}") from None


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
        return 2 * (2 + parameters.states) * DTYPES[parameters.dtype] * parameters.tensors.elements

    def work(self, parameters: OptimizerUpdateParameters) -> Work:
        return Work(0, parameters.moved_bytes)
