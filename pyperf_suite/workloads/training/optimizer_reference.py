"""What an optimizer's update must give, tensor by tensor in float64, as the papers write it.

State is by the names that torch gives it, so that a running optimizer's own can be taken and compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.workloads.workload import Checked

# Of float64, torch's or numpy's.
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
    after = weight * (1 - rate * decay) - scaled * update
    return after, {"row_var": rows, "col_var": columns}


@dataclass(frozen=True)
class Rule:
    """An optimizer: its update, how many states are as large as the weight, and its settings as torch.optim names them.

    Learning rate and weight decay, which all have, are not among the settings.
    """

    update: UpdateRule
    states: int
    settings: Mapping[str, Any]


RULES = {
    "AdamW": Rule(adamw, 2, {"betas": BETAS, "eps": ADAM_EPSILON}),
    "SGD": Rule(sgd, 1, {"momentum": MOMENTUM}),
    "Adafactor": Rule(adafactor, 0, {"beta2_decay": BETA2_DECAY, "eps": (None, LEAST_SCALE), "d": CLIP}),
}


@dataclass(frozen=True)
class Standing:
    """A tensor, its gradient, and the optimizer's state of it that grows with it; or several of one size, stacked."""

    weight: Any
    gradient: Any
    state: State


def states(state: Mapping[str, Any]) -> dict[str, Any]:
    """What grows with the tensor, as the count of steps does not."""
    return {name: value for name, value in state.items() if hasattr(value, "numel") and value.ndim > 0}


def compared(
    optimizer: str,
    before: Standing,
    after: Standing,
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
    from pyperf_suite.workloads.training import rounding

    share, epsilon = SHARE[dtype], EPSILON[dtype]
    weight = before.weight.double()
    state = {name: value.double() for name, value in before.state.items()}
    right, right_state = RULES[optimizer].update(weight, before.gradient.double(), state, step, rate, decay)
    change = right - weight
    exact = {"weight": right, **(right_state if with_state else {})}
    allowed = {name: share * (abs(values) + _root_mean_square(values)) for name, values in exact.items()}
    allowed["weight"] = 2 * epsilon * abs(right) + share * (abs(change) + _root_mean_square(change))
    found = {"weight": after.weight, **after.state}
    return rounding.compared(found, exact, allowed, in_norm=math.inf, first_number=first_number)


def _moved(average: Array | float, value: Array, share: float) -> Array:
    return average + share * (value - average)


def _root_mean_square(values: Array) -> Array:
    """Of each matrix, or of a vector."""
    return (values**2).mean(axis=tuple(range(max(-2, -values.ndim), 0)), keepdims=True) ** 0.5
