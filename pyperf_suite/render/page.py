"""A results folder as one HTML page: each probe's strongest evidence, the summary and the warnings first."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from pyperf_suite import __version__
from pyperf_suite.errors import UserError, printable
from pyperf_suite.history.stored.observations import label_of
from pyperf_suite.render import strict, text
from pyperf_suite.render.command import command_of
from pyperf_suite.render.helpers import Submit, helpers
from pyperf_suite.render.machine_section import machine_of
from pyperf_suite.render.plot import Shown, shown
from pyperf_suite.render.results import Choice, Results, Run
from pyperf_suite.render.sizing_section import sizing_of
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.cautions import about_the_cases, about_the_machine
from pyperf_suite.spec.discovery import TOPICS, find_probe, is_known, probe_names
from pyperf_suite.spec.findings import Findings, Heading, Remark, Table, Verdict, remark
from pyperf_suite.spec.rows import Column, grouped, table
from pyperf_suite.spec.summary import Point, summary_of

# Nothing is fetched: not even by what a hostile name could smuggle in.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
# Figures that a section shows, and reasons told one by one; the command draws and tells all.
_MOST_FIGURES, _MOST_REASONS = 24, 30
_NEWS_FIRST = ("does not hold here", "undecided", "holds")


@dataclass(frozen=True)
class Section:
    """One probe of one run, or something else that has a heading; `notes` are lines below it."""

    anchor: str
    title: str
    question: str
    found: Findings
    topic: str = ""
    probe: str = ""
    notes: tuple[str, ...] = ()
    figures: tuple[Shown, ...] = ()
    figures_left_out: int = 0
    missing: Table | None = None
    command: str = ""
    place: str = ""


def draw_page(results: Results, chosen: Mapping[str, Sequence[Choice]]) -> str:
    """One HTML document. The same results make the same text: it names no time at which it was made."""
    shown_runs = {choice.run.place: choice.run for choices in chosen.values() for choice in choices}
    with helpers(sum(run.path.stat().st_size for run in shown_runs.values())) as submit:
        plotly = submit(packed_plotly)
        histories = {machine: submit(_history, results, machine) for machine in chosen}
        read = {machine: _sections(choices, submit) for machine, choices in chosen.items()}
        machines = [
            _machine(results.of_machine(machine), *held, histories[machine].result()) for machine, held in read.items()
        ]
    return (
        _environment()
        .get_template("page.html")
        .render(
            machines=machines,
            title=f"{' · '.join(chosen)} - pyperf-suite report",
            passed_over=results.notes,
            policy=POLICY,
            version=__version__,
            plotly=plotly.result(),
        )
    )


def _machine(
    runs: Sequence[Run], sections: Sequence[Section], cautions: Sequence[tuple[str, Remark]], history: Section | None
) -> dict[str, Any]:
    """What the template shows of one machine."""
    machine = runs[0].machine
    found = {section.probe: section.found for section in reversed(sections)}
    verdicts = [(each, section) for section in sections for each in section.found.verdicts]
    verdicts.sort(key=lambda item: _NEWS_FIRST.index(item[0].outcome))
    return {
        "name": machine,
        "model": str(runs[-1].first.identity.get("model") or machine),
        "anchor": anchor("machine", machine),
        "summary": [(point, _section_of(point, sections)) for point in summary_of(found)],
        "cautions": cautions,
        "topics": grouped(_numbered(sections), lambda section: section.topic),
        "verdicts": verdicts,
        "outcomes": Counter(verdict.outcome for verdict, _ in verdicts),
        "glance": _glance(runs, sections),
        "others": [Section(anchor("sizing", machine), **sizing_of(runs)), *([history] if history else [])],
        "state": machine_of(runs),
    }


def _sections(choices: Sequence[Choice], submit: Submit) -> tuple[list[Section], list[tuple[str, Remark]]]:
    """A section a choice, by topic, and what touches whole runs."""
    by_run = grouped(choices, lambda choice: choice.run.place).values()
    answers = [submit(_of_run, of_run) for of_run in sorted(by_run, key=len, reverse=True)]
    sections = [section for answer in answers for section in answer.result()[0]]
    cautions = [caution for answer in answers for caution in answer.result()[1]]
    order = {topic: place for place, topic in enumerate(TOPICS)}
    names = {name: place for place, name in enumerate(probe_names())}

    def rank(section: Section) -> tuple[int, int, str]:
        return order.get(section.topic, len(order)), names.get(section.probe, len(names)), section.probe

    return sorted(sections, key=rank), sorted(cautions, key=lambda caution: caution[0])


def _of_run(choices: Sequence[Choice]) -> tuple[list[Section], list[tuple[str, Remark]]]:
    """The sections of one run, whose records are held by nobody else, and its cautions with its name."""
    run = choices[0].run
    records = run.records()
    by_probe = grouped(records, lambda record: record.probe)
    cautions = [(run.run_id, each) for each in about_the_machine(records)]
    return [_section(choice, by_probe[choice.probe]) for choice in choices], cautions


def _section(choice: Choice, records: Sequence[Record]) -> Section:
    run, name = choice.run, choice.probe
    probe = find_probe(name) if is_known(name) else None
    found = Findings(tuple(about_the_cases(records))) + findings_of(name, records)
    evidence = run.probes[name]
    when = f"{run.started_at[:16].replace('T', ' ')} UTC"
    notes = [
        f"run {run.run_id} · {when} · {_strength(run, name)} · {evidence.measured} of {evidence.records} records "
        "measured"
    ]
    if choice.others:
        others = ", ".join(f"{each.run_id} ({_strength(each, name)})" for each in choice.others[:5])
        more = len(choice.others) - 5
        notes.append(f"Also measured, not shown: {others}{f' and {more} more' if more > 0 else ''}.")
    return Section(
        anchor("probe", name, run.run_id, run.machine),
        getattr(probe, "heading", "") or name.replace("_", " ").capitalize() or "Unnamed probe",
        probe.question if probe else "",
        found,
        getattr(probe, "topic", "") or "other",
        name,
        tuple(notes),
        tuple(map(shown, found.figures[:_MOST_FIGURES])),
        max(0, len(found.figures) - _MOST_FIGURES),
        _missing(records),
        command_of(name, run.manifest, records[0].profile),
        run.place,
    )


def _strength(run: Run, probe: str) -> str:
    evidence = run.probes[probe]
    processes = len(evidence.processes)
    return f"{evidence.profile or 'no profile'}, {processes} process{'es' if processes != 1 else ''}"


def findings_of(name: str, records: Sequence[Record]) -> Findings:
    """What the probe says; where it is not of this version, or cannot read its records, their plain figures."""
    if not is_known(name):
        said = "This version has no probe {probe}: its records are shown as they are."
        return _plain_findings(records, remark(said, probe=name))
    try:
        return find_probe(name).findings(records)
    except (UserError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Records of a stranger, or of another version: one probe that stumbles must not cost the page.
        said = "{probe} could not make sense of these records ({error})."
        return _plain_findings(records, remark(said, probe=name, error=f"{error!r:.120}"))


def _plain_findings(records: Sequence[Record], said: Remark) -> Findings:
    """Every measured case with its median and interval, for records that no probe explains."""
    columns = (
        Column("case", lambda record: label_of(record.case)),
        Column("process", lambda record: record.process),
        Column("median", lambda record: record.metrics["time"].value, "us"),
        Column("from", lambda record: record.metrics["time"].low, "us"),
        Column("to", lambda record: record.metrics["time"].high, "us"),
    )
    timed = [record for record in records if record.outcome == "ok" and "time" in record.metrics]
    return Findings((said,), (table("Cases as measured", columns, timed),) if timed else ())


def _missing(records: Sequence[Record]) -> Table | None:
    """Why cases failed or are unsupported, each reason once, the most frequent first."""
    reasons = grouped((each for each in records if each.outcome != "ok"), lambda each: (each.outcome, each.reason))
    ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))[:_MOST_REASONS]
    rows = tuple((outcome, len(held), reason, label_of(held[0].case)) for (outcome, reason), held in ordered)
    columns = tuple(map(Heading, ("outcome", "trials", "reason", "the first of them")))
    return Table("What was not measured, and why", columns, rows) if rows else None


def _numbered(sections: Sequence[Section]) -> list[Section]:
    """Those of one probe in several runs told apart by a number, for the contents."""
    seen: Counter[str] = Counter()
    found = []
    for section in sections:
        seen[section.title] += 1
        number = seen[section.title]
        found.append(replace(section, title=f"{section.title} ({number})") if number > 1 else section)
    return found


def _history(results: Results, machine: str) -> Section | None:
    if results.single:
        return None
    # What it imports takes long, and only the helper that does this needs it.
    from pyperf_suite.render.history_section import history_of

    place = anchor("history", machine)
    try:
        held = history_of(results.root, machine)
    except UserError as reason:
        return Section(place, "History and change points", "", Findings((remark("{said}", said=str(reason)),)))
    return Section(place, **held) if held else None


def _section_of(point: Point, sections: Sequence[Section]) -> Section | None:
    return next((section for section in sections if point.probe and section.probe == point.probe), None)


def _glance(runs: Sequence[Run], sections: Sequence[Section]) -> list[tuple[int, str]]:
    """A few numbers about what was measured."""
    outcomes = sum((Counter(run.outcomes) for run in runs), Counter())
    days = sorted(run.started_at[:10] for run in runs)
    span = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return [
        (len(runs), f"run{'s' if len(runs) > 1 else ''}, {span}"),
        (outcomes["ok"], f"records measured, {outcomes['failed']} failed, {outcomes['unsupported']} unsupported"),
        (len({section.probe for section in sections}), "probes"),
    ]


def anchor(*words: str) -> str:
    """An id of letters, figures and dashes that links can name."""
    return "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") or "x" for word in words)


def island(data: Any) -> str:
    r"""JSON that no HTML parser can end early: without `<`, `>` and `&`, in ASCII; numbers to six digits.

    >>> island({"name": "</script>", "y": [1 / 3, float("nan")]})
    '{"name":"\\u003c/script\\u003e","y":[0.333333,null]}'
    """
    plain = json.dumps(strict.plain(data, digits=6), separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def by_claim(remarks: Iterable[Remark | Verdict]) -> list[Any]:
    """As `text.by_claim`, without cautions: they stand in a box of their own."""
    return [each for each in text.by_claim(remarks) if not (isinstance(each, Remark) and each.kind == "caution")]


@cache
def _environment() -> Any:
    try:
        import jinja2
        from markupsafe import Markup
    except ModuleNotFoundError:
        raise UserError("The report's page needs jinja2, which is not installed: pip install jinja2.") from None

    def finalize(value: Any) -> Any:
        # Every text that a template shows comes through here: what turns the direction of writing is replaced.
        return value if isinstance(value, Markup) else printable(str(value))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pyperf_suite.render", "assets"),
        autoescape=True,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "island": lambda data: Markup(island(data)),
        "sentence": text.sentence,
        "measured": text.measured,
        "in_words": text.in_words,
        "point": text.point,
        "cell": text.cell,
        "heading": text.heading,
        "filled": text.filled,
        "by_claim": by_claim,
    }
    environment.tests |= {
        "caution": lambda told: isinstance(told, Remark) and told.kind == "caution",
        "remark": lambda told: isinstance(told, Remark),
        "numeric": lambda place, table: text.is_number(table, place),
    }
    environment.globals["asset"] = lambda name: Markup(
        (resources.files("pyperf_suite.render") / "assets" / name).read_text(encoding="utf-8")
    )
    return environment


def packed_plotly() -> str:
    """plotly.min.js as base64 of gzip, the same bytes each time: it is nine tenths of the page otherwise.

    Raises UserError where plotly is not installed.
    """
    try:
        script = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise UserError("The report's figures need plotly, which is not installed: pip install plotly.") from None
    return base64.b64encode(gzip.compress(script, 6, mtime=0)).decode("ascii")
