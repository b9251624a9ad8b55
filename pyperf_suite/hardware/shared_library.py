"""Open a vendor's library at run time, and say in one sentence why it cannot be opened."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any


class Unavailable(Exception):
    """The library or the device behind it is not there; the message is a clause that says why."""


def open_library(override: str, names: Sequence[str]) -> Any:
    """Open the library whose path the environment variable `override` gives, else the first name that opens.

    Raises:
        Unavailable: nothing opened. A set override is never passed over: what it names must open.
    """
    path = os.environ.get(override)
    for name in [path] if path else names:
        try:
            return ctypes.CDLL(name)
        except OSError as refusal:
            reason = str(refusal)
    if path:
        raise Unavailable(f"{override}={path} cannot be opened ({reason})")
    raise Unavailable(f"{names[0]} cannot be opened, so there is no NVIDIA driver here")
