"""The two exceptions that mean something to a person rather than to a debugger.

Front ends print a `UserError` as one sentence and exit with code 2; the worker turns `Unsupported` into a record.
"""

from __future__ import annotations


class UserError(Exception):
    """Something was asked for that cannot be: the message says what was asked, what was found, what to do."""


class Unsupported(Exception):
    """This machine or implementation cannot run the case; the message is the reason kept in its record."""
