"""How far a machine's verdicts can be trusted, by `<results>/<machine>/selfcheck-<stamp>/` of tools/selfcheck.py."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.regressions.verdict import WORDS, Proportion, Word
from pyperf_suite.runner.results import LARGEST_MANIFEST_BYTES

MANIFEST = "selfcheck.json"
COMPARISONS = "comparisons.jsonl"
SCHEMA_VERSION = 1
# Comparisons of identical code from which on a newer selfcheck speaks for the machine in place of an older one.
ENOUGH_COMPARISONS = 50


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
    verdict: Word
    ratio: float | None
    seconds: float
    log_ratios: tuple[float, ...]
    started_at: str
    commit: str = ""
    reason: str = ""
    machine: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "log_ratios": [round(log_ratio, 6) for log_ratio in self.log_ratios]}

    @classmethod
    def from_json(cls, data: Any) -> Comparison:
        """The inverse of `to_json`. Raises ValueError for what is not a comparison."""
        try:
            known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
            comparison = cls(**known | {"log_ratios": tuple(float(item) for item in data["log_ratios"])})
            ratio = 1.0 if comparison.ratio is None else comparison.ratio
            figures = (comparison.shift, comparison.seconds, comparison.number, ratio, *comparison.log_ratios)
            if not all(math.isfinite(figure) for figure in figures) or comparison.verdict not in WORDS:
                raise ValueError("figures that are not finite, or an unknown verdict")
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a comparison: {error}") from None
        return comparison


@dataclass(frozen=True)
class Selfcheck:
    """The settings and every comparison made so far."""

    path: Path
    settings: Mapping[str, Any]
    comparisons: tuple[Comparison, ...]

    @property
    def shifts(self) -> list[float]:
        return sorted({comparison.shift for comparison in self.comparisons})

    @property
    def margin(self) -> float:
        return float(self.settings["rule"]["margin"])

    def measured(self, shift: float) -> list[Comparison]:
        return [each for each in self.comparisons if each.shift == shift and each.verdict != "failed"]

    def rate(self, shift: float, *verdicts: Word) -> Proportion:
        measured = self.measured(shift)
        return Proportion(sum(each.verdict in verdicts for each in measured), len(measured))

    @property
    def false_alarms(self) -> Proportion:
        return self.rate(0.0, "slower", "faster")

    def sentence(self) -> str:
        """One line for whoever reads a verdict of this machine: how often such verdicts are wrong, and miss."""
        identical = self.false_alarms
        called = (
            f"On this machine a selfcheck called identical code slower or faster in {identical} of {identical.tries} "
            f"comparisons (margin {100 * self.margin:.3g} %)"
        )
        rates = {shift: self.rate(shift, "slower") for shift in self.shifts if shift > 0}
        found = [f"{100 * shift:.3g} % in {rate} of {rate.tries}" for shift, rate in rates.items() if rate.tries]
        return f"{called}, and found an injected slowdown of {', of '.join(found)}." if found else f"{called}."


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
    comparisons: dict[tuple[float, int], Comparison] = {}
    for line in lines:
        try:
            comparison = Comparison.from_json(json.loads(line))
        except (ValueError, RecursionError):
            continue
        place = (comparison.shift, comparison.number)
        if place not in comparisons or comparisons[place].verdict == "failed":
            comparisons[place] = comparison
    return Selfcheck(path, settings, tuple(comparisons.values()))


def selfchecks(results: Path, machine: str) -> list[Selfcheck]:
    """All of a machine's (its slug) that can be read, oldest first."""
    opened = []
    for manifest in sorted((results / machine).glob(f"selfcheck-*/{MANIFEST}")):
        try:
            opened.append(open_selfcheck(manifest.parent))
        except UserError:
            continue  # a damaged one is no reason to hide the others
    return opened


def latest_selfcheck(results: Path, machine: str) -> Selfcheck | None:
    """The selfcheck that speaks for a machine (its slug); None if no run compared identical code.

    That is the newest with enough comparisons of identical code, else the one with most: a short trial does not take
    the place of an hour's measurement.
    """
    found = [each for each in selfchecks(results, machine) if each.false_alarms.tries]
    enough = [each for each in found if each.false_alarms.tries >= ENOUGH_COMPARISONS]
    if enough:
        return enough[-1]
    return max(found, key=lambda each: each.false_alarms.tries, default=None)
