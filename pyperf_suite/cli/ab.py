"""`pyperf-suite ab`: old against new by live pairs of fresh processes, until it is decided which is slower."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite import files
from pyperf_suite.cli import options
from pyperf_suite.errors import Interrupted, UserError

if TYPE_CHECKING:
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.regressions.pairs.arms import Arm, PairedCase
    from pyperf_suite.regressions.pairs.live_pair import Pair
    from pyperf_suite.regressions.verdict import Judgement
    from pyperf_suite.runner.plan import PlannedCase

Planned = Callable[[Sequence[str]], "list[PlannedCase]"]
Say = Callable[[str], None]

# How often it is said that a side is still being prepared; the first time it has taken so long.
PREPARING_EVERY_S = 5.0
# Processes that import the file's modules, in turn, before the first pair of users' kernels, and seconds until the
# first pair of each other case starts, by the kind of device.
PROCESSES = 4
FIRST_PAIR_S = {"cpu": 1.0, "cuda": 10.0}


@click.command()
@click.argument("probes", nargs=-1, metavar="[PROBE]...")
@click.option(
    "--old",
    required=True,
    metavar="ARM",
    help="Old side: a git revision, . for the working tree, NAME==VERSION[ NAME==VERSION], a Python interpreter, or "
    "FIELD=VALUE. Required. Example: --old main.",
)
@click.option(
    "--new", required=True, metavar="ARM", help="New side, in the same forms as --old. Required. Example: --new ."
)
@options.select_option
@options.axes_option
@options.profile_option("Profile whose cases are compared: quick, standard or full. Example: --profile standard.")
@options.device_option()
@options.margin_option
@click.option(
    "--budget",
    "budget_s",
    default=30.0,
    show_default=True,
    type=options.Finite(0, 86_400, min_open=True),
    metavar="SECONDS",
    help="Time limit for each benchmark. Example: --budget 60.",
)
@click.option(
    "--max-pairs",
    default=60,
    show_default=True,
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Maximum number of pairs for each benchmark. Example: --max-pairs 20.",
)
@options.results_option("Folder that the pairs are written to. Example: --results /data/bench_results.")
@options.seed_option("Seed of the random order of pairs and of the cores. Example: --seed 7.")
@options.audit_option
@options.outcome_options
def ab(
    probes: tuple[str, ...],
    old: str,
    new: str,
    pattern: str | None,
    axes: tuple[str, ...],
    profile: str,
    device: str,
    margin: float | None,
    budget_s: float,
    max_pairs: int,
    results: Path,
    seed: int,
    audit: bool | None,
    outcome: options.OutcomeOptions,
) -> None:
    """Is NEW slower than OLD? Pairs of fresh processes take turns in short slices until it is decided.

    Exit code 0 fine, 1 slower, 2 a usage or data error, 3 undecided or failed, as a revision that does not build is.

    \b
    Examples:
      pyperf-suite ab --old main --new . baseline
      pyperf-suite ab --old v1.0 --new HEAD tile_wave -k "native*1024" --margin 2%
      pyperf-suite ab --old schedule=data_parallel --new schedule=stream_k baseline
      pyperf-suite ab --old /envs/old/bin/python --new /envs/new/bin/python baseline
      pyperf-suite ab --old numpy==1.26.4 --new numpy==2.1.0 bench_sort.py
      pyperf-suite ab --old main --new . benches/bench_softmax.py:softmax -a n=8192
    """  # noqa: D301 - click keeps the lines below \b as they are
    from rich.console import Console

    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.hardware.machine import identity
    from pyperf_suite.probes import is_users
    from pyperf_suite.regressions.pairs.ab import PairJournal, compare_arms, comparison_folder
    from pyperf_suite.run import RunRequest, begin_audit, progress_on
    from pyperf_suite.runner.plan import in_words
    from pyperf_suite.workloads import find_workload

    begin_audit(audit)
    where = resolve(device)
    rule_for = options.rules_of(margin, max_pairs=max_pairs)
    planned_s: list[float] = []

    def planned(names: Sequence[str]) -> list[PlannedCase]:
        begin_s = time.monotonic()
        requested = RunRequest(profile=profile, device=device, axes=axes).planned(names)
        alone = [each for each in requested if not find_workload(each.case.operator).ranks(each.case.parameters)]
        if not alone:
            probe_names = ", ".join(dict.fromkeys(each.probe for each in requested))
            raise UserError(f"{probe_names} measures groups of processes, which cannot take turns in pairs: use run.")
        planned_s.append(time.monotonic() - begin_s)
        return alone

    console = Console(stderr=True, emoji=False)
    say: Say = functools.partial(console.print, highlight=False, markup=False, soft_wrap=True)
    begin_s = time.monotonic()
    old_arm, new_arm, cases, notes = _sides(probes, old, new, pattern, planned, say)
    folder = comparison_folder(
        results,
        identity(where).slug,
        _manifest(old_arm, new_arm, cases, where, {"budget_s": budget_s, "max_pairs": max_pairs, "seed": seed}),
    )
    began_s, prepared_s = dict[str, float](), time.monotonic() - begin_s
    benchmarks = f"{len(cases)} benchmark{'s' if len(cases) > 1 else ''}"
    # To plan users' kernels took a process that imports what their file does.
    users = any(is_users(case.probe) for case in cases)
    starting_s = PROCESSES * planned_s[-1] if users else len(cases) * FIRST_PAIR_S[where.kind]
    left_s = len(cases) * budget_s + starting_s
    total = f"{in_words(prepared_s + left_s)} with the {in_words(prepared_s)} of preparing"
    say(f"{benchmarks}, at most about {in_words(left_s)} from now, {total}")
    with PairJournal(folder / "pairs.jsonl") as journal, progress_on(console, len(cases)) as show:

        def progress(case: PairedCase, pairs: Sequence[Pair]) -> None:
            since_s = began_s.setdefault(f"{case.probe} {case.case_id}", time.monotonic())
            done, now_s = len(began_s) - 1, max(0.0, budget_s - (time.monotonic() - since_s))
            left_s = (len(cases) - done - 1) * budget_s + now_s
            show(done, len(cases), f"{case.probe}: {len(pairs)} pairs", lambda: left_s)

        how = {"budget_s": budget_s, "journal": journal, "progress": progress}
        try:
            findings = compare_arms(old_arm, new_arm, cases, where, rule_for, seed, **how)
        except KeyboardInterrupt:
            raise Interrupted(f"Interrupted; {journal.written} pairs are kept in {journal.path}.") from None
    _keep(folder, findings)
    measured = [finding for finding in findings if not finding.details.get("unsupported")] or findings
    repository = new_arm.repository or old_arm.repository
    heading = f"{new_arm.name} against {old_arm.name}{repository and f' of {repository}'} on {where}"
    options.finish(measured, outcome, heading, [*notes, *_notes(findings, folder, results, identity(where).slug)])


def _sides(
    probes: tuple[str, ...], old: str, new: str, pattern: str | None, planned: Planned, say: Say
) -> tuple[Arm, Arm, list[PairedCase], list[str]]:
    """Both arms, what to compare, and what a reader must know of it. Raises UserError for what cannot be compared."""
    from pyperf_suite.probes import is_users
    from pyperf_suite.regressions.pairs import builds, user_arms
    from pyperf_suite.regressions.pairs.arms import PairedCase, choose, pair_variants, parse_variant, this_code

    old_fields, new_fields = parse_variant(old), parse_variant(new)
    if (old_fields is None) != (new_fields is None):
        raise UserError(f"--old {old} and --new {new}: a variant (FIELD=VALUE) can only be compared with a variant.")
    if old_fields is not None and new_fields is not None:
        cases = pair_variants(planned(probes), old_fields, new_fields)
        return this_code(old), this_code(new), choose(cases, pattern), []
    if not any(map(is_users, probes)):
        # Builds are long: whether something is left is checked first.
        cases = choose([PairedCase.same(each.probe, each.case) for each in planned(probes)], pattern)
        arms = _made(old, new, builds.side_of, say)
        return *arms, cases, user_arms.notes_on(*arms, ())
    root, benches = user_arms.located(probes)
    old_arm, new_arm = _made(old, new, functools.partial(user_arms.side_of, root=root, benches=benches), say)
    # The cases are those that the new side's code declares.
    with user_arms.kernels_of(old_arm if new_arm.failure else new_arm, root, probes) as names:
        cases = choose([PairedCase.same(each.probe, each.case) for each in planned(names)], pattern)
    return old_arm, new_arm, cases, user_arms.notes_on(old_arm, new_arm, benches)


def _made(old: str, new: str, side_of: Callable[[str], Callable[[], Arm]], say: Say) -> tuple[Arm, Arm]:
    """Both sides, once it is known that there is such a side for each word: making one may take minutes."""
    from concurrent.futures import ThreadPoolExecutor, wait

    from pyperf_suite.regressions.pairs.builds import longest_s
    from pyperf_suite.runner.plan import in_words

    makers = {requested: side_of(requested) for requested in (old, new)}
    arms = {}
    before = f", at most {in_words(longest_s())} before" if longest_s() else ", which may take minutes the first time"
    with ThreadPoolExecutor(1) as pool:
        for requested, make in makers.items():
            begin_s, making = time.monotonic(), pool.submit(make)
            while wait([making], timeout=PREPARING_EVERY_S).not_done:
                say(f"Preparing {requested} for {in_words(time.monotonic() - begin_s)}{before}")
            arms[requested] = making.result()
    return arms[old], arms[new]


def _manifest(old: Arm, new: Arm, cases: Sequence[PairedCase], where: Device, rule: dict[str, Any]) -> dict[str, Any]:
    from pyperf_suite.hardware.machine import identity, state

    arms = {"old": old.to_json(), "new": new.to_json()}
    machine = {"device": str(where), "identity": dict(identity(where).fields), "state": state(where)}
    return {"arms": arms, "cases": len(cases), **rule, **machine}


def _keep(folder: Path, findings: Sequence[Judgement]) -> None:
    import json

    try:
        text = json.dumps([asdict(finding) for finding in findings], indent=1)
        files.write_whole(folder / "findings.json", text + "\n")
    except OSError as error:
        click.echo(f"Warning: the findings could not be written to {folder}: {error.strerror}.", err=True)


def _notes(findings: Sequence[Judgement], folder: Path, results: Path, machine: str) -> list[str]:
    from pyperf_suite.regressions.selfcheck import latest_selfcheck

    notes = [f"Every pair is kept in {folder / 'pairs.jsonl'}."]
    unsupported = [finding for finding in findings if finding.details.get("unsupported")]
    if unsupported:
        first = unsupported[0]
        notes.append(f"{len(unsupported)} left out, the first {first.benchmark}: {first.sentence}")
    selfcheck = latest_selfcheck(results, machine)
    if selfcheck is not None:
        notes.append(selfcheck.sentence())
    else:
        notes.append("How often such verdicts are wrong on this machine is not known: tools/selfcheck.py measures it.")
    return notes
