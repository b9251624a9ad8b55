"""A record as plain data: one case's outcome in one process, as it was measured; nothing derived is stored."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pyperf_suite.errors import UserError
from pyperf_suite.record.case import Case
from pyperf_suite.record.clock_model import AtOneClock, at_one_clock, reference_clock_hz

# Fields of a GPU's state in MHz: the clock that times are converted to, and the one that gives it if it is not there.
CLOCK_LIMITS = ("reference_clock_mhz", "maximum_sm_clock_mhz")


# Begins what follows the reason in the record of a case that was not run.
NOT_RUN = " [not run: the same was found in "


def cause_of(reason: str, parameters: Mapping[str, Any]) -> str:
    """A reason without what may differ from case to case: numbers, but for those of lines, and the case's own words."""
    found = reason.partition(NOT_RUN)[0]
    for word in parameters.values():
        if isinstance(word, str) and word:
            found = re.sub(rf"\b{re.escape(word)}\b", "#", found)
    return re.sub(r"(?<![\w:.])\d+(?:[.,x]\w+)*", "#", found)


SCHEMA_VERSION = 1
# In a record's quality the seconds that each rank stood still, where one did.
STOOD_STILL = "rank_stood_still_s"

Outcome = Literal["ok", "failed", "unsupported"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "failed", "unsupported")
# "timing" is a measured case, "static" the exact figures of a kernel's machine code; "sentinel" is the fixed kernel at
# the start and the end of a run that distinguishes drift of the machine from a change of code.
KINDS = ("timing", "static", "sentinel")
# No unit makes a larger number of anything measured.
LARGEST = 1e300


class OtherSchema(UserError):
    """A whole record, but of another version's schema."""


@dataclass(frozen=True)
class Metric:
    """One measured quantity: its unit, its median and quantiles, an interval of the median, and the raw samples.

    `samples` is a list in the order taken, or a list of such lists where several ranks measured (the rank axis first).
    """

    unit: str
    value: float
    low: float
    high: float
    q20: float
    q80: float
    samples: list[Any]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Metric:
        """The inverse of `dataclasses.asdict`. Raises TypeError for anything but a unit, finite numbers and samples."""
        metric = cls(**data)
        figures = (metric.value, metric.low, metric.high, metric.q20, metric.q80)
        samples = metric.samples
        is_samples = isinstance(samples, list) and (
            _are_finite(samples) or all(isinstance(of_rank, list) and _are_finite(of_rank) for of_rank in samples)
        )
        if not all(map(_is_finite, figures)) or not isinstance(metric.unit, str) or not is_samples:
            raise TypeError(f"a metric holds a unit, figures and a list of samples, not {str(data)[:80]}")
        return metric


def _is_finite(value: Any) -> bool:
    """True for a finite number that every reader can hold; integers beyond a float's range are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -LARGEST < value < LARGEST


def _are_finite(values: list[Any]) -> bool:
    """True if all are finite numbers; checked at once where all are plain numbers, for a journal has millions."""
    if values and set(map(type, values)) <= {int, float}:
        within = min(values) > -LARGEST and max(values) < LARGEST
        return within and (total := sum(values)) == total  # a nan makes the total one
    return all(map(_is_finite, values))


@dataclass(frozen=True)
class Record:
    """One line of records.jsonl."""

    run_id: str
    kind: str
    case: Mapping[str, Any]
    case_id: str
    process: int
    position: int
    started_at: str
    outcome: Outcome
    reason: str = ""
    probe: str = ""
    profile: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    work: Mapping[str, int] = field(default_factory=dict)
    kernel: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    quality: Mapping[str, Any] = field(default_factory=dict)
    verification: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    # Seconds of the trial: of all its turns, from making it ready to its last check; 0 if not known.
    trial_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Record:
        """The inverse of `to_json`. Raises UserError for another schema version or anything that is not a record.

        Fields this version does not know are ignored, so that an additive newer minor change stays readable.
        """
        if not isinstance(data, dict):
            raise UserError(f"A record is a JSON object, but this is {type(data).__name__}.")
        version = data.get("schema_version")
        if version != SCHEMA_VERSION:
            raise OtherSchema(
                f"A record of schema version {repr(version)[:40]} was found; this version reads {SCHEMA_VERSION}."
            )
        known = cls.__dataclass_fields__
        if "visit_s" in data:  # what earlier versions of the suite call it
            data = {"trial_s": data["visit_s"]} | data
        try:
            metrics = {name: Metric.from_json(metric) for name, metric in data["metrics"].items()}
            record = cls(**{name: value for name, value in data.items() if name in known} | {"metrics": metrics})
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"A record is incomplete or malformed: {str(error)[:200]}.") from None
        for names, kind, called in _TYPES:
            for name in names:
                if not isinstance(getattr(record, name), kind) or isinstance(getattr(record, name), bool):
                    raise UserError(f"A record is malformed: its {name} is not {called}.")
        if not _is_finite(record.trial_s):
            raise UserError("A record is malformed: its trial_s is not a number of seconds.")
        if record.outcome not in OUTCOMES or record.kind not in KINDS or not isinstance(record.case, dict):
            raise UserError(
                f"A record of kind {record.kind[:40]!r} and outcome {record.outcome[:40]!r} is not one of the suite's."
            )
        record._require_what_readers_use()
        return record

    def _require_what_readers_use(self) -> None:
        """Raise UserError for a timed record that does not hold its time, its work, and whether it converged."""
        if self.outcome != "ok" or self.kind == "static":
            return
        held = (
            isinstance(self.metrics.get("time"), Metric),
            isinstance(self.work, dict) and isinstance(self.work.get("flop"), int),
            isinstance(self.quality, dict) and "converged" in self.quality,
        )
        if not all(held):
            raise UserError("A timed record lacks its time, its work in FLOP, or whether it converged.")
        time = self.metrics["time"]
        if not (time.value > 0 and time.low > 0 and time.high > 0):
            raise UserError("A timed record took no time, or less than none.")
        discarded = self.quality.get("discarded", [])
        if not isinstance(discarded, list) or not all(isinstance(one, list) and len(one) == 2 for one in discarded):
            raise UserError("A timed record does not say which of its samples were discarded, and why.")
        gpu, slices = self.state.get("gpu") or {}, self.sampling.get("slices") or []
        clocks = self.metrics["sm_clock"].samples if "sm_clock" in self.metrics else []
        if clocks and not (
            isinstance(gpu, dict)
            and all(_is_finite(gpu.get(name) or 1) and (gpu.get(name) or 1) > 0 for name in CLOCK_LIMITS)
            and isinstance(slices, list)
            and all(isinstance(size, int) and 0 < size <= len(clocks) for size in slices)
            and all(_is_finite(value) and value > 0 for value in (*clocks, *time.samples))
        ):
            raise UserError("A timed record does not say at which clocks its samples were taken.")
        slow_by, left_out = self.sampling.get("slow_by", 1.0), self.sampling.get("left_out", [])
        visits, groups = self.sampling.get("visits", [len(slices)]), self.sampling.get("groups", [""])
        if not (
            _is_finite(slow_by)
            and slow_by >= 1
            and all(isinstance(each, list) for each in (left_out, visits, groups))
            and all(isinstance(each, int) for each in (*left_out, *visits))
            and (len(visits), sum(visits)) == (len(groups), len(slices))
        ):
            raise UserError("A timed record does not say in which visits it was measured, or how slow its cores were.")
        disturbed: Any = self.quality.get("disturbances", {})
        # A core that drifts is some factor faster or slower; its logarithm is nowhere near 100.
        if not isinstance(disturbed, dict) or not all(
            _is_finite(each := disturbed.get(name, 0)) and 0 <= each < 100 for name in ("clean_share", "drift")
        ):
            raise UserError("A timed record does not say by what share it was disturbed.")

    @property
    def trial(self) -> tuple[str, str, int]:
        """The probe, case and process: one trial of a run, whose last record stands."""
        return self.probe, self.case_id, self.process

    @property
    def is_first_visit(self) -> bool:
        """True if a second visit to the case was still to come when this was written."""
        return bool(self.sampling.get("visit_due"))

    def parsed_case(self) -> Case:
        """The case as data again. Raises UserError where this version no longer has its operator."""
        return Case.from_json(self.case)

    @functools.cached_property
    def at_clock(self) -> AtOneClock | None:
        """The time at the machine's reference clock; None on a CPU, under a sustained load or without clocks.

        A sustained load settles at a clock of its own: its time is that at the power cap.
        """
        time, clock = self.metrics.get("time"), self.metrics.get("sm_clock")
        reference_mhz, maximum_mhz = ((self.state.get("gpu") or {}).get(name) or 0.0 for name in CLOCK_LIMITS)
        if time is None or clock is None or self.case.get("mode") == "sustained" or not (reference_mhz or maximum_mhz):
            return None
        owner = [number for number, size in enumerate(self.sampling.get("slices") or ()) for _ in range(size)]
        out = {index for index, _ in self.quality.get("discarded", ())}
        kept = [index for index in range(len(owner)) if index not in out]
        if not kept or not len(owner) == len(time.samples) == len(clock.samples):
            return None
        left = Counter(owner[index] for index in kept)
        return at_one_clock(
            [time.samples[index] for index in kept],
            [clock.samples[index] for index in kept],
            [left[number] for number in range(len(self.sampling["slices"]))],
            1e6 * reference_mhz or reference_clock_hz(1e6 * maximum_mhz),
            is_compute=bool(self.work.get("flop")),
            launches_per_sample=int(self.sampling.get("launches_per_sample", 1)),
        )

    @functools.cached_property
    def time(self) -> Metric:
        """The reported time of a launch: at the reference clock on a GPU. Raises KeyError if nothing was timed."""
        as_taken, at = self.metrics["time"], self.at_clock
        if at is None:
            return as_taken
        return Metric("s", at.seconds, at.low, at.high, at.q20, at.q80, at.samples)

    @property
    def seconds(self) -> float:
        """Reported seconds of one launch. Raises KeyError on a record that timed nothing."""
        return self.time.value

    @property
    def kept_seconds(self) -> list[float]:
        """The samples that count, in seconds a launch: all but those discarded, and those of slow cores left out."""
        if self.at_clock is not None:
            return list(self.time.samples)
        discarded = {index for index, _ in self.quality.get("discarded", ())}
        if left_out := set(self.sampling.get("left_out", ())):
            owner = (number for number, size in enumerate(self.sampling["slices"]) for _ in range(size))
            discarded |= {index for index, number in enumerate(owner) if number in left_out}
        return [sample for index, sample in enumerate(self.metrics["time"].samples) if index not in discarded]

    @property
    def label(self) -> str:
        return self.parsed_case().label

    @property
    def cause(self) -> str:
        """Why it failed, the same text for all cases of one cause."""
        return cause_of(self.reason, self.case.get("parameters", {}))


_TYPES: tuple[tuple[tuple[str, ...], type, str], ...] = (
    (("run_id", "kind", "case_id", "started_at", "outcome", "reason", "probe", "profile"), str, "text"),
    (("process", "position"), int, "a whole number"),
    (("case", "work", "kernel", "sampling", "quality", "verification", "identity", "state"), dict, "a JSON object"),
)
