"""JSON for other programs: strict, whatever a producer put in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pyperf_suite.errors import printable


def dumps(value: Any, indent: int | None = 2) -> str:
    """The text, in ASCII. What JSON has no number for (nan, infinity) is null."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any, digits: int = 17) -> Any:
    """The same with only what JSON has: numpy scalars become numbers, what is not finite null, all else its text."""
    if isinstance(value, Mapping):
        return {printable(str(key)): plain(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, digits) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), digits)
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | float) else printable(str(value))
