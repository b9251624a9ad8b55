"""Findings of comparisons, old against new: in a terminal, as Markdown, JSON and JUnit XML; the urgent ones first."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from pyperf_suite import files
from pyperf_suite.errors import UserError, printable
from pyperf_suite.extensions import OtherRecord
from pyperf_suite.findings.data import Findings, Heading, Table, remark
from pyperf_suite.record.interval import Ratio
from pyperf_suite.record.quantity import Quantity, quantity
from pyperf_suite.regressions.thresholds import DEFAULT_FAIL_ON
from pyperf_suite.regressions.verdict import WORDS, Judgement, Word, is_minded
from pyperf_suite.render import text
from pyperf_suite.render.terminal import SHOW_ALL, height_of, note, print_table, say, screen_lines

# The file that tells a folder of `ab`, next to findings.json; both hold what is installed on each side.
COMPARISON = "ab.json"
_LARGEST_BYTES = 64 << 20
URGENCY: tuple[Word, ...] = ("slower", "failed", "undecided", "faster", "equivalent")
# A job's summary may hold 1 MiB; a row with a long label and a long sentence is about 500 bytes.
MOST_ROWS = 400
MOST_SHOWN = 5
_MARKS = {"slower": "🔴", "failed": "⚫", "undecided": "🟡", "faster": "🟢", "equivalent": "⚪"}


def by_urgency(findings: Sequence[Judgement]) -> list[Judgement]:
    """Slower first, equivalent last; within a verdict by how much the time changed."""

    def rank(finding: Judgement) -> tuple[int, float, str]:
        moved = 0.0 if finding.ratio is None else abs(math.log(finding.ratio.value))
        return URGENCY.index(finding.verdict), -moved, finding.benchmark

    return sorted(findings, key=rank)


def change(ratio: Ratio | None) -> Quantity | None:
    """How much longer the new takes, as a share of the old's time; None if it is not known."""
    if ratio is None:
        return None
    return Quantity(ratio.value - 1, "+%", ratio.low - 1, ratio.high - 1, max(1, ratio.processes))


def counted(findings: Sequence[Judgement]) -> str:
    """`1 slower, 2 undecided, 5 equivalent of 8 benchmarks`."""
    if not findings:
        return "nothing to report"
    counts = Counter(finding.verdict for finding in findings)
    each = ", ".join(f"{counts[verdict]} {verdict}" for verdict in URGENCY if counts[verdict])
    return f"{each} of {len(findings)} benchmark{'s' if len(findings) > 1 else ''}"


def print_comparisons(
    console: Console,
    heading: str,
    findings: Sequence[Judgement],
    notes: Sequence[str],
    code: int,
    fail_on: str,
    max_rows: int | None = MOST_SHOWN,
) -> None:
    """The table's `max_rows` urgent rows (None: all), sentences on those not equivalent, notes, the exit code."""
    ordered = by_urgency(findings)
    meaning = {0: "fine", 1: "regression", 3: "undecided or failed" if findings else "nothing was searched"}[code]

    def begin() -> None:
        console.print()
        say(console, "", heading, style="bold")
        print_table(console, _table(ordered), most_rows=max_rows)

    def end() -> None:
        for each in notes:
            note(console, each)
        say(console, "", f"{counted(findings)}; exit code {code}, {meaning} (--fail-on {fail_on})")

    def tell(finding: Judgement) -> None:
        named = finding.benchmark in finding.sentence
        said = finding.sentence if named else f"{finding.benchmark}: {finding.sentence}"
        say(console, "  [cyan]•[/cyan]", said)

    begin()
    room = screen_lines(console) - height_of(console, begin) - height_of(console, end) - 1
    moved = [finding for finding in ordered if finding.verdict != "equivalent"]
    told: list[Judgement] = []
    for finding in moved:
        room -= height_of(console, partial(tell, finding))
        # The first of each verdict, and others while the screen has room.
        if max_rows is None or room >= 0 or all(each.verdict != finding.verdict for each in told):
            tell(finding)
            told.append(finding)
    if moved[len(told) :]:
        more = f"{len(moved) - len(told)} more that are not equivalent: {SHOW_ALL} shows all"
        say(console, "  [dim]…[/dim]", more)
    end()


def summary(heading: str, findings: Sequence[Judgement], notes: Sequence[str]) -> str:
    """As GitHub shows it on a job's page: what changed or stayed open, the equivalent folded away, and the notes."""
    ordered = by_urgency(findings)
    as_before = [finding for finding in ordered if finding.verdict == "equivalent"]
    open_or_moved = ordered[: len(ordered) - len(as_before)]
    lines = [f"## {text.markdown_escape(heading)}", "", f"{text.markdown_escape(counted(findings))}.", ""]
    if open_or_moved:
        lines += [*_rows(open_or_moved, MOST_ROWS), ""]
    if as_before:
        shown = _rows(as_before, max(0, MOST_ROWS - len(open_or_moved)))
        lines += [f"<details><summary>{len(as_before)} equivalent</summary>", "", *shown, "", "</details>", ""]
    lines += [*(f"- {text.markdown_escape(each)}" for each in notes), ""] if notes else []
    return "\n".join(lines)


def comparisons_as_json(
    heading: str, findings: Sequence[Judgement], notes: Sequence[str], code: int, extra: Mapping[str, Any] | None = None
) -> str:
    """One object of heading, exit_code, counts by verdict, findings (urgent first), notes and `extra`; nan is null."""
    counts = Counter(finding.verdict for finding in findings)
    details = {
        "heading": heading,
        "exit_code": code,
        "counts": {verdict: counts[verdict] for verdict in WORDS},
        "findings": [asdict(finding) for finding in by_urgency(findings)],
        "notes": list(notes),
        **(extra or {}),
    }
    return text.answer({"comparison": Findings(tables=(_table(by_urgency(findings)),))}, details).rstrip()


def junit_xml(heading: str, findings: Sequence[Judgement], fail_on: str = DEFAULT_FAIL_ON) -> bytes:
    """One suite with one test a finding, as UTF-8, which CI servers show.

    What `fail_on` minds: a regression is a failure, what could not be measured an error. What stayed open is skipped
    at every level: a CI server has no word for it that would not be taken for a fault of the kernel.
    """
    outcomes = [_outcome(finding, fail_on) for finding in findings]
    times = [float(finding.details.get("seconds", 0.0)) for finding in findings]
    suite = ElementTree.Element(
        "testsuite",
        name=printable(heading),
        tests=str(len(findings)),
        failures=str(outcomes.count("failure")),
        errors=str(outcomes.count("error")),
        skipped=str(outcomes.count("skipped")),
        time=f"{sum(times):.3f}",
    )
    for finding, outcome, seconds in zip(findings, outcomes, times, strict=True):
        names = {"classname": printable(finding.probe or "benchmark"), "name": printable(finding.benchmark)}
        test = ElementTree.SubElement(suite, "testcase", names, time=f"{seconds:.3f}")
        sentence = printable(finding.sentence)
        if outcome == "system-out":
            ElementTree.SubElement(test, outcome).text = sentence
        elif outcome == "skipped":
            ElementTree.SubElement(test, outcome, message=f"{finding.verdict}: {sentence}")
        else:
            found = ElementTree.SubElement(test, outcome, message=sentence, type=finding.verdict)
            found.text = f"{finding.verdict} {text.cell(change(finding.ratio))}\n{sentence}"
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)


def _outcome(finding: Judgement, fail_on: str) -> str:
    outcomes = {"slower": "failure", "probably-slower": "failure", "failed": "error"}
    minded = outcomes.get(finding.severity) if is_minded(finding, fail_on) else None
    return minded or ("skipped" if finding.verdict in ("undecided", "failed") else "system-out")


def _table(findings: Sequence[Judgement], marked: bool = False) -> Table:
    """With marks and sentences where there is room for them."""
    columns = (
        Heading("verdict", priority=2),
        Heading("change of time", "+%", priority=2),
        Heading("margin", "%", priority=0),
        Heading("benchmark", priority=2),
    )
    rows = [
        (
            f"{_MARKS[finding.verdict]} {finding.verdict}" if marked else finding.verdict,
            change(finding.ratio),
            quantity(finding.margin, "%"),
            finding.benchmark,
            *([finding.sentence] if marked else []),
        )
        for finding in findings
    ]
    return Table("", (*columns, *([Heading("why")] if marked else [])), tuple(rows))


def _rows(findings: Sequence[Judgement], max_rows: int) -> list[str]:
    left_out = len(findings) - max_rows
    more = ["", f"{left_out} more are left out here; the JSON output has them all."] if left_out > 0 else []
    return [*text.markdown_table(_table(findings[:max_rows], marked=True)), *more]


@dataclass
class ComparisonRecord(OtherRecord):
    """A comparison that `ab` kept, as a report shows it: an `extensions.OtherRecord`."""

    path: Path
    manifest: Mapping[str, Any]
    judgements: tuple[Judgement, ...]
    kind: str = "ab"
    topic: str = "comparisons"
    question: str = "Is the new side slower than the old one?"
    command: str = "pyperf-suite ab"

    @property
    def title(self) -> str:
        old, new = (str(self.manifest["arms"][side]["name"]) for side in ("old", "new"))
        return f"{new} against {old}"

    def findings(self) -> Findings:
        """How many of each verdict, a sentence for each benchmark that is not equivalent, and the table."""
        ordered = by_urgency(self.judgements)
        moved = [each for each in ordered if each.verdict != "equivalent"]
        said = [remark("{benchmark}: {sentence}", benchmark=each.benchmark, sentence=each.sentence) for each in moved]
        return Findings((remark("{counted}", counted=counted(ordered)), *said), (_table(ordered),) if ordered else ())


def read_comparison(folder: Path) -> ComparisonRecord:
    """Read what `ab` kept in a folder. Raises UserError where it is damaged, or was interrupted before its verdicts."""
    try:
        manifest, kept = (
            json.loads(files.read_text(folder / name, _LARGEST_BYTES)) for name in (COMPARISON, "findings.json")
        )
        judgements = tuple(Judgement(**{**each, "ratio": each["ratio"] and Ratio(**each["ratio"])}) for each in kept)
        record = ComparisonRecord(folder, manifest, judgements)
        record.title, record.findings()
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = "it has no verdicts" if isinstance(error, FileNotFoundError) else f"{error!r:.120}"
        raise UserError(f"{folder.parent.name}/{folder.name}: the comparison cannot be read ({reason}).") from None
    return record
