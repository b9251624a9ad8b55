"""The exceptions and the warning that mean something to a person rather than to a debugger.

Front ends print a `UserError` as one sentence and exit with code 2; the worker turns `Unsupported` into a record.
"""

from __future__ import annotations

import re


class UserError(Exception):
    """Something was asked for that cannot be: the message says what was asked, what was found, what to do."""


class Interrupted(UserError):
    """Somebody ended the command; the message says what is kept and how to go on."""


class Failed(Exception):
    """The case failed for a reason that the message says in whole; it is kept in its record as it stands.

    `reason` is the word group under which a record's verification has it, where what was launched is to blame.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class Unsupported(Exception):
    """This machine or implementation cannot run the case; the message is the reason kept in its record."""


# How such a reason begins, and how torch's allocators say it: the CPU's is a plain RuntimeError.
OUT_OF_MEMORY = "Out of memory: "
_ALLOCATORS = ("can't allocate memory", "out of memory")


def out_of_memory(error: BaseException | None) -> str:
    """`Out of memory: …` and what was asked for, where that is why `error`, or its cause, was raised; else empty."""
    while error is not None:
        lines = str(error).strip().splitlines() or [""]
        if isinstance(error, MemoryError) or any(words in lines[0] for words in _ALLOCATORS):
            asked = re.search(r"tried to allocate [0-9.,]+ \w+", lines[0], re.IGNORECASE)
            return f"{OUT_OF_MEMORY}{f'tried{asked[0][5:]}' if asked else lines[0][:200] or type(error).__name__}"
        error = error.__cause__ or error.__context__
    return ""


class DamagedJournal(UserWarning):
    """The last line of a journal was cut off in the middle; the records before it are whole."""
