"""A study's grid as a file: the tables [model], [grid], [run] and any number of [[configuration]] in TOML.

A list is crossed with every other list. With [[configuration]], each of those is a product of its own: its lists with
those of [grid] for the axes that it does not name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.nearest import offer
from pyperf_suite.probes.study.axes import GRID, MODEL, Configuration, StudyAxes, read_value

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLES = ("model", "grid", "run", "configuration")
# A study is a few numbers; what is longer is another file.
LARGEST_BYTES = 1 << 20
MOST_STEPS, MOST_EXPERIMENTS = 10_000, 100


@dataclass(frozen=True)
class RunSettings:
    """How each configuration is run: `steps` are timed after `warm_up`, in so many `experiments` of fresh processes."""

    steps: int = 10
    warm_up: int = 2
    experiments: int = 3
    seed: int = 0

    def validate(self) -> None:
        """Raise UserError for a number that cannot be."""
        limits = {"steps": (2, MOST_STEPS), "warm_up": (1, MOST_STEPS), "experiments": (1, MOST_EXPERIMENTS)}
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UserError(f"{name}={value} was asked for: ask for {least} to {most}.")


@dataclass(frozen=True)
class StudyFile:
    """What a file says: axes that it gives, configurations, and how to run them."""

    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    configurations: tuple[Configuration, ...] = ()
    run: RunSettings = RunSettings()

    def over(self, defaults: StudyAxes) -> StudyAxes:
        """The file's axes, and the defaults' where it is silent; a file that cuts nothing keeps the default cuts."""
        axes = defaults.given(self.axes)
        return replace(axes, configuration=self.configurations) if self.configurations else axes


def read_study(path: Path) -> StudyFile:
    """The study of a file. Raises UserError where it cannot be read, or says something that a study does not know."""
    try:
        content = files.read_bytes(path, LARGEST_BYTES)
    except OSError as error:
        raise UserError(f"The study {path} cannot be read: {error.strerror}.") from None
    try:
        read = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"The study {path} is not TOML: {error}.") from None
    try:
        return parse_study(read)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def parse_study(read: Mapping[str, Any]) -> StudyFile:
    """The study of a file's tables. Raises UserError for an unknown table or key, or a value of another kind."""
    _require_known(read, TABLES, "table", "A study")
    model, grid, run = (_table(read, name) for name in ("model", "grid", "run"))
    _require_known(model, MODEL, "key", "[model]")
    _require_known(grid, GRID, "key", "[grid]")
    _require_known(run, tuple(vars(RunSettings())), "key", "[run]")
    axes = {name: _values(name, value, "[model]", one=True) for name, value in model.items()}
    axes |= {name: _values(name, value, "[grid]") for name, value in grid.items()}
    for name, value in run.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(f"{name} of [run] is {value!r}, but takes a whole number.")
    settings = RunSettings(**run)
    settings.validate()
    return StudyFile(axes, tuple(_configurations(read.get("configuration", []))), settings)


def _configurations(tables: Any) -> Iterable[Configuration]:
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise UserError("configuration is a list of tables: write each below a line [[configuration]].")
    for table in tables:
        _require_known(table, GRID, "key", "[[configuration]]")
        yield Configuration(tuple((name, _values(name, value, "[[configuration]]")) for name, value in table.items()))


def _values(name: str, value: Any, where: str, one: bool = False) -> tuple[Any, ...]:
    if isinstance(value, list) and one:
        raise UserError(f"{name} of {where} is a list, but a study is of one model: give one value.")
    try:
        return tuple(read_value(name, each) for each in (value if isinstance(value, list) else [value]))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _table(read: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = read.get(name, {})
    if not isinstance(table, dict):
        raise UserError(f"{name} is {table!r}, but is a table: write its keys below a line [{name}].")
    return table


def _require_known(table: Mapping[str, Any], known: Iterable[str], what: str, where: str) -> None:
    known = tuple(known)
    for name in table:
        if name not in known:
            raise UserError(f"{where} has no {what} {name[:60]!r}: {offer(name, known)}")
