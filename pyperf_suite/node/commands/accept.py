"""`pyperf-suite accept`: is every part of this node as fast as its kind should be, and which node of many is slow?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyperf_suite.cli.options import Finite, append_markdown, markdown_option, path_option, run_options
from pyperf_suite.errors import ExitCode, UserError

if TYPE_CHECKING:
    from pyperf_suite.cli.parts import Parts
    from pyperf_suite.hardware.devices import Device
    from pyperf_suite.probes import FindProbe
    from pyperf_suite.run import Run, RunRequest

# Every device is measured so often; of more devices each once, for the time.
ROUNDS, MANY = 5, 2
MOST_S = {"cpu": 60.0, "cuda": 180.0}


@click.command()
@click.option(
    "--baseline",
    "earlier",
    metavar="RUN",
    help="Compare with this earlier run of the machine, a folder, a name or latest. Default: with the laws, or a CPU's "
    "peak. Example: --baseline latest.",
)
@path_option(
    "--fleet",
    metavar="FOLDER",
    help="Measure nothing, and name the slow nodes among the results in FOLDER. Default: measure this node. Example: "
    "--fleet /shared/acceptance.",
)
@click.option(
    "--budget",
    "budget_s",
    type=Finite(0, min_open=True),
    metavar="SECONDS",
    help="Time to measure for. Default: 60 on a CPU, 180 on GPUs. A node that is not measured whole in this "
    "time is not accepted. Example: --budget 300.",
)
@markdown_option
@run_options
@click.pass_obj
def accept(
    parts: Parts,
    earlier: str | None,
    fleet: Path | None,
    budget_s: float | None,
    markdown: Path | None,
    device: str,
    results: Path,
    resume: str | None,
    deadline_s: float,
    as_json: bool,
    everything: bool,
) -> None:
    """Measure every part of this node, and report for each whether it is as fast as it should be.

    Measured are products in a burst and under sustained load, copies, PCIe, all_reduce, each pair of GPUs, clocks,
    throttling, memory errors and links. A GPU is compared with the laws and published tables, a CPU with its peak. All
    GPUs are measured, or the one of --device cuda:N. The exit code is 0 if all is ok, 1 if a check is a caution, failed
    or was left out, 2 for bad input, 3 if a part could not be measured.

    \b
    Examples:
      pyperf-suite accept
      pyperf-suite accept --baseline latest --json
      pyperf-suite accept --fleet /shared/acceptance        # a folder a node, each with its results
    """  # noqa: D301 - click keeps the lines below \b as they are
    from dataclasses import replace
    from functools import partial

    from pyperf_suite.findings.rows import rows_of
    from pyperf_suite.hardware.devices import gpus, resolve
    from pyperf_suite.hardware.machine import identity
    from pyperf_suite.node.check import as_json as check_as_json
    from pyperf_suite.node.fleet import baseline
    from pyperf_suite.node.probes.accept import PROBE, analyse, checks_of
    from pyperf_suite.probes import find_probe
    from pyperf_suite.render.terminal import console_for
    from pyperf_suite.run import RunRequest
    from pyperf_suite.runner.plan import PlannedCase
    from pyperf_suite.runner.profiles import QUICK

    if fleet is not None:
        if earlier is not None or resume is not None:
            raise UserError("--fleet measures nothing: leave --baseline and --resume out.")
        _compare(fleet, as_json, everything, markdown)
    where = resolve(device)
    every = where.kind == "cuda" and ":" not in device
    devices = [replace(where, index=gpu.index) for gpu in gpus()] if every else [where]
    known = identity(where)
    before = {} if earlier is None else baseline(earlier, results, known.slug)
    laws = parts.expected_times
    judged = replace(PROBE, analyse=partial(analyse, laws=laws, before=before))
    profile = replace(QUICK, name="accept", processes=len(devices) * (1 if len(devices) > MANY else ROUNDS))
    request = RunRequest(
        profile=profile,
        device=device,
        budget_s=budget_s or MOST_S[where.kind],
        results=results,
        resume=resume,
        deadline_s=deadline_s,
        cases=tuple(PlannedCase(PROBE.name, case) for case in PROBE.cases("", where)),
    )
    run = _measured(request, devices, lambda name: judged if name == PROBE.name else find_probe(name))
    records = run.session.folder.records()
    checks = checks_of(rows_of([each for each in records if each.probe == PROBE.name]), laws, before)
    # Trials that the budget left out of the first round are named; the others only make it surer.
    lacking = any(process < len(devices) for _, process in run.session.left_out)
    bad = lacking or any(each.needs_attention for each in checks)
    code = run.exit_code or (ExitCode.VERDICT if bad else ExitCode.FINE)
    if as_json:
        click.echo(run.as_json(checks=[check_as_json(each) for each in checks], exit_code=code), nl=False)
    else:
        run.report(console_for(everything), everything)
    if markdown is not None:
        append_markdown(markdown, run.as_markdown())
    raise SystemExit(code)


def _measured(request: RunRequest, devices: Sequence[Device], find: FindProbe) -> Run:
    """Every case on every device in each round; once a round what ranks do together, and once what is read."""
    from pyperf_suite.run import open_run
    from pyperf_suite.runner.plan import ranks_of
    from pyperf_suite.runner.workers import EachDevice

    run = open_run(request, [EachDevice(devices, request.deadline_s)], find=find)
    assert run is not None, "it has no ranks of a launcher"
    trials = [each for each in run.session.trials() if each[1] % len(devices) == 0 or not ranks_of(each[0])]
    run.measure("accept", trials)
    return run


def _compare(folder: Path, as_json: bool, everything: bool, markdown: Path | None) -> None:
    """Judge a fleet and end with its exit code."""
    from pyperf_suite.node.fleet import fleet_findings, read_fleet
    from pyperf_suite.render.terminal import console_for, print_remarks_and_tables
    from pyperf_suite.render.text import answer, markdown_of

    nodes = read_fleet(folder)
    findings, is_bad = fleet_findings(nodes)
    code = ExitCode.VERDICT if is_bad else ExitCode.FINE
    if as_json:
        details = {"nodes": [node.name for node in nodes], "exit_code": code}
        click.echo(answer({"accept": findings}, details), nl=False)
    else:
        print_remarks_and_tables(console_for(everything), findings)
    append_markdown(markdown, "\n".join(["## Acceptance of a fleet", "", *markdown_of(findings)]))
    raise SystemExit(code)
