"""A benchmark's values over its runs: one point a run, and the marked breaks where the machine's state changed.

A series never leaves its machine's identity; a driver, a limit or a library that changed within it is a break. A GPU's
UUID is no break but a label on the points, and neither is this package's own version. Journals are read in one pass:
they come from anybody, so JSON is read strictly, what is no record is named by its line, and records after it still
count.
"""

from __future__ import annotations

import bisect
import datetime
import functools
import itertools
import math
import operator
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.record.case import label_of
from pyperf_suite.record.journal import require_whole
from pyperf_suite.record.record import Record
from pyperf_suite.runner.results import order_of, stamp_of

TIME = "time"
# Settings that may change speed though the code stays the same, by place in a state; packages are compared one by one.
SETTINGS = {
    "gpu.driver": "driver",
    "gpu.cuda": "CUDA",
    "gpu.power_limit_w": "power limit (W)",
    "gpu.ecc": "ECC",
    "gpu.persistence_mode": "persistence mode",
    "gpu.application_sm_clock_mhz": "application clock (MHz)",
    "gpu.maximum_sm_clock_mhz": "maximum clock (MHz)",
    "kernel": "kernel",
    "governors": "governors",
    "turbo": "turbo",
    "smt": "SMT",
    "transparent_hugepages": "huge pages",
    "cpu_quota_cores": "CPU quota (cores)",
    "hypervisor": "hypervisor",
    "container": "container",
    "python": "Python",
    "compiler": "compiler",
    "kernel_compiler": "kernel compiler",
    "harness": "harness",
    "reported_time": "reported time",
}
PROFILE = "profile"
# The mapping within a state, "" for the state itself, the place in it, and the name.
_PLACES = [(place.rpartition(".")[0], place.rpartition(".")[2], name) for place, name in SETTINGS.items()]
# Machine code depends on its compiler, and on nothing else here.
_PLACES_OF_MACHINE_CODE = [each for each in _PLACES if each[1] in ("cuda", "kernel_compiler")]
NOT_THE_MACHINE = ("pyperf_suite", "pytest-benchmark")
ABSENT = "absent"


class State(dict[str, Any]):
    """The state of a machine, which all records of a run share: answers on it are worked out once."""

    __slots__ = ("_settings", "commit", "unit")

    def __init__(self, state: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(state)
        self.commit = commit_of(self)[0]
        self.unit = _text(_within(self, "gpu", "uuid") or "")
        self._settings: dict[tuple[str, str], Mapping[str, str]] = {}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> State:
        return state if isinstance(state, cls) else cls(state)

    def settings(self, kind: str, profile: str) -> Mapping[str, str]:
        """Settings of a measurement of that kind and profile; the same object for equal ones of another state."""
        known = self._settings.get((kind, profile))
        if known is None:
            found = settings(self, kind) | ({PROFILE: profile} if profile else {})
            known = self._settings[kind, profile] = _interned(tuple(found.items()))
        return known


@functools.lru_cache
def _interned(items: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return dict(items)


class Measured(NamedTuple):
    """One run's measurement of one case: a point of its series.

    `medians` holds one median a process, in seconds, in the order measured; it is empty for static kernels, whose exact
    figures are `exact` (unit and value by name), and where every process failed, with the `reason` of the first. `low`
    and `high` are the least and the greatest median, or the one process's own interval. `ok`, `failed` and
    `unsupported` count the processes that ended so. `dirty` says that `commit` does not name the code exactly: files
    were changed, or a resumed run went on with other code. `doubt` is the logarithm of the conversion's possible error,
    at the reference clock.
    """

    machine: str
    run_id: str
    probe: str
    case_id: str
    label: str
    kind: str = "timing"  # timing, static or sentinel
    started_at: str = ""  # ISO 8601, UTC
    medians: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 0.0
    exact: Mapping[str, tuple[str, float]] = MappingProxyType({})
    ok: int = 0
    failed: int = 0
    unsupported: int = 0
    reason: str = ""
    dirty: bool = False
    clock_hz: float | None = None
    doubt: float = 0.0
    profile: str = ""
    state: Mapping[str, Any] = MappingProxyType({})

    @property
    def metrics(self) -> tuple[str, ...]:
        """The time, or the names of the exact figures; nothing if a process failed: survivors alone do not count."""
        return () if self.failed else (TIME,) if self.medians else tuple(self.exact)

    @property
    def why_absent(self) -> str:
        """Why there is no metric, and in how many of the processes."""
        of_all = f"{self.failed} of {self.ok + self.failed} processes failed, the first: " if self.ok else ""
        return of_all + (self.reason or "it holds no figures")

    @property
    def value(self) -> float:
        """The median of the processes' medians; NaN without any."""
        if len(self.medians) == 1:
            return self.medians[0]
        return statistics.median(self.medians) if self.medians else math.nan

    @property
    def made_at(self) -> str:
        """When it was measured (ISO 8601, UTC), and not before its run's name says, where the clock was set back."""
        stamp = stamp_of(self.run_id)
        named = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:11]}:{stamp[11:13]}:{stamp[13:15]}.000+00:00"
        return max(self.started_at, named) if stamp else self.started_at

    @property
    def commit(self) -> str:
        return State.of(self.state).commit

    @property
    def unit(self) -> str:
        """The UUID of the GPU; "" without one."""
        return State.of(self.state).unit

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that it was measured under; of a time also the profile, which says how long and how often."""
        return State.of(self.state).settings(self.kind, self.profile if self.medians and self.kind == "timing" else "")

    def figure(self, name: str) -> Measured:
        """The exact figure of that name as if it were a time, so that it is a point of a series."""
        value = self.exact[name][1]
        return self._replace(medians=(value,), low=value, high=value)


@dataclass(frozen=True)
class Break:
    """A change of the machine's state at point `index`: `what` says which, as in "driver 570.1 -> 580.2"."""

    index: int
    what: str


@dataclass(frozen=True)
class BenchmarkSeries:
    """One metric of one case of one probe on one machine, over the runs that measured it, the oldest first.

    `metric` is "time", or the name of an exact figure of a kernel's machine code, as in "registers"; `kind` is the
    record's: timing, static or sentinel. `failed_runs` are those in which a process failed.
    """

    machine: str
    probe: str
    case_id: str
    label: str
    unit_of_measure: str  # "s" for times
    points: tuple[Measured, ...]
    metric: str = TIME
    kind: str = "timing"
    failed_runs: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The label, and the metric's name unless it is the time."""
        return self.label if self.metric == TIME else f"{self.label} {self.metric}"

    @functools.cached_property
    def values(self) -> list[float]:
        return [point.value for point in self.points]

    @property
    def units(self) -> tuple[str, ...]:
        """The GPUs that the points were measured on, in order of appearance."""
        return tuple(dict.fromkeys(point.unit for point in self.points if point.unit))

    @functools.cached_property
    def breaks(self) -> tuple[Break, ...]:
        """Breaks where the machine's state differs from the last reported one."""
        found: dict[int, list[str]] = {}
        for name, values in self._story.changed.items():
            for (_, before), (index, after) in itertools.pairwise(values):
                found.setdefault(index, []).append(f"{name} {before} -> {after}")
        return tuple(Break(index, ", ".join(found[index])) for index in sorted(found))

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Group within which each point may be compared: its GPU, its kind of time, and settings that took turns."""
        return self._story.groups

    @functools.cached_property
    def _story(self) -> _Story:
        states = _States(State.of(point.state) for point in self.points)
        return _story_of(
            states, self.kind, tuple([point.profile if self.kind == "timing" else "" for point in self.points])
        )

    def moved_with(self, first: int, last: int) -> dict[str, tuple[str, str]]:
        """Settings that differ between two points, with both values."""
        moved = {name: (_at(values, first), _at(values, last)) for name, values in self._story.changed.items()}
        return {name: (before, after) for name, (before, after) in moved.items() if before != after}


class _States(tuple[State, ...]):
    """States of a series as a key: series of the same runs share them, and what they say is worked out once."""

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _States) and len(self) == len(other) and all(map(operator.is_, self, other))


class _Story(NamedTuple):
    """From which point on each setting that changed had which value, by its name; and the group of each point."""

    changed: dict[str, list[tuple[int, str]]]
    groups: tuple[tuple[str, ...], ...]


@functools.lru_cache
def _story_of(states: _States, kind: str, profiles: tuple[str, ...]) -> _Story:
    changed, last_reported = dict[str, list[tuple[int, str]]](), dict[str, str]()
    previous: Mapping[str, str] | None = None
    for index, (state, profile) in enumerate(zip(states, profiles, strict=True)):
        reported = state.settings(kind, profile)
        if reported is previous:
            continue
        for name, value in reported.items():
            if last_reported.get(name, value) != value:
                changed.setdefault(name, [(0, last_reported[name])]).append((index, value))
        last_reported |= reported
        previous = reported
    turns = [
        values
        for name, values in changed.items()
        if name == SETTINGS["reported_time"] or len({value for _, value in values}) < len(values)
    ]
    groups = tuple((state.unit, *[_at(each, index) for each in turns]) for index, state in enumerate(states))
    return _Story(changed, groups)


def _at(values: Sequence[tuple[int, str]], index: int) -> str:
    """The value at a point, of values and the points from which on they hold."""
    return values[bisect.bisect(values, index, key=lambda each: each[0]) - 1][1]


def settings(state: Mapping[str, Any], kind: str = "timing") -> dict[str, str]:
    """The settings in a state as text, by name; records that do not say what times are have medians of samples."""
    reported = {}
    for outer, inner, name in _PLACES_OF_MACHINE_CODE if kind == "static" else _PLACES:
        value = _within(state, outer, inner) if outer else state.get(inner)
        if value not in (None, []):
            reported[name] = _text(value)
    if kind != "static":
        reported.setdefault(SETTINGS["reported_time"], "median of samples")
    packages = state.get("packages")
    for name, version in packages.items() if isinstance(packages, Mapping) else ():
        if name not in NOT_THE_MACHINE:
            reported[name] = ABSENT if version is None else _text(version)
    return reported


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return changes of settings, as in "driver 570.1 -> 580.2"; a setting that only one side has is no change."""
    return [f"{name} {before[name]} -> {after[name]}" for name in after if before.get(name, after[name]) != after[name]]


def commit_of(state: Mapping[str, Any]) -> tuple[str, bool]:
    """The commit that was measured, "" if it is not known, and whether files differed from it."""
    commit = _within(state, "source", "commit")
    return (commit, _within(state, "source", "dirty") is True) if isinstance(commit, str) else ("", False)


def _within(state: Mapping[str, Any], outer: str, inner: str) -> Any:
    mapping = state.get(outer)
    return mapping.get(inner) if isinstance(mapping, dict) else None  # JSON has no other mapping


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return "+".join(map(str, value))[:80]
    return f"{value:g}"[:80] if isinstance(value, float) else str(value)[:80]


LONGEST_LINE_BYTES = 64 * 2**20
# A state is a mapping of mappings, and a kernel has some thirty figures: what goes far beyond is no record of ours.
DEEPEST_STATE = 8
MOST_FIGURES = 1000
# More notes than a person reads would only fill the memory.
MOST_NOTES = 20


@dataclass
class RunSummary:
    """Measurements of a file, and sentences on lines that are no record; `torn` on a last one cut off."""

    measured: list[Measured] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    torn: str = ""

    @property
    def order(self) -> tuple[str, ...]:
        """Key by which runs are sorted."""
        first = min(self.measured, key=lambda one: one.started_at, default=None)
        return order_of(first.run_id, first.started_at) if first else ()


def summarise_journal(file: IO[bytes], machine: str) -> RunSummary:
    """A journal's records; `machine` is for those that name none. Raises OSError if the file cannot be read."""
    summary, cases, bad = RunSummary(), dict[tuple[str, ...], dict[int, Measured]](), 0
    state = State()
    first_visits = set[tuple[tuple[str, ...], int]]()
    for number, line in _lines(file):
        try:
            if line is None:
                raise ValueError(f"it is longer than {LONGEST_LINE_BYTES // 2**20} MiB")
            require_whole(line)
            record = Record.from_json(files.strict_json(line))
            # All records of a run share the machine's state, which is longer than all else in them.
            state = state if record.state == state else State(_shallow(record.state))
            process, trial = _trial(record, machine, state)
        except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError, UserError) as error:
            if line is not None and not line.endswith(b"\n"):
                summary.torn = f"line {number} is not a record of the suite: it was cut off before its end"
                break
            bad += 1
            if bad <= MOST_NOTES:
                summary.damage.append(f"line {number} is not a record of the suite: {str(error)[:200]}")
            continue
        case = (*trial[:6], trial.profile)
        same = cases.setdefault(case, {})
        # The later ok trial counts if one was repeated, as after a resume; after a first visit the second.
        if process not in same or trial.ok or not same[process].ok or (case, process) in first_visits:
            same[process] = trial
            (first_visits.add if record.is_first_visit else first_visits.discard)((case, process))
    if bad > MOST_NOTES:
        summary.damage.append(f"{bad - MOST_NOTES} more lines are no records.")
    summary.measured = [_together(list(trials.values())) for trials in cases.values()]
    return summary


def _together(trials: Sequence[Measured]) -> Measured:
    """One run's trials of a case, each of one process, as one."""
    good, bad = [trial for trial in trials if trial.ok], [trial for trial in trials if not trial.ok]
    counted = good or trials
    timed = [trial for trial in good if trial.medians]
    medians = tuple(trial.value for trial in timed)
    lowest, highest = min(medians, default=0.0), max(medians, default=0.0)
    if len(timed) == 1:
        lowest, highest = timed[0].low, timed[0].high
    clocks = [trial.clock_hz for trial in good if trial.clock_hz is not None]
    return counted[-1]._replace(
        started_at=min(trial.started_at for trial in counted),
        medians=medians,
        low=lowest,
        high=highest,
        ok=len(good),
        failed=sum(trial.failed for trial in bad),
        unsupported=sum(trial.unsupported for trial in bad),
        reason=bad[0].reason if bad else "",
        dirty=counted[-1].dirty or len({commit_of(trial.state) for trial in counted}) > 1,
        clock_hz=statistics.median(clocks) if clocks else None,
        doubt=max((trial.doubt for trial in good), key=abs, default=0.0),
    )


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Each line that is not blank with its number from 1; None for one that is too long, which is passed over."""
    number = 0
    while content := file.readline(LONGEST_LINE_BYTES + 1):
        number += 1
        if len(content) > LONGEST_LINE_BYTES and not content.endswith(b"\n"):
            while (part := file.readline(LONGEST_LINE_BYTES)) and not part.endswith(b"\n"):
                pass
            yield number, None
        elif content.strip():
            yield number, content


def _trial(record: Record, machine: str, state: State) -> tuple[int, Measured]:
    """The number of the process, and what it measured.

    Raises one of Python's errors if a field is of no use to readers: a time that is none, a name that is no text.
    """
    details = record.kernel.get("details") or {}
    if "compiler" in details:
        state = State(_shallow({**state, "kernel_compiler": details["compiler"]}))
    if len(record.metrics) > MOST_FIGURES:
        raise ValueError(f"it has {len(record.metrics)} figures")
    is_exact = record.kind == "static"
    figures = record.metrics.items() if record.outcome == "ok" and is_exact else ()
    time = record.time if record.outcome == "ok" and not is_exact else None
    trial = Measured(
        _checked_text(record.identity.get("slug") or machine, "identity"),
        _checked_text(record.run_id, "run_id"),
        _checked_text(record.probe, "probe"),
        _checked_text(record.case_id, "case_id"),
        _checked_text(label_of(record.case), "case"),
        record.kind,
        _utc(record.started_at),
        medians=(time.value,) if time else (),
        low=time.low if time else 0.0,
        high=time.high if time else 0.0,
        exact={_checked_text(name, "metric"): (_checked_text(each.unit, "unit"), each.value) for name, each in figures},
        ok=int(record.outcome == "ok"),
        failed=int(record.outcome == "failed"),
        unsupported=int(record.outcome == "unsupported"),
        reason=f"{record.outcome}: {_checked_text(record.reason, 'reason')}"[:500],
        dirty=commit_of(state)[1],
        clock_hz=_clock_hz(record),
        doubt=record.at_clock.log_of_doubt if time and record.at_clock else 0.0,
        profile=_checked_text(record.profile, "profile"),
        state=state,
    )
    # A sentinel is measured twice a run, each time in a process of its own.
    return _count(record.position if record.kind == "sentinel" else record.process), trial


def _utc(moment: str) -> str:
    """A time in ISO 8601 at UTC, to the millisecond; naive ones are UTC. Raises ValueError for anything else."""
    found = datetime.datetime.fromisoformat(moment.removesuffix("Z"))
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.timezone.utc)
    return found.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds")


def _clock_hz(record: Record) -> float | None:
    """The multiprocessors' clock, or the median core's; None without, or for a time at the reference clock."""
    if record.at_clock is not None:
        return None
    if "sm_clock" in record.metrics:
        seen = [record.metrics["sm_clock"].value]
    else:
        mhz = [((record.quality.get(when) or {}).get("cpu_mhz") or {}).get("median") for when in ("before", "after")]
        seen = [1e6 * clock for each in mhz if (clock := _finite(each)) is not None]
    known = [clock for each in seen if (clock := _finite(each)) is not None and clock > 0]
    return sum(known) / len(known) if known else None


def _shallow(value: Any, depth: int = DEEPEST_STATE) -> Any:
    """The value. Raises ValueError if it nests deeper than what reads it can go."""
    if depth < 0:
        raise ValueError("its state is nested too deeply")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _shallow(inner, depth - 1)
    return value


def _finite(value: Any) -> float | None:
    """The value as a float; None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _count(value: int) -> int:
    if not 0 <= value < 2**62:
        raise ValueError(f"its process or position is {value!r:.40}, not a count")
    return value


def _checked_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"its {name} is no text")
    value.encode()  # half a surrogate pair is no text either; this raises UnicodeEncodeError, a ValueError
    return value
