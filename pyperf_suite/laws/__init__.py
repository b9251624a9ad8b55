"""Closed forms of what a kernel should cost: functions on numpy arrays, arrays in and seconds out.

Nothing here measures or knows the device in this machine; constants come in as arguments, or from the calibration of
the GPU that is named. What takes a GPU takes its name, its `GpuSpec` or a `Calibration`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyperf_suite.laws.attention.fused import attention_time
    from pyperf_suite.laws.calibration import Block, Calibration, load_calibration
    from pyperf_suite.laws.explained import Explained
    from pyperf_suite.laws.matmul.gemm import gemm_time
    from pyperf_suite.laws.network.collectives import collective_time
    from pyperf_suite.laws.roofline import memory_bound_time

# Imported at first use, so that a reader of one law does not load them all.
_HOME = {
    "Block": "calibration",
    "Calibration": "calibration",
    "Explained": "explained",
    "attention_time": "attention.fused",
    "collective_time": "network.collectives",
    "gemm_time": "matmul.gemm",
    "load_calibration": "calibration",
    "memory_bound_time": "roofline",
}

__all__ = [
    "Block",
    "Calibration",
    "Explained",
    "attention_time",
    "collective_time",
    "gemm_time",
    "load_calibration",
    "memory_bound_time",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
