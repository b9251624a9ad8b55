"""Kernels of the device: CUDA sources shipped as package data, and Triton kernels.

Imported as `pyperf_suite.kernels`; importing it needs neither a GPU nor a compiler.
"""

from __future__ import annotations
