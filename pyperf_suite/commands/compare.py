"""`pyperf-suite compare`: what two finished runs, or two files of results, can honestly tell of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyperf_suite.commands.options import margin_option, results_option
from pyperf_suite.commands.outcome import OutcomeOptions, finish, outcome_options
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.history.stored.journals import Measured
    from pyperf_suite.history.stored.store import Side
    from pyperf_suite.history.thresholds import Thresholds
    from pyperf_suite.history.verdict import Judgement

# Benchmarks named in a sentence about what was not compared; a run may hold hundreds.
NAMED = 4


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@margin_option
@click.option("-k", "pattern", metavar="TEXT", help="Only benchmarks whose label holds TEXT; * stands for anything.")
@results_option("Where runs are looked for by name, and where the history is that tells how much runs differ.")
@outcome_options
def compare(
    old: str, new: str, margin: float | None, pattern: str | None, results: Path, outcome: OutcomeOptions
) -> None:
    """Compare two finished runs: is what got slower beyond what runs of identical code differ by?

    OLD and NEW are each a run's folder or name, latest, latest~1 for the one before it, a records.jsonl, or
    pytest-benchmark JSON. Slower or faster is said only where the noise from run to run is known from at least five
    stored runs of the machine. Two live versions tell far more: pyperf-suite ab.

    Exit code 0 fine, 1 slower, 2 a usage or data error, 3 undecided.

    \b
    Examples:
      pyperf-suite compare latest~1 latest
      pyperf-suite compare before.json after.json --margin 3%
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.history.compare import one_sided
    from pyperf_suite.history.stored.store import find_side
    from pyperf_suite.history.thresholds import load_thresholds

    thresholds = load_thresholds()
    before, after = (_chosen(find_side(name, results), pattern) for name in (old, new))
    if old == new or (before.run_ids and before.run_ids == after.run_ids):
        raise UserError(f"OLD and NEW are both {before.name}: name two runs, as in latest~1 latest.")
    findings, notes = _compare(before, after, thresholds, margin, results)
    uncompared = one_sided(before, after)
    notes = [*before.notes, *after.notes, *_uncompared_sentences(before, after, uncompared), *notes]
    extra = {"old": _plain(before), "new": _plain(after), "not_compared": uncompared}
    finish(findings, outcome, f"{before.name} against {after.name}", notes, extra)


def _compare(
    old: Side, new: Side, thresholds: Thresholds, margin: float | None, results: Path
) -> tuple[list[Judgement], list[str]]:
    """The findings, and what a reader should know of how they came about."""
    from pyperf_suite.history.compare import compare_sides, noise_from_store, sentinel_sentence
    from pyperf_suite.history.selfcheck import latest_selfcheck
    from pyperf_suite.history.stored.foreign import FOREIGN_PROBES
    from pyperf_suite.history.stored.store import Store

    def margin_of(probe: str, label: str) -> float:
        return thresholds.margin_of(probe, label, margin)

    notes = []
    if any(one.medians for one in _all(new)):
        ours = any(one.probe not in FOREIGN_PROBES for one in _all(new))
        notes.append(
            "The runs were measured at different times, which is in every difference"
            + ("; pyperf-suite ab takes turns." if ours else ".")
        )
    if old.commit and old.commit == new.commit and not any(one.dirty for one in (*_all(old), *_all(new))):
        notes.append(f"Both measured commit {old.commit[:12]}: what differs is not this project's code.")
    if moved := sentinel_sentence(old, new):
        notes.append(moved)
    if not results.is_dir():
        return compare_sides(old, new, margin_of, lambda _: None), notes
    with Store(results) as store:
        store.update()
        noise_of = noise_from_store(store, new.machine, [*old.run_ids, *new.run_ids])
        findings = compare_sides(old, new, margin_of, noise_of)
        notes += store.notes
    checked = latest_selfcheck(results, new.machine)
    if checked is not None:
        notes.append(f"Of pairs, not of finished runs: {checked.sentence()}")
    return findings, notes


def _chosen(side: Side, pattern: str | None) -> Side:
    import dataclasses

    from pyperf_suite.history.thresholds import matches

    if pattern is None:
        return side
    kept = {
        key: one
        for key, one in side.benchmarks.items()
        if one.kind == "sentinel" or pattern == one.case_id or matches(f"*{pattern}*", one.label)
    }
    if all(one.kind == "sentinel" for one in kept.values()):
        raise UserError(f"{side.name} holds no benchmark whose label holds {pattern!r}: leave -k out to see them all.")
    return dataclasses.replace(side, benchmarks=kept)


def _uncompared_sentences(old: Side, new: Side, uncompared: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each kind of benchmark that could not be compared, naming the first few."""
    where = {"only_old": f"only in {old.name}", "only_new": f"only in {new.name}", "neither": "measured in neither run"}
    found = []
    for kind, labels in uncompared.items():
        if labels:
            more = f"; and {len(labels) - NAMED} more, which --json names" if len(labels) > NAMED else ""
            found.append(f"Not compared, {where[kind]} ({len(labels)}): {'; '.join(labels[:NAMED])}{more}.")
    return found


def _all(side: Side) -> list[Measured]:
    return list(side.benchmarks.values())


def _plain(side: Side) -> dict[str, str]:
    return {"name": side.name, "machine": side.machine, "commit": side.commit}
