"""Errors of a request: exceptions, exit codes, the limits of fields, and what to write instead."""

from __future__ import annotations

import errno
import functools
import math
import os
import re
import sys
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """How every command ends, as docs/measure.md explains; one that a signal ended, with 128 and its number.

    A failure outranks a verdict, as trouble outranks a difference in diff and grep.
    """

    FINE = 0
    VERDICT = 1
    USAGE = 2
    FAILED = 3


class UserError(Exception):
    """Something was requested that cannot be: the message says what was requested, what was found, what to do."""

    def __init__(self, message: str = "", exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupted(UserError):
    """Somebody ended the command; the message says what is kept and how to go on."""


class Failed(Exception):
    """The case failed for a reason that the message says in whole; it is kept in its record as it stands.

    `reason` is the word group under which a record's verification has it, where what was launched is to blame; for
    `witnesses` see SparedCases of runner/spared.py.
    """

    def __init__(self, message: str, reason: str = "", witnesses: int = 0) -> None:
        super().__init__(message)
        self.reason, self.witnesses = reason, witnesses


class Unsupported(Exception):
    """This machine or implementation cannot run the case; the message is the reason kept in its record."""

    def __init__(self, message: str, witnesses: int = 0) -> None:
        super().__init__(message)
        self.witnesses = witnesses


def ending_of(error: BaseException) -> UserError | None:
    """The sentence and the exit code with which a command ends for an error; None for a fault of the suite."""
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("Interrupted.")
    # A full disk, a quota or a limit of a file's size.
    full: OSError | None = None
    cause: BaseException | None = error
    while full is None and cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            full = cause
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, UserError):
        error.exit_code = error.exit_code if full is None else ExitCode.FAILED
        return error
    if full is not None:
        what = full.filename or "What this prints"
        return UserError(f"{what} cannot be written ({full.strerror}): make space and try again.", ExitCode.FAILED)
    broken = broken_package(error)
    return UserError(broken, ExitCode.FAILED) if broken else None


def broken_package(error: BaseException) -> str:
    """A sentence on the installed package whose import raised the error, or that is absent; empty for other errors."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    reason = f"{type(first).__name__}: {(str(first).strip().splitlines() or [''])[0][:200]}".rstrip(": ")
    traceback = error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        name = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == "<module>" and name.partition(".")[0] not in (_PACKAGE, "__main__"):
            return f"{name} is installed but cannot be imported ({reason}): `python -c 'import {name}'` shows more."
    absent = (error.name or _PACKAGE).partition(".")[0] if isinstance(error, ModuleNotFoundError) else _PACKAGE
    return "" if absent == _PACKAGE else f"{absent} is not installed: `pip install {absent}`."


_PACKAGE = __name__.partition(".")[0]


def triton_without_gpu(error: BaseException) -> str:
    """Return the advice for Triton's error that it finds no GPU; empty for other errors."""
    if "active drivers" not in str(error):
        return ""
    return "Triton finds no GPU: measure on one, or set TRITON_INTERPRET=1 to have its kernels interpreted on the CPU."


def interpreted_bfloat16(dtypes: Iterable[str]) -> str:
    """Return the advice for a wrong result of Triton's interpreter, as of 3.7.1 and 3.9.0; empty without bfloat16."""
    is_interpreted = "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") == "1"
    if not is_interpreted or "bfloat16" not in dtypes:
        return ""
    return (
        "Triton's interpreter takes the bits of bfloat16 for whole numbers, so that the result says nothing: use "
        "float16 or float32 under TRITON_INTERPRET=1, or a GPU."
    )


# How such a reason begins, and how torch's allocators say it: the CPU's is a plain RuntimeError.
OUT_OF_MEMORY = "Out of memory: "
_ALLOCATORS = ("can't allocate memory", "out of memory")


def out_of_memory(error: BaseException | None) -> str:
    """`Out of memory: …` and what was requested, where that is why `error`, or its cause, was raised; else empty."""
    while error is not None:
        lines = str(error).strip().splitlines() or [""]
        if isinstance(error, MemoryError) or any(words in lines[0] for words in _ALLOCATORS):
            asked = re.search(r"tried to allocate [0-9.,]+ \w+", lines[0], re.IGNORECASE)
            if asked:
                return f"{OUT_OF_MEMORY}tried{asked[0][5:]}"
            return OUT_OF_MEMORY + (lines[0][:200] or type(error).__name__)
        error = error.__cause__ or error.__context__
    return ""


class DamagedJournal(UserWarning):
    """The last line of a journal was cut off in the middle; the records before it are whole."""


@dataclass(frozen=True)
class Within:
    """Numbers from `lower` to `upper`, both included."""

    lower: float = -math.inf
    upper: float = math.inf

    def check(self, name: str, value: Any) -> None:
        if self.lower <= value <= self.upper:
            return
        if self.upper == math.inf:
            bound = f"is at least {self.lower}"
        elif self.lower == -math.inf:
            bound = f"is at most {self.upper}"
        else:
            bound = f"lies between {self.lower} and {self.upper}"
        raise UserError(f"{name}={value} was requested, but {name} {bound}.")


@dataclass(frozen=True)
class OneOf:
    """Words, or numbers, of a list."""

    words: Iterable[str | int]

    def check(self, name: str, value: Any) -> None:
        if value not in self.words:
            raise UserError(f"{name}={value} was requested: choose from {', '.join(map(str, self.words))}.")


def check_limits(fields: Any) -> None:
    """Raise UserError for the first field of a dataclass whose value its type does not allow."""
    kind: Any = type(fields)
    for name, limits in _limits(kind).items():
        for limit in limits:
            limit.check(name, getattr(fields, name))


@functools.cache
def _limits(kind: Any) -> dict[str, tuple[Any, ...]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__ for name, hint in hints.items() if hasattr(hint, "__metadata__")}


NAMES_OFFERED = 3


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names most like the requested one, at most `NAMES_OFFERED`, in upper or lower case; none if no name is."""
    import difflib

    by_key = {each.lower(): each for each in names}
    found = difflib.get_close_matches(name[:80].lower(), list(by_key), n=NAMES_OFFERED)
    return [by_key[key] for key in found]


def offer(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about a name that is not there.

    >>> offer("tile_wav", ["tile_wave", "baseline"])
    'did you mean tile_wave?'
    >>> offer("nothing", ["tile_wave", "baseline"])
    'choose from tile_wave, baseline.'
    """
    there = list(names)
    near = nearest(name, there)
    return f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(there)}."


# Characters that a terminal obeys instead of showing, that turn the direction of writing, or that UTF-8 and XML lack.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    """The text with U+FFFD for every character that no terminal, UTF-8 file or XML should get."""
    return _UNPRINTABLE.sub("\ufffd", text)
