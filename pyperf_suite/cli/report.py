"""`pyperf-suite report`: a results folder as one HTML page that can be opened from disk and sent round."""

from __future__ import annotations

from pathlib import Path

import click

from pyperf_suite.cli.options import machine_option, path_option

DEFAULT_NAME = "report.html"


@click.command()
@click.argument("results", default="bench_results", type=click.Path(path_type=Path), metavar="[RESULTS]")
@path_option(
    "--results",
    "named",
    metavar="FOLDER",
    help="Folder to read, instead of the argument RESULTS. Example: --results /data/bench_results.",
)
@path_option("-o", "--output", help=f"HTML file to write. Default: RESULTS/{DEFAULT_NAME}. Example: -o h100.html.")
@click.option(
    "--runs",
    default="strongest",
    show_default=True,
    metavar="strongest|latest|all|ID,...",
    help="Runs to show of each probe: the run of the most thorough profile (strongest), the newest (latest), all, "
    "or those named. Example: --runs latest.",
)
@machine_option
def report(results: Path, named: Path | None, output: Path | None, runs: str, machine: str | None) -> None:
    """Write everything that RESULTS hold as one HTML page: a results folder, one machine's, or a single run's.

    The page needs no network and no other file. Of each job that `watch` watched it has the newest record.

    \b
    Examples:
      pyperf-suite report
      pyperf-suite report bench_results/cuda-nvidia-h100-132sm-80gib --runs all -o h100.html
    """  # noqa: D301 - click keeps the lines below \b as they are
    from pyperf_suite.files import write_for_user, write_in_results
    from pyperf_suite.render.page import draw_page
    from pyperf_suite.render.results import choose, choose_others, read_results

    results = named or results
    read = read_results(results, machine)
    words = [word.strip() for word in runs.split(",") if word.strip()]
    page = draw_page(read, choose(read, words), choose_others(read, words))
    path = results / DEFAULT_NAME if output is None else output
    (write_in_results if output is None else write_for_user)(path, page)
    click.echo(f"{path}  {len(page.encode()) / 1e6:.1f} MB: open it in a browser")
