"""Builds of revisions, made once in the cache folder and found there again, and the suite's own code as an arm.

Each build has a folder of its own, a lock and a log, and is whole or absent: what was cut off is made anew. What does
not build is an arm with a reason and a log, not an error: the other arm may still be of use. Nothing in the checkout
whose revisions are compared is changed, and no shell is involved.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pyperf_suite
from pyperf_suite.errors import UserError
from pyperf_suite.files import lock, top_of, why_not_private
from pyperf_suite.hardware import machine
from pyperf_suite.regressions.pairs.arms import Arm, parse_requirements
from pyperf_suite.workloads.backends import kept_folder

OF_THE_PROJECT = ("setup.py", "pyperf_suite/__init__.py")
BUILD_DEADLINE_S = 1200.0
# The user's own checkouts may be large.
git = functools.partial(machine.git, deadline_s=120.0)

# Fills a folder; gets the folder and its log, and returns the reason of a failure, or nothing.
Make = Callable[[Path, Path], str]

_LOCK, _LOG, _DONE = "lock", "build.log", "done"
# pip announces a failed build before it prints what failed.
_ERROR = re.compile(rb"error: (?!subprocess-exited-with-error)")
# Sources that the extension is compiled from, and files that tell the compiler how.
NATIVE_SOURCES = ("csrc/**/*", "kernels/cuda/*.cuh", "setup.py", "tools/compiler.py")
_DESCRIBE = """
import json, sys
from importlib import metadata
packages = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
print(json.dumps([sys.version_info[:3], dict(sorted(packages.items()))]))
"""

FillTree = Callable[[Path], AbstractContextManager[None]]


@dataclass(frozen=True)
class Checkout:
    """A folder that git knows as the top of a checkout."""

    root: Path

    def commit(self, revision: str) -> str:
        """The full id of the commit that a revision names. Raises UserError where it names none."""
        done = git(self.root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        commit = done.stdout.decode().strip()
        if done.returncode or not commit:
            shallow = git(self.root, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
            raise UserError(
                f"{revision!r} is neither a revision of {self.root} nor an interpreter, NAME==VERSION or FIELD=VALUE: "
                "name one." + (" This clone is shallow: git fetch --unshallow brings older commits." if shallow else "")
            )
        return commit

    def is_clean(self) -> bool:
        done = git(self.root, "status", "--porcelain", "--untracked-files=all")
        return done.returncode == 0 and not done.stdout.strip()

    def files(self) -> list[Path]:
        """Every file of the working tree that git does not ignore, relative to the root, sorted."""
        done = git(self.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        if done.returncode:
            raise UserError(f"git cannot list the files of {self.root}: {last_line(done.stderr)}")
        names = {Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name}
        return sorted(name for name in names if (self.root / name).is_file())


def find_checkout(start: Path | None = None) -> Checkout:
    """The checkout of the project that a folder (by default the current one) lies in, else, with a warning, its own.

    Raises UserError where there is no git, or neither is a checkout.
    """
    here, own = start or Path.cwd(), Path(pyperf_suite.__file__).resolve().parent
    for place in (here, own):
        root = top_of(place.resolve())
        if root and all((root / name).is_file() for name in OF_THE_PROJECT):
            if place is own and not here.resolve().is_relative_to(root):
                warnings.warn(f"Revisions are those of {root}: {here} is no checkout of pyperf_suite.", stacklevel=2)
            return Checkout(root)
    raise UserError(
        "Revisions can only be compared in a git checkout of the project, and neither the current folder nor the "
        "running package lies in one: go there, or name two interpreters."
    )


def last_line(output: bytes) -> str:
    """The last line with words in it of what a program printed, for a sentence."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it says nothing"


def prepared(arm: Arm, key: str, make: Make, *holds: str) -> tuple[Arm, Path]:
    """The arm with its log, or with the reason why it cannot be; and the folder that `keep` made for it."""
    folder, failure = keep(f"{key}-{interpreter_key()}", make, *holds)
    log = folder / _LOG
    reason = f"{arm.name} cannot be prepared: {failure}; the log is {log}" if failure else ""
    return replace(arm, failure=reason, log=log), folder


def keep(key: str, make: Make, *holds: str) -> tuple[Path, str]:
    """The folder of that key with the entries `holds` in it, made now unless it is kept; or why it is not made.

    Raises UserError where the cache folder cannot be written, or others could have written it.
    """
    folder = builds_folder() / key
    failure = ""
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for made in (folder.parent, folder):  # `parents` would leave the mode to the umask
            made.mkdir(exist_ok=True, mode=0o700)
        # Modules built there are imported.
        if foreign := why_not_private(folder.parent) or why_not_private(folder):
            raise UserError(f"{foreign}, so it is no place for builds: name a folder of your own in PYPERF_CACHE_DIR.")
        with (folder / _LOCK).open("ab") as held:
            lock(held, wait=True)
            if not all((folder / name).exists() for name in (_DONE, *holds)):
                for left in folder.iterdir():
                    if left.is_dir() and not left.is_symlink():
                        shutil.rmtree(left, ignore_errors=True)
                    elif left.name != _LOCK:
                        left.unlink()
                begin_s = time.monotonic()
                failure = make(folder, folder / _LOG)
                if not failure:
                    (folder / _DONE).write_text(f"{time.monotonic() - begin_s:.1f}")
    except OSError as error:
        raise UserError(
            f"The cache folder {folder} cannot be written ({error.strerror}): name another in PYPERF_CACHE_DIR."
        ) from None
    return folder, failure


def longest_s() -> float:
    """How long the slowest of the builds took that are kept; 0 without one."""
    with contextlib.suppress(OSError, ValueError):  # builds of earlier versions do not say
        return max((float(done.read_text() or 0) for done in builds_folder().glob(f"*/{_DONE}")), default=0.0)
    return 0.0


def builds_folder() -> Path:
    """Return the folder of builds, `arms` next to the compiled kernels. Raises UserError without a cache folder."""
    folder = kept_folder("arms")
    if folder is None:
        raise UserError("There is no cache folder to build in: name one in the environment variable PYPERF_CACHE_DIR.")
    return folder


def logged(command: list[str], folder: Path, log: Path) -> str:
    """Run a command in the folder with its output in the log; the reason of a failure, or nothing."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GIT_DIR")}
    begin = log.stat().st_size if log.exists() else 0
    with log.open("ab") as output:
        try:
            done = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                timeout=BUILD_DEADLINE_S, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"it took longer than {BUILD_DEADLINE_S:g} s"
    return _reason(log.read_bytes()[begin:]) if done.returncode else ""


@contextlib.contextmanager
def worktree(checkout: Checkout, commit: str, tree: Path) -> Iterator[None]:
    """The commit checked out in the folder `tree`, which is gone afterwards. Raises UserError where git refuses."""
    # The user's hooks are for the user's own checkouts.
    settings = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
    add = ("worktree", "add", "--detach", "--force", str(tree), commit)
    done = git(checkout.root, *settings, *add, deadline_s=BUILD_DEADLINE_S)
    if done.returncode:
        raise UserError(f"git cannot check out {commit[:10]}: {last_line(done.stderr)}")
    try:
        yield
    finally:
        git(checkout.root, "worktree", "remove", "--force", str(tree))


@contextlib.contextmanager
def copy(checkout: Checkout, files: list[Path], tree: Path) -> Iterator[None]:
    """These files of the working tree, copied into the folder `tree`."""
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(checkout.root / name, tree / name)
    yield


def content(root: Path, files: list[Path]) -> str:
    """A hash of all names and contents."""
    digest = hashlib.sha256()
    for name in files:
        whole = (root / name).read_bytes()
        digest.update(f"{name}\0{len(whole)}\0".encode(errors="surrogateescape") + whole)
    return digest.hexdigest()[:24]


def interpreter_key() -> str:
    """Builds of one interpreter are of no use to another, nor those with one compiler to a comparison with another."""
    compilers = [os.environ.get(name, "") for name in ("CXX", "CXXFLAGS", "CFLAGS", "PYPERF_SANITIZE")]
    parts = "\0".join([os.path.realpath(sys.executable), sys.version, platform.machine(), *compilers])
    return f"{sys.implementation.cache_tag}-{hashlib.sha256(parts.encode()).hexdigest()[:8]}"


def _reason(output: bytes) -> str:
    """The first line that names an error, as compilers write it, else the last one."""
    for line in output.splitlines():
        if _ERROR.search(line):
            return last_line(line)
    return last_line(output)


def side_of(requested: str) -> Callable[[], Arm]:
    """A maker of an interpreter's, a revision's or the tree's (`.`) side. Raises UserError where it names none."""
    if parse_requirements(requested) is not None:
        raise UserError(f"{requested} is a requirement, under which kernels of your own are compared: name a FILE.py.")
    if Path(requested).is_file():
        arm = interpreter_arm(Path(requested))
        return lambda: arm
    checkout = find_checkout()
    checkout.commit("HEAD" if requested == "." else requested)
    return lambda: revision_arm(checkout, requested)


def revision_arm(checkout: Checkout, revision: str) -> Arm:
    """The arm of a revision, or of the tree for `.`. Raises UserError for no revision, and no cache folder."""
    arm, key, fill = source_of(checkout, revision)
    arm, folder = prepared(arm, key[:40], functools.partial(_make_build, fill=fill), "build")
    return replace(arm, build=folder / "build")


def source_of(checkout: Checkout, revision: str) -> tuple[Arm, str, FillTree]:
    """An arm of a revision that is not built yet, the key of its sources, and what fills a folder with them.

    For `.` it is the working tree as it is: its commit if nothing was changed, else a copy of its files. Raises
    UserError if there is no such revision.
    """
    commit = checkout.commit("HEAD" if revision == "." else revision)
    if revision == "." and not checkout.is_clean():
        files = checkout.files()
        arm = Arm(f". ({commit[:10]} and changes)", commit=commit, dirty=True, repository=checkout.root.name)
        return arm, f"changed-{content(checkout.root, files)}", lambda tree: copy(checkout, files, tree)
    # A branch's name says nothing of its commit.
    name = revision if commit.startswith(revision) else f"{revision} ({commit[:10]})"
    arm = Arm(name, commit=commit, repository=checkout.root.name)
    return arm, commit, lambda tree: worktree(checkout, commit, tree)


def interpreter_arm(python: Path) -> Arm:
    """The arm of an environment in which the suite is installed. Raises UserError where it is not."""
    version = described(python)[1].get("pyperf_suite")
    if version is None:
        raise UserError(f"The interpreter {python} has no pyperf_suite: install it there.")
    # Not resolved: a link into an environment is what makes it that environment.
    return Arm(name=f"{python} ({version})", python=python.absolute())


def described(python: Path) -> tuple[tuple[int, ...], dict[str, str]]:
    """Version and packages of an interpreter, with nothing of this one's. Raises UserError where it is none."""
    try:
        done = subprocess.run(
            [str(python), "-c", _DESCRIBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            cwd="/",  # where no package lies, for the current folder would be searched first
        )
        version, packages = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"The interpreter {python} does not run ({error}): name another.") from None
    except (ValueError, TypeError):
        raise UserError(f"{python} is no Python interpreter ({last_line(done.stderr)}): name one.") from None
    return tuple(version), packages


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
    setup = [sys.executable, "setup.py"]

    def compile_extension(folder: Path, _: Path) -> str:
        built = ["--build-lib", str(folder / "library"), "--build-base", str(base)]
        return logged([*setup, "build", *built], tree, log)

    wanted = [path for pattern in NATIVE_SOURCES for path in tree.glob(pattern) if path.is_file()]
    sources = content(tree, sorted(path.relative_to(tree) for path in wanted))
    shared, failure = keep(f"extension-{sources}-{interpreter_key()}", compile_extension, "library")
    failure = failure or logged([*setup, "build_py", "--build-lib", str(library)], tree, log)
    if not failure:
        for extension in shared.glob("library/pyperf_suite/_native*"):
            shutil.copy2(extension, library / "pyperf_suite")
    return failure
