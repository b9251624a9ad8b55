"""How often this machine's verdicts are wrong, how small a slowdown they see, and how well figures come back.

python tools/selfcheck.py --shifts 0:200,3:100    # the code with itself, and with itself slowed down, by pairs of `ab`
python tools/selfcheck.py --repeat 10             # the same benchmarks by one run after another

pyperf_suite/regressions/selfcheck.py reads what it leaves, for `ab` and `compare` to say.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import click
import numpy as np

from pyperf_suite.cli.main import HELP, Speaking
from pyperf_suite.cli.options import Finite, device_option, margin_option, results_option, seed_option
from pyperf_suite.errors import ExitCode, Interrupted, UserError
from pyperf_suite.findings.data import Cell, Findings, Remark, findings, remark
from pyperf_suite.findings.rows import Column, grouped, table
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.hardware.machine import identity, state
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.probes import expanded, find_probe, is_users
from pyperf_suite.record.case import Case
from pyperf_suite.record.interval import UNDISTURBED, USUAL, median_interval
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.quantity import Quantity, quantity
from pyperf_suite.record.record import Record
from pyperf_suite.regressions.pairs.ab import PairJournal, WritePair, compare_arms, comparison_folder
from pyperf_suite.regressions.pairs.arms import PairedCase, this_code
from pyperf_suite.regressions.selfcheck import (
    COMPARISONS,
    SCHEMA_VERSION,
    Comparison,
    Selfcheck,
    open_selfcheck,
    selfchecks,
)
from pyperf_suite.regressions.thresholds import load_thresholds
from pyperf_suite.regressions.verdict import CONFIDENCE, Judgement, SequentialRule, Word
from pyperf_suite.render import text
from pyperf_suite.render.terminal import console_for, print_remarks_and_tables, say
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.matmul import MatmulParameters

LARGEST_SHIFT = 0.5
COMPARISONS_OF_EACH = 50


class Shifts(click.ParamType):
    """Injected slowdowns in percent with how many comparisons, by default 50: `0:200,1,5:100`."""

    name = "shifts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[float, int]:
        if isinstance(value, dict):
            return value
        shifts = {}
        for word in map(str.strip, str(value).split(",")):
            percent, colon, count = word.partition(":")
            try:
                shift = round(float(percent.strip().removesuffix("%")) / 100, 6)
                shifts[shift] = int(count) if colon else COMPARISONS_OF_EACH
            except ValueError:
                wrong = "is not a slowdown in percent, as 5 is, or 5:100 for 100 comparisons."
                self.fail(f"{word[:40]!r} {wrong}", param, ctx)
            if not 0 <= shift <= LARGEST_SHIFT or shifts[shift] < 1:
                self.fail(f"{word[:40]!r}: from 0 to 50 percent, and at least one comparison.", param, ctx)
        return shifts


@click.command(cls=Speaking, context_settings=HELP)
@click.argument("probes", nargs=-1, metavar="[PROBE]...")
@click.option(
    "--shifts",
    default="0,1,2,3,5",
    show_default=True,
    type=Shifts(),
    metavar="PERCENT[:N],...",
    help="Slowdowns to inject, in percent; 0 compares the code with itself. N is the number of comparisons of one, 50 "
    "if left out. Example: --shifts 0:200,5:100.",
)
@margin_option
@click.option(
    "--budget",
    default=30.0,
    show_default=True,
    type=Finite(1, 3600),
    metavar="SECONDS",
    help="Time for one comparison. Example: --budget 60.",
)
@click.option(
    "--max-pairs",
    type=click.IntRange(1),
    metavar="N",
    help="Most pairs of one comparison. Default: as ab's rule has them. Example: --max-pairs 10.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the newest selfcheck of the same benchmarks, rule and budget. Default: start one.",
)
@click.option(
    "--repeat",
    type=click.IntRange(2),
    metavar="N",
    help="Measure the PROBEs, or all that are timed, in N runs with the profile quick, and report how far the runs lie "
    "apart. Default: compare. Example: --repeat 10.",
)
@device_option()
@results_option()
@seed_option("Seed of the order in which comparisons are made. Example: --seed 1.")
def selfcheck(
    probes: tuple[str, ...],
    shifts: dict[float, int],
    margin: float | None,
    budget: float,
    max_pairs: int | None,
    resume: bool,
    repeat: int | None,
    device: str,
    results: Path,
    seed: int,
) -> None:
    """Compare the code with itself, and with itself slowed down: how often is the verdict of `ab` wrong here?

    Of a few short products and attentions, or of the PROBEs, as FILE.py names kernels of your own: those cannot be
    slowed down, so `--shifts 0`.

    Exit code 0 when every comparison was made, 3 when some are left or failed.

    \b
    Examples:
      python tools/selfcheck.py --shifts 0:200,3:100,5:100
      python tools/selfcheck.py --shifts 0:200,3:100,5:100 --resume
      python tools/selfcheck.py bench_softmax.py --shifts 0:200
      python tools/selfcheck.py tile_wave --repeat 10
    """  # noqa: D301 - click keeps the lines below \b as they are
    where = resolve(device)
    machine = identity(where).slug
    if repeat is not None:
        if resume:
            raise UserError("--repeat measures whole runs: leave out --resume.")
        repeated = records_of(measure_again(repeat, [*probes, "--device", str(where)], results))
        if not repeated:
            raise UserError("No benchmark was measured by every run: nothing can be compared.")
        print_remarks_and_tables(console_for(), findings_of_repeats(repeated))
        return
    if any(shifts) and any(map(is_users, probes)):
        raise UserError("A slowdown cannot be injected into kernels of your own: use --shifts 0.")
    cases = [] if probes else selfcheck_cases(where)
    for name in expanded(probes) if probes else ():
        cases += [PairedCase.same(name, case) for case in find_probe(name).cases("standard", where)]
    rule = SequentialRule(margin=load_thresholds().margin_of(PROBE, "", margin))
    rule = rule if max_pairs is None else dataclasses.replace(rule, looks=(), max_pairs=max_pairs)
    settings = _settings(where, cases, rule, budget, seed)
    plan = planned(shifts, cases, seed)
    checked = resumable(results, machine, settings) if resume else start(results, machine, settings)
    commit = str(settings["state"].get("source", {}).get("commit", ""))
    try:
        checked = make_comparisons(checked, plan, _comparing(where, rule, budget), seed, commit)
    except KeyboardInterrupt:
        checked = open_selfcheck(checked.path)
        _report(checked)
        raise Interrupted(f"Interrupted; {_what_is_left(checked, plan) or 'every comparison was made.'}") from None
    _report(checked)
    unfinished = _what_is_left(checked, plan)
    if unfinished:
        click.echo(unfinished, err=True)
        raise SystemExit(ExitCode.FAILED)


def _settings(
    where: Device, cases: list[PairedCase], rule: SequentialRule, budget_s: float, seed: int
) -> dict[str, Any]:
    return {
        "device": str(where),
        "rule": dataclasses.asdict(rule),
        "budget_s": budget_s,
        "seed": seed,
        "cases": [case.new.to_json() for case in cases],
        "state": state(where),
    }


def _comparing(where: Device, rule: SequentialRule, budget_s: float) -> Compare:
    """Return the comparison of `ab` for one benchmark, with this code on both sides."""

    def compare(case: PairedCase, shift: float, seed: int, write: Callable[..., None]) -> Any:
        old, new = this_code("this code"), this_code("this code, slowed down" if shift else "this code again")
        how = {"budget_s": budget_s, "journal": write, "spin_share": shift}
        return compare_arms(old, new, [case], where, rule, seed, **how)[0]

    return compare


def _report(checked: Selfcheck) -> None:
    console = console_for()
    say(console, "", text.sentence(heading(checked)), style="bold")
    print_remarks_and_tables(console, findings_of_selfcheck(checked))
    say(console, "", f"comparisons  {checked.path}")


def _what_is_left(checked: Selfcheck, plan: list[PlannedComparison]) -> str:
    """How many of the comparisons are not made and how to make them; empty if all are made."""
    made = {(each.shift, each.number) for each in checked.comparisons if each.verdict != "failed"}
    left = sum((each.shift, each.number) not in made for each in plan)
    return f"{left} of {len(plan)} comparisons are left: the same command with --resume makes them." if left else ""


# Compares a case with itself slowed down by a share: case, share, seed, and what each pair is written to.
Compare = Callable[[PairedCase, float, int, WritePair], Judgement]


@dataclass(frozen=True)
class PlannedComparison:
    """One comparison to be made; `shift` is the injected slowdown as a share."""

    shift: float
    number: int
    case: PairedCase


def planned(counts: Mapping[float, int], cases: Sequence[PairedCase], seed: int) -> list[PlannedComparison]:
    """Plan comparisons of each shift, spread evenly over the cases and, for each shift, over the whole time.

    Wherever it is cut, every shift has had its share, and the machine's hours fall on all equally.
    """
    chance = random.Random(seed)
    timed = [
        ((number + chance.random()) / count, PlannedComparison(shift, number, cases[(number + first) % len(cases)]))
        for first, (shift, count) in enumerate(sorted(counts.items()))
        for number in range(count)
    ]
    return [each for _, each in sorted(timed, key=lambda item: item[0])]


def start(results: Path, machine: str, settings: Mapping[str, Any]) -> Selfcheck:
    """A new selfcheck's folder. Raises UserError where the results folder cannot be written."""
    manifest = {"schema_version": SCHEMA_VERSION, "machine": machine, **settings}
    return open_selfcheck(comparison_folder(results, machine, manifest, kind="selfcheck"))


def resumable(results: Path, machine: str, settings: Mapping[str, Any]) -> Selfcheck:
    """The newest selfcheck of the same settings, to go on with. Raises UserError where there is none."""
    plain = json.loads(json.dumps({name: settings[name] for name in ("device", "rule", "budget_s", "cases")}))
    same = [each for each in selfchecks(results, machine) if plain == {name: each.settings.get(name) for name in plain}]
    if not same:
        raise UserError(
            f"There is no selfcheck of the same benchmarks, rule and budget to resume in {results / machine}: "
            "start one without --resume."
        )
    return same[-1]


def make_comparisons(
    selfcheck: Selfcheck,
    plan: Sequence[PlannedComparison],
    compare: Compare,
    seed: int = 0,
    commit: str = "",
) -> Selfcheck:
    """Make those of the plan that the selfcheck does not hold yet, and say each; return all there are.

    What was made before an interruption is kept. Raises UserError where the disk refuses a line, or another process is
    writing this selfcheck.
    """
    done = {(each.shift, each.number) for each in selfcheck.comparisons if each.verdict != "failed"}
    with PairJournal(selfcheck.path / COMPARISONS) as write:
        for position, each in enumerate(plan, start=1):
            if (each.shift, each.number) in done:
                continue
            own_seed = random.Random(f"{seed} {each.shift} {each.number}").getrandbits(32)
            comparison = _made(each, compare, own_seed, commit)
            write(comparison.to_json())
            injected = f"{100 * comparison.shift:.3g} % injected" if comparison.shift else "identical"
            concluded = "" if comparison.ratio is None else f" {100 * (comparison.ratio - 1):+.1f} %"
            pairs = f"{len(comparison.log_ratios)} pairs in {comparison.seconds:.1f} s"
            verdict = f"{comparison.label} {injected}: {comparison.verdict}{concluded}, {pairs}"
            click.echo(f"{position}/{len(plan)} {verdict}", err=True)
    return open_selfcheck(selfcheck.path)


def _made(planned: PlannedComparison, compare: Compare, seed: int, commit: str) -> Comparison:
    log_ratios: list[float] = []
    now = datetime.datetime.now(datetime.timezone.utc)
    begin = time.monotonic()
    finding = compare(planned.case, planned.shift, seed, lambda pair: log_ratios.append(float(pair["log_ratio"])))
    return Comparison(
        shift=planned.shift,
        number=planned.number,
        probe=planned.case.probe,
        case_id=planned.case.case_id,
        label=planned.case.label,
        verdict=finding.verdict,
        ratio=finding.ratio.value if finding.ratio is not None else None,
        seconds=round(time.monotonic() - begin, 3),
        log_ratios=tuple(log_ratios),
        started_at=now.isoformat(timespec="seconds"),
        commit=commit,
        reason=finding.sentence if finding.verdict == "failed" else "",
        machine=dict(finding.details.get("machine", {})),
    )


def change_at(selfcheck: Selfcheck, shift: float) -> float | None:
    """The median of the slowdowns concluded at a shift, as a share: whether what was injected arrived."""
    ratios = [each.ratio for each in selfcheck.measured(shift) if each.ratio is not None]
    return statistics.median(ratios) - 1 if ratios else None


_VERDICTS: tuple[Word, ...] = ("slower", "faster", "equivalent", "undecided")


def heading(selfcheck: Selfcheck) -> Remark:
    """Return a remark on the benchmarks compared, the rule, and the machine."""
    settings, rule = selfcheck.settings, selfcheck.settings["rule"]
    return remark(
        "Selfcheck of {machine}: {cases} benchmarks, margin {margin}, at most {budget} and {pairs} pairs a comparison",
        machine=settings["machine"],
        cases=len(settings["cases"]),
        margin=quantity(selfcheck.margin, "%"),
        budget=quantity(settings["budget_s"], "s"),
        pairs=rule["max_pairs"],
    )


def findings_of_selfcheck(selfcheck: Selfcheck) -> Findings:
    """Return cautions on the rates, the sentence, and tables by slowdown and by benchmark."""
    by_benchmark = sorted(grouped(selfcheck.comparisons, lambda each: each.label).items())

    def median_s(shift: float) -> Cell:
        if not (spent := [each.seconds for each in selfcheck.measured(shift)]):
            return None
        interval = median_interval(spent, CONFIDENCE, effective=len(spent))
        return Quantity(statistics.median(spent), "s", interval.low, interval.high, 1)

    verdicts = (Column(each, partial(_rate, selfcheck, each), "%") for each in _VERDICTS)
    by_shift = (
        Column("injected", lambda shift: shift, "%", 2),
        Column("tries", lambda shift: len(selfcheck.measured(shift))),
        *verdicts,
        Column("found", partial(change_at, selfcheck), "+%"),
        Column("median", median_s, "s", 0),
    )
    pairs = (
        Column("benchmark", lambda item: item[0], priority=2),
        Column("pairs", lambda item: len(_deviations(item[1]))),
        Column("sd", lambda item: statistics.pstdev(off) if len(off := _deviations(item[1])) > 1 else None, "%"),
        Column("false alarms", lambda item: _alarms(item[1], identical=True)),
        Column("slower found", lambda item: _alarms(item[1], identical=False)),
    )
    return findings(
        _cautions(selfcheck),
        remark("{said}", said=selfcheck.sentence()),
        table("Verdicts by injected slowdown, with 95 % intervals", by_shift, selfcheck.shifts),
        table("Pairs by benchmark", pairs, by_benchmark),
    )


def _rate(selfcheck: Selfcheck, verdict: Word, shift: float) -> Cell:
    rate = selfcheck.rate(shift, verdict)
    return Quantity(rate.value, "%", rate.low, rate.high, rate.tries) if rate.tries else None


def _deviations(tried: Sequence[Comparison]) -> list[float]:
    """Return deviations of the pairs' log-ratios from each comparison's own median, without slowdowns."""
    return [log_ratio - statistics.median(each.log_ratios) for each in tried for log_ratio in each.log_ratios]


def _alarms(tried: Sequence[Comparison], identical: bool) -> str:
    """How many of those that compared identical code, or code slowed down, ended in a change."""
    ends = ("slower", "faster") if identical else ("slower",)
    requested = [each.verdict in ends for each in tried if (each.shift == 0) == identical and each.verdict != "failed"]
    return f"{sum(requested)} of {len(requested)}"


def _cautions(selfcheck: Selfcheck) -> list[Remark]:
    cautions = []
    failed = [each for each in selfcheck.comparisons if each.verdict == "failed"]
    if failed:
        message = "{count} comparisons could not be made, the first of {first}: {reason}"
        first = failed[0]
        cautions.append(remark(message, kind="caution", count=len(failed), first=first.label, reason=first.reason))
    commits = sorted({each.commit[:12] for each in selfcheck.comparisons if each.commit})
    if len(commits) > 1:
        message = "Comparisons were made by the code of several commits: {commits}."
        cautions.append(remark(message, kind="caution", commits=", ".join(commits)))
    return cautions


PROBE = "selfcheck"


def selfcheck_cases(device: Device) -> list[PairedCase]:
    """Eight on a CPU, each on one thread: the pairs' noise is then the machine's and not that of its scheduler."""
    cases: list[Case] = []
    if device.kind == "cpu":
        one_thread = Schedule("data_parallel", 1)
        products = (
            MatmulParameters(384, 384, 384, one_thread),
            MatmulParameters(256, 256, 256, one_thread),
            MatmulParameters(257, 255, 509, one_thread),
            MatmulParameters(384, 384, 384, Schedule("stream_k", 1)),
            MatmulParameters(384, 384, 384, one_thread, dtype="bfloat16"),
            MatmulParameters(192, 768, 256, one_thread, layout="TN"),
        )
        attentions = (
            AttentionParameters(1, 4, 64, 256, dtype="float32"),
            AttentionParameters(1, 2, 128, 256, causal=True, dtype="float32"),
        )
        cases += [Case("matmul", product, "native") for product in products]
        cases += [Case("attention", attention, "native") for attention in attentions]
    else:
        library = Schedule("library", 1)
        for side, k, layout in ((1024, 1024, "TN"), (2048, 2048, "TN"), (4096, 1024, "NN"), (2000, 2000, "TN")):
            product = MatmulParameters(side, side, k, library, dtype="bfloat16", layout=layout)
            cases.append(Case("matmul", product, "cublas"))
    return [PairedCase.same(PROBE, case) for case in cases]


EVERY_PROBE = "all"
QUANTILES = {0.0: "fastest", 0.01: "1 %", UNDISTURBED: f"{UNDISTURBED:.0%} (reported)", 0.25: "25 %", USUAL: "median"}


@dataclass(frozen=True)
class Spread:
    """Differences of a probe's benchmarks in all pairs of runs: |log ratio| of the figures; hits of intervals.

    `holds` is the share of ordered pairs of runs in which the first one's interval has the second one's figure.
    """

    probe: str
    cases: int
    distances: Sequence[float]
    holds: float
    clean: float | None

    def at(self, quantile: float) -> float:
        """By which factor, less one, figures differ at that quantile of pairs."""
        return math.expm1(float(np.quantile(self.distances, quantile)))


def measure_again(count: int, command: Sequence[str], results: Path) -> list[Path]:
    """The journals of `count` runs, each a fresh `pyperf-suite run` with these arguments. Raises UserError."""
    journals: list[Path] = []
    for number in range(count):
        click.echo(f"run {number + 1} of {count}", err=True)
        before = set(results.rglob("records.jsonl"))
        run = [sys.executable, "-m", "pyperf_suite", "run", *command, "--results", str(results)]
        done = subprocess.run(run, capture_output=True, text=True)
        made = set(results.rglob("records.jsonl")) - before
        if done.returncode or not made:
            last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            raise UserError(f"Run {number + 1} of {count} ended with exit code {done.returncode}: {last}")
        journals += made
    return journals


def records_of(journals: Sequence[Path]) -> list[list[Record]]:
    """Return for each benchmark that every run measured in its first process the record of each run."""
    runs = [
        {
            (record.probe, record.case_id): record
            for record in read_journal(journal)
            if record.kind == "timing" and record.outcome == "ok" and not record.process and record.probe != "sentinel"
        }
        for journal in journals
    ]
    shared = sorted(set.intersection(*map(set, runs))) if runs else []
    return [[run[key] for run in runs] for key in shared]


def spreads(cases: Sequence[Sequence[Record]]) -> list[Spread]:
    """By probe, and of all together last."""
    by_probe = []
    for probe, members in [*grouped(cases, lambda records: records[0].probe).items(), (EVERY_PROBE, cases)]:
        if members:
            times = [[record.metrics["time"] for record in records] for records in members]
            held = [one.low <= other.value <= one.high for case in times for one, other in permutations(case, 2)]
            known = [record.quality.get("disturbances") for records in members for record in records]
            clean = [disturbances["clean_share"] for disturbances in known if disturbances]
            distances = _distances([[time.value for time in case] for case in times])
            clean_share = float(np.mean(clean)) if clean else None
            by_probe.append(Spread(probe, len(members), distances, float(np.mean(held)), clean_share))
    return by_probe


def _distances(values: Sequence[Sequence[float]]) -> list[float]:
    return [abs(math.log(one / other)) for case in values for one, other in combinations(case, 2)]


def findings_of_repeats(cases: Sequence[Sequence[Record]]) -> Findings:
    """Return how far two runs and other figures differ, and how often one's interval holds the other's figure."""
    spread, others = spreads(cases), []
    for share, name in QUANTILES.items():
        values = [[float(np.quantile(record.metrics["time"].samples, share)) for record in of] for of in cases]
        others.append(Spread(name, len(cases), _distances(values), math.nan, None))
    quantiles = (
        Column("two runs differ by", lambda each: each.at(0.5), "%"),
        Column("90 % of them by", lambda each: each.at(0.9), "%"),
        Column("worst", lambda each: each.at(1.0), "%"),
    )
    columns = (
        Column("probe", lambda each: each.probe),
        Column("benchmarks", lambda each: each.cases),
        *quantiles,
        Column("interval holds", lambda each: each.holds, "%"),
        Column("clean slices", lambda each: each.clean, "%"),
    )
    total = spread[-1]
    summary = remark(
        "Figures of two of {runs} runs differ by {median} (median; {most} for one pair in ten); the interval of one "
        "holds the figure of the other in {holds} of pairs",
        runs=len(cases[0]),
        median=quantity(total.at(0.5), "%"),
        most=quantity(total.at(0.9), "%"),
        holds=quantity(total.holds, "%"),
    )
    return findings(
        summary,
        table("How well figures come back", columns, spread),
        table("Other figures of the same samples", (Column("figure", "probe"), *quantiles), others),
    )


if __name__ == "__main__":
    selfcheck()
