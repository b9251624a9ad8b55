"""Matrix products: one signature, our own kernels and the library's beside them."""

from __future__ import annotations

from pyperf_suite.operators.matmul.parameters import LAYOUTS, MatmulParameters
from pyperf_suite.operators.matmul.product import Matmul

__all__ = ["LAYOUTS", "Matmul", "MatmulParameters"]
