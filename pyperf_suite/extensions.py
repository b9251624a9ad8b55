"""What the planner, the node package and other packages add to the core, found by their entry points.

The groups are `pyperf_suite.commands` (click commands), `pyperf_suite.probes`, `pyperf_suite.workloads`,
`pyperf_suite.services` (one function a name, as `flop_per_token`) and `pyperf_suite.records` (a `RecordKind` each). An
own part whose folder was deleted adds nothing, whatever was installed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyperf_suite.errors import UserError

_HERE = Path(__file__).parent


class ExpectedTime(NamedTuple):
    """Seconds that a case should take, the interval that holds 90 % of such measurements, and where that is from."""

    seconds: float
    low: float
    high: float
    source: str


Expect = Callable[[Any], ExpectedTime | None]
"""The service `expected_times(identity)` returns one: of a Case its time, None where nothing is known."""


class OtherRecord(Protocol):
    """What another part recorded in `<results>/<machine>/<name>/`, as a report shows it."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def machine(self) -> str: ...
    @property
    def started_at(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def command(self) -> str: ...
    def findings(self) -> Any: ...


class RecordKind(NamedTuple):
    """Other records than runs: the file that tells such a folder, the topic, and the reader of a folder."""

    manifest: str
    topic: str
    read: Callable[[Path], Any]


@functools.cache
def extensions(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of a group by name; nothing is imported."""
    found = metadata.entry_points(group=f"{_HERE.name}.{group}")
    own = f"{_HERE.name}."
    there = (each for each in found if not each.module.startswith(own) or (_HERE / each.module.split(".")[1]).is_dir())
    return {each.name: each for each in there}


def load(group: str, name: str) -> Any:
    """What the entry point of that name has. Raises UserError if its module cannot be imported."""
    point = extensions(group)[name]
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything
        what = f"The {group.removesuffix('s')} {name} of {point.value}"
        raise UserError(f"{what} cannot be imported: {error!r:.200}") from error


@functools.cache
def loaded(group: str) -> dict[str, Any]:
    """All of a group by name; what cannot be imported is named in a warning and passed over."""
    found = {}
    for name in sorted(extensions(group)):
        try:
            found[name] = load(group, name)
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)
    return found


def service(name: str) -> Any:
    """The function of that name which a part offers, or None if no installed part does."""
    return load("services", name) if name in extensions("services") else None
