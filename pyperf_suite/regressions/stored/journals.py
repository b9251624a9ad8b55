"""What a run measured, read from its journal in one pass: for each case the medians of its processes.

Journals come from anybody. JSON is read strictly, what is no record is named by its line, and the records after it
still count; samples stay in the journal.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.regressions.stored.series import Measured, commit_of
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import require_whole

RECORDS = "records.jsonl"
LONGEST_LINE_BYTES = 64 * 2**20
# A state is a mapping of mappings, and a kernel has some thirty figures: what goes far beyond is no record of ours.
DEEPEST_STATE = 8
MOST_FIGURES = 1000
# More notes than a person reads would only fill the memory.
MOST_NOTES = 20


@dataclass
class RunSummary:
    """What was measured according to one file, and sentences about what in it is no record.

    `torn` is about the last line where it was cut off: its writer may still be at it.
    """

    measured: list[Measured] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    torn: str = ""


def summarise_journal(file: IO[bytes], machine: str) -> RunSummary:
    """All records of a journal; `machine` is its folder's name, for records that do not name their machine.

    Raises OSError if the file cannot be read.
    """
    summary, cases, bad = RunSummary(), dict[tuple[str, ...], dict[int, Measured]](), 0
    state: Mapping[str, Any] = {}
    for number, line in _lines(file):
        try:
            if line is None:
                raise ValueError(f"it is longer than {LONGEST_LINE_BYTES // 2**20} MiB")
            require_whole(line)
            record = Record.from_json(files.strict_json(line))
            # All records of a run share the machine's state, which is longer than all else in them.
            state = state if record.state == state else _shallow(record.state)
            process, trial = _trial(record, machine, state)
        except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError, UserError) as error:
            if line is not None and not line.endswith(b"\n"):
                summary.torn = f"line {number} is not a record of the suite: it was cut off before its end"
                break
            bad += 1
            if bad <= MOST_NOTES:
                summary.damage.append(f"line {number} is not a record of the suite: {str(error)[:200]}")
            continue
        same = cases.setdefault((*trial[:6], trial.profile), {})
        # Of a trial made again, as after a resume, the later that measured counts.
        if process not in same or trial.ok or not same[process].ok:
            same[process] = trial
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
    least, most = min(medians, default=0.0), max(medians, default=0.0)
    if len(timed) == 1:
        least, most = timed[0].low, timed[0].high
    clocks = [trial.clock_hz for trial in good if trial.clock_hz is not None]
    return counted[-1]._replace(
        started_at=min(trial.started_at for trial in counted),
        medians=medians,
        low=least,
        high=most,
        ok=len(good),
        failed=sum(trial.failed for trial in bad),
        unsupported=sum(trial.unsupported for trial in bad),
        reason=bad[0].reason if bad else "",
        dirty=counted[-1].dirty or len({commit_of(trial.state) for trial in counted}) > 1,
        clock_hz=statistics.median(clocks) if clocks else None,
    )


def label_of(case: Mapping[str, Any]) -> str:
    """`Case.label` from the case's JSON alone, so that a case of an operator that is gone keeps its name."""
    parameters = case.get("parameters") or {}
    fields = [f"{name}={value}" for name, value in parameters.items()]
    mode = [] if case.get("mode", "burst") == "burst" else [f"mode={case['mode']}"]
    return _text(f"{case.get('operator')}[{' '.join((str(case.get('implementation')), *fields, *mode))}]", "case")


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


def _trial(record: Record, machine: str, state: Mapping[str, Any]) -> tuple[int, Measured]:
    """The number of the process, and what it measured.

    Raises one of Python's errors if a field is of no use to readers: a time that is none, a name that is no text.
    """
    details = record.kernel.get("details") or {}
    if "compiler" in details:
        state = _shallow({**state, "kernel_compiler": details["compiler"]})
    if len(record.metrics) > MOST_FIGURES:
        raise ValueError(f"it has {len(record.metrics)} figures")
    is_exact = record.kind == "static"
    figures = record.metrics.items() if record.outcome == "ok" and is_exact else ()
    time = record.metrics["time"] if record.outcome == "ok" and not is_exact else None
    trial = Measured(
        _text(record.identity.get("slug") or machine, "identity"),
        _text(record.run_id, "run_id"),
        _text(record.probe, "probe"),
        _text(record.case_id, "case_id"),
        label_of(record.case),
        record.kind,
        _utc(record.started_at),
        medians=(time.value,) if time else (),
        low=time.low if time else 0.0,
        high=time.high if time else 0.0,
        exact={_text(name, "metric"): (_text(each.unit, "unit"), each.value) for name, each in figures},
        ok=int(record.outcome == "ok"),
        failed=int(record.outcome == "failed"),
        unsupported=int(record.outcome == "unsupported"),
        reason=f"{record.outcome}: {_text(record.reason, 'reason')}"[:500],
        dirty=commit_of(state)[1],
        clock_hz=_clock_hz(record),
        profile=_text(record.profile, "profile"),
        state=state,
    )
    # A sentinel is measured twice a run, each time in a process of its own.
    return _count(record.position if record.kind == "sentinel" else record.process), trial


def _utc(moment: str) -> str:
    """A time in ISO 8601, at UTC and to the millisecond, so that times sort as text. Naive ones are taken as UTC.

    Raises ValueError for anything else.
    """
    found = datetime.datetime.fromisoformat(moment.removesuffix("Z"))
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.timezone.utc)
    return found.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds")


def _clock_hz(record: Record) -> float | None:
    """The multiprocessors' clock, or the median core's before and after; None if the record has neither."""
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


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"its {what} is no text")
    value.encode()  # half a surrogate pair is no text either; this raises UnicodeEncodeError, a ValueError
    return value
