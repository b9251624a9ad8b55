"""`pyperf-suite selfcheck`: how often this machine's verdicts are wrong, and how small a slowdown they see."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.commands.options import (
    Finite,
    device_option,
    json_option,
    margin_option,
    path_option,
    results_option,
    seed_option,
    wide_option,
)
from pyperf_suite.errors import Interrupted, UserError

if TYPE_CHECKING:
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.history.pairs.arms import PairedCase
    from pyperf_suite.history.selfcheck import Compare, Comparison, PlannedComparison, Selfcheck
    from pyperf_suite.history.verdict import SequentialRule

# Comparisons are left to be made: the same command with --resume makes them.
UNFINISHED = 3

LARGEST_SHIFT = 0.5


class Shifts(click.ParamType):
    """Injected slowdowns in percent, each maybe with how many comparisons: `0:200,1,5:100`."""

    name = "shifts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[float, int | None]:
        if isinstance(value, dict):
            return value
        return dict(self._shift(text.strip(), param, ctx) for text in str(value).split(","))

    def _shift(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, int | None]:
        percent, colon, count = text.partition(":")
        try:
            shift, asked = round(float(percent.strip().removesuffix("%")) / 100, 6), int(count) if colon else None
        except ValueError:
            self.fail(f"{text[:40]!r} is not a slowdown in percent, as 5 is, or 5:100 for 100 comparisons.", param, ctx)
        if not 0 <= shift <= LARGEST_SHIFT or (asked is not None and asked < 1):
            self.fail(f"{text[:40]!r}: from 0 to 50 percent, and at least one comparison.", param, ctx)
        return shift, asked


@click.command()
@click.argument("probes", nargs=-1, metavar="[PROBE]...")
@click.option(
    "--shifts",
    default="0,1,2,3,5",
    show_default=True,
    type=Shifts(),
    metavar="PERCENT[:N],...",
    help="Slowdowns to inject, in percent; 0 compares the code with itself. N comparisons of one, as in 0:200,5:100.",
)
@click.option(
    "--comparisons", default=50, show_default=True, type=click.IntRange(1), metavar="N", help="Of each slowdown."
)
@margin_option
@click.option(
    "--budget", default=30.0, show_default=True, type=Finite(1, 3600), metavar="SECONDS",
    help="For one comparison.",
)  # fmt: skip
@click.option("--max-pairs", type=click.IntRange(1), metavar="N", help="For one comparison; by default the rule's own.")
@click.option(
    "--time-limit", type=Finite(0, min_open=True), metavar="MINUTES",
    help="Begin no comparison after so long; --resume makes those that are left.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with the newest selfcheck of the same benchmarks, rule and budget.")
@click.option(
    "--repeat", type=click.IntRange(2), metavar="N",
    help="Measure the PROBEs, or all that are timed, in N runs with the profile quick, and report how far the runs lie "
    "apart. Example: --repeat 10.",
)  # fmt: skip
@click.option("--show", is_flag=True, help="Measure nothing: show what speaks for this machine already.")
@click.option("-k", "pattern", metavar="TEXT", help="Only benchmarks whose label holds TEXT; * stands for anything.")
@device_option()
@results_option()
@seed_option("Seed of the order in which comparisons are made.")
@json_option("Print the rates as JSON instead of tables.")
@path_option("--markdown", help="Append the tables to FILE as Markdown.")
@wide_option
def selfcheck(
    probes: tuple[str, ...],
    shifts: dict[float, int | None],
    comparisons: int,
    margin: float | None,
    budget: float,
    max_pairs: int | None,
    time_limit: float | None,
    resume: bool,
    repeat: int | None,
    show: bool,
    pattern: str | None,
    device: str,
    results: Path,
    seed: int,
    as_json: bool,
    markdown: Path | None,
    wide: bool,
) -> None:
    """Compare the code with itself, and with itself slowed down: how often is the verdict of `ab` wrong here?

    Of a few short products and attentions, or of the PROBEs, as FILE.py names kernels of your own: those cannot be
    slowed down, so `--shifts 0`.

    Exit code 0 when every comparison was made, 3 when some are left or failed.

    \b
    Examples:
      pyperf-suite selfcheck --shifts 0:200,3:100,5:100
      pyperf-suite selfcheck --shifts 0:200,3:100,5:100 --resume --time-limit 30
      pyperf-suite selfcheck bench_softmax.py --shifts 0:200
      pyperf-suite selfcheck tile_wave --repeat 10
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.hardware.machine import identity
    from pyperf_suite.history.selfcheck import latest_selfcheck, make_comparisons, planned, resumable, start

    where = resolve(device)
    machine = identity(where).slug
    if repeat is not None:
        if resume or show or pattern is not None or markdown is not None:
            raise UserError("--repeat measures whole runs: leave out --resume, --show, -k and --markdown.")
        _repeat(repeat, probes, where, results, as_json, wide)
        return
    if show:
        stored = latest_selfcheck(results, machine)
        if stored is None:
            raise UserError(f"There is no selfcheck of {machine} in {results}: leave --show out to make one.")
        _tell(stored, as_json, markdown, wide)
        return
    counts = {shift: count or comparisons for shift, count in shifts.items()}
    cases, rule = _cases(probes, where, pattern, counts), _rule(margin, max_pairs)
    settings = _settings(where, cases, rule, budget, seed)
    plan = planned(counts, cases, seed)
    found = resumable(results, machine, settings) if resume else start(results, machine, settings)
    commit = str(settings["state"].get("source", {}).get("commit", ""))
    try:
        found = make_comparisons(
            found,
            plan,
            _comparing(where, rule, budget),
            seed=seed,
            commit=commit,
            time_limit_s=time_limit * 60 if time_limit is not None else None,
            progress=_say_each,
        )
    except KeyboardInterrupt:
        from pyperf_suite.history.selfcheck import open_selfcheck

        found = open_selfcheck(found.path)
        _tell(found, as_json, markdown, wide)
        raise Interrupted(f"Interrupted; {_what_is_left(found, plan) or 'every comparison was made.'}") from None
    _tell(found, as_json, markdown, wide)
    unfinished = _what_is_left(found, plan)
    if unfinished:
        click.echo(unfinished, err=True)
        raise SystemExit(UNFINISHED)


def _repeat(count: int, probes: tuple[str, ...], where: Device, results: Path, as_json: bool, wide: bool) -> None:
    import json

    from pyperf_suite.history.repeats import findings_of_repeats, measure_again, records_of, spreads
    from pyperf_suite.render.terminal import console_for, print_told

    def say(number: int) -> None:
        click.echo(f"run {number + 1} of {count}", err=True)

    cases = records_of(measure_again(count, [*probes, "--device", str(where)], results, say))
    if not cases:
        raise UserError("No benchmark was measured by every run: nothing can be compared.")
    if as_json:
        rows = [
            {"probe": each.probe, "benchmarks": each.cases, "median": each.at(0.5), "p90": each.at(0.9),
             "worst": each.at(1.0), "interval_holds": each.holds, "clean_share": each.clean}
            for each in spreads(cases)
        ]  # fmt: skip
        click.echo(json.dumps(rows, indent=2))
        return
    print_told(console_for(wide), findings_of_repeats(cases))


def _cases(probes: tuple[str, ...], where: Device, pattern: str | None, counts: dict[float, int]) -> list[PairedCase]:
    from pyperf_suite.history.pairs.arms import PairedCase
    from pyperf_suite.history.selfcheck import selfcheck_cases
    from pyperf_suite.history.thresholds import matches
    from pyperf_suite.spec.discovery import expanded, find_probe, is_users

    if where.kind != "cpu" and any(counts):
        raise UserError(
            f"A slowdown can be injected into launches on a CPU only, but {where} was asked for: "
            "use --shifts 0, or --device cpu."
        )
    if any(counts) and any(map(is_users, probes)):
        raise UserError("A slowdown cannot be injected into kernels of your own: use --shifts 0.")
    every = [
        PairedCase.same(name, case) for name in expanded(probes) for case in find_probe(name).cases("standard", where)
    ]
    cases = [
        case
        for case in (every if probes else selfcheck_cases(where))
        if pattern is None or matches(f"*{pattern}*", case.label)
    ]
    if not cases:
        raise UserError(f"No benchmark of the selfcheck holds {pattern!r}: leave -k out to see them all.")
    return cases


def _rule(margin: float | None, max_pairs: int | None) -> SequentialRule:
    from pyperf_suite.history.selfcheck import PROBE
    from pyperf_suite.history.thresholds import load_thresholds
    from pyperf_suite.history.verdict import SequentialRule

    rule = SequentialRule(margin=load_thresholds().margin_of(PROBE, "", margin))
    return rule if max_pairs is None else dataclasses.replace(rule, looks=(), max_pairs=max_pairs)


def _settings(
    where: Device, cases: list[PairedCase], rule: SequentialRule, budget_s: float, seed: int
) -> dict[str, Any]:
    from pyperf_suite.hardware.machine import state

    return {
        "device": str(where),
        "rule": dataclasses.asdict(rule),
        "budget_s": budget_s,
        "seed": seed,
        "cases": [case.new.to_json() for case in cases],
        "state": state(where),
    }


def _comparing(where: Device, rule: SequentialRule, budget_s: float) -> Compare:
    """What `ab` does for one benchmark, with this code on both sides."""
    from pyperf_suite.history.pairs.ab import compare_case
    from pyperf_suite.history.pairs.arms import this_code

    def compare(case: PairedCase, shift: float, seed: int, write: Callable[..., None]) -> Any:
        old, new = this_code("this code"), this_code("this code, slowed down" if shift else "this code again")
        return compare_case(old, new, case, where, rule, budget_s=budget_s, seed=seed, journal=write, spin_share=shift)

    return compare


def _say_each(position: int, count: int, made: Comparison) -> None:
    injected = f"{100 * made.shift:.3g} % injected" if made.shift else "identical"
    concluded = "" if made.ratio is None else f" {100 * (made.ratio - 1):+.1f} %"
    pairs = f"{len(made.log_ratios)} pairs in {made.seconds:.1f} s"
    click.echo(f"{position}/{count} {made.label} {injected}: {made.verdict}{concluded}, {pairs}", err=True)


def _tell(found: Selfcheck, as_json: bool, markdown: Path | None, wide: bool) -> None:
    import json

    from pyperf_suite.history.selfcheck import findings_of_selfcheck, heading
    from pyperf_suite.render import markdown as as_markdown
    from pyperf_suite.render import text
    from pyperf_suite.render.terminal import console_for, print_told, say

    if as_json:
        click.echo(json.dumps({"path": str(found.path), "settings": found.settings, **found.to_json()}, indent=2))
    else:
        console = console_for(wide)
        say(console, "", text.sentence(heading(found)), style="bold")
        print_told(console, findings_of_selfcheck(found))
        say(console, "", f"comparisons  {found.path}")
    if markdown is not None:
        try:
            with markdown.open("a", encoding="utf-8") as file:
                reported = as_markdown.told(findings_of_selfcheck(found))
                file.write("\n".join([f"## {as_markdown.escape(text.sentence(heading(found)))}", "", *reported]))
        except OSError as error:
            raise UserError(f"{markdown} cannot be written ({error.strerror}).") from None


def _what_is_left(found: Selfcheck, plan: list[PlannedComparison]) -> str:
    """How many of the comparisons are not made and how to make them; empty if all are made."""
    made = {(each.shift, each.number) for each in found.comparisons if each.verdict != "failed"}
    left = sum((each.shift, each.number) not in made for each in plan)
    return f"{left} of {len(plan)} comparisons are left: the same command with --resume makes them." if left else ""
