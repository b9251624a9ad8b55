"""Matrix products: one signature, our own kernels and the library's beside them."""

from __future__ import annotations

from pyperf_suite.workloads.matmul.parameters import LAYOUTS, MatmulParameters
from pyperf_suite.workloads.matmul.product import Matmul

__all__ = ["LAYOUTS", "Matmul", "MatmulParameters"]
