"""Measurements of kernels, the suite's own and anybody's, and the laws that decide how fast a transformer trains.

What a user's kernel needs is `pyperf_suite.user_kernels.api`; its names are available here, and imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyperf_suite.user_kernels.api import (
        INPUTS,
        cuda,
        empty,
        kernel,
        launch,
        rand,
        randint,
        randn,
        watch_step,
        zeros,
    )

__version__ = "0.3.0"

__all__ = (
    "INPUTS",
    "__version__",
    "cuda",
    "empty",
    "kernel",
    "launch",
    "rand",
    "randint",
    "randn",
    "watch_step",
    "zeros",
)


def __getattr__(name: str) -> Any:
    """A name of the public API. Raises AttributeError for any other."""
    if name in __all__:
        from pyperf_suite.user_kernels import api

        return globals().setdefault(name, getattr(api, name))  # found without this function from now on
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
