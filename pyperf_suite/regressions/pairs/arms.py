"""The two sides of a paired comparison: which interpreter runs which build, and which case each of them measures."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyperf_suite
from pyperf_suite.errors import UserError
from pyperf_suite.findings.axes import Flag
from pyperf_suite.record.case import Case, encode_fields
from pyperf_suite.regressions.thresholds import selects
from pyperf_suite.runner.plan import PlannedCase

WORKER = Path(__file__).with_name("arm_worker.py")
# A name with extras and versions, as numpy==1.26.4 or torch[opt]>=2.5,<2.6, or a name alone.
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w.,-]+\])?((===?|~=|!=|[<>]=?)[\w.*+!]+(,(?=[=~!<>])|$))*")
_COMPARES = re.compile(r"[=~!<>]=|[<>]")


@dataclass(frozen=True)
class Arm:
    """One side. `build` is the folder that holds its `pyperf_suite`; None where its interpreter has it installed.

    `repository` is the name of the folder whose revision it is.
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
    repository: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        return (str(self.python), str(WORKER))

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of its processes besides this one's."""
        # The build's needs may be found through the variable; an interpreter named by the user has its own.
        return ({} if self.build else {"PYTHONPATH": ""}) | dict(self.environment)

    def to_json(self) -> dict[str, object]:
        """Return the arm for a reader of the results; without paths, for those name people."""
        known = {"software": dict(self.software), "borrowed": list(self.borrowed)}
        always = {"name": self.name, "commit": self.commit, "dirty": self.dirty, "failure": self.failure}
        return always | {name: value for name, value in known.items() if value}


@dataclass(frozen=True)
class PairedCase:
    """Cases of the two arms: the same case, or two variants of it."""

    probe: str
    old: Case
    new: Case

    @classmethod
    def same(cls, probe: str, case: Case) -> PairedCase:
        return cls(probe, case, case)

    @property
    def label(self) -> str:
        """Return the case for people, or `old -> new` of two variants."""
        return self.old.label if self.old == self.new else f"{self.old.label} -> {self.new.label}"

    @property
    def case_id(self) -> str:
        """The id of the case, or both ids of two variants."""
        return self.old.case_id if self.old == self.new else f"{self.old.case_id}-{self.new.case_id}"


def this_code(name: str) -> Arm:
    """An arm that runs the very code that is running now: both sides of a selfcheck."""
    return Arm(name, build=Path(pyperf_suite.__file__).resolve().parent.parent)


def parse_requirements(text: str) -> tuple[str, ...] | None:
    """`numpy==1.26.4 scipy==1.11.4` as its requirements; None for a text that asks for no version of anything.

    Raises UserError for one that compares but is no requirement.
    """
    if not _COMPARES.search(text):
        return None
    requirements = tuple(text.split())
    for each in requirements:
        if not _REQUIREMENT.fullmatch(each):
            raise UserError(
                f"{text!r} is no list of requirements, for {each!r} is none: write NAME==VERSION[ NAME==VERSION …], "
                "as in 'numpy==1.26.4 scipy==1.11.4'."
            )
    return requirements


def parse_variant(text: str) -> dict[str, str] | None:
    """`tile=64x64x256,implementation=native` as a mapping; None for a text that is no variant, as numpy==2.1.0 is none.

    Raises UserError for one that names a field twice or leaves a value out.
    """
    if "=" not in text or parse_requirements(text) is not None:
        return None
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value) or name in fields:
            raise UserError(f"{text!r} is not a variant: write FIELD=VALUE[,FIELD=VALUE], as in tile=64x64x256.")
        fields[name] = value
    return fields


def pair_variants(cases: Sequence[PlannedCase], old: Mapping[str, str], new: Mapping[str, str]) -> list[PairedCase]:
    """Each case as both variants have it, but those that cannot be so. Raises UserError where none is left."""
    if old == new:
        both = ",".join(f"{name}={value}" for name, value in old.items())
        raise UserError(f"--old and --new are both {both}: name two variants that differ.")
    pairs: dict[tuple[str, str, str], PairedCase] = {}
    reasons: list[str] = []
    for planned in cases:
        try:
            pair = PairedCase(planned.probe, _changed(planned.case, old), _changed(planned.case, new))
        except UserError as reason:
            reasons.append(str(reason))
            continue
        if pair.old != pair.new:
            pairs[pair.probe, pair.old.case_id, pair.new.case_id] = pair
    if not pairs:
        why = f" The first reason: {reasons[0]}" if reasons else " Both sides are the same."
        raise UserError(f"No case can be had in both variants.{why}")
    return list(pairs.values())


def _changed(case: Case, fields: Mapping[str, str]) -> Case:
    """The case with these fields; a schedule without workers keeps the case's own. Raises UserError."""
    data = case.to_json()
    parameters = dict(data["parameters"])
    for name, value in fields.items():
        present = getattr(case.parameters, name, None)
        if name == "implementation":
            data["implementation"] = value
        elif not hasattr(case.parameters, name):
            known = ", ".join(["implementation", *vars(case.parameters)])
            raise UserError(f"{case.operator} has no field {name!r}: it has {known}.")
        elif name == "schedule" and "@" not in value:
            parameters[name] = f"{value}@{case.parameters.schedule.workers}"
        elif isinstance(present, bool):
            parameters[name] = Flag.parse(value).value
        elif isinstance(present, int | float):
            try:
                parameters[name] = type(present)(value)
            except ValueError:
                raise UserError(f"{value!r} is not a number.") from None
        else:
            parameters[name] = value
    changed = Case.from_json(data | {"parameters": parameters})
    changed.validate()
    # As it would be written: a value spelled in another way, or one that is the default, is the same case.
    return Case.from_json(changed.to_json() | {"parameters": encode_fields(changed.parameters)})


def choose(cases: Sequence[PairedCase], pattern: str | None) -> list[PairedCase]:
    """The cases that the pattern selects, all without one. Raises UserError where none is left."""
    chosen = [case for case in cases if selects(pattern, case.probe, case.label, case.case_id)]
    if not chosen:
        first = cases[0].label if cases else "none"
        raise UserError(f"-k {pattern!r} leaves none of the {len(cases)} benchmarks; the first is {first}.")
    return chosen
