"""Reads a journal of records line by line from wherever the last reading ended, however large it is.

What is no record is named by its line and passed over: the records after it still count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from pyperf_suite.errors import UserError
from pyperf_suite.history.stored import strict_json
from pyperf_suite.history.stored.observations import Observation, observation
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import require_whole

LONGEST_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Line:
    """One line: where it ends in the file, its number, and its observation or else why it is no record.

    A torn one is the last, without its newline: its writer may still be at it, or was killed there.
    """

    end: int
    number: int
    observation: Observation | None = None
    why: str = ""
    torn: bool = False


def read_lines(file: IO[bytes], machine: str, offset: int = 0, number: int = 0) -> Iterator[Line]:
    """Every line after `offset`, before which `number` lines lie; blank ones are passed over.

    A last line that lacks nothing but its newline is whole. Raises OSError where the file cannot be read.
    """
    file.seek(offset)
    while content := file.readline(LONGEST_LINE_BYTES + 1):
        if len(content) > LONGEST_LINE_BYTES and not content.endswith(b"\n"):
            number += 1
            yield Line(_skip_line(file), number, why=f"it is longer than {LONGEST_LINE_BYTES // 2**20} MiB")
            continue
        number += 1
        end = file.tell()
        if not content.endswith(b"\n") and not _is_json(content):
            yield Line(end, number, why="it was cut off before its end", torn=True)
            return
        if not content.strip():
            continue
        try:
            require_whole(content)
            yield Line(end, number, observation(Record.from_json(strict_json.loads(content)), machine))
        except (ValueError, OverflowError, RecursionError, UserError) as error:
            yield Line(end, number, why=str(error))


def _is_json(content: bytes) -> bool:
    if not content.endswith(b"}"):
        return False
    try:
        strict_json.loads(content)
    except ValueError:
        return False
    return True


def _skip_line(file: IO[bytes]) -> int:
    while (part := file.readline(LONGEST_LINE_BYTES)) and not part.endswith(b"\n"):
        pass
    return file.tell()
