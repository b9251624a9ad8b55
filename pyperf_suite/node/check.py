"""One check of a machine and its verdict, the table of checks, and the sentences on those that are not ok.

`doctor`, `accept`, `topology` and the comparison of a fleet all answer with these.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pyperf_suite.findings.data import Cell, Remark, Table, remark
from pyperf_suite.findings.rows import Column, grouped, table
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.render.text import as_data, quantity_text

Verdict = Literal["ok", "caution", "failed", "unknown"]

# "caution": it works, with less than it could. "failed": something is wrong.
# "unknown": it was not measured, the machine does not report it, or there is nothing to compare it with.
OK: Verdict = "ok"
CAUTION: Verdict = "caution"
FAILED: Verdict = "failed"
UNKNOWN: Verdict = "unknown"
WORST_FIRST = (FAILED, CAUTION, UNKNOWN, OK)
NOT_REPORTED = "not reported"


@dataclass(frozen=True)
class Check:
    """One property of one part of the machine, judged."""

    part: str
    """The device or group: `cuda:0`, `host`, `Software`."""
    what: str
    found: Cell = None
    """The measured or read value; None if it is unknown."""
    expected: Cell = None
    verdict: Verdict = OK
    why: str = ""
    """Likely causes, what it means, or why it is unknown."""
    rate: float | None = None
    """Rate of a link in bytes a second, and the best that it could have."""
    best_rate: float | None = None
    source: str = ""
    """Source of the expected value."""
    advice: str = ""
    """Advice to a person; empty if nothing is to be done."""
    command: str = ""
    """A command that a person may run for it."""

    @property
    def needs_attention(self) -> bool:
        return self.verdict in (CAUTION, FAILED)

    @property
    def off(self) -> float | None:
        """Relative to what is expected, -0.12 is 12 % low; None for what is ok where that is known by a factor only."""
        found, expected = self.found, self.expected
        if not isinstance(found, Quantity) or not isinstance(expected, Quantity) or self.verdict not in (OK, CAUTION):
            return None
        is_vague = not expected.low > 0.5 * expected.value
        return None if is_vague and self.verdict == OK else found.value / expected.value - 1

    @property
    def least(self) -> Quantity | None:
        """The threshold: what it has to reach; None where no bound is known."""
        of = self.expected
        if not isinstance(of, Quantity) or math.isnan(of.low):
            return None
        return dataclasses.replace(of, value=of.low, low=math.nan, high=math.nan)

    @property
    def rate_unit(self) -> str:
        return self.found.unit if isinstance(self.found, Quantity) and self.found.base.endswith("/s") else ""


def _judged(verdict: Verdict, value: str, advice: str = "", command: str = "") -> Check:
    return Check("", "", value, verdict=verdict, advice=advice, command=command)


ok, caution, failed = partial(_judged, OK), partial(_judged, CAUTION), partial(_judged, FAILED)


def unknown(why: str = NOT_REPORTED) -> Check:
    """A check for which this machine has nothing to judge, or does not report it."""
    return Check("", "", verdict=UNKNOWN, why=why)


def size_text(size_bytes: float) -> str:
    """As in 62.5 GiB or 64 MiB."""
    return quantity_text(Quantity(size_bytes, "size"))


def of_part(part: str, checks: Mapping[str, Check]) -> list[Check]:
    """Checks of a part by what they check."""
    return [named(check, part, what) for what, check in checks.items()]


def named(check: Check, part: str, name: str) -> Check:
    """The same check of a part, by that name."""
    return dataclasses.replace(check, part=part, what=name)


def sentences(checks: Iterable[Check]) -> Iterator[Remark]:
    """A remark for all parts that share what needs attention, or is unknown for a stated reason; the worst first."""
    spoken_of = [check for check in checks if check.needs_attention or (check.verdict == UNKNOWN and check.why)]
    same = grouped(
        spoken_of, lambda each: (each.verdict, each.what, each.found, each.expected, each.why, each.advice)
    ).values()
    for members in sorted(same, key=lambda members: WORST_FIRST.index(members[0].verdict)):
        # All are named: `GPU 0 to GPU 7` would hide a gap.
        yield _sentence(members[0], ", ".join(each.part for each in members))


def _sentence(check: Check, who: str) -> Remark:
    values: dict[str, Any] = {"who": who, "what": check.what, "verdict": check.verdict}
    phrases = []
    if check.found is not None:
        values["found"] = check.found
        phrases.append("{found}")
    if check.expected is not None:
        values["expected"] = check.expected
        phrases.append("expected {expected}")
        if check.least is not None:
            values["least"] = check.least
            phrases.append("at least {least}")
        if check.off is not None and check.off < 0:
            values["below"] = Quantity(-check.off, "%")
            phrases.insert(1, "{below} low")
    words = ", ".join(phrases)
    if check.why:
        values["why"] = check.why
        words += ": {why}" if words else "{why}"
    if check.advice:
        values["advice"] = check.advice
        words += ". {advice}"
    begin = "" if check.verdict == CAUTION else "{verdict}: "  # a caution is marked as one
    return remark(begin + "{who}, {what}: " + words, kind="caution" if check.needs_attention else "", **values)


_COLUMNS = (
    Column("verdict", priority=2),
    Column("part", priority=2),
    Column("check", "what", priority=2),
    Column("found", priority=2),
    Column("expected"),
    Column("at least", "least"),
    Column("unit", "rate_unit"),
    Column("off", unit="+%", priority=2),
    Column("rate", unit="GB/s", priority=0),
    Column("of", "best_rate", "GB/s", priority=0),
    Column("why", priority=0),
    Column("expected by", "source", priority=0),
)


def check_table(title: str, checks: Iterable[Check]) -> Table:
    """A line a check. Columns that no check has a value for are not shown."""
    return table(title, _COLUMNS, checks)


def as_json(check: Check) -> dict[str, Any]:
    """The fields of a check as plain JSON, and how far off it is."""
    return {**as_data(check), "off": check.off}
