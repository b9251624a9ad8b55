"""What an optimizer's update must give, tensor by tensor in float64, as the papers write it.

State is by the names that torch gives it, so that a running optimizer's own can be taken and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = Mapping[str, Array]
# weight, gradient, state before and the number of this step from 1, to weight and state after.
Update = Callable[[Array, Array, State, int], tuple[Array, dict[str, Array]]]

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.1
MOMENTUM = 0.9
BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
# Adafactor's: how fast the decay of its averages nears 1, the least scale of an update, and the most of its size.
BETA2_DECAY = -0.8
LEAST_SCALE = 1e-3
CLIP = 1.0


def adamw(weight: Array, gradient: Array, state: State, step: int) -> tuple[Array, dict[str, Array]]:
    """Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2."""
    first, second = BETAS
    mean = first * state.get("exp_avg", 0.0) + (1 - first) * gradient
    square = second * state.get("exp_avg_sq", 0.0) + (1 - second) * gradient**2
    scale = np.sqrt(square / (1 - second**step)) + ADAM_EPSILON
    after = weight * (1 - LEARNING_RATE * WEIGHT_DECAY) - LEARNING_RATE * mean / (1 - first**step) / scale
    return after, {"exp_avg": mean, "exp_avg_sq": square}


def sgd(weight: Array, gradient: Array, state: State, _step: int) -> tuple[Array, dict[str, Array]]:
    """Momentum as Sutskever et al. 2013 have it but for the learning rate, which torch applies last; decay as L2."""
    velocity = MOMENTUM * state.get("momentum_buffer", 0.0) + gradient + WEIGHT_DECAY * weight
    return weight - LEARNING_RATE * velocity, {"momentum_buffer": velocity}


def adafactor(weight: Array, gradient: Array, state: State, step: int) -> tuple[Array, dict[str, Array]]:
    """Shazeer and Stern 2018, algorithm 4: the second moment of a matrix by the means of its rows and columns."""
    fresh = step**BETA2_DECAY
    rows = _moved(state.get("row_var", 0.0), (gradient**2).mean(axis=-1, keepdims=True), fresh)
    columns = _moved(state.get("col_var", 0.0), (gradient**2).mean(axis=-2, keepdims=True), fresh)
    update = gradient / np.sqrt(rows * columns / rows.mean(axis=-2, keepdims=True))
    update /= max(1.0, _root_mean_square(update) / CLIP)
    rate = max(LEAST_SCALE, _root_mean_square(weight)) * min(LEARNING_RATE, step**-0.5)
    after = weight * (1 - LEARNING_RATE * WEIGHT_DECAY) - rate * update
    return after, {"row_var": rows, "col_var": columns}


UPDATES: Mapping[str, Update] = {"AdamW": adamw, "SGD": sgd, "Adafactor": adafactor}


def _moved(average: Array | float, value: Array, share: float) -> Array:
    return np.asarray(average + share * (value - average))


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))
