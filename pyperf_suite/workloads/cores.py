"""How many workers an implementation that runs on CPU cores may be asked for."""

from __future__ import annotations

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu


def require_cores(workers: int) -> None:
    """Raise UserError where more workers are asked for than this process may use cores."""
    cores = cpu.detect().usable_cores
    if workers > cores:
        raise UserError(
            f"{workers} workers were asked for, but this process may use {cores} cores: ask for at most that."
        )
