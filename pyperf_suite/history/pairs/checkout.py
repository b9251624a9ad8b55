"""What git tells of the checkout whose revisions are compared; nothing in it is changed, and no shell is involved."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyperf_suite
from pyperf_suite.errors import UserError

# A checkout that can be built holds these.
OF_THE_PROJECT = ("setup.py", "pyperf_suite/__init__.py")
GIT_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Checkout:
    """A folder that git knows as the top of a checkout."""

    root: Path

    def commit(self, revision: str) -> str:
        """The full id of the commit that a revision names. Raises UserError where it names none."""
        if revision.startswith("-"):
            raise UserError(f"{revision!r} is no revision, for it begins like an option: name a commit, branch or tag.")
        done = git(self.root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        found = done.stdout.decode().strip()
        if done.returncode or not found:
            raise UserError(
                f"{revision!r} is neither a revision of {self.root} nor an interpreter, NAME==VERSION or FIELD=VALUE: "
                "name one."
                + (" This clone is shallow: git fetch --unshallow brings older commits." if self._is_shallow() else "")
            )
        return found

    def _is_shallow(self) -> bool:
        return git(self.root, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true"

    def is_clean(self) -> bool:
        """Whether the working tree is just what is committed."""
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
    """The checkout of the project that a folder (by default the current one) lies in, else the running package's.

    Raises UserError where there is no git, or neither is a checkout.
    """
    for place in (start or Path.cwd(), Path(pyperf_suite.__file__).resolve().parent):
        done = git(place, "rev-parse", "--show-toplevel")
        root = Path(os.fsdecode(done.stdout.rstrip(b"\n")))
        if done.returncode == 0 and all((root / name).is_file() for name in OF_THE_PROJECT):
            return Checkout(root)
    raise UserError(
        "Revisions can only be compared in a git checkout of the project, and neither the current folder nor the "
        "running package lies in one: go there, or name two interpreters."
    )


def find_repository(folder: Path) -> Checkout:
    """The checkout that a folder lies in, of whatever project.

    Raises UserError where there is no git, or the folder lies in no checkout.
    """
    done = git(folder, "rev-parse", "--show-toplevel")
    if done.returncode:
        raise UserError(
            f"{folder} lies in no git checkout, so there are no revisions: name requirements, as numpy==2.1.0, "
            "or interpreters."
        )
    return Checkout(Path(os.fsdecode(done.stdout.rstrip(b"\n"))))


def git(folder: Path, *arguments: str, deadline_s: float = GIT_DEADLINE_S) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. Raises UserError where there is no git or it does not come back."""
    # Variables that a hook sets would have git look elsewhere than in the folder.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            env=inherited | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise UserError(
            "Comparing revisions takes git, which is not installed: install it, or name two interpreters."
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"git {' '.join(arguments)[:80]} did not work in {folder}: {error}") from None


def last_line(output: bytes) -> str:
    """The last line with words in it of what a program printed, for a sentence."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it says nothing"
