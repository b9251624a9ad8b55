"""What exchanging gradients costs a training step, and what hides it (see probes/training/data_parallel)."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.probe("data_parallel")
def test_data_parallel(measured: Callable[[], None]) -> None:
    """One step of one model in one exchange, or one all_reduce."""
    measured()
