"""Load the parts that the planner, the node package and other packages add to the core, by their entry points.

The groups are `pyperf_suite.commands` (click commands), `pyperf_suite.functions` (names of `pyperf_suite` itself) and
`pyperf_suite.probes`, whose probes bring the workloads that they need. An own part whose folder was deleted adds
nothing, whatever was installed.
"""

from __future__ import annotations

import functools
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
"""Returns the time of a Case, None where nothing is known."""


class OtherRecord(Protocol):
    """A record of another part in `<results>/<machine>/<name>/`, as a report shows it; `kind` is its short name."""

    kind: str
    topic: str
    path: Path
    manifest: Mapping[str, Any]

    @property
    def machine(self) -> str:
        return self.path.parent.name

    @property
    def started_at(self) -> str:
        return str(self.manifest.get("started_at", ""))

    @property
    def title(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def command(self) -> str: ...
    def findings(self) -> Any: ...


@functools.cache
def extensions(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of a group by name; nothing is imported."""
    found = metadata.entry_points(group=f"{_HERE.name}.{group}")
    own = f"{_HERE.name}."
    there = (each for each in found if not each.module.startswith(own) or (_HERE / each.module.split(".")[1]).is_dir())
    return {each.name: each for each in there}


def load(group: str, name: str) -> Any:
    """Return the object of the entry point of that name. Raises UserError if its module cannot be imported."""
    point = extensions(group)[name]
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything
        what = f"The {group.removesuffix('s')} {name} of {point.value}"
        raise UserError(f"{what} cannot be imported: {error!r:.200}") from error
