"""`pyperf-suite doctor`: is this machine fit for measuring?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyperf_suite.cli.options import append_markdown, json_option, markdown_option, results_option
from pyperf_suite.errors import ExitCode

if TYPE_CHECKING:
    from pyperf_suite.node.check import Check

SUMMARIES = {
    "ok": "Nothing stands in the way of measuring here.",
    "caution": "This machine can measure; the cautions say what makes its numbers vary.",
    "failed": "Correct what failed first: numbers from this machine would mislead, or could not be measured.",
}
SCHEMA = 2
# Checks that are ok and shown, unless all is requested.
MOST_OK = 8


@click.command()
@results_option("Folder of results, whose disk is checked. Example: --results /scratch/bench_results.")
@click.option("--all", "show_all", is_flag=True, help="Also show what is unknown or not applicable here. Default: off.")
@json_option("Print every check as JSON.")
@markdown_option
def doctor(results: Path, show_all: bool, as_json: bool, markdown: Path | None) -> None:
    """Report whether this machine is fit for measuring, and what you could do if it is not.

    Checked are the CPU, other load (for a second), memory, GPUs, compilers, libraries and disks. Nothing is changed:
    commands are printed for you to run. The exit code is 1 if a check failed, else 0.

    \b
    Examples:
      pyperf-suite doctor
      pyperf-suite doctor --json --results /scratch/bench_results
    """  # noqa: D301 - click keeps the lines below \b as they are
    import json

    from pyperf_suite.findings.data import findings
    from pyperf_suite.node import check
    from pyperf_suite.render.text import markdown_of

    checks = examine(results)
    bad = [each for each in checks if each.needs_attention]
    verdict = min((each.verdict for each in bad), key=check.WORST_FIRST.index, default=check.OK)
    if as_json:
        document = {"schema": SCHEMA, "verdict": verdict, "checks": [check.as_json(each) for each in checks]}
        click.echo(json.dumps(document, indent=2))
    else:
        _print(checks, verdict, show_all)
    commands = [f"    {each.command}" for each in bad if each.command]
    found = markdown_of(findings(check.sentences(bad), check.check_table("Checks", checks)))
    append_markdown(markdown, "\n".join(["## Doctor", "", SUMMARIES[verdict], "", *found, *commands]))
    raise SystemExit(ExitCode.VERDICT if verdict == check.FAILED else ExitCode.FINE)


def examine(results: Path) -> list[Check]:
    """Read and judge everything. The load is watched first, before any process of ours adds to it."""
    from pyperf_suite.hardware import cpu
    from pyperf_suite.hardware.kernel_files import KernelFiles
    from pyperf_suite.node.check import of_part
    from pyperf_suite.node.doctor import gpu, host, load, software
    from pyperf_suite.workloads.backends import cache_folder

    files = KernelFiles()
    of_load, swapped_bytes = load.load_checks()
    of_gpus, gpus, driver_cuda = gpu.gpu_checks(files)
    cores = cpu.detect().usable_cores
    of_software = software.software_checks(files, gpus, driver_cuda=driver_cuda)
    places = {"results": host.place_check(str(results)), "kernel cache": host.place_check(cache_folder(), True)}
    return [
        *host.cpu_checks(files),
        *of_part("CPU", {"peak": host.peak_check(host.read_peaks(cores))}),
        *of_load,
        *host.memory_checks(files, swapped_bytes),
        *of_gpus,
        *of_software,
        *of_part("Disk", places),
    ]


def _print(checks: Sequence[Check], verdict: str, show_all: bool) -> None:
    """Sentences on what is not ok, the commands for it, a table of the rest, and a count."""
    from pyperf_suite.findings.data import findings
    from pyperf_suite.node.check import CAUTION, FAILED, OK, UNKNOWN, check_table, sentences
    from pyperf_suite.render.terminal import console_for, escape, print_remarks_and_tables, print_table, say

    console = console_for()
    bad = [each for each in checks if each.needs_attention]
    rest = [each for each in checks if each.verdict == OK or (show_all and each.verdict == UNKNOWN)]
    print_remarks_and_tables(console, findings(sentences(bad)))
    print_table(console, check_table("What is ok", rest), most_rows=None if show_all else MOST_OK)
    commands = [each for each in bad if each.command]
    if commands:
        console.print("\n  [italic]Commands for it, which only you run[/italic]")
    for each in commands:  # not broken into lines, so that they can be copied
        console.print(f"  {escape(each.command)}   [dim]# {escape(each.what)}[/dim]", highlight=False, soft_wrap=True)
    counts = ", ".join(f"{sum(each.verdict == one for each in checks)} {one}" for one in (FAILED, CAUTION, OK))
    hidden = sum(each.verdict == UNKNOWN for each in checks) * (not show_all)
    more = f" {hidden} unknown or not applicable here: --all shows them." if hidden else ""
    console.print()
    say(console, "", f"{counts}. {SUMMARIES[verdict]}{more}")
