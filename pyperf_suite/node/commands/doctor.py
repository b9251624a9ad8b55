"""`pyperf-suite doctor`: is this machine fit for measuring?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyperf_suite.cli.options import json_option, results_option
from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.node.doctor.check import CheckGroup

COLOURS = {"ok": "green", "warning": "yellow", "problem": "red", "not applicable": "dim"}
SUMMARIES = {
    "ok": "Nothing stands in the way of measuring here.",
    "warning": "Figures can be had here; the warnings say what moves them.",
    "problem": "See to the problems first: figures from this machine would mislead or not come about.",
}


@click.command()
@results_option("Where results would be kept.")
@click.option("--expect", metavar="gpus=N", help="It is a problem where another number of GPUs is there.")
@click.option("--all", "show_all", is_flag=True, help="Also what does not apply to this machine.")
@json_option("Print every check as JSON.")
def doctor(results: Path, expect: str | None, show_all: bool, as_json: bool) -> None:
    """Say whether this machine is fit for measuring, and what you could do about what is not.

    Looks at the CPU, who else uses the machine (for a second), memory, GPUs, compilers, libraries and disks. Nothing is
    changed: what there is to be done is printed, for you to run. Exit code 1 where there is a problem, else 0.

    \b
    Examples:
      pyperf-suite doctor
      pyperf-suite doctor --expect gpus=8 --json --results /scratch/bench_results
    """  # noqa: D301 - click keeps the lines below \b as they are
    import json

    from pyperf_suite.node.doctor import check

    groups = examine(results, gpus_expected=None if expect is None else _gpus(expect))
    if as_json:
        click.echo(json.dumps(check.as_json(groups), indent=2))
    else:
        _print(groups, show_all)
    raise SystemExit(check.exit_code(groups))


def examine(results: Path, gpus_expected: int | None = None) -> tuple[CheckGroup, ...]:
    """Read and judge everything. The load is watched first, before any process of ours adds to it."""
    from pyperf_suite.hardware import cpu
    from pyperf_suite.hardware.kernel_files import KernelFiles
    from pyperf_suite.node.doctor import gpu, host, load, software
    from pyperf_suite.node.doctor.check import CheckGroup

    files = KernelFiles()
    watched = load.read_load(files)
    swapped_pages = watched.activity.swapped_pages if watched.activity else 0
    gpus = gpu.read_gpus(files)
    cores = cpu.detect().usable_cores
    found = software.read_software(files, len(gpus.gpus), driver_cuda=gpus.cuda)
    return (
        CheckGroup("CPU", [*host.cpu_checks(host.read_cpu(files)), host.peak_check(host.read_peaks(cores))]),
        CheckGroup("Load", load.load_checks(watched)),
        CheckGroup("Memory", host.memory_checks(host.read_memory(files, swapped_pages))),
        CheckGroup("GPU", gpu.gpu_checks(gpus, gpus_expected)),
        CheckGroup("Software", software.software_checks(found)),
        CheckGroup("Disk", host.place_checks(host.read_places(results))),
    )


def _gpus(expect: str) -> int:
    name, _, number = expect.partition("=")
    if name.strip() != "gpus" or not number.strip().isdigit():
        raise UserError(f"--expect {expect[:40]} is not known: write gpus=N, as in gpus=8.")
    return int(number)


def _print(groups: Sequence[CheckGroup], show_all: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    from pyperf_suite.node.doctor.check import worst

    console = Console(emoji=False)

    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    left_out = 0
    for group in groups:
        shown = [check for check in group.checks if show_all or check.verdict != "not applicable"]
        left_out += len(group.checks) - len(shown)
        if shown:
            line(f"\n[bold]{escape(group.name)}[/bold]")
        for check in shown:
            colour = COLOURS[check.verdict]
            line(f"  [{colour}]{_short(check.verdict):8}[/{colour}] {escape(check.name)}: {_safe(check.found)}")
            if check.advice:
                line(f"           {_safe(check.advice)}")
            if check.command:
                line(f"             {_safe(check.command)}")
    verdict = worst(groups)
    counts = _counts(groups)
    hidden = f" {left_out} checks do not apply here (--all shows them)." if left_out else ""
    line(f"\n[{COLOURS[verdict]}]{counts}[/{COLOURS[verdict]}]. {SUMMARIES[verdict]}{hidden}")


def _short(verdict: str) -> str:
    return "n/a" if verdict == "not applicable" else verdict


def _safe(text: str) -> Any:
    from rich.markup import escape

    from pyperf_suite.errors import printable

    return escape(printable(text))


def _counts(groups: Sequence[CheckGroup]) -> str:
    verdicts = [check.verdict for group in groups for check in group.checks]
    counts = []
    for verdict in ("problem", "warning", "ok"):
        number = verdicts.count(verdict)
        counts.append(f"{number} {verdict if verdict == 'ok' or number == 1 else verdict + 's'}")
    return ", ".join(counts)
