"""How well figures come back: the same benchmarks by one run after another; `python tools/selfcheck.py --repeat N`."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from pathlib import Path

import click
import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Findings, findings, remark
from pyperf_suite.findings.rows import Column, grouped, table
from pyperf_suite.record.interval import UNDISTURBED, USUAL
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.quantity import quantity
from pyperf_suite.record.record import Record

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
    by_probe = grouped(cases, lambda records: records[0].probe)
    return [_apart(probe, of) for probe, of in [*by_probe.items(), (EVERY_PROBE, cases)] if of]


def other_figures(cases: Sequence[Sequence[Record]]) -> list[Spread]:
    """Return how far two runs would differ if another quantile were the figure; intervals are unknown."""
    found = []
    for share, name in QUANTILES.items():
        values = [[float(np.quantile(record.metrics["time"].samples, share)) for record in of] for of in cases]
        found.append(Spread(name, len(cases), _distances(values), math.nan, None))
    return found


def _apart(probe: str, cases: Sequence[Sequence[Record]]) -> Spread:
    times = [[record.metrics["time"] for record in records] for records in cases]
    distances = _distances([[time.value for time in case] for case in times])
    held = [one.low <= other.value <= one.high for case in times for one, other in permutations(case, 2)]
    known = [record.quality.get("disturbances") for records in cases for record in records]
    clean = [disturbances["clean_share"] for disturbances in known if disturbances]
    return Spread(probe, len(cases), distances, float(np.mean(held)), float(np.mean(clean)) if clean else None)


def _distances(values: Sequence[Sequence[float]]) -> list[float]:
    return [abs(math.log(one / other)) for case in values for one, other in combinations(case, 2)]


def findings_of_repeats(cases: Sequence[Sequence[Record]]) -> Findings:
    """Return how far two runs and other figures differ, and how often one's interval holds the other's figure."""
    spread = spreads(cases)
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
        table("Other figures of the same samples", (Column("figure", "probe"), *quantiles), other_figures(cases)),
    )
