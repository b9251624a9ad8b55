"""`pyperf-suite findings`: what a run found, as data."""

from __future__ import annotations

from pathlib import Path

import click

from pyperf_suite.cli.options import results_option
from pyperf_suite.errors import UserError, offer
from pyperf_suite.extensions import record_kinds


@click.command()
@click.argument("run", metavar="RUN")
@results_option()
def findings(run: str, results: Path) -> None:
    """Write findings.json of RUN anew and print it: the id of a run or a watched job, its folder's path, or latest.

    \b
    Examples:
      pyperf-suite findings latest
      pyperf-suite findings 20261121T221320Z-9125 | jq '.probes[].verdicts[] | {outcome, text}'
    """  # noqa: D301 - click keeps the lines below \b as they are
    import warnings

    from pyperf_suite.files import write_whole
    from pyperf_suite.render.findings_json import answer, as_text
    from pyperf_suite.render.results import read_results
    from pyperf_suite.render.run_report import FILE, as_document, findings_of
    from pyperf_suite.runner.results import RunFolder

    read = read_results(run_folder(run, results))
    if read.runs:
        [found] = read.runs
        records, path = found.records(), found.path.parent
        text = as_text(as_document(findings_of(records), records, RunFolder(path, found.manifest)))
    else:
        [(kind, record)] = read.others
        path = record.path
        details = {"run_id": path.name, "machine": record.machine, "run": record.manifest}
        text = answer({kind: record.findings()}, details)
    try:
        write_whole(path / FILE, text)
    except OSError as error:
        warnings.warn(f"{FILE} could not be written: {error.strerror}.", stacklevel=2)
    click.echo(text, nl=False)


def run_folder(run: str, results: Path) -> Path:
    """The folder of that run. Raises UserError that names the nearest."""
    from pyperf_suite.render.results import RECORDS

    names = (RECORDS, *(kind.manifest for kind in record_kinds().values()))
    if any((Path(run) / name).is_file() for name in names):
        return Path(run)
    runs = {path.parent.name: path.parent for name in names for path in results.glob(f"*/*/{name}")}
    in_order = sorted(runs, key=lambda name: name.removeprefix("watch-"))  # the rest begins with the time
    if run == "latest" and runs:
        return runs[in_order[-1]]
    if not runs:
        raise UserError(f"There is no run in {results}: measure one with `pyperf-suite run`, or name --results.")
    if run not in runs:
        raise UserError(f"There is no run {run[:80]!r} in {results}: {offer(run, ['latest', *in_order[-20:]])}")
    return runs[run]
