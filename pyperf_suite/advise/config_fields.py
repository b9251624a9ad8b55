"""The fields of a configuration that anyone may have written: each is what it has to be, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyperf_suite.errors import UserError

# No dimension of a model comes near; larger numbers are not worth repeating to the user.
LARGEST_COUNT = 1 << 31


class ConfigFields:
    """The fields of a configuration. `origin` names it in errors; a field that is null counts as absent."""

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self._values = values
        self._origin = origin

    def count(self, *names: str, default: int | None = None, at_least: int = 0) -> int:
        """The first of the names that is there, a whole number; else the default.

        Raises UserError for anything else than a whole number within bounds, and where no name and no default is there.
        """
        for name in names:
            if not self.lacks(name):
                return self._whole(name, self._values[name], at_least)
        if default is None:
            raise UserError(f"{self._origin}, lacks the field {' or '.join(names)}: add it.")
        return default

    def lacks(self, *names: str) -> bool:
        return all(self._values.get(name) is None for name in names)

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value. Raises UserError for anything else."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise UserError(f"{self._origin}, has {name} = {_shown(value)}, where true or false is expected.")
        return value

    def counts(self, name: str) -> frozenset[int]:
        """A list of whole numbers, empty where absent. Raises UserError for anything else."""
        values = self._values.get(name)
        if values is None:
            return frozenset()
        if not isinstance(values, list):
            raise UserError(f"{self._origin}, has {name} = {_shown(values)}, where a list is expected.")
        return frozenset(self._whole(name, value, 0) for value in values)

    def words(self, name: str) -> list[str]:
        """A list of words, empty where absent. Raises UserError for anything else."""
        values = self._values.get(name)
        if values is None:
            return []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise UserError(f"{self._origin}, has {name} = {_shown(values)}, where a list of words is expected.")
        return values

    def word(self, name: str) -> str:
        """A word, empty where absent. Raises UserError for anything else."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise UserError(f"{self._origin}, has {name} = {_shown(value)}, where a word is expected.")
        return value or ""

    def refuse_unless(self, holds: bool, sentence: str) -> None:
        """Raise UserError that this configuration is of a kind which is not counted, unless something holds."""
        if not holds:
            raise UserError(f"{self._origin}, {sentence}.")

    def _whole(self, name: str, value: Any, at_least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{self._origin}, has {name} = {_shown(value)}, where a whole number is expected.")
        if not at_least <= value <= LARGEST_COUNT:
            raise UserError(f"{self._origin}, has a {name} that is not within {at_least} to {LARGEST_COUNT}.")
        return value


def _shown(value: Any) -> str:
    """A value as it may stand in a sentence: a nested or long one by its kind."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
