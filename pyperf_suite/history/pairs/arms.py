"""The two sides of a paired comparison: which interpreter runs which build, and what a person calls it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyperf_suite
from pyperf_suite.runner.record import Case

WORKER = Path(__file__).with_name("arm_worker.py")


@dataclass(frozen=True)
class Arm:
    """One side. `build` is the folder that holds its `pyperf_suite`; None where its interpreter has it installed.

    An arm that could not be built has its reason in `failure`, and the whole story in the file `log`. Where it runs a
    user's kernels, `software` is the version and the packages of the interpreter that does, and `borrowed` the bench
    files that its revision lacks.
    """

    name: str
    python: Path = Path(sys.executable)
    build: Path | None = None
    commit: str | None = None
    dirty: bool = False
    failure: str = ""
    log: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, Any] = field(default_factory=dict)
    borrowed: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """How to start one of its processes."""
        return (str(self.python), str(WORKER))

    @property
    def variables(self) -> dict[str, str]:
        """What its processes find in the environment beside what this one has."""
        # What the build needs may be found through the variable; an interpreter named by the user has its own.
        places = [str(self.build), os.environ.get("PYTHONPATH", "")] if self.build else []
        return {"PYTHONPATH": os.pathsep.join(place for place in places if place)} | dict(self.environment)

    def is_from(self, package: str) -> bool:
        """Whether that folder of a `pyperf_suite` is the one this arm is to run."""
        return self.build is None or Path(package).resolve().parent == self.build.resolve()

    def to_json(self) -> dict[str, object]:
        """What a reader of the results needs to know of it; no path, for those name people."""
        known = {"software": dict(self.software), "borrowed": list(self.borrowed)}
        told = {"name": self.name, "commit": self.commit, "dirty": self.dirty, "failure": self.failure}
        return told | {name: value for name, value in known.items() if value}


@dataclass(frozen=True)
class PairedCase:
    """What one arm measures and what the other does: the same case, or two variants of it."""

    probe: str
    old: Case
    new: Case

    @classmethod
    def same(cls, probe: str, case: Case) -> PairedCase:
        """The same case on both sides."""
        return cls(probe, case, case)

    @property
    def label(self) -> str:
        """What a person reads: the case, or `old -> new` of two variants."""
        return self.old.label if self.old == self.new else f"{self.old.label} -> {self.new.label}"

    @property
    def case_id(self) -> str:
        """The id of the case, or both ids of two variants."""
        return self.old.case_id if self.old == self.new else f"{self.old.case_id}-{self.new.case_id}"


def this_code(name: str) -> Arm:
    """An arm that runs the very code that is running now: both sides of a selfcheck."""
    return Arm(name, build=Path(pyperf_suite.__file__).resolve().parent.parent)
