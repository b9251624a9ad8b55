"""What all tests share: `pytest --benchmark-only` leaves them out, GPU tests say why they are skipped."""

from __future__ import annotations

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave the tests out of `pytest --benchmark-only`, which would collect them only to skip each."""
    return True if config.getoption("benchmark_only", default=False) else None
