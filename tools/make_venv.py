"""Make the environment that `make` works in: pinned packages, torch only where absent, the extension built.

A torch that this Python can already import (a GPU container's own) is kept, with everything it stands on.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

from compiler import find_cxx

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
BUILD = ("pybind11", "setuptools", "wheel")
# Compiled against numpy: where numpy is the machine's own, pip must be free to choose versions that fit it.
BUILT_ON_NUMPY = frozenset({"contourpy", "matplotlib", "scipy"})
# What a working torch must not lose under its feet; of the rest it requires, a newer one does no harm.
HELD = ("numpy", "torch", "triton")


def canonical(name: str) -> str:
    """The spelling of a distribution's name that compares equal for equal distributions (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def can_import(python: Path | str, module: str) -> bool:
    """Whether that Python imports the module; one that is there but broken counts as absent."""
    return subprocess.run([str(python), "-c", f"import {module}"], capture_output=True).returncode == 0


def requirement_name(requirement: str) -> str:
    """The canonical distribution name at the start of a requirement or constraint line."""
    return canonical(re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0])


def required_by_torch() -> set[str]:
    """Names of torch and of all that it requires, directly or not, as far as this Python has them."""
    found: set[str] = set()
    waiting = list(HELD)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        waiting.extend(requirement_name(line) for line in requirements if "extra ==" not in line)
    return found - {"setuptools"}  # the build needs its own, recent one


def constraints_keeping(held: dict[str, str], present: set[str], pins: list[str]) -> list[str]:
    """The pins of what is not present, and `name==version` for each of `held`: pip then leaves both be."""
    freed = present | (BUILT_ON_NUMPY if "numpy" in held else frozenset())
    others = [pin for pin in pins if pin and not pin.startswith("#") and requirement_name(pin) not in freed]
    return [*others, *(f"{name}=={version}" for name, version in sorted(held.items()))]


def output_of(python: Path | str, program: str) -> str:
    """What the one-line program prints under that Python."""
    return subprocess.run([str(python), "-c", program], capture_output=True, text=True).stdout.strip()


def run(*command: str, otherwise: str) -> None:
    """Run a command whose output the user sees; print one sentence and exit with code 2 if it fails."""
    if subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode:
        print(f"error: {otherwise}", file=sys.stderr, flush=True)
        raise SystemExit(2)


def python_outside(venv: Path) -> Path | None:
    """The Python behind `venv` where this one is its own (it is activated), for it must not remake itself."""
    if Path(sys.prefix).resolve() != venv.resolve():
        return None
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def make_environment(venv: Path, *, share_packages: bool) -> Path:
    """Create the environment, or keep the one that is there if it was made alike; return its Python."""
    python = venv / "bin" / "python"
    settings = venv / "pyvenv.cfg"
    describe = "import sys; print(sys.base_prefix, sys.version)"
    same_python = (
        settings.exists()
        and f"include-system-site-packages = {share_packages}".lower() in settings.read_text().lower()
        and python.exists()
        and output_of(python, describe) == output_of(sys.executable, describe)
        and can_import(python, "pip")
    )
    if not same_python:
        command = [sys.executable, "-m", "venv", "--clear", str(venv)]
        run(
            *command,
            *(["--system-site-packages"] if share_packages else []),
            otherwise=f"{sys.executable} could not make a virtual environment in {venv}: on Debian and "
            "Ubuntu, install python3-venv; elsewhere, name another Python with make PYTHON=...",
        )
    return python


def reach_torch(python: Path) -> None:
    """Let the environment see the torch of the Python that made it, even if that is an environment itself."""
    if not can_import(python, "torch"):
        folder = output_of(sys.executable, "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])")
        site = output_of(python, "import sysconfig; print(sysconfig.get_path('purelib'))")
        (Path(site) / "torch_of_the_machine.pth").write_text(f"{folder}\n")


def main(venv: Path) -> None:
    """Make or refresh the environment in the folder `venv`."""
    find_cxx()
    has_torch = can_import(sys.executable, "torch")
    python = make_environment(venv, share_packages=has_torch)
    present: set[str] = set()
    if has_torch:
        reach_torch(python)
        present = required_by_torch()
    held = {name: importlib.metadata.version(name) for name in HELD if name in present}
    if held:
        print(f"Kept as {sys.executable} has them: {', '.join(f'{n} {v}' for n, v in held.items())}.", flush=True)
    constraints = venv / "constraints.txt"
    constraints.write_text("\n".join(constraints_keeping(held, present, CONSTRAINTS.read_text().splitlines())) + "\n")

    absent = [] if has_torch else ["torch"]
    if "triton" not in present:
        absent.append("triton; platform_system == 'Linux'")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    install = [*pip, "install", "-c", str(constraints)]
    sentence = "pip could not install {}: its reason stands above; run `make` again once that is mended."
    run(*install, *BUILD, otherwise=sentence.format("what the build needs"))
    package = ["--no-build-isolation", "--editable", ".[dev]"]
    run(*install, *package, *absent, otherwise=sentence.format("pyperf_suite with its requirements"))


if __name__ == "__main__":
    outside = python_outside(Path(sys.argv[1]))
    if outside is not None:
        os.execv(outside, [str(outside), *sys.argv])
    main(Path(sys.argv[1]))
