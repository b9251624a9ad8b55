"""The machine that was measured: what it is, the state it was in, and the runs that were made on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyperf_suite.render.results import Run
from pyperf_suite.render.text import sentence as sentence_of
from pyperf_suite.report.html.careful import draw_careful
from pyperf_suite.report.html.escape import text
from pyperf_suite.report.html.table import draw_pairs, draw_table
from pyperf_suite.spec.cautions import cautions_of
from pyperf_suite.spec.findings import Table

_MOST_FACTS = 60
_LONGEST_VALUE = 160


def draw_machine(runs: Sequence[Run], anchor: str) -> str:
    """What does not change on the left, what does beside it with every run it changed in, and the list of runs."""
    newest = runs[-1]
    state, since = _newest_state(runs)
    changed = _changed(runs)
    noticed = [f"{run.run_id}: {sentence}" for run in runs[-3:] for sentence in _about_the_machine(run)]
    return "".join(
        (
            f'<section id="{anchor}"><h3>The machine and its state</h3>',
            '<div class="columns"><div class="card"><h4>Identity</h4>',
            draw_pairs(facts(_identity(newest))),
            f'</div><div class="card"><h4>State in run <code>{text(since)}</code></h4>',
            draw_pairs(facts(state)),
            "</div></div>",
            draw_table(changed) if changed.rows else '<p class="quiet">The state is the same in all these runs.</p>',
            draw_careful("The machine while it was measured", noticed),
            f"<details><summary>{len(runs)} run{'s' if len(runs) > 1 else ''} on this machine</summary>",
            draw_table(runs_table(runs)),
            "</details></section>",
        )
    )


def facts(held: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested mappings as names with dots; what is empty is left out."""
    found: list[tuple[str, str]] = []
    for name, value in held.items():
        whole = f"{before}{name}"
        if isinstance(value, dict):
            found += facts(value, f"{whole}.")
        elif value not in (None, "", [], ()):
            told = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            # A package's name is what an installer knows it by.
            label = whole if before == "packages." else whole.replace("_", " ")
            found.append((label, told[:_LONGEST_VALUE]))
    return found[:_MOST_FACTS]


def runs_table(runs: Sequence[Run]) -> Table:
    """The newest first, with what was measured in each and by which commit."""
    rows = []
    for run in reversed(runs):
        probes = ", ".join(run.probes)
        source: Any = run.first.state.get("source")
        source = source if isinstance(source, dict) else {}
        commit = f"{str(source.get('commit') or '')[:9]}{'+' if source.get('dirty') else ''}"
        counts = (str(run.outcomes.get(name, 0)) for name in ("ok", "failed", "unsupported"))
        when = run.started_at[:16].replace("T", " ")
        rows.append((run.run_id, when, probes, run.said("profile"), *counts, commit))
    columns = ("run", "begun (UTC)", "probes", "profile", "measured", "failed", "unsupported", "commit")
    return Table("Runs", columns, tuple(rows))


def _identity(run: Run) -> dict[str, Any]:
    """As the records say, or else the manifest; the folder's name is always there."""
    told = dict(run.first.identity)
    manifest = run.manifest.get("identity")
    found = told or (dict(manifest) if isinstance(manifest, dict) else {})
    return {"folder": run.machine, **{name: value for name, value in found.items() if name != "slug"}}


def _newest_state(runs: Sequence[Run]) -> tuple[Mapping[str, Any], str]:
    for run in reversed(runs):
        if run.last.state:
            return run.last.state, run.run_id
    return {}, runs[-1].run_id


def _changed(runs: Sequence[Run]) -> Table:
    """Every fact of the state that is not the same in all runs: its values in the order they came."""
    values: dict[str, dict[str, str]] = {}
    for run in runs:
        for name, value in facts(run.first.state):
            values.setdefault(name, {}).setdefault(value, run.run_id)
    rows = tuple(
        (name, " → ".join(f"{value} (from {run_id})" for value, run_id in told.items()))
        for name, told in values.items()
        if len(told) > 1
    )
    return Table("What changed from run to run", ("state", "values"), rows)


def _about_the_machine(run: Run) -> list[str]:
    """Of the cautions those that say something of the machine, not of a case."""
    words = ("sentinel", "Other processes", "hypervisor")
    return [
        sentence
        for sentence in map(sentence_of, cautions_of(run.records(), [])[0])
        if any(word in sentence for word in words)
    ]
