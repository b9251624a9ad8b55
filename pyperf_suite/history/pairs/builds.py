"""The suite's own code as an arm: a revision of its repository, its working tree, or an interpreter that has it.

What does not build is an arm with a reason and a log, not an error: the other arm may still have something to tell.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pyperf_suite.errors import UserError
from pyperf_suite.history.pairs.arms import Arm
from pyperf_suite.history.pairs.checkout import Checkout, last_line
from pyperf_suite.history.pairs.kept import (
    builds_folder,
    content,
    copy,
    interpreter_key,
    keep,
    logged,
    name_of,
    require_own,
    worktree,
)

# What the extension is compiled from, and what tells the compiler how.
NATIVE_SOURCES = ("csrc/**/*", "kernels/cuda/*.cuh", "setup.py", "tools/compiler.py")

FillTree = Callable[[Path], AbstractContextManager[None]]


def revision_arm(checkout: Checkout, revision: str, environment: bool = False) -> Arm:
    """The arm of a revision; `environment` gives it a virtual environment of its own with its own requirements.

    Raises UserError where there is no such revision, or the cache folder cannot be written.
    """
    commit = checkout.commit(revision)
    arm = Arm(name=name_of(revision, commit), commit=commit)
    return _with_build(arm, commit, lambda tree: worktree(checkout, commit, tree), environment)


def working_tree_arm(checkout: Checkout, environment: bool = False) -> Arm:
    """The arm of the working tree as it is: its commit's where nothing was changed, else of a copy of its files."""
    commit = checkout.commit("HEAD")
    if checkout.is_clean():
        arm = Arm(name=name_of(".", commit), commit=commit)
        return _with_build(arm, commit, lambda tree: worktree(checkout, commit, tree), environment)
    files = checkout.files()
    arm = Arm(name=f". ({commit[:10]} and changes)", commit=commit, dirty=True)
    key = f"changed-{content(checkout.root, files)}"
    return _with_build(arm, key, lambda tree: copy(checkout, files, tree), environment)


def interpreter_arm(python: Path) -> Arm:
    """The arm of an environment in which the suite is installed. Raises UserError where it is not."""
    name = str(python)
    python = python.absolute()  # not resolved: a link into an environment is what makes it that environment
    program = "import pyperf_suite; print(pyperf_suite.__version__)"
    try:
        done = subprocess.run(
            [str(python), "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            cwd="/",  # where no pyperf_suite lies, for the current folder would be searched first
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"The interpreter {python} does not run ({error}): name one that has pyperf_suite.") from None
    if done.returncode:
        raise UserError(f"The interpreter {python} has no pyperf_suite ({last_line(done.stderr)}): install it there.")
    version = last_line(done.stdout) if done.stdout.strip() else ""
    if not version:
        raise UserError(f"{python} is no Python interpreter, for it did nothing with a program: name one.")
    return Arm(name=f"{name} ({version})", python=python)


def _with_build(arm: Arm, key: str, fill: FillTree, environment: bool) -> Arm:
    """The arm with its build, made now unless it is kept; or with the reason why there is none."""
    holds, make = ("venv", _make_environment) if environment else ("build", _make_build)
    kept = keep(
        f"{key[:40]}-{interpreter_key()}{'-environment' if environment else ''}",
        lambda folder, log: make(folder, log, fill),
        holds,
    )
    if kept.failure:
        failure = f"{arm.name} does not build: {kept.failure}; the log is {kept.log}"
        return replace(arm, failure=failure, log=kept.log)
    if environment:
        return replace(arm, python=kept.folder / "venv" / "bin" / "python", log=kept.log)
    return replace(arm, build=kept.folder / "build", log=kept.log)


def _make_environment(folder: Path, log: Path, fill: FillTree) -> str:
    # An editable install needs its tree for as long as it is used.
    tree = folder / "tree"
    with tempfile.TemporaryDirectory(dir=folder, prefix="making-") as made, fill(Path(made) / "tree"):
        shutil.copytree(Path(made) / "tree", tree, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    return logged([sys.executable, str(tree / "tools" / "make_venv.py"), str(folder / "venv")], tree, log)


def _make_build(folder: Path, log: Path, fill: FillTree) -> str:
    with tempfile.TemporaryDirectory(dir=folder, prefix="making-") as made:
        tree, library = Path(made) / "tree", Path(made) / "lib"
        with fill(tree):
            failure = _build(tree, library, Path(made) / "base", log)
        if not failure:
            library.replace(folder / "build")
    return failure


def _build(tree: Path, library: Path, base: Path, log: Path) -> str:
    """Build a tree into a library folder. Trees with the same native sources share one extension: it takes minutes."""
    shared = builds_folder() / f"extension-{_native_sources(tree)}-{interpreter_key()}"
    require_own(shared)
    kept = list(shared.glob("_native*"))
    steps = ["build_py"] if kept else ["build"]
    target = ["--build-lib", str(library), *([] if kept else ["--build-base", str(base)])]
    failure = logged([sys.executable, "setup.py", *steps, *target], tree, log)
    if failure:
        return failure
    package = library / "pyperf_suite"
    for extension in kept:
        shutil.copy2(extension, package)
    if not kept and (built := list(package.glob("_native*"))):
        shared.mkdir(exist_ok=True, mode=0o700)
        for extension in built:
            partial = shared / f"partial-{os.getpid()}"
            shutil.copy2(extension, partial)
            partial.replace(shared / extension.name)
    return ""


def _native_sources(tree: Path) -> str:
    """A hash of everything that the extension is made of, and of what says how."""
    wanted = [path for pattern in NATIVE_SOURCES for path in tree.glob(pattern) if path.is_file()]
    return content(tree, sorted(path.relative_to(tree) for path in wanted))
