"""`pyperf-suite history`, `export`, `findings` and `report`: stored runs as series, a table, JSON, and an HTML page."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pyperf_suite.cli.options import all_option, json_option, machine_option, path_option, results_option
from pyperf_suite.cli.parts import Parts
from pyperf_suite.errors import UserError, printable
from pyperf_suite.files import write_for_user, write_in_results, write_whole

if TYPE_CHECKING:
    from pyperf_suite.record.record import Record
    from pyperf_suite.regressions.stored.series import BenchmarkSeries

REPORT_NAME = "report.html"
_LISTED = 20


@click.command()
@click.argument("benchmark", required=False, metavar="[BENCHMARK]")
@results_option()
@machine_option
@json_option("Print every series that was found, with all its runs, as JSON.")
@all_option
def history(benchmark: str | None, results: Path, machine: str | None, as_json: bool, everything: bool) -> None:
    """List the stored benchmarks, or show the series of BENCHMARK: a case's id, or a part of its probe and label.

    In a part * stands for any text.

    \b
    Examples:
      pyperf-suite history
      pyperf-suite history 'matmul*m=384'
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.regressions.stored.store import Store
    from pyperf_suite.regressions.tracking import changes_of

    store = Store(results)
    matching = store.series(benchmark, machine)
    if not matching:
        raise UserError(store.why_nothing(benchmark, machine))
    notes = [*store.notes, *store.damage]
    if as_json:
        click.echo(_series_as_json(matching, notes), nl=False)
        return
    series, left_out = matching, list[str]()
    if not everything:
        # Exact figures are the first that are not listed of all benchmarks.
        timed = [each for each in matching if benchmark is not None or each.kind != "static"] or matching
        newest_first = sorted(range(len(timed)), key=lambda place: timed[place].points[-1].started_at, reverse=True)
        series = [timed[place] for place in sorted(newest_first[:_LISTED])]
        if left := len(matching) - len(series):
            why = "exact figures of static kernels, or measured no later"
            left_out = [f"{left} more are not listed ({why}): name them, or --all."]
    from pyperf_suite.render.series import print_list, print_series
    from pyperf_suite.render.terminal import console_for

    console = console_for(everything)
    if len(series) == 1:
        print_series(console, series[0], changes_of(series[0]), everything)
    else:
        print_list(console, series, left_out)
    for sentence in notes:
        click.echo(f"Warning: {printable(sentence)}", err=True)


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
    from pyperf_suite.record.journal import read_journal

    write_for_user(output, table_of(read_journal(_run_folder(run, results) / "records.jsonl"), output.suffix))


@click.command()
@click.argument("run", metavar="RUN")
@results_option()
@click.option(
    "--bmf",
    is_flag=True,
    help="Print what was measured in the Bencher Metric Format instead, as in findings latest --bmf > bmf.json.",
)
def findings(run: str, results: Path, bmf: bool) -> None:
    """Write findings.json of RUN anew and print it: the id of a run or a watched job, its folder's path, or latest.

    \b
    Examples:
      pyperf-suite findings latest
      pyperf-suite findings latest --bmf
      pyperf-suite findings 20261121T221320Z-9125 | jq '.probes[].verdicts[] | {outcome, text}'
    """  # noqa: D301 - click keeps the lines below \b as they are
    import warnings

    from pyperf_suite.render.results import read_results
    from pyperf_suite.render.run_report import FILE, as_document, bencher_metrics, findings_of
    from pyperf_suite.render.text import answer, as_text
    from pyperf_suite.runner.results import RunFolder

    parts = Parts()
    read = read_results(_run_folder(run, results), readers=parts.readers)
    if bmf:
        click.echo(as_text(bencher_metrics([each for found in read.runs for each in found.records()])), nl=False)
        return
    if read.runs:
        [found] = read.runs
        records, path = found.records(), found.path.parent
        text = as_text(as_document(findings_of(records, parts.find_probe), records, RunFolder(path, found.manifest)))
    else:
        [record] = read.others
        path = record.path
        details = {"run_id": path.name, "machine": record.machine, "run": record.manifest}
        text = answer({record.kind: record.findings()}, details)
    try:
        write_whole(path / FILE, text)
    except OSError as error:
        warnings.warn(f"{FILE} could not be written: {error.strerror}.", stacklevel=2)
    click.echo(text, nl=False)
    if read.runs and sys.stdout.isatty():
        from rich.console import Console

        from pyperf_suite.findings.summary import failures_of, fitness_of, summary_of
        from pyperf_suite.render.terminal import print_fitness, print_summary

        # Whoever reads a screen has the end of a long text before them.
        console, by_probe = Console(stderr=True, emoji=False), findings_of(records, parts.find_probe)
        print_fitness(console, fitness_of(records))
        print_summary(console, [*failures_of(records), *summary_of(by_probe, records)])


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[RESULTS]")
@results_option()
@path_option("-o", "--output", help=f"HTML file to write. Default: RESULTS/{REPORT_NAME}. Example: -o h100.html.")
@click.option(
    "--runs",
    default="strongest",
    show_default=True,
    metavar="strongest|latest|all|ID,...",
    help="Runs to show of each probe: the run of the most thorough profile (strongest), the newest (latest), all, "
    "or those named. Example: --runs latest.",
)
@machine_option
@click.pass_context
def report(
    context: click.Context, folder: Path | None, results: Path, output: Path | None, runs: str, machine: str | None
) -> None:
    """Write everything that RESULTS hold as one HTML page: a results folder, one machine's, or a single run's.

    It opens on this machine, and has others behind links; of each job that `watch` watched and each pair that `ab`
    compared it has the newest record. The page needs no network and no other file.

    \b
    Examples:
      pyperf-suite report
      pyperf-suite report bench_results/cuda-nvidia-h100-132sm-80gib --runs all -o h100.html
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.hardware.devices import Device, resolve
    from pyperf_suite.hardware.machine import identity
    from pyperf_suite.render.comparisons import COMPARISON, read_comparison
    from pyperf_suite.render.page import draw_page
    from pyperf_suite.render.results import choose, choose_others, read_results

    if folder is not None and context.get_parameter_source("results") is ParameterSource.COMMANDLINE:
        raise UserError(f"Both {folder} and --results {results} name the results: give one of them.")
    results, parts = folder or results, Parts()
    read = read_results(results, machine, {**parts.readers, COMPARISON: read_comparison})
    words = [word.strip() for word in runs.split(",") if word.strip()]
    here = {identity(device).slug for device in (resolve("auto"), Device("cpu"))}
    page = draw_page(read, choose(read, words), choose_others(read, words), here, parts.find_probe)
    path = results / REPORT_NAME if output is None else output
    (write_in_results if output is None else write_for_user)(path, page)
    click.echo(f"{path}  {len(page.encode()) / 1e6:.1f} MB: open it in a browser")


def _run_folder(run: str, results: Path) -> Path:
    """The folder of a run, or of what another part recorded. Raises UserError if there is none of that name."""
    from pyperf_suite.runner.results import RECORDS, find_run_folder

    held = (RECORDS, *Parts().readers)
    is_path = any((Path(run) / name).is_file() for name in held)
    return Path(run) if is_path else find_run_folder(run, results, held)


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def table_of(records: Iterable[Record], suffix: str) -> bytes:
    """A row a record, a column a field, `metrics.time.value` for one within others; lists are JSON text.

    Raises UserError for a suffix other than .csv and .parquet, and for .parquet where pyarrow is not installed.
    """
    if suffix not in (".csv", ".parquet"):
        raise UserError("Records are exported as CSV or Parquet: name a file that ends in .csv or .parquet.")
    rows = [_flat(record.to_json()) for record in records]
    names = dict.fromkeys(name for row in rows for name in row)
    if suffix == ".csv":
        file = io.StringIO(newline="")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(_word, names))
        writer.writerows([_word(row.get(name, "")) for name in names] for row in rows)
        return file.getvalue().encode(errors="backslashreplace")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        what = "Parquet is written by pyarrow, which is not installed: pip install pyarrow"
        raise UserError(f"{what}, or name a file that ends in .csv.") from None
    table = pyarrow.table({name: _column([row.get(name) for row in rows]) for name in names})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def _flat(fields: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    import json

    found: dict[str, Any] = {}
    for name, value in fields.items():
        inner = _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: value}
        found |= {key: json.dumps(each) if isinstance(each, list | tuple) else each for key, each in inner.items()}
    return found


def _word(value: Any) -> Any:
    """Truth as JSON writes it; a text that a spreadsheet would take for a formula behind an apostrophe."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return str(value).lower() if isinstance(value, bool) else value


def _column(values: list[Any]) -> Any:
    """Convert values to a column; values of several types become text."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
        return pyarrow.array([None if each is None else str(each) for each in values])


def _series_as_json(matching: Sequence[BenchmarkSeries], notes: Sequence[str]) -> str:
    """Each series with the value of each run between its bounds, its commit and GPU, breaks and changes."""
    from dataclasses import asdict

    from pyperf_suite.regressions.tracking import changes_of
    from pyperf_suite.render.text import as_text

    names = ("machine", "probe", "case_id", "label", "metric", "kind", "unit_of_measure", "failed_runs")
    of_points = ("run_id", "started_at", "value", "low", "high", "commit", "dirty", "unit", "profile")
    series = [
        {name: getattr(each, name) for name in names}
        | {"points": [{name: getattr(point, name) for name in of_points} for point in each.points]}
        | {"breaks": [asdict(one) for one in each.breaks], "changes": [asdict(one) for one in changes_of(each)]}
        for each in matching
    ]
    return as_text({"series": series, "notes": list(notes)})
