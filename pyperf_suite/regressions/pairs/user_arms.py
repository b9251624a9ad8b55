"""Arms for kernels that are not the suite's: requirements, revisions of the user's repository, other interpreters.

Each side is judged by this suite in this interpreter; what an arm names is where its kernel process runs: with which
interpreter, which folders in front of its module path, and which folder the bench files are relative to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.files import parse_toml, read_bytes, top_of
from pyperf_suite.regressions.pairs import builds
from pyperf_suite.regressions.pairs.arms import Arm, parse_requirements, this_code
from pyperf_suite.user_kernels.audit.processes import PYTHON_VARIABLE
from pyperf_suite.user_kernels.declared import PATH_VARIABLE, ROOT_VARIABLE, root_of

OLDEST_PYTHON = (3, 9)
_PYTHON = "venv/bin/python"
# Build backends that make nothing but copies of Python files, unless they have settings that say otherwise.
_PURE_BACKENDS = ("setuptools", "hatchling", "flit", "flit_core", "poetry", "pdm", "uv_build")
# Text in setup.py or in the settings of these backends that asks for a compiler, or runs code of the project's own.
_COMPILED = re.compile(
    r"ext[-_]modules|Extension\(|cythonize|cffi_modules|rust_extensions|cmake|run-setuptools"
    r"|^build\s*=|^\[+tool\.poetry\.build\]|^\[+tool\.hatch\.build\b.*\bhooks",
    re.IGNORECASE | re.MULTILINE,
)


def requirements_arm(requirements: Sequence[str], root: Path) -> Arm:
    """The arm of a virtual environment with these requirements in it; bench files lie below `root`."""
    requested = sorted(set(requirements))
    digest = hashlib.sha256("\0".join(requested).encode()).hexdigest()[:24]
    arm = Arm(" ".join(requested))
    arm, folder = builds.prepared(arm, f"requirements-{digest}", partial(_make_venv, wanted=requested), "venv")
    return arm if arm.failure else _kernel_arm(arm, root, python=folder / _PYTHON)


def interpreter_arm(python: Path, root: Path) -> Arm:
    """The arm of another interpreter, which has what bench files import. Raises UserError if it is none, or too old."""
    arm = _kernel_arm(Arm(str(python)), root, python=python.absolute())  # a link is what makes it an environment
    return replace(arm, name=f"{python} (Python {arm.software['python']})")


def present_arm(root: Path) -> Arm:
    """The arm of this interpreter and the files as they lie there, where there is no git to tell revisions apart."""
    return _kernel_arm(Arm("."), root)


def side_of(requested: str, root: Path, benches: Sequence[str]) -> Callable[[], Arm]:
    """Return a maker of the named side: an interpreter, requirements, or a revision of the repository around `root`.

    Python files of a revision, or of the working tree for `.`, are put on the module path; a tree with extension
    modules is built. `benches` are files relative to the repository's root: each is the revision's own, or the present
    one where the revision has none. Raises UserError where it names none of these.
    """
    if Path(requested).is_file():
        arm = interpreter_arm(Path(requested), root)
        return lambda: arm
    requirements = parse_requirements(requested)
    if requirements is not None:
        return lambda: requirements_arm(requirements, root)
    top = top_of(root)
    if top is None and requested == ".":
        return lambda: present_arm(root)
    if top is None:
        raise UserError(
            f"{root} lies in no git checkout, so there are no revisions: name requirements, as numpy==2.1.0, "
            "or interpreters."
        )
    source = builds.source_of(builds.Checkout(top), requested)
    return lambda: _with_tree(*source, top, benches)


def located(names: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder that users' files are relative to, and these files, of kernels named FILE.py:NAME or MODULE:NAME.

    It is `root_of` a file, or of the current folder where modules are named. Raises UserError where there is no such
    file, or two files have not the same.
    """
    files: dict[Path, Path] = {}
    for name in names:
        source = Path(_source_of(name))
        if source.suffix == ".py":
            if not source.is_file():
                raise UserError(f"There is no file {str(source)[:200]}: name one that declares kernels.")
            source = source.resolve()
            files[source] = root_of(source.parent)
    roots = set(files.values()) or {root_of(Path.cwd())}
    if len(roots) > 1:
        raise UserError(f"{' and '.join(map(str, files))} lie in different repositories: compare one after the other.")
    (root,) = roots
    return root, [file.relative_to(root).as_posix() for file in files]


@contextlib.contextmanager
def kernels_of(arm: Arm, root: Path, names: Sequence[str]) -> Iterator[list[str]]:
    """The same kernels as the arm's own files declare them, for as long as processes of this one start as the arm's do.

    Raises UserError for a name that is a probe's of the suite.
    """
    for name in names:
        if _source_of(name) == name and not name.endswith(".py"):
            raise UserError(f"{name} is a probe of the suite, and others are kernels of yours: compare them in turn.")
    before = dict(os.environ)
    os.environ.update(arm.environment or {ROOT_VARIABLE: str(root)})
    names_of_kernels = []
    for name in names:
        source = Path(_source_of(name))
        file = source.resolve().relative_to(root).as_posix() if source.suffix == ".py" else str(source)
        names_of_kernels.append(file + name[len(str(source)) :])
    try:
        yield names_of_kernels
    finally:
        os.environ.clear()
        os.environ.update(before)


def _source_of(name: str) -> str:
    return name if name.endswith(".py") else name.rpartition(":")[0] or name


def notes_on(old: Arm, new: Arm, benches: Sequence[str]) -> list[str]:
    """Return notes on sides that are the same, borrowed a bench file, or have another one by that name."""
    notes = ["Both sides are the same, files and packages: what differs is chance."] if _are_same(old, new) else []
    for bench in benches:
        borrowers = [arm.name for arm in (old, new) if bench in arm.borrowed]
        if borrowers:
            notes.append(f"{bench} is not in {' nor in '.join(borrowers)}: the present one was used there.")
        places = {Path(arm.environment[ROOT_VARIABLE]) / bench for arm in (old, new) if not arm.failure}
        contents = set(map(read_bytes, places))
        if len(contents) > 1:
            notes.append(f"{bench} differs between the sides: a difference may come from what is measured.")
    return notes


def _are_same(old: Arm, new: Arm) -> bool:
    """True if both sides run the same files by the same Python with the same packages."""

    def holds(place: str) -> str:
        root = Path(place)
        files = [each.relative_to(root) for each in root.rglob("*") if each.is_file() and each.suffix != ".pyc"]
        return builds.content(root, sorted(files))

    names = (PATH_VARIABLE, ROOT_VARIABLE)
    sides = [[str(arm.build), *(arm.environment.get(name, "") for name in names)] for arm in (old, new)]
    both = [pair for one, other in zip(*sides, strict=True) for pair in zip_longest(*map(_places, (one, other)))]
    is_one = (old.software or old.python) == (new.software or new.python) and not (old.failure or new.failure)
    return is_one and all(one == other or (one and other and holds(one) == holds(other)) for one, other in both)


def _places(variable: str) -> list[str]:
    return [each for each in variable.split(os.pathsep) if each]


def _with_tree(arm: Arm, key: str, fill: builds.FillTree, present: Path, benches: Sequence[str]) -> Arm:
    """The arm with its tree, built where it must be; or with the reason why there is none."""
    arm, folder = builds.prepared(arm, f"{key[:40]}-kernels", partial(_make_tree, fill=fill), "tree")
    if arm.failure:
        return arm
    tree, library = folder / "tree", folder / "lib"
    path = [library] if library.exists() else []
    path += [tree / "src", tree] if (tree / "src").is_dir() else [tree]
    borrowed = tuple(bench for bench in benches if not (tree / bench).is_file())
    root = _bench_folder(tree, present, benches, borrowed) if borrowed else tree
    path += [(tree / bench).parent for bench in borrowed]
    return _kernel_arm(replace(arm, borrowed=borrowed), root, path)


def _make_tree(folder: Path, log: Path, fill: builds.FillTree) -> str:
    """The files of a revision in `tree`, and what is built of them in `lib`."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="making-") as work, fill(tree := Path(work) / "tree"):
        if (tree / ".git").exists() and (tree / ".gitmodules").exists():
            builds.logged(["git", "submodule", "update", "--init", "--recursive"], tree, log)
        # Copied before it is built: what a build leaves in its tree is no part of the revision.
        shutil.copytree(tree, folder / "tree", symlinks=True, ignore=shutil.ignore_patterns(".git"))
        files = [tree / name for name in ("setup.py", "pyproject.toml")]
        asks = any(_COMPILED.search(file.read_text(errors="replace")) for file in files if file.exists())
        if not asks:
            backend = str(_settings(tree).get("build-system", {}).get("build-backend", "setuptools"))
            if backend.split(".")[0] in _PURE_BACKENDS:
                return ""  # its modules can be imported as they are
        library = str(folder / "lib")
        if "build-system" not in _settings(tree):
            steps = ["build", "--build-base", str(Path(work) / "base"), "--build-lib", library]
            return builds.logged([sys.executable, "setup.py", *steps], tree, log)
        return builds.logged([*_installer(sys.executable), "--no-deps", "--target", library, str(tree)], tree, log)


def _make_venv(folder: Path, log: Path, wanted: Sequence[str]) -> str:
    uv, venv = shutil.which("uv"), str(folder / "venv")
    make = [uv, "venv", "--python", sys.executable, venv] if uv else [sys.executable, "-m", "venv", venv]
    return builds.logged(make, folder, log) or builds.logged([*_installer(str(folder / _PYTHON)), *wanted], folder, log)


def _installer(python: str) -> list[str]:
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--python", python]
    return [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]


def _settings(tree: Path) -> dict[str, Any]:
    """Return the settings of pyproject.toml; empty if there is none, or it cannot be read: the build will say why."""
    try:
        return parse_toml((tree / "pyproject.toml").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return {"build-system": {}}


def _bench_folder(tree: Path, present: Path, benches: Sequence[str], borrowed: Sequence[str]) -> Path:
    """A folder with the bench files of a revision that lacks some: its own, and the present ones of those.

    A borrowed file brings the Python files next to it, the revision's own where it has them; but not from the
    repository's root, which holds the very code that is compared.
    """
    names = set(benches)
    for bench in borrowed:
        folder = Path(bench).parent
        if folder not in (Path(), Path("src")):
            names |= {str(folder / each.name) for each in (present / folder).glob("*.py")}
    sources = {name: each / name for name in sorted(names) for each in (present, tree) if (each / name).is_file()}
    digest = hashlib.sha256()
    for name, source in sources.items():
        digest.update(f"{name}\0".encode() + hashlib.sha256(source.read_bytes()).digest())

    def make(folder: Path, _log: Path) -> str:
        for name, source in sources.items():
            (folder / "benches" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / "benches" / name)
        return ""

    return builds.keep(f"benches-{digest.hexdigest()[:24]}", make, "benches")[0] / "benches"


def _kernel_arm(arm: Arm, root: Path, path: Sequence[Path] = (), python: Path | None = None) -> Arm:
    """The arm whose kernels run by `python` with `path` in front. Raises UserError if it is none, or too old."""
    # This interpreter's kernels get its own variable, which may find more; another interpreter has its own.
    own = [] if python else _places(os.environ.get("PYTHONPATH", ""))
    places = os.pathsep.join(dict.fromkeys([*map(str, path), *own]))
    python = python or Path(sys.executable)
    environment = {PYTHON_VARIABLE: str(python), PATH_VARIABLE: places, ROOT_VARIABLE: str(root)}
    numbers, packages = builds.described(python)
    version = ".".join(map(str, numbers))
    if numbers[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise UserError(f"{python} is Python {version}, and kernels run in {oldest} or newer: name another.")
    software = {"python": version, "packages": packages}
    return replace(arm, build=this_code("").build, environment=environment, software=software)
