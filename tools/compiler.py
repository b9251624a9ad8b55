"""Find the one thing an install needs besides Python: a C++ compiler.

Shared by setup.py and make_venv.py, so that both try the same names and speak the same sentence.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys

CANDIDATES = ("c++", "g++", "clang++")


def find_cxx() -> str:
    """Return the command of the C++ compiler: $CXX where it is set, else the first candidate on the PATH.

    Where there is none, print one sentence that names what was tried, and exit with code 2.
    """
    requested = os.environ.get("CXX", "").strip()
    if requested:
        if shutil.which(shlex.split(requested)[0]):
            return requested
        problem, advice = (
            f"CXX={requested} cannot be run",
            f"correct CXX, or unset it to let {', '.join(CANDIDATES)} be tried",
        )
    else:
        for name in CANDIDATES:
            if shutil.which(name):
                return name
        problem = f"none was found (tried $CXX, which is not set, and {', '.join(CANDIDATES)})"
        advice = "install one (g++ or clang++ from the system's packages) or set CXX to its path"
    print(f"error: pyperf_suite needs a C++17 compiler, and {problem}: {advice}.", file=sys.stderr, flush=True)
    raise SystemExit(2)
