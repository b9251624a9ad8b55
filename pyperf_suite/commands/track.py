"""`pyperf-suite track`: what changed in the history of every benchmark, when, and with which commits."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.commands.options import device_option, machine_option, margin_option, results_option, seed_option
from pyperf_suite.commands.outcome import OutcomeOptions, finish, outcome_options, rules_of
from pyperf_suite.errors import Interrupted, UserError

if TYPE_CHECKING:
    from pyperf_suite.history.stored.store import Store
    from pyperf_suite.history.tracking import Nomination, Tracked
    from pyperf_suite.history.verdict import Judgement


@click.command()
@click.argument("benchmark", required=False, metavar="[BENCHMARK]")
@results_option()
@machine_option
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]),
    metavar="DATE",
    help="Tell changes that began since then (UTC); by default those among a series' newest 30 points.",
)
@click.option("--confirm", "rerun", is_flag=True, help="Pair the two commits of each slower change, here and now.")
@click.option(
    "--budget", default=30, show_default=True, type=click.IntRange(1, 3600), metavar="SECONDS",
    help="For one benchmark that is rerun.",
)  # fmt: skip
@margin_option
@device_option("Where to rerun: auto, cpu, cuda:N.")
@seed_option("Of the order of reruns.")
@outcome_options
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
    outcome: OutcomeOptions,
) -> None:
    """Search the stored series of all benchmarks, or of BENCHMARK, for changes; the most recent first.

    History only nominates: a slower change is undecided (exit code 3) until --confirm has paired the two commits
    between which it came.

    \b
    Examples:
      pyperf-suite track
      pyperf-suite track --confirm --markdown "$GITHUB_STEP_SUMMARY"
      pyperf-suite track 'matmul*' --since 2026-01-31 --fail-on nominated
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.history.stored.store import Store
    from pyperf_suite.history.tracking import track as search

    with Store(results) as store:
        store.update()
        wanted = store.benchmarks(benchmark, machine)
        if not wanted:
            raise UserError(store.why_nothing(benchmark, machine))
        found = search(store, wanted, since.isoformat() if since else None)
        notes = [*found.notes, *store.notes, *store.damage]
        findings = [nomination.judgement() for nomination in found.current]
        if rerun:
            findings, extra_notes = _confirmed(store, found, results, device, budget, margin, seed)
            notes += extra_notes
    finish(
        findings,
        outcome,
        "Changes in history" + (f" of {benchmark}" if benchmark else ""),
        notes,
        {"earlier": [nomination.sentence for nomination in found.earlier]},
    )


def _confirmed(
    store: Store, found: Tracked, results: Path, device: str, budget_s: float, margin: float | None, seed: int
) -> tuple[list[Judgement], list[str]]:
    """Findings with the slower changes rerun, the rest as it was; and where the pairs lie."""
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.hardware.machine import identity
    from pyperf_suite.history.confirm import cases_of, confirm
    from pyperf_suite.history.pairs.ab import PairJournal, comparison_folder
    from pyperf_suite.history.pairs.builds import find_checkout, revision_arm

    where = resolve(device)
    machine = identity(where).slug
    slower = [each for each in found.current if each.is_slower and not each.is_exact]
    others = [each.judgement() for each in found.current if each not in slower]
    paths = {(run.machine, run.run_id): run.path for run in store.runs()}

    def records_of(nomination: Nomination) -> Path:
        return paths[nomination.series.machine, nomination.first.run_id]

    able, unable = cases_of(slower, machine, records_of)
    if not able:
        return [*unable, *others], []
    checkout = find_checkout()
    manifest: dict[str, Any] = {
        "asked_by": "track --confirm",
        "device": str(where),
        "seed": seed,
        "budget_s": budget_s,
        "commits": [list(commits) for commits in dict.fromkeys(each.commits for each in able)],
        "cases": [each.case.to_json() for each in able],
    }
    folder = comparison_folder(results, machine, manifest)
    click.echo(f"Rerunning {len(able)} nominated changes, up to {budget_s:g} s each after their builds.", err=True)
    try:
        with PairJournal(folder / "pairs.jsonl") as journal:
            decided = confirm(
                *(able, lambda commit: revision_arm(checkout, commit), where, rules_of(margin), seed),
                budget_s=budget_s,
                journal=journal,
            )
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted; the pairs measured so far are kept in {folder}.") from None
    return [*decided, *unable, *others], [f"The pairs of the reruns are in {folder}."]
