"""Which code measured: the commit of the checkout that this package lies in, for history to name.

An installed package, or one that merely lies inside somebody else's checkout, has none to tell.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
DEADLINE_S = 5.0


@functools.cache
def source() -> dict[str, Any]:
    """`{"commit": 40 hexadecimal digits, "dirty": whether tracked files differ from it}`, or {} if there is none."""
    return source_of(PACKAGE)


def source_of(package: Path, file: str = "__init__.py") -> dict[str, Any]:
    """The same for the package in that folder, or for whatever has that file there."""
    # A folder in a checkout that does not track the package, as a virtual environment in somebody's project, is not it.
    if _git(package, "ls-files", "--error-unmatch", file) is None:
        return {}
    commit = _git(package, "rev-parse", "--verify", "HEAD")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    return {} if commit is None or changed is None else {"commit": commit, "dirty": bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """What git answers; None where it fails, hangs, or is not there."""
    # GIT_DIR and the like, as a hook sets them, would answer for another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            env=environment,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()
