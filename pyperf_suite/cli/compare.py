"""`pyperf-suite compare` and `track`: what two finished runs tell of each other, and what changed in all of them."""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.cli import options
from pyperf_suite.errors import Interrupted, UserError

if TYPE_CHECKING:
    from pyperf_suite.regressions.pairs.arms import Arm
    from pyperf_suite.regressions.stored.series import Measured
    from pyperf_suite.regressions.stored.store import Side, Store
    from pyperf_suite.regressions.thresholds import Thresholds
    from pyperf_suite.regressions.tracking import Tracked
    from pyperf_suite.regressions.verdict import Judgement


NAMED = 4


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@options.margin_option
@options.select_option
@options.results_option(
    "Folder of the named runs, and of the earlier runs that noise is estimated from. Example: --results old_results."
)
@options.outcome_options
def compare(
    old: str, new: str, margin: float | None, pattern: str | None, results: Path, outcome: options.OutcomeOptions
) -> None:
    """Compare two finished runs: is what got slower beyond what runs of identical code differ by?

    OLD and NEW are each a run's folder or name, latest, latest~1 for the one before it, or a records.jsonl. Slower or
    faster is said only of a benchmark whose noise from run to run is known from at least 10 other stored runs. Two
    live versions tell far more: pyperf-suite ab.

    Exit code 0 fine, 1 slower, 2 a usage or data error, 3 undecided.

    \b
    Examples:
      pyperf-suite compare latest~1 latest
      pyperf-suite compare 20261121T021948Z-22a8 latest --margin 3%
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.regressions.compare import one_sided
    from pyperf_suite.regressions.stored.store import Store, find_side
    from pyperf_suite.regressions.thresholds import load_thresholds

    thresholds = load_thresholds()
    before, after = (_chosen(find_side(name, results), pattern) for name in (old, new))
    if old == new or (before.run_ids and before.run_ids == after.run_ids):
        raise UserError(f"OLD and NEW are both {before.name}: name two runs, as in latest~1 latest.")
    store = Store(results)
    findings, notes = _compare(before, after, thresholds, margin, store)
    if any(name.startswith("latest") for name in (old, new)):  # which passes over a run that holds nothing
        findings += store.unreadable(after.machine)
    missing = one_sided(before, after)
    left_out = []
    where = {
        "only_old": f"only in {before.name}",
        "only_new": f"only in {after.name}",
        "neither": "measured in neither run",
    }
    for kind, labels in missing.items():
        if labels:
            more = f"; and {len(labels) - NAMED} more, which --json names" if len(labels) > NAMED else ""
            left_out.append(f"Not compared, {where[kind]} ({len(labels)}): {'; '.join(labels[:NAMED])}{more}.")
    notes = [*before.notes, *after.notes, *left_out, *notes]
    sides = (("old", before), ("new", after))
    extra = {name: {"name": side.name, "machine": side.machine, "commit": side.commit} for name, side in sides}
    options.finish(findings, outcome, f"{before.name} against {after.name}", notes, {**extra, "not_compared": missing})


def _compare(
    old: Side, new: Side, thresholds: Thresholds, margin: float | None, store: Store
) -> tuple[list[Judgement], list[str]]:
    """The findings, and what a reader should know of how they came about."""
    from pyperf_suite.regressions.compare import compare_sides, noise_from_store, sentinel_sentence
    from pyperf_suite.regressions.selfcheck import latest_selfcheck

    notes = []
    measured = [*old.benchmarks.values(), *new.benchmarks.values()]
    if any(one.medians for one in measured):
        notes.append(
            "The runs were measured at different times, which is in every difference; pyperf-suite ab takes turns."
        )
    # A sentinel is this suite's code, whatever repository the benchmarks are from.
    commits = [
        {one.commit for one in side.benchmarks.values() if one.kind != "sentinel" and one.metrics}
        for side in (old, new)
    ]
    if commits[0] == commits[1] and len(commits[0]) == 1 and all(commits[0]) and not any(one.dirty for one in measured):
        notes.append(f"Both measured commit {min(commits[0])[:12]}: what differs is not this project's code.")
    common = old.benchmarks.keys() & new.benchmarks.keys()
    converted = _sentence_of_doubt(one for one in measured if (one.probe, one.case_id) in common)
    notes += filter(None, (sentinel_sentence(old, new), converted))
    noise_of = noise_from_store(store, new.machine, [*old.run_ids, *new.run_ids])
    findings = compare_sides(old, new, functools.partial(thresholds.margin_of, requested=margin), noise_of)
    notes += store.notes
    checked = latest_selfcheck(store.results, new.machine)
    if checked is not None:
        notes.append(f"Of pairs, not of finished runs: {checked.sentence()}")
    return findings, notes


def _sentence_of_doubt(measured: Iterable[Measured]) -> str:
    """Sentence of the times that an unknown elasticity converted to the reference clock; "" if none."""
    doubts: dict[str, float] = {}
    for one in measured:
        if one.kind == "timing" and abs(one.doubt) > abs(doubts.get(one.label, 0.0)):
            doubts[one.label] = one.doubt
    if not doubts:
        return ""
    named = "; ".join([*doubts][:NAMED])
    named += f" and {len(doubts) - NAMED} more" if len(doubts) > NAMED else ""
    return (
        f"{named}: the clock did not move enough to tell the elasticity, and cycles were "
        "kept in bringing the time to the reference clock; from another clock it may come out differently by up to "
        f"{100 * math.expm1(max(map(abs, doubts.values()))):.1f} %, with the same code."
    )


def _chosen(side: Side, pattern: str | None) -> Side:
    import dataclasses

    from pyperf_suite.regressions.thresholds import selects

    if pattern is None:
        return side
    kept = {
        key: one
        for key, one in side.benchmarks.items()
        if one.kind == "sentinel" or selects(pattern, one.probe, one.label, one.case_id)
    }
    if all(one.kind == "sentinel" for one in kept.values()):
        raise UserError(f"{side.name} holds no benchmark that matches {pattern!r}: leave -k out to see them all.")
    return dataclasses.replace(side, benchmarks=kept)


@click.command()
@click.argument("benchmark", required=False, metavar="[BENCHMARK]")
@options.results_option()
@options.machine_option
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]),
    metavar="DATE",
    help="Report changes that began at or after DATE (UTC), and drifts since then: what came before is accepted. "
    "Default: changes within the newest 30 points of a series, and drifts in all. "
    "Example: --since 2026-01-31.",
)
@click.option(
    "--confirm",
    "rerun",
    is_flag=True,
    help="Measure the two commits of each slower change in live pairs on this machine. Default: use the stored "
    "runs only. Example: track --confirm.",
)
@click.option(
    "--budget", default=30, show_default=True, type=click.IntRange(1, 3600), metavar="SECONDS",
    help="Time limit of --confirm for each benchmark. Example: --budget 60.",
)  # fmt: skip
@options.margin_option
@options.device_option("Device of --confirm: auto, cpu or cuda:N. Example: --device cpu.")
@options.seed_option("Seed of the random order of --confirm. Example: --seed 7.")
@options.outcome_options
def track(
    benchmark: str | None,
    results: Path,
    machine: str | None,
    since: datetime.datetime | None,
    rerun: bool,
    budget: int,
    margin: float | None,
    device: str,
    seed: int,
    outcome: options.OutcomeOptions,
) -> None:
    """Search the stored series of all benchmarks, or of BENCHMARK, for changes; the most recent first.

    History only nominates: a slower change is undecided (exit code 3) until --confirm has paired the two commits
    between which it came. What the newest runs should have measured and did not is failed (exit code 3), and so is a
    search of nothing.

    \b
    Examples:
      pyperf-suite track
      pyperf-suite track --confirm --markdown "$GITHUB_STEP_SUMMARY"
      pyperf-suite track matmul --since 2026-01-31
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.regressions.stored.store import Store
    from pyperf_suite.regressions.thresholds import selects
    from pyperf_suite.regressions.tracking import absent
    from pyperf_suite.regressions.tracking import track as search

    store = Store(results)
    wanted = store.series(benchmark, machine)
    begin = since.isoformat() if since else None
    missing = [
        *absent(store.of_machine(machine), lambda one: selects(benchmark, one.probe, one.label, one.case_id), begin),
        *(store.unreadable(machine) if benchmark is None else ()),
    ]
    if not wanted and not missing:
        raise UserError(store.why_nothing(benchmark, machine))
    tracked = search(wanted, begin, (one for one in store.of_machine(machine) if one.kind == "sentinel"))
    doubt = _sentence_of_doubt(point for series in wanted for point in series.points)
    notes = [*tracked.notes, *([doubt] if doubt else []), *store.notes, *store.damage]
    findings = [nomination.judgement() for nomination in tracked.current]
    if rerun:
        findings, extra_notes = _confirmed(store, tracked, results, device, budget, margin, seed)
        notes += extra_notes
    options.finish(
        [*missing, *findings],
        outcome,
        "Changes in history" + (f" of {benchmark}" if benchmark else ""),
        notes,
        {"earlier": [nomination.sentence for nomination in tracked.earlier]},
        tracked.searched,
    )


def _confirmed(
    store: Store, trend: Tracked, results: Path, device: str, budget_s: float, margin: float | None, seed: int
) -> tuple[list[Judgement], list[str]]:
    """Findings with the slower changes rerun, the rest as it was; and where the pairs lie."""
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.hardware.machine import identity
    from pyperf_suite.regressions.pairs.ab import PairJournal, comparison_folder
    from pyperf_suite.regressions.tracking import confirm, rerunnable

    where = resolve(device)
    machine = identity(where).slug
    slower = [each for each in trend.current if each.is_slower and not each.is_exact]
    slower += [each for each in trend.newest if each.is_slower and not each.is_machine and each.series.kind == "timing"]
    others = [each.judgement() for each in trend.current if each not in slower]
    able, unable = rerunnable(slower, machine, store.journals())
    if not able:
        return [*unable, *others], []
    notes: list[str] = []
    manifest: dict[str, Any] = {
        "asked_by": "track --confirm",
        "device": str(where),
        "seed": seed,
        "budget_s": budget_s,
        "reruns": [
            {"commits": [each.change.commit_before, each.change.commit_after], "case": case.new.to_json()}
            for each, case in able
        ],
    }
    folder = comparison_folder(results, machine, manifest)
    click.echo(f"Rerunning {len(able)} nominated changes, up to {budget_s:g} s each after their builds.", err=True)
    try:
        with PairJournal(folder / "pairs.jsonl") as journal:
            decided = confirm(
                *(able, functools.partial(_arms_of, notes), where, options.rules_of(margin), seed),
                budget_s=budget_s,
                journal=journal,
            )
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted; the pairs measured so far are kept in {folder}.") from None
    return [*decided, *unable, *others], [f"The pairs of the reruns are in {folder}.", *notes]


def _arms_of(notes: list[str], old: str, new: str, probes: Sequence[str]) -> tuple[Arm, Arm]:
    """The arms of two commits of the repository that is measured; `notes` get what a reader must know of bench files.

    Raises UserError where there is no such commit, or no such file.
    """
    from pyperf_suite.probes import is_users
    from pyperf_suite.regressions.pairs import builds, user_arms
    from pyperf_suite.user_kernels.declared import root, split

    if not any(map(is_users, probes)):
        checkout = builds.find_checkout()
        return builds.revision_arm(checkout, old), builds.revision_arm(checkout, new)
    places = [(root(split(name)[0]), name) for name in probes]  # as records name them, from wherever one stands
    top, benches = user_arms.located([str(folder / name) if ".py" in name else name for folder, name in places])
    arms = [user_arms.side_of(commit, top, benches)() for commit in (old, new)]
    notes += user_arms.notes_on(arms[0], arms[1], benches)
    return arms[0], arms[1]
