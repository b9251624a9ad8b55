"""A selfcheck for readers: rates by injected slowdown, what each benchmark's pairs are like, and one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.markup import escape

from pyperf_suite.history.outputs.words import percent
from pyperf_suite.history.selfcheck.selfcheck import Comparison, Selfcheck
from pyperf_suite.spec.findings import Table

# What turns the median of absolute deviations into a standard deviation where noise is normal.
_NORMAL_MAD = 1.4826


def heading(selfcheck: Selfcheck) -> str:
    """What was compared, under which rule, and where."""
    settings, rule = selfcheck.settings, selfcheck.settings["rule"]
    return (
        f"Selfcheck of {settings['machine']}: {len(settings['cases'])} benchmarks, margin {percent(selfcheck.margin)}, "
        f"at most {settings['budget_s']:g} s and {rule['max_pairs']} pairs a comparison"
    )


def tables(selfcheck: Selfcheck) -> list[Table]:
    """By injected slowdown, then by benchmark."""
    return [_by_shift(selfcheck), _by_benchmark(selfcheck)]


def _by_shift(selfcheck: Selfcheck) -> Table:
    rows = []
    for shift in selfcheck.shifts:
        seconds, change = selfcheck.seconds(shift), selfcheck.change(shift)
        rows.append(
            (
                _shift(shift),
                str(len(selfcheck.measured(shift))),
                *(str(selfcheck.rate(shift, verdict)) for verdict in ("slower", "faster", "equivalent", "undecided")),
                "" if change is None else f"{100 * change:+.1f} %",
                "" if seconds is None else f"{seconds.median:.1f} [{seconds.low:.1f}, {seconds.high:.1f}]",
                "" if seconds is None else f"{seconds.p90:.1f}",
            )
        )
    columns = ("injected", "tries", "slower", "faster", "equivalent", "undecided", "found", "median s", "p90 s")
    return Table("Verdicts by injected slowdown, with 95 % intervals", columns, tuple(rows))


def _by_benchmark(selfcheck: Selfcheck) -> Table:
    """Spread is that of the pairs' log-ratios around each comparison's own median, so that shifts do not count."""
    by_label: dict[str, list[Comparison]] = {}
    for comparison in selfcheck.comparisons:
        by_label.setdefault(comparison.label, []).append(comparison)
    rows = [(*_pairs(made), *_alarms(made), label) for label, made in sorted(by_label.items())]
    columns = ("pairs", "s a pair", "sd", "MAD-sd", "false alarms", "slower found", "benchmark")
    return Table("Pairs by benchmark", columns, tuple(rows))


def _pairs(made: Sequence[Comparison]) -> tuple[str, str, str, str]:
    deviations = [
        100 * (log_ratio - statistics.median(each.log_ratios)) for each in made for log_ratio in each.log_ratios
    ]
    if len(deviations) < 2:
        return str(len(deviations)), "", "", ""
    seconds = sum(each.seconds for each in made if each.log_ratios) / len(deviations)
    mad = _NORMAL_MAD * float(np.median(np.abs(deviations)))
    return str(len(deviations)), f"{seconds:.2f}", f"{float(np.std(deviations)):.1f} %", f"{mad:.1f} %"


def _alarms(made: Sequence[Comparison]) -> tuple[str, str]:
    identical = [each.verdict in ("slower", "faster") for each in made if each.shift == 0 and each.verdict != "failed"]
    slowed = [each.verdict == "slower" for each in made if each.shift > 0 and each.verdict != "failed"]
    return f"{sum(identical)} of {len(identical)}", f"{sum(slowed)} of {len(slowed)}"


def _shift(shift: float) -> str:
    return "none" if shift == 0 else f"{100 * shift:.3g} %"


def cautions(selfcheck: Selfcheck) -> list[str]:
    """What keeps these rates from being the whole answer."""
    found = []
    failed = [each for each in selfcheck.comparisons if each.verdict == "failed"]
    if failed:
        found.append(f"{len(failed)} comparisons could not be made, the first of {failed[0].label}: {failed[0].reason}")
    commits = sorted({each.commit[:12] for each in selfcheck.comparisons if each.commit})
    if len(commits) > 1:
        found.append(f"Comparisons were made by the code of several commits: {', '.join(commits)}.")
    return found


def print_selfcheck(console: Console, selfcheck: Selfcheck) -> None:
    """Heading, tables, sentence, cautions, and where all of it lies."""
    from pyperf_suite.history.outputs.terminal import print_table

    console.print(f"\n[bold]{escape(heading(selfcheck))}[/bold]", highlight=False, soft_wrap=True)
    for table in tables(selfcheck):
        print_table(console, table)
    console.print(f"  [cyan]•[/cyan] {escape(selfcheck.sentence())}", highlight=False, soft_wrap=True)
    for caution in cautions(selfcheck):
        console.print(f"[yellow]note[/yellow] {escape(caution)}", highlight=False, soft_wrap=True)
    console.print(f"\ncomparisons  {escape(str(selfcheck.path))}", highlight=False, soft_wrap=True)


def selfcheck_as_markdown(selfcheck: Selfcheck) -> str:
    """The same as Markdown."""
    from pyperf_suite.history.outputs.markdown import escape as plain

    lines = [f"## {plain(heading(selfcheck))}", "", plain(selfcheck.sentence()), ""]
    for table in tables(selfcheck):
        lines += [
            f"**{plain(table.title)}**",
            "",
            f"| {' | '.join(map(plain, table.columns))} |",
            f"| {' | '.join('---' for _ in table.columns)} |",
            *(f"| {' | '.join(map(plain, row))} |" for row in table.rows),
            "",
        ]
    return "\n".join([*lines, *(f"- {plain(caution)}" for caution in cautions(selfcheck)), ""])
