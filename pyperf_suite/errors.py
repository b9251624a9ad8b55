"""The exceptions and the warning that mean something to a person rather than to a debugger.

Front ends print a `UserError` as one sentence and exit with code 2; the worker turns `Unsupported` into a record.
"""

from __future__ import annotations


class UserError(Exception):
    """Something was asked for that cannot be: the message says what was asked, what was found, what to do."""


class Unsupported(Exception):
    """This machine or implementation cannot run the case; the message is the reason kept in its record."""


class TornJournal(UserWarning):
    """The last line of a journal was cut off in the middle; the records before it are whole."""
