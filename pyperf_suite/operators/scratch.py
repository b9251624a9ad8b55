"""Where a worker writes files that nobody needs once it is gone, however it goes."""

from __future__ import annotations

import os

# A folder that whoever starts a worker makes for it, and removes after its end; one that is killed cannot tidy up.
VARIABLE = "PYPERF_SCRATCH"


def folder() -> str | None:
    """That folder; None where none was made, for the system's own place for temporary files."""
    return os.environ.get(VARIABLE) or None
