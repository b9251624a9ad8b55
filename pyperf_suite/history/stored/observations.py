"""What history keeps of a record: its figures, who it was and in which condition; samples stay in the journal.

Records of this suite and the JSON of other projects both become observations; all of history reads only those.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.runner.record import Metric, Record

# A state is a mapping of mappings, and a kernel has some thirty figures: what goes far beyond is no record of ours.
DEEPEST_STATE = 8
MOST_FIGURES = 1000


@dataclass(frozen=True)
class Figure:
    """One value of an observation: a median with its interval, or an exact figure; `samples` of it count."""

    metric: str
    unit: str
    value: float
    low: float
    high: float
    samples: int = 1


@dataclass(frozen=True)
class Observation:
    """One case in one process of one run. `figures` are none where it failed, for the `reason` told.

    `visit` tells the run's processes apart: the same visit again, as after a resume, stands for the earlier one.
    """

    machine: str
    run_id: str
    probe: str
    case_id: str
    label: str
    kind: str
    visit: int
    started_at: str  # ISO 8601, UTC
    outcome: str
    reason: str = ""
    figures: tuple[Figure, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    clock_hz: float | None = None
    steal_share: float | None = None
    profile: str = ""


def observation(record: Record, machine: str) -> Observation:
    """What a record says; `machine` is its folder's name, for a record that does not name its machine.

    Raises UserError for a record that readers cannot use: a time that is none, a name that is no text.
    """
    try:
        figures = tuple(_figures(record)) if record.outcome == "ok" else ()
        details = record.kernel.get("details") or {}
        compiler = {"kernel_compiler": details["compiler"]} if "compiler" in details else {}
        return Observation(
            machine=_text(record.identity.get("slug") or machine, "identity"),
            run_id=_text(record.run_id, "run_id"),
            probe=_text(record.probe, "probe"),
            case_id=_text(record.case_id, "case_id"),
            label=label_of(record.case),
            kind=record.kind,
            # A sentinel is measured twice a run, each time in a process of its own.
            visit=_count(record.position if record.kind == "sentinel" else record.process),
            started_at=utc(record.started_at),
            outcome=record.outcome,
            reason=_text(record.reason, "reason"),
            figures=figures,
            state=_plain({**record.state, **compiler}, DEEPEST_STATE),
            clock_hz=_clock_hz(record),
            steal_share=_finite(record.quality.get("steal_share")),
            profile=_text(record.profile, "profile"),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UserError(f"A record cannot be used: {str(error)[:200]}.") from None


def label_of(case: Mapping[str, Any]) -> str:
    """`Case.label` from the case's JSON alone, so that a case of an operator that is gone keeps its name."""
    parameters = case.get("parameters") or {}
    fields = [f"{name}={value}" for name, value in parameters.items()]
    mode = [] if case.get("mode", "burst") == "burst" else [f"mode={case['mode']}"]
    return _text(f"{case.get('operator')}[{' '.join((str(case.get('implementation')), *fields, *mode))}]", "case")


def utc(moment: str) -> str:
    """A time in ISO 8601, at UTC and to the millisecond, so that times sort as text. Naive ones are taken as UTC.

    Raises ValueError for anything else.
    """
    found = datetime.datetime.fromisoformat(moment.removesuffix("Z"))
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.timezone.utc)
    return found.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds")


def positive_seconds(value: Any, what: str) -> float:
    """A time as a number. Raises ValueError for what is not positive and finite: it has no logarithm."""
    seconds = _finite(value)
    if seconds is None or seconds <= 0:
        raise ValueError(f"{what} is {_told(value)}, not a positive number of seconds")
    return seconds


def _figures(record: Record) -> list[Figure]:
    if len(record.metrics) > MOST_FIGURES:
        raise ValueError(f"it has {len(record.metrics)} figures")
    if record.kind == "static":
        return [_exact(name, metric) for name, metric in record.metrics.items()]
    time = record.metrics["time"]
    discarded = record.quality.get("discarded") or ()
    return [
        Figure(
            "time",
            _text(time.unit, "unit"),
            positive_seconds(time.value, "its median"),
            positive_seconds(time.low, "the lower end of its interval"),
            positive_seconds(time.high, "the upper end of its interval"),
            max(0, len(time.samples) - len(discarded)),
        )
    ]


def _exact(name: str, metric: Metric) -> Figure:
    value = _finite(metric.value)
    if value is None:
        raise ValueError(f"its {name[:40]} is not a finite number")
    return Figure(_text(name, "metric"), _text(metric.unit, "unit"), value, value, value)


def _clock_hz(record: Record) -> float | None:
    """The multiprocessors' clock, or the median core's before and after; None where neither was told."""
    if "sm_clock" in record.metrics:
        return _finite(record.metrics["sm_clock"].value)
    told = [
        _finite(((record.quality.get(when) or {}).get("cpu_mhz") or {}).get("median")) for when in ("before", "after")
    ]
    known = [clock for clock in told if clock is not None]
    return 1e6 * sum(known) / len(known) if known else None


def _plain(value: Any, depth: int) -> Any:
    """The value, which nests no deeper than what follows it can go."""
    if depth < 0:
        raise ValueError("its state is nested too deeply")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _plain(inner, depth - 1)
    return value


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _told(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        raise ValueError(f"its process or position is {_told(value)}, not a count")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"its {what} is no text")
    value.encode()  # half a surrogate pair is no text either; this raises UnicodeEncodeError, a ValueError
    return value
