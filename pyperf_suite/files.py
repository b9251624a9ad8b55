"""How the suite opens files of a results folder, which comes from anywhere: regular ones, no link, no waiting."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import sys
from pathlib import Path
from typing import IO, Any

from pyperf_suite.errors import UserError

# A journal of a million records; what is larger would be read for minutes, or fill the memory.
LARGEST_BYTES = 8 * 2**30
_NEVER_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class NotRegular(OSError):
    """Raised for a path that is a pipe, a device, a folder, or for writing a symbolic link; `strerror` says which."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}", str(path))


def open_for_reading(path: Path, limit: int = LARGEST_BYTES, may_be_pipe: bool = False) -> IO[bytes]:
    """The regular file at `path`, or behind a symbolic link there; a pipe is waited on where somebody writes it.

    Raises OSError, NotRegular for anything else, and where the file is larger than `limit`.
    """
    file = os.fdopen(_regular(path, os.O_RDONLY, may_be_pipe), "rb")
    if os.fstat(file.fileno()).st_size > limit:
        file.close()
        raise OSError(errno.EINVAL, f"it is larger than {limit / 2**20:.0f} MiB", str(path))
    return file


def read_bytes(path: Path, limit: int = LARGEST_BYTES) -> bytes:
    """Return the regular file's bytes. Raises OSError, also where it is larger than `limit`."""
    with open_for_reading(path, limit) as file:
        return file.read()


def read_text(path: Path, limit: int = LARGEST_BYTES) -> str:
    """The same as UTF-8 text. Raises OSError, and ValueError for bytes that are none."""
    return read_bytes(path, limit).decode("utf-8")


def open_for_appending(path: Path) -> IO[bytes]:
    """The regular file there, made if absent, written at its end. Raises OSError, NotRegular for a symbolic link."""
    return os.fdopen(_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _NO_LINK), "ab", buffering=0)


def why_not_private(path: Path) -> str:
    """Why others than this user could have written the file or folder; empty where they could not, or it is absent.

    What root owns counts as this user's own: root can write everything anyway.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return ""
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a symbolic link"
    if hasattr(os, "geteuid") and status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user"
    return f"{path} can be written by other users" if status.st_mode & 0o022 else ""


def write_whole(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Make the file hold the content, or leave it as it is: written next to it, put on disk, renamed, and that on disk.

    Raises OSError, NotRegular where something other than a regular file has that name.
    """
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path).st_mode
        if not stat.S_ISREG(found):
            raise NotRegular(path, kind_of(found))
    temporary = path.with_name(f".{path.name[:100]}.{os.urandom(4).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, mode)
        try:
            write_all(descriptor, content.encode() if isinstance(content, str) else content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it, which one call need not do. Raises OSError where the disk refuses."""
    while content:
        content = content[os.write(descriptor, content) :]


def make_folder(path: Path) -> None:
    """Make a new folder, its names on disk when this returns. Raises OSError, FileExistsError where it is there."""
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True)
    for folder in absent:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk, where the system can; after a power cut a name may else be gone."""
    with contextlib.suppress(OSError):  # not every file system knows how, and the content is on disk already
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_in_results(path: Path, content: bytes | str) -> None:
    """`write_whole`. Raises UserError where it cannot be written."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); what was there is unchanged.") from None


def write_for_user(path: Path, content: bytes | str) -> None:
    """`write_whole`, for a file that the user named. Raises UserError where it cannot be written.

    A path that is no file but can be written to, such as /dev/stdout or a pipe, takes the content as it comes; a
    symbolic link is the user's own and is followed.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        else:
            write_whole(target, content)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); what was there is unchanged.") from None


def kind_of(mode: int) -> str:
    """Return the kind of a file by its mode, in words."""
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFDIR: "a folder",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "no regular file")


def _regular(path: Path, flags: int, may_be_pipe: bool = False) -> int:
    """A descriptor of the regular file at `path`, or of a pipe if it may be one. Raises OSError."""
    try:
        descriptor = os.open(path, flags | _NEVER_WAIT, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and flags & _NO_LINK:
            raise NotRegular(path, "a symbolic link") from None
        if error.errno == errno.ENXIO:
            raise NotRegular(path, "a pipe or a device") from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not (may_be_pipe and stat.S_ISFIFO(mode)):
        os.close(descriptor)
        raise NotRegular(path, kind_of(mode))
    if _NEVER_WAIT and hasattr(os, "set_blocking"):
        os.set_blocking(descriptor, True)
    return descriptor


def top_of(folder: Path) -> Path | None:
    """The top of the git checkout around a folder, if it lies in one."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)


def lock(file: IO[bytes], wait: bool = False) -> None:
    """Keep other writers out, where files can be locked. Raises BlockingIOError where one is there, or waits."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text in TOML. Raises ValueError for anything else."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def strict_json(text: str | bytes, infinity: bool = False) -> Any:
    """The JSON value in `text`; with `infinity` also NaN and Infinity, which Python writes.

    Raises ValueError, with a message for a person, for anything else: text that is not JSON, NaN or Infinity, a key
    twice in one object, nesting deeper than Python follows, an integer of thousands of digits. A number such as 1e999
    is JSON and becomes infinite: whoever uses a number asks whether it is finite.
    """
    import json  # which `--help` does without

    try:
        return _decoder(infinity).decode(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at character {error.pos})") from None
    except ValueError as error:
        raise ValueError("it holds an integer of thousands of digits" if "digits" in str(error) else error) from None


@functools.cache
def _decoder(infinity: bool) -> Any:
    import json

    return json.JSONDecoder(object_pairs_hook=_once_each, parse_constant=None if infinity else _no_constant)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"it has the key {twice[:40]!r} twice in one object")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"it holds {name}, which is no number of JSON")
