"""Measurements of kernels, the suite's own and anybody's, and the laws that decide how fast a transformer trains.

A user's kernel is declared with the names of `pyperf_suite.user_kernels.api`; `explain` and `size` are the planner's.
All are available here, and imported at first use; their types are in `__init__.pyi`.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.3.0"

__all__ = (
    "INPUTS",
    "__version__",
    "cuda",
    "empty",
    "explain",
    "kernel",
    "launch",
    "rand",
    "randint",
    "randn",
    "size",
    "watch_step",
    "zeros",
)


def __getattr__(name: str) -> Any:
    """A name of the public API. Raises AttributeError for any other, and where the part that has it is not here."""
    if name in __all__:
        from pyperf_suite.user_kernels import api

        return globals().setdefault(name, getattr(api, name))  # found without this function from now on
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
