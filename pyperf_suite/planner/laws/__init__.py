"""Closed forms of what a kernel should cost: `gemm_time("H100", 4096, 4096, 4096)` gives seconds, of arrays an array.

`explain=True` gives the whole answer, an `explained.Explained`: seconds, causes, stated error, and whether it is
extrapolated; so do the modules' own functions. Nothing here measures or knows the device in this machine. What takes a
GPU takes its name, its `GpuSpec` or a `Calibration`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

# Imported at the first call, so that a reader of one law does not load them all.
_HOME = {
    "attention_time": "attention",
    "collective_time": "collectives",
    "gemm_time": "gemm",
    "memory_bound_time": "roofline",
}


def _law(name: str) -> Callable[..., Any]:
    def law(*sizes: Any, explain: bool = False, **options: Any) -> Any:
        found = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)(*sizes, **options)
        return found if explain else found.seconds

    law.__name__ = law.__qualname__ = name
    law.__doc__ = f"Seconds by `laws.{_HOME[name]}.{name}`, which says what it takes; all that it knows for `explain`."
    return law


attention_time, collective_time, gemm_time, memory_bound_time = map(_law, sorted(_HOME))
