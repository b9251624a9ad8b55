"""Build pyperf_suite with its C++ extension; everything declarative stands in pyproject.toml.

Environment: CXX picks the compiler, PYPERF_WERROR=1 makes warnings errors (CI), PYPERF_SANITIZE=address builds with
the address and undefined-behaviour sanitizers and =thread with the one for data races, PYPERF_BUILD_JOBS limits the
compilations run side by side.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

from compiler import find_cxx  # noqa: E402

WARNINGS = ["-Wall", "-Wextra"]
OPTIMISED = ["-O3", "-g0"]  # Python's own flags may ask for debug information, many times the size of the code
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}


def switched_on(variable: str) -> bool:
    """Whether the environment variable is set to something other than empty or 0."""
    return os.environ.get(variable, "0") not in ("", "0")


def files(*patterns: str) -> list[str]:
    """The files under the project that match, sorted, relative to it, as setuptools wants them."""
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


class BuildNative(build_ext):
    """build_ext that needs a C++ compiler only when it compiles, and compiles the sources side by side."""

    def build_extensions(self) -> None:
        try:
            import pybind11
            from pybind11.setup_helpers import ParallelCompile
        except ImportError:
            print(
                "error: building pyperf_suite without build isolation needs pybind11, and this Python "
                f"({sys.executable}) does not have it: pip install 'pybind11>=2.13' 'setuptools>=70.1', "
                "or let pip build in isolation.",
                file=sys.stderr,
                flush=True,
            )
            raise SystemExit(2) from None
        for extension in self.extensions:
            # As a system header: our own code answers to the warnings, pybind11's does not.
            extension.extra_compile_args += ["-isystem", pybind11.get_include()]
        with ParallelCompile("PYPERF_BUILD_JOBS", default=os.cpu_count() or 1):
            super().build_extensions()

    def run(self) -> None:
        # distutils asks CXX first, for compiling and for linking: what was found is what is used.
        os.environ["CXX"] = find_cxx()
        super().run()


sanitizer = os.environ["PYPERF_SANITIZE"] if switched_on("PYPERF_SANITIZE") else ""
if sanitizer and sanitizer not in SANITIZERS:
    print(f"error: PYPERF_SANITIZE={sanitizer} is none of {', '.join(SANITIZERS)}.", file=sys.stderr)
    raise SystemExit(2)
sanitize = SANITIZERS.get(sanitizer, [])
native = Extension(
    "pyperf_suite._native",
    sources=files("csrc/**/*.cpp"),
    depends=files("csrc/**/*.h", "csrc/exports.map", "kernels/cuda/*.cuh"),
    include_dirs=["csrc", "kernels/cuda"],
    language="c++",
    extra_compile_args=[
        *(["-O2", "-g", "-fno-omit-frame-pointer", *sanitize] if sanitize else OPTIMISED),
        "-std=c++17",
        "-fvisibility=hidden",
        "-pthread",
        *WARNINGS,
        *(["-Werror"] if switched_on("PYPERF_WERROR") else []),
    ],
    extra_link_args=[
        "-pthread",
        *(["-Wl,--version-script=csrc/exports.map"] if sys.platform == "linux" else []),
        *sanitize,
    ],
)

setup(
    packages=[
        *find_packages(include=["pyperf_suite", "pyperf_suite.*"]),
        "pyperf_suite.kernels",
        *(f"pyperf_suite.kernels.{name}" for name in find_packages("kernels")),
    ],
    # Both stand here by name: a top-level package called `kernels` would collide with the one on PyPI.
    package_dir={"pyperf_suite": "pyperf_suite", "pyperf_suite.kernels": "kernels"},
    package_data={
        "pyperf_suite": [
            "py.typed",
            "**/*.toml",
            "planner/laws/calibrations/*.npz",
            "render/assets/*",
            "cli/templates/*",
        ],
        "pyperf_suite.kernels": ["cuda/*.cu", "cuda/*.cuh"],
    },
    ext_modules=[native],
    cmdclass={"build_ext": BuildNative},
    include_package_data=False,  # the lists above say it all
)
