"""Where the published measurements lie that laws are held against."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

OVERRIDE = "PYPERF_MEASURED_TABLES"


@pytest.fixture(scope="session")
def measured_tables(pytestconfig: pytest.Config) -> Path:
    """The folder of measured tables; they are not the project's to ship, so a test skips where they are not."""
    folder = Path(os.environ.get(OVERRIDE) or pytestconfig.rootpath.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"the published measurements are not at {folder}: set {OVERRIDE} to the folder that has them")
    return folder
