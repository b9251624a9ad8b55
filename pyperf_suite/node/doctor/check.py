"""What one look at the machine comes to: a verdict, what was found, and what a person could do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

Readings = TypeVar("Readings")
Verdict = Literal["ok", "warning", "problem", "not applicable"]

SCHEMA = 1


@dataclass(frozen=True)
class Check:
    """What was found, judged. `advice` is empty if nothing is to be done; `command` is for a person to run."""

    verdict: Verdict
    found: str
    advice: str = ""
    command: str = ""
    name: str = ""


ok, warning, problem = partial(Check, "ok"), partial(Check, "warning"), partial(Check, "problem")


def not_applicable(found: str = "not reported") -> Check:
    """A check for which this machine has nothing to judge, or does not say."""
    return Check("not applicable", found)


def examined(checks: Mapping[str, Callable[[Readings], Check]], readings: Readings, prefix: str = "") -> list[Check]:
    """Each check of a table on the same readings, with its name."""
    return [dataclasses.replace(check(readings), name=prefix + name) for name, check in checks.items()]


@dataclass(frozen=True)
class CheckGroup:
    """Checks of one part of the machine."""

    name: str
    checks: Sequence[Check]


def worst(groups: Iterable[CheckGroup]) -> Verdict:
    """The verdict over all: the worst there is, `ok` where nothing is worse."""
    found = {check.verdict for group in groups for check in group.checks}
    return "problem" if "problem" in found else "warning" if "warning" in found else "ok"


def exit_code(groups: Iterable[CheckGroup]) -> int:
    """1 where there is a problem, 0 otherwise: warnings do not stop a job."""
    return int(worst(groups) == "problem")


def as_json(groups: Sequence[CheckGroup]) -> dict[str, Any]:
    """Plain JSON of all checks, with the verdict over them."""
    return {
        "schema": SCHEMA,
        "verdict": worst(groups),
        "checks": [
            {"group": group.name, "name": check.name, **dataclasses.asdict(check)}
            for group in groups
            for check in group.checks
        ],
    }


def gib(size_bytes: float) -> str:
    """A size as people read it: 62.5 GiB, 64 MiB.

    >>> gib(64 * 2**20)
    '64 MiB'
    """
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
