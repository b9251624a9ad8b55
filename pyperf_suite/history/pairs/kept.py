"""What arms run: builds and environments made once, in the cache folder, and found there again.

Each has a folder of its own, a lock and a log, and is whole or absent: what was cut off is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyperf_suite.errors import UserError
from pyperf_suite.files import why_not_private
from pyperf_suite.history.pairs.checkout import Checkout, git, last_line
from pyperf_suite.workloads.backends import cache_folder

BUILD_DEADLINE_S = 1200.0

# Fills a folder; gets the folder and its log, and returns the reason of a failure, or nothing.
Make = Callable[[Path, Path], str]

_LOCK, _LOG, _DONE = "lock", "build.log", "done"

# pip announces a failed build before it prints what failed.
_ERROR = re.compile(rb"error: (?!subprocess-exited-with-error)")


@dataclass(frozen=True)
class Kept:
    """A folder of the cache. `failure` says why there is nothing in it."""

    folder: Path
    failure: str = ""

    @property
    def log(self) -> Path:
        """What the commands printed that made it."""
        return self.folder / _LOG


def keep(key: str, make: Make, *holds: str) -> Kept:
    """The folder of that key with the entries `holds` in it, made now unless it is kept from before.

    Raises UserError where the cache folder cannot be written, or others could have written it.
    """
    folder = builds_folder() / key
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for made in (folder.parent, folder):  # `parents` would leave the mode to the umask
            made.mkdir(exist_ok=True, mode=0o700)
        require_own(folder)
        with _locked(folder / _LOCK):
            if not all((folder / name).exists() for name in (_DONE, *holds)):
                _empty(folder)
                failure = make(folder, folder / _LOG)
                if failure:
                    return Kept(folder, failure)
                (folder / _DONE).touch()
    except OSError as error:
        raise UserError(
            f"The cache folder {folder} cannot be written ({error.strerror}): name another in PYPERF_CACHE_DIR."
        ) from None
    return Kept(folder)


def builds_folder() -> Path:
    """Where builds are kept: `arms` beside the compiled kernels. Raises UserError where there is no cache folder."""
    kernels = cache_folder()
    if not kernels:
        raise UserError("There is no cache folder to build in: name one in the environment variable PYPERF_CACHE_DIR.")
    return (Path(kernels).parent if Path(kernels).name == "kernels" else Path(kernels)) / "arms"


def require_own(folder: Path) -> None:
    """Raise UserError where others could have put something into the folder: what is built there is imported."""
    foreign = why_not_private(folder.parent) or why_not_private(folder)
    if foreign:
        raise UserError(f"{foreign}, so it is no place for builds: name a folder of your own in PYPERF_CACHE_DIR.")


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


def name_of(revision: str, commit: str) -> str:
    """A revision with its commit, which a branch's name says nothing of."""
    return revision if commit.startswith(revision) else f"{revision} ({commit[:10]})"


def _empty(folder: Path) -> None:
    """Remove what an earlier attempt left, but not the lock that is held."""
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        elif left.name != _LOCK:
            left.unlink()


def _reason(output: bytes) -> str:
    """The first line that names an error, as compilers write it, else the last one."""
    for line in output.splitlines():
        if _ERROR.search(line):
            return last_line(line)
    return last_line(output)


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
