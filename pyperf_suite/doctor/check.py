"""What one look at the machine comes to: a verdict, what was found, and what a person could do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warning", "problem", "not applicable"]

SCHEMA = 1


@dataclass(frozen=True)
class Check:
    """One line of the doctor's. `advice` is empty where nothing is to be done; `command` is for a person to run."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""
    command: str = ""


@dataclass(frozen=True)
class Group:
    """Checks of one part of the machine."""

    name: str
    checks: tuple[Check, ...]


def worst(groups: Iterable[Group]) -> Verdict:
    """The verdict over all: the worst there is, `ok` where nothing is worse."""
    found = {check.verdict for group in groups for check in group.checks}
    return "problem" if "problem" in found else "warning" if "warning" in found else "ok"


def exit_code(groups: Iterable[Group]) -> int:
    """1 where there is a problem, 0 otherwise: warnings do not stop a job."""
    return int(worst(groups) == "problem")


def as_json(groups: Sequence[Group]) -> dict[str, Any]:
    """Plain JSON of all checks, with the verdict over them."""
    return {
        "schema": SCHEMA,
        "verdict": worst(groups),
        "checks": [{"group": group.name, **dataclasses.asdict(check)} for group in groups for check in group.checks],
    }


def gib(size_bytes: float) -> str:
    """A size as people read it: 62.5 GiB, 64 MiB.

    >>> gib(64 * 2**20)
    '64 MiB'
    """
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
