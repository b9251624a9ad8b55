"""Make the environment that `make` works in: pinned packages, torch only where absent, the extension built.

Where this Python can import torch already (a GPU container), its packages are shared: packages that meet
pyproject.toml's requirement are left alone, and without a package index the optional rest stays absent. Elsewhere uv
installs, if it is there or to be had and pip's settings can be handed to it, and the extension is built meanwhile.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from compiler import find_cxx

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
# Compiled against numpy: where numpy is the machine's own, pip must be free to choose versions that fit it.
BUILT_ON_NUMPY = frozenset({"contourpy", "matplotlib", "scipy"})
# Packages that a working torch must not lose under its feet.
KEPT_PACKAGES = ("numpy", "torch", "triton")
# Packages that nothing but the named use needs.
OPTIONAL = {
    "hypothesis": "`make test`",
    "jinja2": "the page that `pyperf-suite report` writes",
    "matplotlib": "figures as PNG files",
    "mypy": "`make lint`",
    "nvidia-cuda-nvrtc": "CUDA kernels, unless torch or a CUDA toolkit has NVRTC",
    "plotly": "the page that `pyperf-suite report` writes",
    "pyarrow": "Parquet files",
    "pytest-xdist": "tests side by side",
    "ruff": "`make lint`",
    "triton": "Triton kernels",
}
# How a setting of pip is passed on to uv; the settings below change nothing that is installed. With any other, pip
# installs itself.
UV_OPTIONS = {
    "constraint": "--constraint",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "index-url": "--default-index",
    "no-index": "--no-index",
}
UV_NEEDS_NOT = {
    *("cache-dir", "cert", "compile", "default-timeout", "disable-pip-version-check", "no-cache-dir", "no-color"),
    *("no-compile", "no-input", "prefer-binary", "progress-bar", "quiet", "retries", "root-user-action", "timeout"),
}
FAILED = "pip could not install {}: its reason stands above; run `make` again once that is mended."
# Options to install this package itself: its requirements are met before.
PACKAGE = ("--no-deps", "--no-build-isolation", "--editable", ".")
IMPATIENT = ("--retries", "1", "--timeout", "15")  # where little is missing, do not wait minutes for an index


def canonical(name: str) -> str:
    """The spelling of a distribution's name that compares equal for equal distributions (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def can_import(python: Path | str, module: str) -> bool:
    """True if that Python imports the module; one that is there but broken counts as absent."""
    return subprocess.run([str(python), "-c", f"import {module}"], capture_output=True).returncode == 0


def requirement_name(requirement: str) -> str:
    """The canonical distribution name at the start of a requirement or constraint line."""
    return canonical(re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0])


def constraints_keeping(kept: dict[str, str], present: set[str], pins: list[str]) -> list[str]:
    """The pins of what is not present, and `name==version` for each of `kept`: pip then leaves both be."""
    freed = present | (BUILT_ON_NUMPY if "numpy" in kept else frozenset())
    others = [pin for pin in pins if pin and not pin.startswith("#") and requirement_name(pin) not in freed]
    return [*others, *(f"{name}=={version}" for name, version in sorted(kept.items()))]


def requirements(only_to_build: bool = False) -> list[str]:
    """Return pyproject.toml's requirements: to build, and unless `only_to_build`, to run, to develop, and torch."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        from pip._vendor import tomli as tomllib
    message = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    if only_to_build:
        return list(message["build-system"]["requires"])
    project = message["project"]
    lines = [*message["build-system"]["requires"], *project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        lines += extra
    return lines


def survey(lines: list[str]) -> dict[str, Any]:
    """How this Python meets the requirements, and what it has that is not of its own environment.

    `unmet`: lines that no package meets; `ours`: those that none outside the environment meets; `outside`: the packages
    outside, name to version.
    """
    from pip._vendor.packaging.requirements import Requirement

    inside = Path(sys.prefix).resolve()
    installed: dict[str, tuple[str, bool]] = {}
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"]
        if name:  # a folder left behind by a broken uninstall has none
            is_outside = not Path(str(package.locate_file(""))).resolve().is_relative_to(inside)
            installed.setdefault(canonical(name), (package.version, is_outside))
    unmet, ours = [], []
    for line in lines:
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        version, is_outside = installed.get(canonical(wanted.name), ("", False))
        meets = bool(version) and wanted.specifier.contains(version, prereleases=True)
        if not meets:
            unmet.append(line)
        if not (meets and is_outside):
            ours.append(line)
    outside = {name: version for name, (version, is_outside) in installed.items() if is_outside}
    return {"unmet": unmet, "ours": ours, "outside": outside}


def left_out(unmet: list[str]) -> str:
    """The sentence on what stays absent and what that switches off. Raises ValueError if one of them is needed."""
    needed = [line for line in unmet if requirement_name(line) not in OPTIONAL]
    if needed:
        raise ValueError(
            f"no package index gave {', '.join(needed)}, which nothing works without: connect one, or download "
            "wheels elsewhere and name their folder in PIP_FIND_LINKS; then run `make` again."
        )
    message = ", ".join(f"{name} ({OPTIONAL[name]})" for name in map(requirement_name, unmet))
    return f"Without a package index these optional packages stay absent: {message}. All else works."


def output_of(python: Path | str, program: str | list[str]) -> str:
    """Return the output of a one-line program, or of a script with its arguments, under that Python."""
    arguments = ["-c", program] if isinstance(program, str) else program
    return subprocess.run([str(python), *arguments], capture_output=True, text=True).stdout.strip()


def succeeds(*command: str) -> bool:
    """Run a command whose output the user sees."""
    return not subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode


def fail(sentence: str) -> NoReturn:
    """Print the sentence and exit with code 2."""
    print(f"error: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def run(*command: str, otherwise: str) -> None:
    """Run a command whose output the user sees; print one sentence and exit with code 2 if it fails."""
    if not succeeds(*command):
        fail(otherwise)


def python_outside(venv: Path) -> Path | None:
    """The Python behind `venv` where this one is its own (it is activated), for it must not remake itself."""
    if Path(sys.prefix).resolve() != venv.resolve():
        return None
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def make_environment(venv: Path, *, share_packages: bool) -> Path:
    """Create the environment, or keep the one that is there if it was made the same way; return its Python.

    One that shares packages takes pip from them too: `venv` would bring an old setuptools in front of theirs.
    """
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
        run(
            *(sys.executable, "-m", "venv", "--clear", str(venv)),
            *(["--system-site-packages"] if share_packages else []),
            *(["--without-pip"] if share_packages and can_import(sys.executable, "pip") else []),
            otherwise=f"{sys.executable} could not make a virtual environment in {venv}: on Debian and "
            "Ubuntu, install python3-venv; elsewhere, name another Python with make PYTHON=...",
        )
    if share_packages:
        reach(python)
    return python


def reach(python: Path) -> None:
    """Let the environment see the packages of the Python that made it, even if that is an environment itself."""
    folders = "import json, sys; print(json.dumps([each for each in sys.path if each.endswith('-packages')]))"
    theirs = json.loads(output_of(sys.executable, folders))
    theirs.append(output_of(sys.executable, "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])"))
    ours = json.loads(output_of(python, folders))
    site = output_of(python, "import sysconfig; print(sysconfig.get_path('purelib'))")
    # By `site`, so that the folders' own .pth files count as they do for the Python that owns them.
    lines = [f"import site; site.addsitedir({each!r})" for each in dict.fromkeys(theirs) if each not in ours]
    if lines:
        (Path(site) / "packages_of_the_machine.pth").write_text("\n".join(lines) + "\n")


def pip_settings(listed: str) -> dict[str, str]:
    """Return pip's settings for installing from `pip config list`, by option; the environment goes before files."""
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for line in listed.splitlines():
            key, _, value = line.partition("=")
            if key.rpartition(".")[0] == section:
                settings[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    return settings


def uv_arguments(settings: dict[str, str]) -> list[str] | None:
    """The options of `uv pip install` for these settings of pip; None where uv has none for one of them."""
    if settings.keys() - UV_OPTIONS.keys() - UV_NEEDS_NOT:
        return None
    arguments = []
    for name, option in UV_OPTIONS.items():
        values = settings.get(name, "").split()
        if name == "no-index":
            arguments += [option] if values and values[0].lower() in ("1", "true", "yes", "on") else []
        else:
            arguments += [word for value in values for word in (option, value)]
    return arguments


def install_everything(python: Path, venv: Path, pip: list[str], wanted: list[str], is_new: bool) -> None:
    """Install what is wanted into an environment of its own, and build the package next to it."""
    constraints = ["-c", str(venv / "constraints.txt")]
    # Modules are compiled when they are first imported, and most never are; but at once where Python may not keep them.
    compiles = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    settings = pip_settings(output_of(python, ["-m", "pip", "config", "list"]))
    options = uv_arguments(settings)
    # The uv on the PATH, else one of this environment's own, fetched now if it is new; nothing here imports its folder.
    own = venv / "uv" / "bin" / "uv"
    uv = "" if options is None else shutil.which("uv") or (str(own) if own.exists() else "")
    if options is not None and is_new and not uv:
        fetch = [*pip, "--quiet", *IMPATIENT, "--only-binary=:all:", "--target", str(venv / "uv"), "uv"]
        done = subprocess.run(fetch, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True)
        uv = "" if done.returncode else str(own)
    if "cert" in settings:
        os.environ.setdefault("SSL_CERT_FILE", settings["cert"])

    def install(lines: list[str]) -> None:
        if uv and options is not None:
            # As pip does: the best version of all indexes.
            by_uv = [uv, "pip", "install", "--python", str(python), "--index-strategy", "unsafe-best-match", *options]
            if succeeds(*by_uv, *(["--compile-bytecode"] if compiles else []), *constraints, *lines):
                return
        by_pip = [*pip, *([] if compiles else ["--no-compile"]), *constraints, *lines]
        run(*by_pip, otherwise=FAILED.format("what pyperf_suite requires"))

    install(requirements(only_to_build=True))
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*pip, *PACKAGE], cwd=ROOT, **silent) as building:
        install(wanted)
    if building.returncode:
        # Once more, alone and with its output.
        run(*pip, *PACKAGE, otherwise=FAILED.format("pyperf_suite"))


def main(venv: Path) -> None:
    """Make or refresh the environment in the folder `venv`."""
    find_cxx()
    has_torch = can_import(sys.executable, "torch")
    python = make_environment(venv, share_packages=has_torch)
    needs = json.loads(output_of(python, [__file__, "--survey"]))
    outside: dict[str, str] = needs["outside"] if has_torch else {}
    kept = {name: outside[name] for name in KEPT_PACKAGES if name in outside}
    if kept:
        print(f"Kept as {sys.executable} has them: {', '.join(f'{n} {v}' for n, v in kept.items())}.", flush=True)
    constraints = venv / "constraints.txt"
    pins = CONSTRAINTS.read_text().splitlines()
    constraints.write_text("\n".join(constraints_keeping(kept, set(outside), pins)) + "\n")

    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    wanted, unmet = ([line for line in needs[key] if requirement_name(line) not in kept] for key in ("ours", "unmet"))
    if not has_torch:
        install_everything(python, venv, pip, wanted, is_new=bool(unmet))
        return
    if wanted and not succeeds(*pip, *IMPATIENT, "-c", str(constraints), *wanted) and unmet:
        try:
            print(left_out(unmet), flush=True)
        except ValueError as needed:
            fail(str(needed))
    run(*pip, *PACKAGE, otherwise=FAILED.format("pyperf_suite"))


if __name__ == "__main__":
    if sys.argv[1] == "--survey":
        print(json.dumps(survey(requirements())))
        raise SystemExit
    outside_python = python_outside(Path(sys.argv[1]))
    if outside_python is not None:
        os.execv(outside_python, [str(outside_python), *sys.argv])
    main(Path(sys.argv[1]))
