"""Cases of matmul and attention handed to the laws: parameters of operators in, seconds of a GPU out.

Operators name types as torch does and laws as data sheets do; this is where the one becomes the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite import laws
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.calibration import Calibration
from pyperf_suite.runner.record import Case
from pyperf_suite.spec.rows import grouped

DTYPE_OF_LAW = {
    "float32": "fp32",
    "tfloat32": "tf32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "int8": "int8",
}
PRODUCT, ATTENTION = ("m", "n", "k"), ("batch", "seq_q", "keys", "heads", "key_heads", "head_dim")
DTYPE_OF_OPERATOR = {law: operator for operator, law in DTYPE_OF_LAW.items()}


def law_dtype(case: Case) -> str:
    """The laws' name of a case's element type. Raises UserError for one that no law is for."""
    dtype = case.parameters.dtype
    if dtype not in DTYPE_OF_LAW:
        raise UserError(f"No law is for {dtype} on a GPU, only for {', '.join(DTYPE_OF_LAW)}.")
    return DTYPE_OF_LAW[dtype]


def predicted_seconds(gpu: GpuSpec | Calibration | str, cases: Sequence[Case]) -> NDArray[np.float64]:
    """Seconds that the laws of a GPU give for each case, in the cases' order.

    Cases that differ in sizes alone are one call of a law. Raises UserError for an operator or a type without a law.
    """
    seconds = np.empty(len(cases))
    for (law, names, fixed), places in grouped(range(len(cases)), lambda place: _call_of(cases[place])).items():
        together = [cases[place].parameters for place in places]
        sizes = (np.array([getattr(each, name) for each in together], dtype=np.int64) for name in names)
        seconds[places] = law(gpu, *sizes, **dict(fixed))
    return seconds


def _call_of(case: Case) -> tuple[Callable[..., Any], tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """The law, the sizes that it takes arrays of, and what a call of it has one value of."""
    p = case.parameters
    if case.operator == "matmul":
        return laws.gemm_time, PRODUCT, (("dtype", law_dtype(case)), ("layout", p.layout), ("mode", case.mode))
    if case.operator == "attention":
        fixed = (("causal", p.causal), ("dtype", law_dtype(case)), ("backward", p.backward))
        return laws.attention_time, ATTENTION, fixed
    raise UserError(f"No law is for {case.operator}, only for matmul and attention.")
