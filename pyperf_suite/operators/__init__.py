"""What is computed: one module an operator, with its implementations, its reference, its FLOPs and bytes."""

from __future__ import annotations

from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.operators.matmul import Matmul
from pyperf_suite.operators.operator import Operator

OPERATORS: dict[str, Operator[Any]] = {operator.name: operator for operator in (Matmul(),)}


def find_operator(name: str) -> Operator[Any]:
    """The operator of that name. Raises UserError that names those there are."""
    if name not in OPERATORS:
        raise UserError(f"Unknown operator {name!r}: choose from {', '.join(sorted(OPERATORS))}.")
    return OPERATORS[name]
