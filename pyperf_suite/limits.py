"""What the values of a field may be, said in its type: `Annotated[int, Within(1, 4096)]`."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import UserError


@dataclass(frozen=True)
class Within:
    """Numbers from `least` to `most`, both included."""

    least: float = -math.inf
    most: float = math.inf

    def check(self, name: str, value: Any) -> None:
        """Raise UserError for a number outside."""
        if self.least <= value <= self.most:
            return
        if self.most == math.inf:
            bound = f"is at least {self.least}"
        elif self.least == -math.inf:
            bound = f"is at most {self.most}"
        else:
            bound = f"lies between {self.least} and {self.most}"
        raise UserError(f"{name}={value} was asked for, but {name} {bound}.")


@dataclass(frozen=True)
class OneOf:
    """Words, or numbers, of a list."""

    words: Iterable[str | int]

    def check(self, name: str, value: Any) -> None:
        """Raise UserError for another one."""
        if value not in self.words:
            raise UserError(f"{name}={value} was asked for: choose from {', '.join(map(str, self.words))}.")


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
