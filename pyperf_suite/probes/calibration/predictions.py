"""Cases of matmul and attention handed to the laws: parameters of operators in, seconds of a GPU out.

Operators name types as torch does and laws as data sheets do; this is where the one becomes the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyperf_suite import laws
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec
from pyperf_suite.laws.calibration import Calibration
from pyperf_suite.runner.case import Case
from pyperf_suite.spec.rows import grouped

DTYPE_OF_LAW = {
    "float32": "fp32",
    "tfloat32": "tf32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "int8": "int8",
}
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
    for positions in grouped(range(len(cases)), lambda position: _asked_together(cases[position])).values():
        seconds[positions] = _one_call(gpu, [cases[position] for position in positions])
    return seconds


def _asked_together(case: Case) -> tuple[object, ...]:
    """What a call of a law has one value of."""
    p = case.parameters
    if case.operator == "matmul":
        return (case.operator, law_dtype(case), p.layout, case.mode)
    if case.operator == "attention":
        return (case.operator, law_dtype(case), p.causal, p.backward)
    raise UserError(f"No law is for {case.operator}, only for matmul and attention.")


def _one_call(gpu: GpuSpec | Calibration | str, cases: Sequence[Case]) -> ArrayLike:
    p, dtype, mode = cases[0].parameters, law_dtype(cases[0]), cases[0].mode
    if cases[0].operator == "matmul":
        m, n, k = _sizes(cases, "m", "n", "k")
        return laws.gemm_time(gpu, m, n, k, dtype=dtype, layout=p.layout, mode=mode)
    b, q, k, h, kv, d = _sizes(cases, "batch", "seq_q", "keys", "heads", "key_heads", "head_dim")
    return laws.attention_time(gpu, b, q, k, h, kv, d, causal=p.causal, dtype=dtype, backward=p.backward)


def _sizes(cases: Sequence[Case], *names: str) -> list[NDArray[np.int64]]:
    return [np.array([getattr(case.parameters, name) for case in cases], dtype=np.int64) for name in names]
