"""Processes as the system sees them, by the standard library only: it comes before anything heavy is imported."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import weakref
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED_MEMORY = "/dev/shm"

# Listeners that give this process a deadline, and have to know that a long computation goes on.
deadline_listeners: list[Callable[[], None]] = []
_CURRENT = "Current thread "
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_PACKAGE = Path(__file__).resolve().parent.parent
_OURS = (f"{_PACKAGE}{os.sep}", f"{_PACKAGE.parent / 'kernels'}{os.sep}")
_PROC = Path("/proc")
_OWNED = re.compile(r"pyperf_[a-z]+_([0-9a-f]{8})_(\d+)_(\d+)_")


def begin_deadline_anew() -> None:
    """Called now and then by what computes for long, such as a reference, so that it is not taken for what hangs."""
    for begin in deadline_listeners:
        begin()


def state_of(pid: int) -> str:
    """One letter as in ps, "T" for stopped; "" for a process that is gone or has ended, and where there is no /proc."""
    state = (_stat(pid) or [""])[0]
    return "" if state in ("", "Z", "X") else state


def start_of(pid: int) -> int:
    """When the process started, in the system's own ticks, so that its number alone is not taken for it; 0 if gone."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def parent_of(pid: int) -> int:
    """The number of its parent; 0 if gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def is_alive(pid: int, start: int) -> bool:
    """Return True if the process that started then still runs, or if that cannot be read."""
    fields = _stat(pid)
    return fields is None or (bool(fields) and fields[0] not in "ZX" and int(fields[19]) == start)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat after the name: state, parent and so on; none if the process is gone, None if unread."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError:
        return None


def crash_place(stack: str, root: Path) -> str:
    """Return `file:line` of the innermost frame in faulthandler's output that is neither the suite's nor a library's.

    Of several threads the one counts that crashed. Files below `root` are named relative to it; empty if there is none.
    """
    for file, line in _FRAME.findall(stack.rpartition(_CURRENT)[2].partition("\n\n")[0]):
        if is_users(file):
            path = Path(file)
            return f"{path.relative_to(root).as_posix() if path.is_relative_to(root) else path}:{line}"
    return ""


def is_users(file: str) -> bool:
    """True if a file of code is neither the suite's nor a library's."""
    return not file.startswith(("<", *_OURS)) and "/lib/python" not in file


class OwnedFolder:
    """A temporary folder named after this process, so that `sweep` removes it; forked copies leave it alone."""

    def __init__(self, kind: str, within: str | None = None) -> None:
        """Make it in the folder `within`, else where temporary files lie."""
        import tempfile

        owner = os.getpid()
        self.name = tempfile.mkdtemp(prefix=owned_name(kind, owner), dir=within)
        self.cleanup: Callable[[], object] = weakref.finalize(self, _remove_own, self.name, owner)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _remove_own(folder: str, owner: int) -> None:
    import shutil

    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def owned_name(kind: str, pid: int) -> str:
    """How the names of a process's temporary folders begin: kind, machine, number and start of the process."""
    return f"pyperf_{kind}_{_machine()}_{pid}_{start_of(pid)}_"


def sweep(is_ending: bool = False) -> None:
    """Remove this user's temporary folders whose owners no longer live; links are left alone, never followed.

    A process that `is_ending` without a word to Python has its own removed as well.
    """
    if not hasattr(os, "getuid") or not _PROC.is_dir():
        return
    import tempfile

    for folder in (tempfile.gettempdir(), SHARED_MEMORY):
        _sweep(folder, os.getpid() if is_ending else 0)


def _sweep(folder: str, ending: int) -> None:
    import shutil

    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            owner = _OWNED.match(entry.name)
            if owner is None or owner[1] != _machine():
                continue
            if int(owner[2]) != ending and is_alive(int(owner[2]), int(owner[3])):
                continue
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    shutil.rmtree(entry.path, ignore_errors=True)


@functools.cache
def _machine() -> str:
    """Distinguishes process numbers of this machine from others' that share its temporary folder, as containers may."""
    known = []
    with contextlib.suppress(OSError):
        known.append((_PROC / "sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        known.append(str((_PROC / "self/ns/pid").readlink()))
    return f"{zlib.crc32(' '.join(known).encode()):08x}"
