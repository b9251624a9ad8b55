"""The whole page: head, contents, a glance, each machine's sections, and the one script that brings figures to life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources

from pyperf_suite import __version__
from pyperf_suite.errors import UserError
from pyperf_suite.history.stored.store import Store
from pyperf_suite.render.results import Results, Run, Told
from pyperf_suite.report.html.careful import draw_careful
from pyperf_suite.report.html.claims_section import claims_of, draw_claims
from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.history_section import draw_history
from pyperf_suite.report.html.machine_section import draw_machine
from pyperf_suite.report.html.names import FIRST, anchor, rank, title_of
from pyperf_suite.report.html.plotly_script import packed_script
from pyperf_suite.report.html.probe_section import draw_probe, findings_of
from pyperf_suite.report.html.sentence import VERDICTS
from pyperf_suite.report.html.sizing_section import draw_sizing
from pyperf_suite.spec.findings import Findings

# Nothing is fetched: not even by what a hostile name could smuggle in.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"

# A section's anchor and heading, for the contents; and its HTML.
Section = tuple[str, str, str]
Found = tuple[Told, Findings]


def draw_page(results: Results, chosen: Mapping[str, Sequence[Told]]) -> str:
    """One HTML document. The same results make the same text: it names no time at which it was made."""
    found = {machine: [(each, findings_of(each)) for each in told] for machine, told in chosen.items()}
    machines = {machine: _sections(results, machine, told) for machine, told in found.items()}
    many = len(machines) > 1
    contents = "".join(
        (f"<li><strong>{text(machine)}</strong><ul>" if many else "")
        + "".join(f'<li><a href="#{name}">{text(title)}</a></li>' for name, title in _told_apart(sections))
        + ("</ul></li>" if many else "")
        for machine, sections in machines.items()
    )
    bodies = "".join(
        f'<div class="machine"><h2 id="{anchor("machine", machine)}">{text(_model(results.of_machine(machine)))}</h2>'
        f'<p class="when"><code>{text(machine)}</code></p>{_glance(results, machine, found[machine])}'
        f"{''.join(body for _, _, body in sections)}</div>"
        for machine, sections in machines.items()
    )
    skipped = draw_careful("Records that were passed over", results.notes)
    return _TEMPLATE.format(
        policy=_POLICY,
        title=text(f"{' · '.join(machines)} - pyperf-suite report"),
        style=_asset("page.css"),
        contents=contents,
        body=skipped + bodies,
        version=text(__version__),
        script=_asset("page.js"),
        plotly=packed_script(),
    )


def _sections(results: Results, machine: str, told: Sequence[Found]) -> list[Section]:
    """In the order of `names`: products and networks, sizing, training with its claims, the rest, history."""
    runs = results.of_machine(machine)
    place = anchor("machine", machine, "state")
    sections: list[Section] = [(place, "The machine and its state", draw_machine(runs, place))]
    found = sorted(told, key=lambda each: rank(each[0].probe))
    first = [each for each in found if each[0].probe in FIRST]
    rest = [each for each in found if each[0].probe not in FIRST]
    sections += [_probe_section(machine, *each) for each in first]
    place = anchor("sizing", machine)
    sections.append((place, "Sizing (predicted)", draw_sizing(runs, place)))
    claims = claims_of(found)
    if claims:
        place = anchor("claims", machine)
        sections.append((place, "Claims of the guides", draw_claims(claims, place)))
    sections += [_probe_section(machine, *each) for each in rest]
    if not results.single:
        place = anchor("history", machine)
        history = _history(results, machine, place)
        sections += [(place, "History and change points", history)] if history else []
    return sections


def _probe_section(machine: str, told: Told, findings: Findings) -> Section:
    place = anchor("probe", told.probe, told.run.run_id, machine)
    return place, title_of(told.probe), draw_probe(told, findings, place)


def _told_apart(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """Anchors and headings for the contents; of a probe that is told of several runs, all but the newest numbered."""
    seen: Counter[str] = Counter()
    found = []
    for place, title, _ in sections:
        seen[title] += 1
        found.append((place, f"{title} ({seen[title]})" if seen[title] > 1 else title))
    return found


def _history(results: Results, machine: str, place: str) -> str:
    try:
        with Store(results.root) as store:
            store.update()
            return draw_history(store, machine, place)
    except UserError as reason:
        return f'<section id="{place}"><h3>History and change points</h3><p class="quiet">{text(reason)}</p></section>'


def _model(runs: Sequence[Run]) -> str:
    identity = runs[-1].first.identity
    return str(identity.get("model") or runs[-1].machine)


def _glance(results: Results, machine: str, told: Sequence[Found]) -> str:
    """A few numbers about what was measured."""
    runs = results.of_machine(machine)
    outcomes = sum((Counter(run.outcomes) for run in runs), Counter())
    days = sorted(run.started_at[:10] for run in runs)
    span = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    counts = Counter(each.verdict for _, each in claims_of(told))
    tiles = [
        (str(len(runs)), f"run{'s' if len(runs) > 1 else ''}, {span}"),
        (str(outcomes["ok"]), f"records measured, {outcomes['failed']} failed, {outcomes['unsupported']} unsupported"),
        (str(len({each.probe for each, _ in told})), "probes"),
    ]
    if counts:
        holding = f"claims hold, {counts[VERDICTS[1]]} do not here, {counts[VERDICTS[2]]} undecided"
        tiles.append((str(counts[VERDICTS[0]]), holding))
    drawn = "".join(f"<div><b>{text(number)}</b><span>{text(words)}</span></div>" for number, words in tiles)
    return f'<div class="glance">{drawn}</div>'


def _asset(name: str) -> str:
    return (resources.files("pyperf_suite.report.html") / "assets" / name).read_text(encoding="utf-8")


_TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>
<div class="top"><h1>pyperf-suite report</h1>
<button type="button" id="theme" aria-label="Switch between dark and light">Dark / light</button></div>
</header>
<div class="page">
<nav aria-label="Contents"><details open><summary>Contents</summary><ul>{contents}</ul></details></nav>
<main id="content" tabindex="-1">
<p class="legend-of-marks">Points are measured, with the interval over processes. Lines marked
<span class="quiet">predicted</span> are what a law says. Point at a figure for values, drag to
zoom, double-click to zoom out, click a series to hide it.</p>
{body}
</main>
</div>
<footer><p>Made by pyperf-suite {version} from the records named below each figure. Figures by Plotly.js (MIT licence),
inlined; nothing is fetched from anywhere.</p></footer>
<script type="application/octet-stream" id="plotly">{plotly}</script>
<script>
{script}</script>
</body>
</html>
"""
