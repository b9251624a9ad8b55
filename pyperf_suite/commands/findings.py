"""`pyperf-suite findings`: what a run found, as data."""

from __future__ import annotations

from pathlib import Path

import click

from pyperf_suite.commands.options import results_option
from pyperf_suite.errors import UserError, offer


@click.command()
@click.argument("run", metavar="RUN")
@results_option()
def findings(run: str, results: Path) -> None:
    """Write findings.json of RUN anew and print it: a run's id, the path of its folder, or latest.

    \b
    Examples:
      pyperf-suite findings latest
      pyperf-suite findings 20261121T021948Z-22a8 | jq '.probes[].verdicts[] | {outcome, text}'
    """  # noqa: D301 - click keeps the lines below \b as they are
    import warnings

    from pyperf_suite.files import write_whole
    from pyperf_suite.render.findings_json import as_text
    from pyperf_suite.render.results import read_results
    from pyperf_suite.render.run_report import FILE, as_document, findings_of
    from pyperf_suite.runner.results import RunFolder

    [found] = read_results(_folder(run, results)).runs
    records = found.records()
    folder = RunFolder(found.path.parent, found.manifest)
    text = as_text(as_document(findings_of(records), records, folder))
    try:
        write_whole(folder.path / FILE, text)
    except OSError as error:
        warnings.warn(f"{FILE} could not be written: {error.strerror}.", stacklevel=2)
    click.echo(text, nl=False)


def _folder(run: str, results: Path) -> Path:
    """The folder of that run. Raises UserError that names the nearest."""
    if (Path(run) / "records.jsonl").is_file():
        return Path(run)
    runs = {path.parent.name: path.parent for path in results.glob("*/*/records.jsonl")}
    if run == "latest" and runs:
        return runs[max(runs)]
    if not runs:
        raise UserError(f"There is no run in {results}: measure one with `pyperf-suite run`, or name --results.")
    if run not in runs:
        raise UserError(f"There is no run {run[:80]!r} in {results}: {offer(run, ['latest', *sorted(runs)[-20:]])}")
    return runs[run]
