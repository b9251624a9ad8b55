"""Builds of revisions, each in a worktree of its own, kept by commit: what an arm's processes import.

A build is whole or absent: it is made beside its place and renamed into it. What does not build is an arm with a reason
and a log, not an error: the other arm may still have something to tell.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from pyperf_suite.errors import UserError
from pyperf_suite.files import why_not_private
from pyperf_suite.history.pairs.arms import Arm
from pyperf_suite.history.pairs.checkout import Checkout, git, last_line
from pyperf_suite.workloads.cuda import cache_folder

BUILD_DEADLINE_S = 1200.0

# What the extension is compiled from, and what tells the compiler how.
NATIVE_SOURCES = ("csrc/**/*", "kernels/cuda/*.cuh", "setup.py", "tools/compiler.py")

FillTree = Callable[[Path], contextlib.AbstractContextManager[None]]


def revision_arm(checkout: Checkout, revision: str, environment: bool = False) -> Arm:
    """The arm of a revision; `environment` gives it a virtual environment of its own with its own requirements.

    Raises UserError where there is no such revision, or the cache folder cannot be written.
    """
    commit = checkout.commit(revision)
    arm = Arm(name=_name(revision, commit), commit=commit)
    return _with_build(arm, commit, lambda tree: _worktree(checkout, commit, tree), environment)


def working_tree_arm(checkout: Checkout, environment: bool = False) -> Arm:
    """The arm of the working tree as it is: its commit's where nothing was changed, else of a copy of its files."""
    commit = checkout.commit("HEAD")
    if checkout.is_clean():
        return _with_build(
            Arm(name=_name(".", commit), commit=commit),
            commit,
            lambda tree: _worktree(checkout, commit, tree),
            environment,
        )
    files = checkout.files()
    arm = Arm(name=f". ({commit[:10]} and changes)", commit=commit, dirty=True)
    return _with_build(
        arm, f"changed-{_content(checkout.root, files)}", lambda tree: _copy(checkout, files, tree), environment
    )


def interpreter_arm(python: Path) -> Arm:
    """The arm of an environment in which the suite is installed. Raises UserError where it is not."""
    name, python = (
        str(python),
        python.absolute(),
    )  # not resolved: a link into an environment is what makes it that environment
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


def builds_folder() -> Path:
    """Where builds are kept: `arms` beside the compiled kernels. Raises UserError where there is no cache folder."""
    kernels = cache_folder()
    if not kernels:
        raise UserError("There is no cache folder to build in: name one in the environment variable PYPERF_CACHE_DIR.")
    return (Path(kernels).parent if Path(kernels).name == "kernels" else Path(kernels)) / "arms"


def _with_build(arm: Arm, key: str, fill: FillTree, environment: bool) -> Arm:
    """The arm with its build, made now unless it is kept; or with the reason why there is none."""
    folder = builds_folder() / f"{key[:40]}-{_interpreter_key()}{'-environment' if environment else ''}"
    place, log = folder / ("tree" if environment else "build"), folder / "build.log"
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for made in (folder.parent, folder):  # `parents` would leave the mode to the umask
            made.mkdir(exist_ok=True, mode=0o700)
        _require_own(folder)
        with _locked(folder / "lock"):
            if not ((folder / "done").exists() and place.exists()):
                failure = _make(folder, place, log, fill, environment)
                if failure:
                    return replace(arm, failure=f"{arm.name} does not build: {failure}; the log is {log}", log=log)
                (folder / "done").touch()
    except OSError as error:
        raise UserError(
            f"The cache folder {folder} cannot be written ({error.strerror}): name another in PYPERF_CACHE_DIR."
        ) from None
    if environment:
        return replace(arm, python=folder / "venv" / "bin" / "python", log=log)
    return replace(arm, build=place, log=log)


def _require_own(folder: Path) -> None:
    """Raise UserError where others could have put something into the folder: what is built there is imported."""
    foreign = why_not_private(folder.parent) or why_not_private(folder)
    if foreign:
        raise UserError(f"{foreign}, so it is no place for builds: name a folder of your own in PYPERF_CACHE_DIR.")


def _make(folder: Path, place: Path, log: Path, fill: FillTree, environment: bool) -> str:
    """Build; the reason of a failure, or nothing. What an earlier attempt left is removed first."""
    for left in (folder / "venv", place):
        shutil.rmtree(left, ignore_errors=True)
    if environment:
        # An editable install needs its tree for as long as it is used.
        with fill(place):
            pass
        return _logged([sys.executable, str(place / "tools" / "make_venv.py"), str(folder / "venv")], place, log)
    with tempfile.TemporaryDirectory(dir=folder, prefix="making-") as made:
        tree, made_library = Path(made) / "tree", Path(made) / "lib"
        with fill(tree):
            failure = _build(tree, made_library, Path(made) / "base", log)
            _remove_worktree(tree)
        if not failure:
            made_library.replace(place)
    return failure


def _build(tree: Path, library: Path, base: Path, log: Path) -> str:
    """Build a tree into a library folder. Trees with the same native sources share one extension: it takes minutes."""
    shared = builds_folder() / f"extension-{_native_sources(tree)}-{_interpreter_key()}"
    _require_own(shared)
    kept = list(shared.glob("_native*"))
    steps = ["build_py"] if kept else ["build"]
    target = ["--build-lib", str(library), *([] if kept else ["--build-base", str(base)])]
    failure = _logged([sys.executable, "setup.py", *steps, *target], tree, log)
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
    return _content(tree, sorted(path.relative_to(tree) for path in wanted))


def _logged(command: list[str], folder: Path, log: Path) -> str:
    """Run a command with its output in the log; the reason of a failure, or nothing."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GIT_DIR")}
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                timeout=BUILD_DEADLINE_S, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"it took longer than {BUILD_DEADLINE_S:g} s"
    return f"{_reason(log.read_bytes())}" if done.returncode else ""


def _reason(output: bytes) -> str:
    """The first line that names an error, as compilers write it, else the last one."""
    for line in output.splitlines():
        if b"error:" in line:
            return last_line(line)
    return last_line(output)


@contextlib.contextmanager
def _worktree(checkout: Checkout, commit: str, tree: Path) -> Iterator[None]:
    # The user's hooks are for the user's own checkouts.
    settings = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
    done = git(
        checkout.root,
        *settings,
        "worktree",
        "add",
        "--detach",
        "--force",
        str(tree),
        commit,
        deadline_s=BUILD_DEADLINE_S,
    )
    if done.returncode:
        raise UserError(f"git cannot check out {commit[:10]}: {last_line(done.stderr)}")
    yield


def _remove_worktree(tree: Path) -> None:
    """Take the worktree out of the checkout's list again; a copy is not in it."""
    if (tree / ".git").exists():
        git(tree, "worktree", "remove", "--force", str(tree))


@contextlib.contextmanager
def _copy(checkout: Checkout, files: list[Path], tree: Path) -> Iterator[None]:
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(checkout.root / name, tree / name)
    yield


def _content(root: Path, files: list[Path]) -> str:
    """A hash of all names and contents."""
    digest = hashlib.sha256()
    for name in files:
        content = (root / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape") + content)
    return digest.hexdigest()[:24]


def _interpreter_key() -> str:
    """Builds of one interpreter are of no use to another, nor those with one compiler to a comparison with another."""
    compilers = [os.environ.get(name, "") for name in ("CXX", "CXXFLAGS", "CFLAGS", "PYPERF_SANITIZE")]
    parts = "\0".join([os.path.realpath(sys.executable), sys.version, platform.machine(), *compilers])
    return f"{sys.implementation.cache_tag}-{hashlib.sha256(parts.encode()).hexdigest()[:8]}"


def _name(revision: str, commit: str) -> str:
    """A revision with its commit, which a branch's name says nothing of."""
    return revision if commit.startswith(revision) else f"{revision} ({commit[:10]})"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for others who build the same."""
    with path.open("ab") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:  # Windows
            pass
        yield
