"""How far a machine's verdicts can be trusted, measured: code compared with itself, and with itself slowed down.

A selfcheck is `<results>/<machine>/selfcheck-<stamp>/`: selfcheck.json says what was asked, comparisons.jsonl has a
line for each comparison made. Rates are counted from those lines; the summary beside the settings is for other readers.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.history.finding import VERDICTS, Verdict
from pyperf_suite.history.statistics.proportion import CONFIDENCE, Proportion
from pyperf_suite.measure.estimates import median_interval
from pyperf_suite.runner.results import LARGEST_MANIFEST_BYTES

MANIFEST = "selfcheck.json"
COMPARISONS = "comparisons.jsonl"
SCHEMA_VERSION = 1

# From so many comparisons of identical code on, a newer selfcheck speaks for the machine in place of an older one.
ENOUGH = 50


@dataclass(frozen=True)
class Comparison:
    """One comparison of the code with itself, the new arm slowed down by the share `shift`; 0 is A/A.

    `number` counts the comparisons of one shift. `log_ratios` has log(new time / old time) of each pair, `ratio` what
    was concluded from them (None where nothing could be measured, with the `reason`), `machine` the time that a
    hypervisor took and the clocks.
    """

    shift: float
    number: int
    probe: str
    case_id: str
    label: str
    verdict: Verdict
    ratio: float | None
    seconds: float
    log_ratios: tuple[float, ...]
    started_at: str
    commit: str = ""
    reason: str = ""
    machine: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, ready for one line."""
        return {**vars(self), "log_ratios": [round(log_ratio, 6) for log_ratio in self.log_ratios]}

    @classmethod
    def from_json(cls, data: Any) -> Comparison:
        """The inverse of `to_json`. Raises ValueError for what is not a comparison."""
        try:
            known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
            found = cls(**known | {"log_ratios": tuple(float(item) for item in data["log_ratios"])})
            ratio = 1.0 if found.ratio is None else found.ratio
            figures = (found.shift, found.seconds, found.number, ratio, *found.log_ratios)
            if not all(math.isfinite(figure) for figure in figures) or found.verdict not in VERDICTS:
                raise ValueError("figures that are not finite, or an unknown verdict")
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a comparison: {error}") from None
        return found


@dataclass(frozen=True)
class Seconds:
    """How long comparisons took: the median with its 95 % interval, and what nine of ten stayed within."""

    median: float
    low: float
    high: float
    p90: float


@dataclass(frozen=True)
class Selfcheck:
    """What was asked (`settings`) and every comparison made so far."""

    path: Path
    settings: Mapping[str, Any]
    comparisons: tuple[Comparison, ...]

    @property
    def shifts(self) -> list[float]:
        """The injected slowdowns that comparisons were made at, as shares, ascending."""
        return sorted({comparison.shift for comparison in self.comparisons})

    @property
    def margin(self) -> float:
        """What every comparison tolerated, as a share."""
        return float(self.settings["rule"]["margin"])

    def measured(self, shift: float) -> list[Comparison]:
        """The comparisons at a shift that could be made at all."""
        return [each for each in self.comparisons if each.shift == shift and each.verdict != "failed"]

    def rate(self, shift: float, *verdicts: Verdict) -> Proportion:
        """How often the comparisons at a shift ended in one of the verdicts."""
        measured = self.measured(shift)
        return Proportion(sum(each.verdict in verdicts for each in measured), len(measured))

    @property
    def false_alarms(self) -> Proportion:
        """How often identical code was called slower or faster."""
        return self.rate(0.0, "slower", "faster")

    def detected(self, shift: float) -> Proportion:
        """How often code slowed down by that share was called slower."""
        return self.rate(shift, "slower")

    def seconds(self, shift: float) -> Seconds | None:
        """How long the comparisons at a shift took; None where there was none."""
        spent = [each.seconds for each in self.measured(shift)]
        if not spent:
            return None
        interval = median_interval(spent, CONFIDENCE, effective=len(spent))
        return Seconds(statistics.median(spent), interval.low, interval.high, float(np.quantile(spent, 0.9)))

    def change(self, shift: float) -> float | None:
        """The median of the slowdowns concluded at a shift, as a share: whether what was injected arrived."""
        ratios = [each.ratio for each in self.measured(shift) if each.ratio is not None]
        return statistics.median(ratios) - 1 if ratios else None

    def sentence(self) -> str:
        """One line for whoever reads a verdict of this machine: how often such verdicts are wrong, and miss."""
        identical = self.false_alarms
        told = (
            f"On this machine a selfcheck called identical code slower or faster in {identical} of {identical.tries} "
            f"comparisons (margin {100 * self.margin:.3g} %)"
        )
        slowed = [shift for shift in self.shifts if shift > 0 and self.detected(shift).tries]
        found = [f"{100 * shift:.3g} % in {self.detected(shift)} of {self.detected(shift).tries}" for shift in slowed]
        return f"{told}, and found an injected slowdown of {', of '.join(found)}." if found else f"{told}."

    def to_json(self) -> dict[str, Any]:
        """The rates as plain JSON: for each shift every verdict's, the times, and the slowdown that arrived."""
        return {
            "false_alarms": _plain(self.false_alarms),
            "shifts": [
                {
                    "shift": shift,
                    "failed": sum(each.shift == shift and each.verdict == "failed" for each in self.comparisons),
                    "verdicts": {verdict: _plain(self.rate(shift, verdict)) for verdict in VERDICTS[:-1]},
                    "change": self.change(shift),
                    "seconds": vars(seconds) if (seconds := self.seconds(shift)) else None,
                }
                for shift in self.shifts
            ],
        }


def _plain(rate: Proportion) -> dict[str, float | int | None]:
    share = rate.value if rate.tries else None
    return {"hits": rate.hits, "tries": rate.tries, "value": share, "low": rate.low, "high": rate.high}


def open_selfcheck(path: Path) -> Selfcheck:
    """The selfcheck in that folder. Raises UserError where it is not one, or its settings are damaged.

    A line that a killed run left unfinished is left out. Of two for the same comparison, as where a failed one was
    tried again, the first that could be made counts.
    """
    try:
        settings = json.loads(files.read_text(path / MANIFEST, LARGEST_MANIFEST_BYTES))
        lines = files.read_bytes(path / COMPARISONS).splitlines() if (path / COMPARISONS).exists() else []
    except OSError as error:
        raise UserError(f"{path} is not the folder of a selfcheck: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path / MANIFEST} is damaged: it does not hold JSON.") from None
    if not isinstance(settings, dict) or settings.get("schema_version") != SCHEMA_VERSION:
        raise UserError(f"{path / MANIFEST} is not of a selfcheck that this version can read.")
    found: dict[tuple[float, int], Comparison] = {}
    for line in lines:
        try:
            comparison = Comparison.from_json(json.loads(line))
        except (ValueError, RecursionError):
            continue
        place = (comparison.shift, comparison.number)
        if place not in found or found[place].verdict == "failed":
            found[place] = comparison
    return Selfcheck(path, settings, tuple(found.values()))


def selfchecks(results: Path, machine: str) -> list[Selfcheck]:
    """All of a machine's (its slug) that can be read, oldest first."""
    found = []
    for manifest in sorted((results / machine).glob(f"selfcheck-*/{MANIFEST}")):
        try:
            found.append(open_selfcheck(manifest.parent))
        except UserError:
            continue  # a damaged one is no reason not to be told of the others
    return found


def latest_selfcheck(results: Path, machine: str) -> Selfcheck | None:
    """The selfcheck that speaks for a machine (its slug); None where none compared identical code.

    That is the newest with enough comparisons of identical code, else the one with most: a short trial does not take
    the place of an hour's measurement.
    """
    found = [each for each in selfchecks(results, machine) if each.false_alarms.tries]
    enough = [each for each in found if each.false_alarms.tries >= ENOUGH]
    if enough:
        return enough[-1]
    return max(found, key=lambda each: each.false_alarms.tries, default=None)
