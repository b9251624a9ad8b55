"""The sqlite file of the index: opened, made anew where it is another version's or damaged, or kept in memory.

The index holds nothing that the journals do not: losing it costs time and never a result.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from pathlib import Path
from typing import IO

from pyperf_suite import files
from pyperf_suite.errors import UserError

NAME = ".index.sqlite"
LOCK_NAME = ".index.lock"
VERSION = 2
# "pyPS" in the header of the database: nothing is dropped from a file that does not say that it is ours.
APPLICATION_ID = 0x70795053
MAGIC = b"SQLite format 3\0"
TABLES = ("watched", "files", "runs", "benchmarks", "conditions", "observations")
BUSY_S = 30.0
CACHE_KIB = 64 * 1024

# How a file that is no index, or half of one, shows: sqlite's own errors, and what it holds being no text, no JSON, no
# row of ours.
DAMAGE = (sqlite3.DatabaseError, ValueError, LookupError, TypeError, OverflowError)

SCHEMA = """
CREATE TABLE watched (path TEXT PRIMARY KEY);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, size INTEGER, mtime_ns INTEGER, inode INTEGER,
    offset INTEGER, lines INTEGER, head BLOB, tail BLOB, damage TEXT
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, file INTEGER NOT NULL, machine TEXT NOT NULL, run_id TEXT NOT NULL,
    started_at TEXT, ended_at TEXT, ok INTEGER DEFAULT 0, failed INTEGER DEFAULT 0, unsupported INTEGER DEFAULT 0,
    UNIQUE (file, machine, run_id)
);
CREATE TABLE benchmarks (
    id INTEGER PRIMARY KEY, machine TEXT NOT NULL, probe TEXT NOT NULL, case_id TEXT NOT NULL, metric TEXT NOT NULL,
    label TEXT, kind TEXT, unit TEXT, UNIQUE (machine, probe, case_id, metric)
);
CREATE TABLE conditions (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, state TEXT NOT NULL);
-- In the order in which series are read. `line` is the position within the run's file.
CREATE TABLE observations (
    benchmark INTEGER, run INTEGER, line INTEGER, visit INTEGER, started_at TEXT, outcome TEXT, reason TEXT,
    value REAL, low REAL, high REAL, samples INTEGER, clock_hz REAL, steal_share REAL, condition INTEGER,
    PRIMARY KEY (benchmark, run, line)
) WITHOUT ROWID;
CREATE INDEX observations_of_run ON observations (run);
"""


class NotOurs(sqlite3.Error):
    """The file is a database, or something else, that the suite did not write."""


class IndexFile:
    """A connection to the index of a results folder. `notes` say why it is not kept on disk, where it is not."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.notes: list[str] = []
        self._lock: IO[bytes] | None = None
        try:
            self.connection = self._open()
        except UserError:
            self._leave_lock()
            raise

    def close(self) -> None:
        """Close it; what was committed is on disk."""
        self.connection.close()
        self._leave_lock()

    def recover(self, error: Exception) -> None:
        """Go on after that error with a fresh index, on disk or in memory.

        Raises UserError where another process has held the index for longer than is waited.
        """
        why = str(error)
        if "locked" in why or "busy" in why:
            raise UserError(
                f"Another process has been writing the index {self.results / NAME} for more than {BUSY_S:.0f} s: "
                "try again when it is done."
            ) from None
        # What the disk refuses it refuses again; anything else is an index that cannot be trusted.
        refused = any(word in why for word in ("readonly", "full", "I/O", "unable to open"))
        self.connection.close()
        if refused or not self._remove():
            self._note(why)
            self.connection = self._in_memory()
        else:
            self.connection = self._open()

    def start_over(self) -> None:
        """Go on with an empty index in memory, whatever lies on disk."""
        self.connection.close()
        self._note("what is there cannot be trusted")
        self.connection = _fresh()

    def _open(self) -> sqlite3.Connection:
        if not self.results.is_dir():
            if self.results.exists():
                raise UserError(f"The results folder {self.results} is a file: name the folder that holds the runs.")
            return self._in_memory()
        try:
            self._share_lock()
            return self._on_disk()
        except NotOurs as error:
            self._note(str(error))
            return _fresh()
        except OSError as error:
            self._note(error.strerror or str(error))
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                self.recover(error)
            self._note(str(error))
        except DAMAGE as error:
            if self._remove():
                with contextlib.suppress(*DAMAGE):
                    return self._on_disk()
            self._note(str(error))
        return self._in_memory()

    def _on_disk(self) -> sqlite3.Connection:
        """The index's own file. Raises NotOurs, without touching it, where that is a link or another's database."""
        path = self.results / NAME
        for name in (NAME, f"{NAME}-journal", f"{NAME}-wal"):
            with contextlib.suppress(FileNotFoundError):
                mode = os.lstat(self.results / name).st_mode
                if not stat.S_ISREG(mode):
                    raise NotOurs(f"{name} is {files.kind_of(mode)}")
        if path.exists() and not _is_ours(path):
            raise NotOurs("the suite did not write what is there: move it away")
        return _connect(str(path))

    def _note(self, why: str) -> None:
        self.notes.append(
            f"The index {self.results / NAME} cannot be kept ({why}): the records are read anew each time."
        )

    def _in_memory(self) -> sqlite3.Connection:
        """A fresh index, begun from the one on disk where that can be read."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        path = self.results / NAME
        if path.exists():
            try:
                with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as kept:
                    kept.backup(connection)
            except DAMAGE:
                connection.close()
                connection = sqlite3.connect(":memory:", isolation_level=None)
        try:
            _prepare(connection)
        except DAMAGE:
            connection.close()
            return _fresh()
        return connection

    def _share_lock(self) -> None:
        """Hold a lock that all who have the index open share: only who holds it alone may remove the file."""
        try:
            import fcntl
        except ImportError:  # Windows, where an open file cannot be removed anyway
            return
        if self._lock is None:
            self._lock = files.open_for_appending(self.results / LOCK_NAME)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _leave_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _remove(self) -> bool:
        """Remove a damaged index with its journal; False where somebody else has it open or the disk refuses."""
        try:
            if self._lock is not None:
                import fcntl

                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in (NAME, f"{NAME}-journal"):
                (self.results / name).unlink(missing_ok=True)
            self._share_lock()
        except OSError:
            return False
        return True


def _is_ours(path: Path) -> bool:
    """Whether the suite wrote the file: it is empty, its header says so, or it has version 1's tables and no others."""
    with files.open_for_reading(path) as file:
        header = file.read(100)
    # Big-endian, at byte 68: https://www.sqlite.org/fileformat.html#application_id
    if not header or (header.startswith(MAGIC) and header[68:72] == APPLICATION_ID.to_bytes(4, "big")):
        return True
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as found:
            names = found.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            return _version(found) == 1 and {name for (name,) in names} == set(TABLES)
    except DAMAGE:
        return False


def _fresh() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _prepare(connection)
    return connection


def _connect(place: str) -> sqlite3.Connection:
    connection = sqlite3.connect(place, timeout=BUSY_S, isolation_level=None)
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables where they are not, or are another version's, in one transaction."""
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA trusted_schema = OFF")
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if _version(connection) == VERSION:
            return  # another process was first
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        for (name,) in tables.fetchall():
            connection.execute(f'DROP TABLE "{name}"')
        for statement in SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
