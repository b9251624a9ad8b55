"""The machine that was measured: what it is, the state it was in, what of it changed, and the runs made on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyperf_suite.render.results import Run
from pyperf_suite.spec.findings import Table
from pyperf_suite.spec.rows import Column, table

_MOST_FACTS = 60
_LONGEST_VALUE = 160


def machine_of(runs: Sequence[Run]) -> dict[str, Any]:
    """What the template shows of it, folded."""
    newest = next((run for run in reversed(runs) if run.last.state), runs[-1])
    return {
        "identity": facts(_identity(runs[-1])),
        "state": facts(newest.last.state),
        "since": newest.run_id,
        "changed": _changed(runs),
        "runs": table("Runs", _RUN_COLUMNS, list(reversed(runs))),
    }


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


def _identity(run: Run) -> dict[str, Any]:
    """As the records say, or else the manifest; the folder's name is always there."""
    manifest = run.manifest.get("identity")
    found = dict(run.first.identity) or (dict(manifest) if isinstance(manifest, dict) else {})
    return {"folder": run.machine, **{name: value for name, value in found.items() if name != "slug"}}


def _changed(runs: Sequence[Run]) -> Table:
    """Every fact of the state that is not the same in all runs: its values in the order they came."""
    values: dict[str, dict[str, str]] = {}
    for run in runs:
        for name, value in facts(run.first.state):
            values.setdefault(name, {}).setdefault(value, run.run_id)
    columns = (
        Column("state", lambda item: item[0]),
        Column("values", lambda item: " → ".join(f"{value} (from {run_id})" for value, run_id in item[1].items())),
    )
    return table("What changed from run to run", columns, [item for item in values.items() if len(item[1]) > 1])


def _commit(run: Run) -> str:
    source: Any = run.first.state.get("source")
    source = source if isinstance(source, dict) else {}
    return f"{str(source.get('commit') or '')[:9]}{'+' if source.get('dirty') else ''}"


_RUN_COLUMNS = (
    Column("run", lambda run: run.run_id),
    Column("begun (UTC)", lambda run: run.started_at[:16].replace("T", " ")),
    Column("probes", lambda run: ", ".join(run.probes)),
    Column("profile", lambda run: run.said("profile")),
    Column("measured", lambda run: run.outcomes["ok"]),
    Column("failed", lambda run: run.outcomes["failed"]),
    Column("unsupported", lambda run: run.outcomes["unsupported"]),
    Column("commit", _commit),
)
