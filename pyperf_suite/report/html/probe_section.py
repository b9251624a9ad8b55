"""One probe of one run on the page: its question, its findings, what should make a reader careful, what failed."""

from __future__ import annotations

from collections.abc import Sequence

from pyperf_suite.errors import UserError
from pyperf_suite.history.stored.observations import label_of
from pyperf_suite.render.command import command_of
from pyperf_suite.render.results import Told
from pyperf_suite.render.text import sentence as sentence_of
from pyperf_suite.report.html.careful import draw_careful
from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.findings import draw_findings
from pyperf_suite.report.html.names import title_of
from pyperf_suite.report.html.provenance import Source
from pyperf_suite.report.html.table import draw_table
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.cautions import cautions_of
from pyperf_suite.spec.discovery import find_probe, probe_names
from pyperf_suite.spec.findings import Findings, Table

# Reasons told one by one.
_MOST_REASONS = 30


def findings_of(told: Told) -> Findings:
    """What the probe says; where it is not of this version, or cannot read its records, their plain figures."""
    probe = find_probe(told.probe) if told.probe in probe_names() else None
    if probe is None:
        return plain_findings(
            told.records, f"This version has no probe {told.probe!r}: its records are shown as they are."
        )
    try:
        return probe.findings(told.records)
    except (UserError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Records of a stranger, or of another version: one probe that stumbles must not cost the page.
        return plain_findings(told.records, f"{told.probe} could not make sense of these records ({error!r:.120}).")


def plain_findings(records: Sequence[Record], sentence: str) -> Findings:
    """Every measured case with its median and interval, for records that no probe explains."""
    rows = tuple(
        (
            label_of(record.case),
            str(record.process),
            f"{record.metrics['time'].value * 1e6:.4g}",
            f"{record.metrics['time'].low * 1e6:.4g}",
            f"{record.metrics['time'].high * 1e6:.4g}",
        )
        for record in records
        if record.outcome == "ok" and "time" in record.metrics
    )
    table = Table("Cases as measured", ("case", "process", "median us", "from", "to"), rows)
    return Findings((sentence,), (table,) if rows else ())


def source_of(told: Told) -> Source:
    """The command that would measure the probe again, and where its records lie."""
    return Source(command_of(told.probe, told.run.manifest, told.records[0].profile), told.run.place)


def draw_probe(told: Told, findings: Findings, anchor: str) -> str:
    """The section."""
    probe = find_probe(told.probe) if told.probe in probe_names() else None
    question = f'<p class="question">{text(probe.question)}</p>' if probe is not None else ""
    return "".join(
        (
            f'<section id="{anchor}"><h3>{text(title_of(told.probe))}</h3>{question}{_when(told)}',
            draw_findings(findings, source_of(told)),
            draw_careful("To be careful about", [*map(sentence_of, cautions_of(told.records, [])[0])]),
            _not_measured(told.records),
            "</section>",
        )
    )


def _when(told: Told) -> str:
    run = told.run
    measured = sum(record.outcome == "ok" for record in told.records)
    profile = run.said("profile") or told.records[0].profile
    others = f" · {told.others} other run{'s' if told.others > 1 else ''} of it not shown" if told.others else ""
    when = run.started_at[:16].replace("T", " ")
    return (
        f'<p class="when">run <code>{text(run.run_id)}</code> · {text(when)} UTC · '
        f"profile {text(profile or 'unnamed')} · "
        f"{measured} of {len(told.records)} records measured{text(others)}</p>"
    )


def _not_measured(records: Sequence[Record]) -> str:
    """Why cases failed or are unsupported, each reason once, the most frequent first."""
    reasons: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.outcome != "ok":
            reasons.setdefault((record.outcome, record.reason), []).append(record)
    if not reasons:
        return ""
    ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = tuple(
        (outcome, str(len(members)), reason, label_of(members[0].case))
        for (outcome, reason), members in ordered[:_MOST_REASONS]
    )
    table = Table("What was not measured, and why", ("outcome", "visits", "reason", "the first of them"), rows)
    return f"<details><summary>What was not measured, and why</summary>{draw_table(table)}</details>"
