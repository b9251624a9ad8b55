"""records.jsonl, the journal of a run: append-only and the only truth, one record a line.

A record is on disk before the next case starts. A killed writer can leave one torn line at the end; reading drops it
with a warning and resuming sets it aside. Each line holds its own length and checksum, so that damage costs the records
it hit and no others.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import IO, TypeVar, overload

from pyperf_suite import files
from pyperf_suite.errors import DamagedJournal, UserError
from pyperf_suite.record.record import OtherSchema, Record

JournalType = TypeVar("JournalType", bound="Journal")


class Journal:
    """records.jsonl of one run, open for appending. Use as a context manager."""

    ADVICE = "All earlier records are kept; free some space and go on with --resume."

    def __init__(self, path: Path) -> None:
        """Open, a torn last line moved to `<name>.torn`. Raises UserError if it cannot be, or a run writes it."""
        self.path = path
        try:
            # Unbuffered: what a full disk refuses is not tried again behind our back when the file is closed.
            self._file = files.open_for_appending(path)
            files.lock(self._file)
            _set_torn_tail_aside(path, self._file)
            # The file's own name must outlive a power cut as its records do.
            files.sync_folder(path.parent)
        except BlockingIOError:
            self._file.close()
            raise UserError(
                f"Another process is writing {path}: wait until that run is over, or leave --resume out for a new one."
            ) from None
        except OSError as error:
            raise UserError(f"The results file {path} cannot be written: {error.strerror}.") from None

    def append(self, record: Record) -> int:
        """Write one record; otherwise as `write`."""
        return self.write(sealed(record))

    def write(self, line: bytes) -> int:
        """Write one line, wait until it is on disk, and return the byte at which it begins.

        Raises UserError where the disk refuses, and where the file is gone. After any exception what was written of the
        line is taken back, so that whoever goes on writes no case twice.
        """
        file = self._file.fileno()
        try:
            end = os.fstat(file).st_size
            files.write_all(file, line)
            os.fsync(file)
            if os.fstat(file).st_nlink == 0:
                raise UserError(
                    f"{self.path} was deleted while the run was writing it, and its records with it: start a new run."
                )
            return end
        except BaseException as error:
            with contextlib.suppress(OSError, UnboundLocalError):
                os.ftruncate(file, end)
            if not isinstance(error, OSError):
                raise
            raise UserError(f"A record could not be written to {self.path}: {error.strerror}. {self.ADVICE}") from None

    def close(self) -> None:
        self._file.close()

    def __enter__(self: JournalType) -> JournalType:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_being_written(path: Path) -> bool:
    """True if a run has the journal open; False where that cannot be told."""
    try:
        with files.open_for_reading(path) as file:
            files.lock(file)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def read_journal(path: Path) -> list[Record]:
    """Every whole record of a journal, in the order written; of two visits of a case the record of both.

    A line that is damaged, or torn at the end, is named in a DamagedJournal warning and costs that record alone. Raises
    UserError where the file cannot be read, or holds records of another version of the suite.
    """
    return list(map(itemgetter(1), placed_records(path)))  # no frame between: the warning names who called


def placed_records(path: Path) -> Iterator[tuple[int, Record]]:
    """Each record of `read_journal` with the byte at which its line begins."""
    with _reading(path) as journal:
        yield from without_replaced(sharing_machines(_read_lines(path, journal)))


def without_replaced(records: Iterable[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """Drop first visits for which there is a later record of the same trial."""
    placed = list(records)
    last = {record.trial: start for start, record in placed}
    return [(start, record) for start, record in placed if not record.is_first_visit or last[record.trial] == start]


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[IO[bytes]]:
    try:
        with files.open_for_reading(path) as journal:
            yield journal
    except OSError as error:
        raise UserError(f"The results file {path} cannot be read: {error.strerror}.") from None


def _read_lines(path: Path, journal: IO[bytes]) -> Iterator[tuple[int, Record]]:
    start = 0
    for number, line in enumerate(journal, start=1):
        try:
            yield start, record_of(line)
        except OtherSchema as error:
            raise UserError(f"{path}, line {number} is not a record that can be read here: {error}") from None
        except (ValueError, RecursionError, UserError) as error:
            what = "the last line is torn" if not line.endswith(b"\n") else f"line {number} is damaged"
            warnings.warn(f"{path}: {what} and was dropped ({str(error)[:120]}).", DamagedJournal, stacklevel=6)
        start += len(line)


def sharing_machines(records: Iterable[tuple[int, Record]]) -> Iterator[tuple[int, Record]]:
    """The same records, each sharing with the one before what both say of the machine: most of a record's length."""
    last: Record | None = None
    for start, record in records:
        if last is not None:
            same = {name: getattr(last, name) for name in ("identity", "state")}
            record = replace(record, **{name: held for name, held in same.items() if held == getattr(record, name)})
        last = record
        yield start, record


_SEAL = b',"sealed":"'


def sealed(record: Record) -> bytes:
    """A record as one line of the journal; its last member holds length and CRC-32 of what stands before."""
    content = json.dumps(record.to_json(), separators=(",", ":"), allow_nan=False).encode()
    return b'%s%s%d:%08x"}\n' % (content[:-1], _SEAL, len(content), zlib.crc32(content))


def require_whole(line: bytes) -> None:
    """Raise ValueError where a line is not what was written. Lines of earlier versions have no seal and pass."""
    line = line.rstrip(b"\r\n")
    at = line.rfind(_SEAL)
    if at < 0 or not line.endswith(b'"}'):
        return
    content = line[:at] + b"}"
    if line[at + len(_SEAL) : -2] != b"%d:%08x" % (len(content), zlib.crc32(content)):
        raise ValueError("it is not as it was written: its checksum differs")


def record_of(line: bytes) -> Record:
    """The record of a line. Raises ValueError or UserError where it is damaged or none of this version's."""
    require_whole(line)
    return Record.from_json(json.loads(line))


def _set_torn_tail_aside(path: Path, journal: IO[bytes]) -> None:
    """Keep what a killed writer left after the last whole line, but not where the next record goes."""
    content = files.read_bytes(path)
    end = content.rfind(b"\n") + 1
    tail = content[end:]
    if not tail:
        return
    try:
        record_of(tail)
    except (ValueError, RecursionError, UserError):
        with files.open_for_appending(path.with_suffix(path.suffix + ".torn")) as torn:
            files.write_all(torn.fileno(), tail + b"\n")
            os.fsync(torn.fileno())
        os.ftruncate(journal.fileno(), end)
        warnings.warn(f"{path}: a torn last line was set aside in {path.name}.torn.", DamagedJournal, stacklevel=4)
    else:  # it lacks only its newline
        files.write_all(journal.fileno(), b"\n")


class KeptRecords(Sequence[Record]):
    """The records of a run in progress, held by the byte at which each begins. Raises UserError if unreadable."""

    def __init__(self, path: Path, starts: Iterable[int] = ()) -> None:
        """The records of the journal at `path` that begin at these bytes; it need not exist for none."""
        self._path = path
        self._starts = array("Q", starts)

    def add(self, start: int) -> int:
        """One more, that was written at that byte; its place in the sequence."""
        self._starts.append(start)
        return len(self._starts) - 1

    def replace(self, place: int, start: int) -> int:
        """The record at that place is now the one that was written at that byte."""
        self._starts[place] = start
        return place

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        with _reading(self._path) as journal:
            if isinstance(index, slice):
                return [_read_at(journal, start) for start in self._starts[index]]
            return _read_at(journal, self._starts[index])

    def __iter__(self) -> Iterator[Record]:
        if not self._starts:
            return
        with _reading(self._path) as journal:
            placed = ((start, _read_at(journal, start)) for start in tuple(self._starts))
            yield from (record for _, record in sharing_machines(placed))


def _read_at(journal: IO[bytes], start: int) -> Record:
    journal.seek(start)
    return record_of(journal.readline())
