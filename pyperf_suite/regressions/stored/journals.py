"""What a run measured, read from its journal in one pass: for each case the medians of its processes.

Journals come from anybody. JSON is read strictly, what is no record is named by its line, and the records after it
still count; samples stay in the journal.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.regressions.stored.series import commit_of
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import require_whole

RECORDS = "records.jsonl"
LONGEST_LINE_BYTES = 64 * 2**20
# A state is a mapping of mappings, and a kernel has some thirty figures: what goes far beyond is no record of ours.
DEEPEST_STATE = 8
MOST_FIGURES = 1000
# More notes than a person reads would only fill the memory.
MOST_NOTES = 20


class Measured(NamedTuple):
    """What one run measured of one case.

    `medians` holds one median a process, in seconds, in the order measured; it is empty for static kernels, whose
    exact figures are `exact` (unit and value by name), and where every process failed, with the `reason` of the first.
    `low` and `high` are the least and the greatest median, or the one process's own interval. `ok`, `failed` and
    `unsupported` count the processes that ended so. `dirty` says that `commit` does not name the code exactly.
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
    profile: str = ""
    state: Mapping[str, Any] = MappingProxyType({})

    @property
    def commit(self) -> str:
        return commit_of(self.state)[0]

    @property
    def seconds(self) -> float:
        """The median of the processes' medians; NaN without any."""
        return statistics.median(self.medians) if self.medians else math.nan


@dataclass
class RunSummary:
    """What was measured according to one file, and sentences about what in it is no record.

    `torn` is about the last line where it was cut off: its writer may still be at it.
    """

    measured: list[Measured] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    torn: str = ""


class Trial(NamedTuple):
    """One case in one process, by the numbers that are kept."""

    number: int
    outcome: str
    reason: str
    started_at: str
    time: tuple[float, float, float] | None  # median and its interval, in seconds
    exact: Mapping[str, tuple[str, float]]
    clock_hz: float | None
    state: Mapping[str, Any]


Case = tuple[str, str, str, str, str, str, str]  # machine, run_id, probe, case_id, label, kind, profile


def summarise_journal(file: IO[bytes], machine: str) -> RunSummary:
    """All records of a journal; `machine` is its folder's name, for records that do not name their machine.

    Raises OSError if the file cannot be read.
    """
    summary, trials, bad = RunSummary(), dict[Case, list[Trial]](), 0
    state: Mapping[str, Any] = {}
    for number, line in _lines(file):
        try:
            if line is None:
                raise ValueError(f"it is longer than {LONGEST_LINE_BYTES // 2**20} MiB")
            require_whole(line)
            record = Record.from_json(files.strict_json(line))
            # All records of a run share the machine's state, which is longer than all else in them.
            state = state if record.state == state else shallow(record.state)
            case, trial = _trial(record, machine, state)
        except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError, UserError) as error:
            if line is not None and not line.endswith(b"\n") and not _is_json(line):
                summary.torn = f"line {number} is not a record of the suite: it was cut off before its end"
                break
            bad += 1
            if bad <= MOST_NOTES:
                summary.damage.append(f"line {number} is not a record of the suite: {str(error)[:200]}")
            continue
        trials.setdefault(case, []).append(trial)
    if bad > MOST_NOTES:
        summary.damage.append(f"{bad - MOST_NOTES} more lines are no records.")
    summary.measured = [measured(case, of_case) for case, of_case in trials.items()]
    return summary


def measured(case: Case, trials: Iterable[Trial]) -> Measured:
    """One run's trials of a case together. Of a trial made again, as after a resume, the later that measured counts."""
    newest: dict[int, Trial] = {}
    for trial in trials:
        if trial.number not in newest or trial.outcome == "ok" or newest[trial.number].outcome != "ok":
            newest[trial.number] = trial
    counted = list(newest.values())
    good = [trial for trial in counted if trial.outcome == "ok"]
    bad = [trial for trial in counted if trial.outcome != "ok"]
    last = (good or counted)[-1]
    times = [trial.time for trial in good if trial.time is not None]
    medians = tuple(median for median, _, _ in times)
    low, high = times[0][1:] if len(times) == 1 else (min(medians, default=0.0), max(medians, default=0.0))
    clocks = [trial.clock_hz for trial in good if trial.clock_hz is not None]
    machine, run_id, probe, case_id, label, kind, profile = case
    return Measured(
        *(machine, run_id, probe, case_id, label, kind),
        started_at=min(trial.started_at for trial in good or counted),
        medians=medians,
        low=low,
        high=high,
        exact=last.exact,
        ok=len(good),
        failed=sum(trial.outcome == "failed" for trial in bad),
        unsupported=sum(trial.outcome == "unsupported" for trial in bad),
        reason=f"{bad[0].outcome}: {bad[0].reason}"[:500] if bad else "",
        dirty=commit_of(last.state)[1] or len({commit_of(trial.state) for trial in good or counted}) > 1,
        clock_hz=statistics.median(clocks) if clocks else None,
        profile=profile,
        state=last.state,
    )


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


def _is_json(line: bytes) -> bool:
    try:
        files.strict_json(line)
    except ValueError:
        return False
    return line.endswith(b"}")


def _trial(record: Record, machine: str, state: Mapping[str, Any]) -> tuple[Case, Trial]:
    """Raises one of Python's errors if a field is of no use to readers: a time that is none, a name that is no text."""
    details = record.kernel.get("details") or {}
    if "compiler" in details:
        state = shallow({**state, "kernel_compiler": details["compiler"]})
    if len(record.metrics) > MOST_FIGURES:
        raise ValueError(f"it has {len(record.metrics)} figures")
    time, exact = None, dict[str, tuple[str, float]]()
    if record.outcome == "ok" and record.kind == "static":
        exact = {_text(name, "metric"): (_text(each.unit, "unit"), each.value) for name, each in record.metrics.items()}
    elif record.outcome == "ok":
        found = record.metrics["time"]
        time = (found.value, found.low, found.high)
    case = (
        _text(record.identity.get("slug") or machine, "identity"),
        _text(record.run_id, "run_id"),
        _text(record.probe, "probe"),
        _text(record.case_id, "case_id"),
        label_of(record.case),
        record.kind,
        _text(record.profile, "profile"),
    )
    return case, Trial(
        # A sentinel is measured twice a run, each time in a process of its own.
        _count(record.position if record.kind == "sentinel" else record.process),
        record.outcome,
        _text(record.reason, "reason"),
        utc(record.started_at),
        time,
        exact,
        _clock_hz(record),
        state,
    )


def _clock_hz(record: Record) -> float | None:
    """The multiprocessors' clock, or the median core's before and after; None if the record has neither."""
    if "sm_clock" in record.metrics:
        seen = [record.metrics["sm_clock"].value]
    else:
        mhz = [((record.quality.get(when) or {}).get("cpu_mhz") or {}).get("median") for when in ("before", "after")]
        seen = [1e6 * clock for each in mhz if (clock := finite(each)) is not None]
    known = [clock for each in seen if (clock := finite(each)) is not None and clock > 0]
    return sum(known) / len(known) if known else None


def shallow(value: Any, depth: int = DEEPEST_STATE) -> Any:
    """The value. Raises ValueError if it nests deeper than what reads it can go."""
    if depth < 0:
        raise ValueError("its state is nested too deeply")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        shallow(inner, depth - 1)
    return value


def finite(value: Any) -> float | None:
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


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"its {what} is no text")
    value.encode()  # half a surrogate pair is no text either; this raises UnicodeEncodeError, a ValueError
    return value
