"""The axes of a sweep as data: a frozen dataclass of tuples, each of which a person may replace by name.

`-a tile=64x64x256 -a workers=1,2` replaces two axes and leaves the others as the profile has them; where several probes
run, `-a baseline.workers=1` speaks to one of them.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pyperf_suite.errors import UserError
from pyperf_suite.nearest import offer

Axes = TypeVar("Axes")


def parse_overrides(texts: Iterable[str]) -> dict[str, str]:
    """`["workers=1,2"]` as `{"workers": "1,2"}`. Raises UserError for a text without `=`."""
    overrides = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise UserError(f"{text!r} is not an axis: write NAME=VALUE[,VALUE...], as in workers=1,2.")
        overrides[name.strip()] = values
    return overrides


def overrides_for(probe_name: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """The overrides that speak to a probe: those without a probe's name, and those with its own."""
    chosen = {}
    for name, values in overrides.items():
        probe, dot, axis = name.rpartition(".")
        if not dot or probe == probe_name:
            chosen[axis] = values
    return chosen


def replace_axes(axes: Axes, overrides: Mapping[str, str]) -> Axes:
    """The axes with some replaced. Raises UserError for an axis there is not, or a value of the wrong kind."""
    hints = typing.get_type_hints(type(axes))
    replaced: dict[str, Any] = {}
    for name, text in overrides.items():
        if name not in hints:
            raise UserError(f"There is no axis {name[:80]!r} here: {offer(name, hints)}")
        element = typing.get_args(hints[name])[0]
        replaced[name] = tuple(_parse(name, element, value) for value in text.split(","))
    return dataclasses.replace(axes, **replaced)  # type: ignore[type-var]


def _parse(name: str, element: Any, text: str) -> Any:
    if hasattr(element, "parse"):
        return element.parse(text)
    try:
        return element(text.strip())
    except ValueError:
        raise UserError(f"{name}={text} was asked for, but {name} takes {element.__name__} values.") from None
