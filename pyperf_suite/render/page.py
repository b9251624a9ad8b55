"""A results folder as one HTML page, whose words are in assets/page.html.j2: each probe's strongest evidence first."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from pyperf_suite import __version__
from pyperf_suite.errors import UserError, printable
from pyperf_suite.extensions import OtherRecord
from pyperf_suite.findings.data import ClaimVerdict, Findings, Heading, Remark, Table, remark
from pyperf_suite.findings.rows import Column, grouped, table
from pyperf_suite.findings.summary import SummaryPoint, about_the_cases, about_the_machine, failures_of, summary_of
from pyperf_suite.probes import TOPICS, FindProbe, find_probe, is_known, probe_names
from pyperf_suite.record.case import label_of
from pyperf_suite.record.record import Record
from pyperf_suite.render import text
from pyperf_suite.render.charts import PageFigure, page_figure
from pyperf_suite.render.results import ChosenRun, ReadRun, Results
from pyperf_suite.render.run_report import command_of
from pyperf_suite.render.text import plain

if TYPE_CHECKING:
    from pyperf_suite.regressions.stored.series import BenchmarkSeries

# Nothing is fetched: not even by what a hostile name could smuggle in.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
_MOST_FIGURES, _MOST_REASONS = 24, 30
_LONGEST_TITLE = 80
_NEWS_FIRST = ("does not hold here", "undecided", "holds")


@dataclass(frozen=True)
class Section:
    """One probe of one run, or something else that has a heading; `notes` are lines below it."""

    anchor: str
    title: str
    question: str
    findings: Findings
    topic: str = ""
    probe: str = ""
    notes: tuple[str, ...] = ()
    figures: tuple[PageFigure, ...] = ()
    figures_left_out: int = 0
    missing: Table | None = None
    command: str = ""
    place: str = ""
    chosen: ChosenRun | None = None


def draw_page(
    results: Results,
    chosen: Mapping[str, Sequence[ChosenRun]],
    others: Sequence[OtherRecord] = (),
    here: Collection[str] = (),
    find: FindProbe = find_probe,
) -> str:
    """One HTML document. The same results make the same text: it names no time at which it was made.

    Machines `here` come first; where there is one of them, the others are folded behind a link each.
    """
    recorded = grouped(others, lambda each: each.machine)
    names = sorted(dict.fromkeys([*chosen, *recorded]), key=lambda machine: machine not in here)
    machines = [
        _machine(
            results.of_machine(name),
            *_sections(chosen.get(name, ()), find),
            _history(results, name),
            recorded.get(name, []),
        )
        for name in names
    ]
    content = {
        "title": f"{' · '.join(names)} - pyperf-suite report",
        "machines": machines,
        "elsewhere": [each for each in machines if each["name"] not in here and names[0] in here],
        "passed_over": results.notes,
        "policy": POLICY,
        "version": __version__,
        "plotly": packed_plotly(),
    }
    return environment().get_template("page.html.j2").render(content)


def _machine(
    runs: Sequence[ReadRun],
    sections: Sequence[Section],
    cautions: Sequence[tuple[list[str], Remark]],
    failed: Sequence[SummaryPoint],
    history: Section | None,
    others: Sequence[OtherRecord],
) -> dict[str, Any]:
    sources: list[ReadRun | OtherRecord] = [*runs, *others]
    machine = sources[0].machine
    by_probe = {section.probe: section for section in reversed(sections)}
    # Sections of one probe in several runs are numbered, for the contents.
    numbers, listed = Counter[str](), list[Section]()
    for section in (*sections, *map(_other, others)):
        numbers[section.title] += 1
        number = f" ({numbers[section.title]})" if numbers[section.title] > 1 else ""
        listed.append(replace(section, title=section.title + number))
    verdicts = [(each, section) for section in sections for each in section.findings.verdicts]
    summary = [*failed, *summary_of({probe: section.findings for probe, section in by_probe.items()})]
    return {
        "name": machine,
        "model": str((runs[-1].first.identity.get("model") if runs else None) or machine),
        "anchor": anchor("machine", machine),
        "summary": [(point, by_probe.get(point.probe)) for point in summary],
        "cautions": cautions,
        "topics": grouped(listed, lambda section: section.topic),
        "verdicts": sorted(verdicts, key=lambda item: _NEWS_FIRST.index(item[0].outcome)),
        "outcomes": Counter(verdict.outcome for verdict, _ in verdicts),
        "days": sorted(each.started_at[:10] for each in sources),
        "records": sum((Counter(run.outcomes) for run in runs), Counter()),
        "probes": len(by_probe),
        "others": [history] if history else [],
        "state": _state_of(runs) if runs else None,
    }


def _other(record: OtherRecord) -> Section:
    findings = record.findings()
    return Section(
        anchor(record.path.name, record.machine),
        record.title[:_LONGEST_TITLE],
        record.question,
        findings,
        record.topic,
        notes=(f"{record.path.name} · {record.started_at[:16].replace('T', ' ')} UTC",),
        figures=tuple(map(page_figure, findings.figures)),
        command=record.command,
        place=f"{record.machine}/{record.path.name}",
    )


OfRuns = tuple[list[Section], list[tuple[str, Remark]], list[SummaryPoint]]
"""Sections, cautions about the machine with the run that has them, and what failed."""


def _sections(
    choices: Sequence[ChosenRun], find: FindProbe
) -> tuple[list[Section], list[tuple[list[str], Remark]], list[SummaryPoint]]:
    """Sections in order, each caution about the machine once with all its runs and the newest's numbers, failures."""
    answers = [_of_run(of_run, find) for of_run in grouped(choices, lambda choice: choice.run.place).values()]
    sections = [each for held, _, _ in answers for each in held]
    cautions = [each for _, held, _ in answers for each in held]
    failed = [each for _, _, held in answers for each in held]
    order = {topic: place for place, topic in enumerate(TOPICS)}
    names = {name: place for place, name in enumerate(probe_names())}

    similar = grouped(sorted(cautions, key=lambda caution: caution[0]), lambda caution: caution[1].template).values()
    merged = [([run_id for run_id, _ in of_runs], of_runs[-1][1]) for of_runs in similar]
    sections.sort(key=lambda each: (order.get(each.topic, len(order)), names.get(each.probe, len(names)), each.probe))
    return sections, merged, failed


def _of_run(choices: Sequence[ChosenRun], find: FindProbe) -> OfRuns:
    """Return the findings of one run, and release its records."""
    run = choices[0].run
    records = run.records()
    by_probe = grouped(records, lambda record: record.probe)
    cautions = [(run.run_id, each) for each in about_the_machine(records)]
    sections = [_section(choice, by_probe[choice.probe], find) for choice in choices]
    return sections, cautions, failures_of([each for choice in choices for each in by_probe[choice.probe]])


def _section(choice: ChosenRun, records: Sequence[Record], find: FindProbe) -> Section:
    run, name = choice.run, choice.probe
    probe = find(name) if is_known(name) else None
    findings = Findings(tuple(about_the_cases(records))) + findings_of(name, records, find)
    # Each reason once, the most frequent first.
    reasons = grouped((each for each in records if each.outcome != "ok"), lambda each: (each.outcome, each.reason))
    ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))[:_MOST_REASONS]
    rows = tuple((outcome, len(same), reason, label_of(same[0].case)) for (outcome, reason), same in ordered)
    columns = tuple(map(Heading, ("outcome", "trials", "reason", "the first of them")))
    return Section(
        anchor("probe", name, run.run_id, run.machine),
        getattr(probe, "heading", "") or name.replace("_", " ").capitalize() or "Unnamed probe",
        probe.question if probe else "",
        findings,
        getattr(probe, "topic", "") or "other",
        name,
        figures=tuple(map(page_figure, findings.figures[:_MOST_FIGURES])),
        figures_left_out=max(0, len(findings.figures) - _MOST_FIGURES),
        missing=Table("What was not measured, and why", columns, rows) if rows else None,
        command=command_of(name, run.manifest, records[0].profile),
        place=run.place,
        chosen=choice,
    )


def findings_of(name: str, records: Sequence[Record], find: FindProbe = find_probe) -> Findings:
    """Return the probe's findings; if it is not of this version, or cannot read its records, the records' medians."""
    if not is_known(name):
        message = "This version has no probe {probe}: its records are shown as they are."
        return _as_measured(records, remark(message, probe=name))
    try:
        return find(name).findings(records)
    except (UserError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Records of a stranger, or of another version: one probe that stumbles must not cost the page.
        message = "{probe} could not make sense of these records ({error})."
        return _as_measured(records, remark(message, probe=name, error=f"{error!r:.120}"))


def _as_measured(records: Sequence[Record], notice: Remark) -> Findings:
    """Every measured case with its median and interval, for records that no probe explains."""
    columns = (
        Column("case", lambda record: label_of(record.case)),
        Column("process", lambda record: record.process),
        Column("median", lambda record: record.time.value, "us"),
        Column("from", lambda record: record.time.low, "us"),
        Column("to", lambda record: record.time.high, "us"),
    )
    timed = [record for record in records if record.outcome == "ok" and "time" in record.metrics]
    return Findings((notice,), (table("Cases as measured", columns, timed),) if timed else ())


# Drawn one by one: those with changes first, then those of most points.
MOST_SERIES, FEWEST_POINTS = 12, 3


def _history(results: Results, machine: str) -> Section | None:
    """None if no benchmark of the machine was measured twice, or a single run is shown."""
    if results.single or not results.of_machine(machine):
        return None
    from pyperf_suite.regressions.stored.store import Store
    from pyperf_suite.regressions.tracking import track

    section = Section(anchor("history", machine), "History and change points", "", Findings())
    try:
        store = Store(results.root)
        repeated = [each for each in store.series(machine=machine) if len(each.points) > 1]
        if not repeated:
            return None
        # Machine code has thousands of figures, and a constant one takes as long to search.
        tracked = track([each for each in repeated if not (each.kind == "static" and len(set(each.values)) == 1)])
        changed = [each.series for each in (*tracked.current, *tracked.of_the_machine, *tracked.earlier)]
        long = [each for each in repeated if len(each.points) >= FEWEST_POINTS and each.kind != "static"]
        in_order = [*changed, *sorted(long, key=lambda each: -len(each.points))]
        drawn = list({(each.probe, each.case_id, each.metric): each for each in in_order}.values())[:MOST_SERIES]
    except UserError as reason:
        return replace(section, findings=Findings((remark("{said}", said=str(reason)),)))
    changes = [remark("Nominated, not confirmed: {change}", change=each.sentence) for each in tracked.current]
    if not changes:
        searched = "{searched} series were searched" if tracked.searched else "no series is long enough to be searched"
        changes = [remark(f"No change is found: {searched}.", searched=tracked.searched)]
    note = (
        f"{counted(len(repeated), 'benchmark')} measured more than once; drawn are those that changed, then those of "
        f"most runs, at most {MOST_SERIES}, from {FEWEST_POINTS} runs on. `pyperf-suite history BENCHMARK --machine "
        f"{machine}` shows any."
    )
    return replace(
        section,
        question="What changed from run to run, when, and with which commits?",
        findings=Findings(tuple(changes)),
        figures=tuple(map(_drawn, drawn)),
        notes=(note, *tracked.notes),
        command=f"pyperf-suite track --machine {machine}",
        place=f"{machine}/*/records.jsonl",
    )


def _drawn(series: BenchmarkSeries) -> PageFigure:
    from pyperf_suite.regressions.tracking import changes_of
    from pyperf_suite.render.series import series_chart, series_figure

    figure = series_figure(series, changes_of(series))
    return page_figure(figure, [[series_chart(series, figure)]])


_MOST_FACTS, _LONGEST_VALUE = 60, 160
_RUN_COLUMNS = (
    Column("run", lambda run: run.run_id),
    Column("begun (UTC)", lambda run: run.started_at[:16].replace("T", " ")),
    Column("probes", lambda run: ", ".join(run.probes)),
    Column("profile", lambda run: run.said("profile")),
    Column("measured", lambda run: run.outcomes["ok"]),
    Column("failed", lambda run: run.outcomes["failed"]),
    Column("unsupported", lambda run: run.outcomes["unsupported"]),
    Column("commit", lambda run: run.commit),
)


def _state_of(runs: Sequence[ReadRun]) -> dict[str, Any]:
    newest = next((run for run in reversed(runs) if run.last.state), runs[-1])
    manifest = runs[-1].manifest.get("identity")
    identity = dict(runs[-1].first.identity) or (dict(manifest) if isinstance(manifest, dict) else {})
    identity.pop("slug", None)
    values: dict[str, dict[str, str]] = {}
    for run in runs:
        for name, value in facts(run.first.state):
            values.setdefault(name, {}).setdefault(value, run.run_id)
    columns = (
        Column("state", lambda item: item[0]),
        Column("values", lambda item: " → ".join(f"{value} (from {run_id})" for value, run_id in item[1].items())),
    )
    changed = [item for item in values.items() if len(item[1]) > 1]
    return {
        "identity": facts({"folder": runs[-1].machine} | identity),
        "state": facts(newest.last.state),
        "since": newest.run_id,
        "changed": table("What changed from run to run", columns, changed),
        "runs": table("Runs", _RUN_COLUMNS, list(reversed(runs))),
    }


def facts(state: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested mappings as names with dots; what is empty is left out."""
    listed: list[tuple[str, str]] = []
    for name, value in state.items():
        path = f"{before}{name}"
        if isinstance(value, dict):
            listed += facts(value, f"{path}.")
        elif value not in (None, "", [], ()):
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            # A package's name is what an installer knows it by.
            label = path if before == "packages." else path.replace("_", " ")
            listed.append((label, shown[:_LONGEST_VALUE]))
    return listed[:_MOST_FACTS]


def anchor(*words: str) -> str:
    """An id of letters, figures and dashes that links can name."""
    return "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") or "x" for word in words)


def island(data: Any) -> str:
    r"""JSON that no HTML parser can end early: without `<`, `>` and `&`, in ASCII; numbers to six digits.

    >>> island({"name": "</script>", "y": [1 / 3, float("nan")]})
    '{"name":"\\u003c/script\\u003e","y":[0.333333,null]}'
    """
    content = json.dumps(plain(data, digits=6), separators=(",", ":"), allow_nan=False)
    return content.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def by_claim(remarks: Iterable[Remark | ClaimVerdict]) -> list[Any]:
    """As `text.by_claim`, without cautions: they stand in a box of their own."""
    return [each for each in text.by_claim(remarks) if not (isinstance(each, Remark) and each.kind == "caution")]


def counted(count: int, noun: str) -> str:
    """A number and what it counts, in the plural where it is not 1.

    >>> counted(1, "more finding"), counted(2, "run")
    ('1 more finding', '2 runs')
    """
    return f"{count} {noun}{'s' if count != 1 else ''}"


def coded(words: Any) -> Any:
    """Text as markup, with `code` where it has backticks in pairs.

    >>> str(coded("<b> `a < b`"))
    '&lt;b&gt; <code>a &lt; b</code>'
    """
    from markupsafe import Markup, escape

    if isinstance(words, Markup):
        return words
    return Markup(re.sub("`([^`\n]+)`", r"<code>\1</code>", str(escape(printable(str(words))))))


@cache
def environment() -> Any:
    """jinja2 with the page's filters. Raises UserError if it is not installed."""
    try:
        import jinja2
        from markupsafe import Markup
    except ModuleNotFoundError:
        raise UserError("The report's page needs jinja2, which is not installed: pip install jinja2.") from None

    jinja = jinja2.Environment(
        loader=jinja2.PackageLoader("pyperf_suite.render", "assets"),
        autoescape=True,
        # Every text that a template shows: what turns the direction of writing is replaced.
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    sentences: tuple[Callable[..., str], ...] = (text.sentence, text.measured, text.in_words, text.point)
    jinja.filters |= {each.__name__: lambda item, write=each: coded(write(item)) for each in sentences}
    jinja.filters |= {each.__name__: each for each in (text.written, by_claim, coded, counted)}
    jinja.filters["island"] = lambda data: Markup(island(data))
    jinja.tests["remark"] = lambda each: isinstance(each, Remark)
    jinja.tests["caution"] = lambda each: isinstance(each, Remark) and each.kind == "caution"
    jinja.globals["asset"] = lambda name: Markup(
        (resources.files("pyperf_suite.render") / "assets" / name).read_text(encoding="utf-8")
    )
    return jinja


@cache
def packed_plotly() -> str:
    """plotly.min.js, else nine tenths of the page, as base64 of gzip. Raises UserError if plotly is not installed."""
    try:
        script = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise UserError("The report's figures need plotly, which is not installed: pip install plotly.") from None
    return base64.b64encode(gzip.compress(script, 6, mtime=0)).decode("ascii")
