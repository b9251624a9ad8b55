"""One file a probe: what varies, which law explains it, what to tell the user. Here is which probes there are.

Every module of this folder with a PROBE is one. The planner, the node package and any other package bring probes by
entry points of the group `pyperf_suite.probes`, each named as its probe. One that cannot be imported is named in a
warning and passed over; only who asks for it is refused. A name that ends in `.py` or holds `:` is a user's own: a file
with all its kernels, one kernel of a file or module, or a test that pytest measured. While a run goes on, probes may
ask for more cases: `follow_ups`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import pkgutil
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyperf_suite.errors import UserError, offer
from pyperf_suite.extensions import extensions, load
from pyperf_suite.findings.axes import overrides_for, parse_overrides

if TYPE_CHECKING:
    from pyperf_suite.findings.probe import Probe
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.record.record import Record
    from pyperf_suite.runner.plan import Plan, PlannedCase

TOPICS = ("products", "attention", "network", "training", "the whole step", "laws", "the machine", "your kernels")
"""Topics of probes, in the order in which they are listed and shown."""

PACKAGE = "pyperf_suite.probes"

ProbeType = TypeVar("ProbeType", "Probe", "Listed")
FindProbe = Callable[[str], "Probe"]  # `find_probe`, or what gives some probes more to judge by


def _own_names() -> list[str]:
    folder = str(Path(__file__).parent)
    return [module.name for module in pkgutil.iter_modules([folder]) if not module.name.startswith("_")]


@functools.cache
def probe_names() -> tuple[str, ...]:
    """All names, without importing a probe."""
    return tuple(dict.fromkeys((*_own_names(), *extensions("probes"))))


@functools.cache
def _load(name: str) -> Probe:
    own = name in _own_names()  # no plugin of the same name takes its place
    found = importlib.import_module(f"{PACKAGE}.{name}").PROBE if own else load("probes", name)
    from pyperf_suite.findings.probe import Probe

    if not isinstance(found, Probe) or found.name != name:
        raise UserError(f"The probe {name} is no Probe of that name: {found!r:.120}")
    return found


def find_probe(name: str) -> Probe:
    """The probe of that name. Raises UserError that names the nearest, or says why it cannot be had."""
    if is_users(name):
        from pyperf_suite.user_kernels.probe import user_probe

        return user_probe(name)
    if name not in probe_names():
        raise UserError(f"Unknown probe {name[:80]!r}: {offer(name, probe_names())}")
    return _load(name)


def is_users(name: str) -> bool:
    """True if a name is of a user's file or kernel, whatever probes there are."""
    return name.endswith(".py") or ":" in name


def is_known(name: str) -> bool:
    """True if `find_probe` can say what records of that probe mean."""
    return is_users(name) or name in probe_names()


def expanded(names: Iterable[str]) -> list[str]:
    """Names of probes, each once; of a user's file all its kernels. Raises UserError for a file that has none."""
    if any(map(is_users, names := list(names))):
        from pyperf_suite.user_kernels.probe import expanded as kernels_of

        names = kernels_of(names)
    return list(dict.fromkeys(names))


def all_probes(names: Container[str] | None = None, find: FindProbe = find_probe) -> list[Probe]:
    """Every probe that can be imported, or those of these names, by topic; others are named in a warning."""
    return _by_topic((name for name in probe_names() if names is None or name in names), find)


def _by_topic(names: Iterable[str], find: Callable[[str], ProbeType]) -> list[ProbeType]:
    chosen = []
    for name in names:
        try:
            chosen.append(find(name))
        except UserError as error:
            warnings.warn(str(error), stacklevel=3)
    places = {topic: place for place, topic in enumerate(TOPICS)}
    return sorted(chosen, key=lambda each: places.get(each.topic, len(TOPICS)))


class Listed(NamedTuple):
    """A probe as a list shows it."""

    topic: str
    name: str
    question: str


def listed() -> list[Listed]:
    """Every probe by topic, read off their sources: importing them all takes longer than a person should wait."""
    return _by_topic(
        probe_names(), lambda name: _read(name) or Listed((probe := find_probe(name)).topic, name, probe.question)
    )


def _read(name: str) -> Listed | None:
    """From the call that makes PROBE, if its topic and question are written out there."""
    module = f"{PACKAGE}.{name}" if name in _own_names() else extensions("probes")[name].module
    spec = importlib.util.find_spec(module) if module.startswith("pyperf_suite.") else None
    if spec is None or spec.origin is None:
        return None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name("PROBE")], value=ast.Call(keywords=keywords)):
                said = {each.arg: each.value.value for each in keywords if isinstance(each.value, ast.Constant)}
                return Listed(str(said["topic"]), name, str(said["question"]))
    return None


def overrides_of(texts: Iterable[str]) -> dict[str, str]:
    """Axes as a user wrote them. Raises UserError for what is no axis, or where one speaks to a probe there is not."""
    overrides = parse_overrides(texts)
    for name in overrides:
        probe, dot, _ = name.rpartition(".")
        if dot:
            find_probe(probe)
    return overrides


def planned_cases(names: Iterable[str], profile: str, device: Device, axes: Iterable[str]) -> list[PlannedCase]:
    """The cases of the named probes, or of all that are timed. Raises UserError for an axis that does not fit."""
    from pyperf_suite.runner.plan import PlannedCase

    overrides = overrides_of(axes)
    return [
        PlannedCase(name, case)
        for name in (expanded(names) or [probe.name for probe in all_probes() if probe.is_timed])
        for case in find_probe(name).cases(profile, device, overrides_for(name, overrides))
    ]


MOST_ROUNDS = 12  # a bisection of 4096 sizes: a probe that asks for more does not search


def follow_ups(plan: Plan, records: Sequence[Record]) -> Iterator[PlannedCase]:
    """The cases that the plan's probes ask for after it, each to be measured before the next is drawn.

    `records` must grow as cases are measured: it is read anew before each round. What an interrupted run began beyond
    its plan comes first, so that every process measures it. Raises UserError for a case that can never be measured.
    """
    from pyperf_suite.runner.plan import PlannedCase

    planned_keys = {(planned.probe, planned.case.case_id) for planned in plan.cases}
    begun = [PlannedCase(r.probe, r.parsed_case()) for r in records if r.probe in plan.probes]
    yield from _new(begun, planned_keys)
    asking = {name: ask for name in plan.probes if (ask := find_probe(name).follow_up) is not None}
    for _ in range(MOST_ROUNDS if asking else 0):
        # Read once a round: records may lie on a disk.
        theirs = [record for record in records if record.probe in asking]
        requested = [
            PlannedCase(name, case)
            for name, ask in asking.items()
            for case in ask([record for record in theirs if record.probe == name])
        ]
        wanted = _new(requested, planned_keys)
        if not wanted:
            return
        yield from wanted


def _new(requested: Sequence[PlannedCase], planned_keys: set[tuple[str, str]]) -> list[PlannedCase]:
    """Return the cases not requested before, and add them to the known ones."""
    fresh = []
    for planned in requested:
        key = (planned.probe, planned.case.case_id)
        if key not in planned_keys:
            planned.case.validate()
            planned_keys.add(key)
            fresh.append(planned)
    return fresh
