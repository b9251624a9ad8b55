"""`pyperf-suite history` and `export`: what stored runs say, and the records of one as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyperf_suite.cli.options import (
    json_option,
    machine_option,
    path_option,
    results_option,
    wide_option,
)
from pyperf_suite.errors import UserError, printable
from pyperf_suite.files import write_for_user

if TYPE_CHECKING:
    from pyperf_suite.regressions.stored.series import Benchmark, BenchmarkSeries
    from pyperf_suite.regressions.stored.store import Store

also_option = path_option(
    "--also",
    multiple=True,
    help="Import pytest-benchmark JSON of another project, a file or a folder, now and in later calls. May be "
    "repeated. Example: --also .benchmarks.",
)


@click.command()
@click.argument("benchmark", required=False, metavar="[BENCHMARK]")
@results_option()
@machine_option
@also_option
@path_option("--png", help="Draw the series of BENCHMARK into FILE. Default: no picture. Example: --png matmul.png.")
@click.option("--all", "show_all", is_flag=True, help="Show all benchmarks and all points. Default: the newest.")
@json_option("Print the series as JSON instead of tables, as in --json > series.json.")
@wide_option
def history(
    benchmark: str | None,
    results: Path,
    machine: str | None,
    also: tuple[Path, ...],
    png: Path | None,
    show_all: bool,
    as_json: bool,
    wide: bool,
) -> None:
    """List the stored benchmarks, or show the series of BENCHMARK: a label, a part or glob of one, or a case's id.

    \b
    Examples:
      pyperf-suite history
      pyperf-suite history 'matmul*m=384*' --png matmul.png
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.regressions.tracking import steps_of

    with _store(results, also) as store:
        found = _benchmarks(store, benchmark, machine)
        listed, left_out = (found, ()) if show_all or as_json else _most_recent(found, benchmark is None)
        series = [store.series(each) for each in listed]
        warned = [*store.notes, *store.damage]
    steps = [steps_of(each) for each in series] if len(series) == 1 or png else []
    if png is not None:
        from pyperf_suite.render.series import draw_series

        draw_series(series, png, steps)
    if as_json:
        click.echo(_as_json(series, warned))
        return
    from pyperf_suite.render.series import print_list, print_series
    from pyperf_suite.render.terminal import console_for

    console = console_for(wide)
    if len(series) == 1:
        print_series(console, series[0], steps[0], show_all)
    else:
        print_list(console, series, left_out)
    _warn(warned)
    if png is not None:
        console.print(f"\npicture   {png}", highlight=False, soft_wrap=True, markup=False)


@click.command()
@click.argument("run", metavar="RUN")
@results_option()
@path_option(
    "-o",
    "--output",
    required=True,
    help="File to write; its suffix chooses the format, .csv or .parquet. Required. Example: -o records.csv.",
)
def export(run: str, results: Path, output: Path) -> None:
    """Write the records of RUN as a table, one row each: the id of a run, its folder's path, or latest.

    \b
    Examples:
      pyperf-suite export latest -o records.csv
      pyperf-suite export 20261121T021948Z-22a8 -o records.parquet
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.cli.findings import run_folder
    from pyperf_suite.regressions.stored.export import table_of
    from pyperf_suite.runner.results import read_journal

    write_for_user(output, table_of(read_journal(run_folder(run, results) / "records.jsonl"), output.suffix))


def _store(results: Path, also: Sequence[Path] = ()) -> Store:
    from pyperf_suite.regressions.stored.store import Store

    store = Store(results)
    for path in also:
        store.add(path)
    store.update()
    return store


def _benchmarks(store: Store, pattern: str | None, machine: str | None) -> list[Benchmark]:
    found = store.benchmarks(pattern, machine)
    if found:
        return found
    raise UserError(store.why_nothing(pattern, machine))


# What a person reads in one go; --all shows more.
_LISTED = 40


def _most_recent(found: Sequence[Benchmark], everything: bool) -> tuple[list[Benchmark], tuple[str, ...]]:
    """The benchmarks to list, and a sentence about each kind of those that are not."""
    left_out = []
    timed = list(found)
    if everything:
        timed = [each for each in found if each.kind != "static"] or timed
        if len(timed) < len(found):
            left_out.append(
                f"{len(found) - len(timed)} exact figures of static kernels are not listed: name them, or --all."
            )
    newest = sorted(timed, key=lambda each: each.last, reverse=True)[:_LISTED]
    kept = {each.key for each in newest}
    if len(kept) < len(timed):
        left_out.append(
            f"{len(timed) - len(kept)} more are not listed, none of them measured later: name them, or --all."
        )
    return [each for each in timed if each.key in kept], tuple(left_out)


def _as_json(series: Sequence[BenchmarkSeries], warned: Sequence[str]) -> str:
    import dataclasses
    import json

    return json.dumps({"series": [dataclasses.asdict(each) for each in series], "warnings": list(warned)}, indent=2)


def _warn(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        click.echo(f"Warning: {printable(sentence)}", err=True)
