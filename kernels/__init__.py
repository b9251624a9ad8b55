"""CUDA sources shipped as package data, and Triton kernels, without GPU or compiler: `pyperf_suite.kernels`."""

from __future__ import annotations
