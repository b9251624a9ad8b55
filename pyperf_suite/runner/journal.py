"""The append-only file of records: one JSON line each, on disk before the next case starts, and the only truth.

A killed writer can leave one torn line at the end; reading drops it with a warning and resuming sets it aside.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from pyperf_suite.errors import TornJournal, UserError
from pyperf_suite.runner.record import Record


class Journal:
    """records.jsonl of one run, open for appending. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Open for appending; a torn last line is moved to `<name>.torn` beside it first.

        Raises UserError where the file cannot be written, or another run is writing it.
        """
        self.path = path
        try:
            # Unbuffered: what a full disk refuses is not tried again behind our back when the file is closed.
            self._file: IO[bytes] = path.open("ab", buffering=0)
            _lock(self._file)
            _set_torn_tail_aside(path)
        except BlockingIOError:
            self._file.close()
            raise UserError(
                f"Another process is writing {path}: wait until that run is over, or leave --resume out for a new one."
            ) from None
        except OSError as error:
            raise UserError(f"The results file {path} cannot be written: {error.strerror}.") from None

    def append(self, record: Record) -> int:
        """Write one record, wait until it is on disk, and return the byte at which it begins.

        Raises UserError where the disk refuses, after taking back what it took of the record, and where the file is
        gone.
        """
        line = json.dumps(record.to_json(), separators=(",", ":"), allow_nan=False) + "\n"
        file = self._file.fileno()
        try:
            end = os.fstat(file).st_size
            _write_whole(file, line.encode())
            os.fsync(file)
            if os.fstat(file).st_nlink == 0:
                raise UserError(
                    f"{self.path} was deleted while the run was writing it, and its records with it: start a new run."
                )
            return end
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file, end)
            raise UserError(
                f"A record could not be written to {self.path}: {error.strerror}. All earlier records are kept; "
                "free some space and go on with --resume."
            ) from None

    def close(self) -> None:
        """Close the file; appending is over."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_whole(file: int, content: bytes) -> None:
    """Write all of it, which one call need not do. Raises OSError where the disk refuses."""
    while content:
        content = content[os.write(file, content) :]


def _lock(file: IO[bytes]) -> None:
    """Keep other writers out for as long as the file is open. Raises BlockingIOError where one is there."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_journal(path: Path) -> list[Record]:
    """Every complete record of a journal, in the order written.

    A torn last line is dropped with a TornJournal warning. Raises UserError naming file and line for anything else that
    is not a record, or where the file cannot be read.
    """
    return list(_records(path))


def _records(path: Path) -> Iterator[Record]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"The results file {path} cannot be read: {error.strerror}.") from None
    whole, tail = _split_torn_tail(content)
    if tail:
        warnings.warn(f"{path}: the last line is torn and was dropped ({len(tail)} bytes).", TornJournal, stacklevel=4)
    identity: Mapping[str, Any] = {}
    state: Mapping[str, Any] = {}
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            record = Record.from_json(json.loads(line))
        except (ValueError, RecursionError, UserError) as error:
            raise UserError(f"{path}, line {number} is not a record of the suite: {error}") from None
        # All records of a run tell of the same machine, at more length than of their case: it is kept once.
        identity = identity if record.identity == identity else record.identity
        state = state if record.state == state else record.state
        yield replace(record, identity=identity, state=state)


def _split_torn_tail(content: bytes) -> tuple[bytes, bytes]:
    """The whole lines, and what a killed writer left after them. A last record that lacks only its newline is whole."""
    end = content.rfind(b"\n") + 1
    whole, tail = content[:end], content[end:]
    try:
        json.loads(tail)
    except (ValueError, RecursionError):
        return whole, tail
    return content, b""


def _set_torn_tail_aside(path: Path) -> None:
    """Keep what a killed writer left after the last whole line, but not where the next record goes."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole, tail = _split_torn_tail(content)
    if tail:
        with path.with_suffix(path.suffix + ".torn").open("ab") as torn:
            torn.write(tail + b"\n")
            torn.flush()
            os.fsync(torn.fileno())
        os.truncate(path, len(whole))
        warnings.warn(f"{path}: a torn last line was set aside in {path.name}.torn.", TornJournal, stacklevel=4)
    elif whole and not whole.endswith(b"\n"):
        with path.open("ab") as journal:
            journal.write(b"\n")
