"""What the planner, the node package and other packages add to the core, found by their entry points.

The groups are `pyperf_suite.commands` (click commands), `pyperf_suite.probes`, `pyperf_suite.services` (one function a
name, as `flop_per_token`), `pyperf_suite.records` (readers of other records than runs) and `pyperf_suite.page`
(sections of the page of a machine). An own part whose folder was deleted adds nothing, whatever was installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol

_PACKAGE = Path(__file__).parent


class ExpectedTime(NamedTuple):
    """Seconds that a case should take, the interval that holds 90 % of such measurements, and where that is from."""

    seconds: float
    low: float
    high: float
    source: str


Expect = Callable[[Any], ExpectedTime | None]
"""The service `expected_times(identity, results)` returns one: of a Case its time, None where nothing is known."""


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


@dataclass(frozen=True)
class RecordKind:
    """Other records than runs: the file that tells such a folder, the topic, and the reader of a folder."""

    manifest: str
    topic: str
    read: Callable[[Path], Any]


@functools.cache
def extensions(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of a group by name; nothing is imported."""
    found = metadata.entry_points(group=f"{_PACKAGE.name}.{group}")
    return {each.name: each for each in found if _is_there(each.module)}


@functools.cache
def record_kinds() -> dict[str, RecordKind]:
    """The kinds of other records by their names."""
    return {name: point.load() for name, point in extensions("records").items()}


def service(name: str) -> Any:
    """The function of that name which a part offers, or None if no installed part does."""
    point = extensions("services").get(name)
    return None if point is None else point.load()


def _is_there(module: str) -> bool:
    package, _, rest = module.partition(".")
    return package != _PACKAGE.name or (_PACKAGE / rest.partition(".")[0]).is_dir()
