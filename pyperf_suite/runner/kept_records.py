"""The records of a run in progress as they lie in its journal, so that a sweep of any length holds none of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, overload

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.runner.journal import record_of, sharing_machines
from pyperf_suite.runner.record import Record


class KeptRecords(Sequence[Record]):
    """A growing sequence: of each record only the byte is held at which it begins, eight bytes instead of kilobytes.

    Raises UserError where the journal cannot be read any more.
    """

    def __init__(self, path: Path, starts: Iterable[int] = ()) -> None:
        """The records of the journal at `path` that begin at these bytes; it need not exist for none."""
        self._path = path
        self._starts = array("Q", starts)

    def add(self, start: int) -> int:
        """One more, that was written at that byte; its place in the sequence."""
        self._starts.append(start)
        return len(self._starts) - 1

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        try:
            with files.open_for_reading(self._path) as journal:
                if isinstance(index, slice):
                    return [_read(journal, start) for start in self._starts[index]]
                return _read(journal, self._starts[index])
        except OSError as error:
            raise UserError(f"The results file {self._path} cannot be read: {error.strerror}.") from None

    def __iter__(self) -> Iterator[Record]:
        if not self._starts:
            return
        try:
            with files.open_for_reading(self._path) as journal:
                placed = ((start, _read(journal, start)) for start in tuple(self._starts))
                yield from (record for _, record in sharing_machines(placed))
        except OSError as error:
            raise UserError(f"The results file {self._path} cannot be read: {error.strerror}.") from None


def _read(journal: IO[bytes], start: int) -> Record:
    journal.seek(start)
    return record_of(journal.readline())
