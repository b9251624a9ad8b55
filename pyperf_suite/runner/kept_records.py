"""The records of a run in progress as they lie in its journal, so that a sweep of any length holds none of them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, overload

from pyperf_suite.errors import UserError
from pyperf_suite.runner.journal import read_journal
from pyperf_suite.runner.record import Record


class KeptRecords(Sequence[Record]):
    """A growing sequence: of each record only the byte is held at which it begins, eight bytes instead of kilobytes.

    Raises UserError where the journal cannot be read any more.
    """

    def __init__(self, path: Path, count: int) -> None:
        """The first `count` records of the journal at `path`, which need not exist for none."""
        self._path = path
        self._starts = array("Q")
        if count:
            with path.open("rb") as journal:
                start = 0
                for _, line in zip(range(count), journal, strict=False):
                    self._starts.append(start)
                    start += len(line)

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
            with self._path.open("rb") as journal:
                if isinstance(index, slice):
                    return [_read(journal, start) for start in self._starts[index]]
                return _read(journal, self._starts[index])
        except OSError as error:
            raise UserError(f"The results file {self._path} cannot be read: {error.strerror}.") from None

    def __iter__(self) -> Iterator[Record]:
        return iter(read_journal(self._path) if self._starts else [])


def _read(journal: IO[bytes], start: int) -> Record:
    journal.seek(start)
    return Record.from_json(json.loads(journal.readline()))
