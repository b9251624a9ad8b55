"""Say in one sentence what to run where pytest would not test this checkout's package, or find it unbuilt."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
ADVICE = (
    "run `make test` or `make bench` (they build it in .venv), or install it into this Python with "
    f"`{sys.executable} -m pip install -e {ROOT}`."
)


def why_not_testable() -> str | None:
    """Return what stands between this Python and the checkout's package, or None where nothing does."""
    package = importlib.util.find_spec("pyperf_suite")
    if package is None or package.origin is None:
        return f"pyperf_suite is not installed for {sys.executable}"
    # Below the checkout rather than at one place in it: a sanitized build lives in build/sanitize.
    if not Path(package.origin).resolve().is_relative_to(ROOT):
        elsewhere = Path(package.origin).parent
        return f"the pyperf_suite of {sys.executable} is {elsewhere}, not the one of this checkout"
    if importlib.util.find_spec("pyperf_suite._native") is None:
        return f"the C++ extension of pyperf_suite is not built for {sys.executable}"
    if not importlib.metadata.entry_points(group="pytest11", name="pyperf_suite"):
        return f"pyperf_suite is built here, but not installed for {sys.executable}"
    return None


reason = why_not_testable()
if reason is not None:
    print(f"error: {reason}: {ADVICE}", file=sys.stderr, flush=True)
    # Not pytest.exit: while conftest files load, pytest wraps it in a traceback and ends with code 4.
    raise SystemExit(2)


def pytest_configure(config: pytest.Config) -> None:
    """Let a torn journal be told as a warning; pyproject.toml cannot name a class of a package that may be absent."""
    config.addinivalue_line("filterwarnings", "default::pyperf_suite.errors.DamagedJournal")
