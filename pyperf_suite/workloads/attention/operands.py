"""The operands of attention by name and shape, and what a launch wrote as one array and back.

Inputs are q, k, v and for gradients do; outputs are o, or dq, dk and dv.
"""

from __future__ import annotations

import numpy as np

from pyperf_suite.workloads.attention.parameters import AttentionParameters
from pyperf_suite.workloads.operator import Array

INPUTS = ("q", "k", "v")
GRADIENTS = ("dq", "dk", "dv")


def operand_shapes(parameters: AttentionParameters) -> dict[str, tuple[int, int, int, int]]:
    """Shape of each operand by name; the gradients stand there only for the backward pass."""
    shapes = {"q": parameters.q_shape, "k": parameters.k_shape, "v": parameters.k_shape, "o": parameters.q_shape}
    if parameters.backward:
        shapes |= {"do": parameters.q_shape}
        shapes |= {"dq": parameters.q_shape, "dk": parameters.k_shape, "dv": parameters.k_shape}
    return shapes


def join_gradients(dq: Array, dk: Array, dv: Array) -> Array:
    """One flat array of the gradients, dQ then dK then dV: what `Launches.output` gives for a backward pass."""
    return np.concatenate([gradient.ravel() for gradient in (dq, dk, dv)])


def split_output(parameters: AttentionParameters, output: Array) -> dict[str, Array]:
    """What a launch wrote, by name and in shape: "o" of a forward pass, "dq", "dk" and "dv" of a backward one."""
    if not parameters.backward:
        return {"o": output.reshape(parameters.q_shape)}
    shapes = operand_shapes(parameters)
    ends = np.cumsum([np.prod(shapes[name]) for name in GRADIENTS])
    parts = np.split(output.ravel(), ends[:-1])
    return {name: part.reshape(shapes[name]) for name, part in zip(GRADIENTS, parts, strict=True)}
