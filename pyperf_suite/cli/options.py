"""Options that several commands share, kinds of values, and how those that judge end (`@outcome_options`, `finish`)."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from pyperf_suite.errors import UserError

if TYPE_CHECKING:
    from pyperf_suite.regressions.pairs.ab import RuleFor
    from pyperf_suite.regressions.verdict import Judgement

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_RESULTS = "bench_results"
PROFILE_NAMES = ("quick", "standard", "full")


def options(*decorators: Callable[..., Any]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order in which help shows them."""

    def decorate(command: Command) -> Command:
        for option in reversed(decorators):
            command = option(command)
        return command

    return decorate


class Finite(click.FloatRange):
    """A number of the range that is neither nan, which no comparison keeps out, nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Share(click.ParamType):
    """A share between 0 and 1, written as `1%` or `0.01`."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from pyperf_suite.regressions.thresholds import parse_share

        try:
            return parse_share(value)
        except ValueError as reason:
            self.fail(f"{reason}.", param, ctx)


def path_option(*names: str, metavar: str = "FILE", **more: Any) -> Callable[[Command], Command]:
    """A file or a folder."""
    return click.option(*names, type=click.Path(path_type=Path), metavar=metavar, **more)


def output_option(*names: str, **more: Any) -> Callable[[Command], Command]:
    """A file to write at the end: one that cannot be is refused before anything is measured, by UserError."""

    def writable(_: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        try:
            if path is None or (not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)):
                return path
            why = "is a folder" if path.is_dir() else "is in no folder that takes files"
        except OSError as error:  # as for a name that is too long, or in a folder that may not be read
            why = f"cannot be written ({error.strerror})"
        raise UserError(f"{option.opts[0]} {path} {why}: name a file that can be written.")

    return path_option(*names, callback=writable, **more)


def _shared(*names: str, text: str = "", **settings: Any) -> Callable[..., Callable[[Command], Command]]:
    """Makes an option whose help and default a command may replace."""

    def option(text: str = text, default: Any = None) -> Callable[[Command], Command]:
        return click.option(*names, help=text or None, **settings | ({} if default is None else {"default": default}))

    return option


results_option = _shared(
    "--results",
    text="Folder that holds the runs. Example: --results /data/bench_results.",
    default=DEFAULT_RESULTS,
    show_default=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
)
device_option = _shared(
    "--device",
    text="Device to measure on: auto (first supported GPU, else the CPU), cpu, or cuda:N. Example: --device cuda:1.",
    default="auto",
    show_default=True,
    metavar="DEVICE",
)
profile_option = _shared("--profile", default="quick", show_default=True, metavar="NAME")
seed_option = _shared("--seed", default=0, show_default=True)
json_option = _shared(
    "--json", "as_json", text="Print the result as JSON instead of tables, as in --json > result.json.", is_flag=True
)

# None if it was not given; `Thresholds.margin_of` knows what then holds for a benchmark.
margin_option = click.option(
    "--margin",
    type=Share(),
    metavar="SHARE",
    help="Slowdown that is tolerated. Default: the margin in pyproject.toml, else 1%. "
    "Example: --margin 2% or --margin 0.02.",
)
select_option = click.option(
    "-k",
    "pattern",
    metavar="TEXT",
    help="Compare only benchmarks whose probe and label contain TEXT; * matches anything. Default: all. "
    "Example: -k 'native*m=384'.",
)
all_option = click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Print every finding, and all rows and columns of every table. Default: one screen, as wide as the terminal.",
)
machine_option = click.option(
    "--machine",
    metavar="NAME",
    help="Use the runs of this machine only, named as its folder in the results. Default: all machines. "
    "Example: --machine cpu-intel-xeon-processor-2c.",
)
axes_option = click.option(
    "-a",
    "--axis",
    "axes",
    multiple=True,
    metavar="[PROBE.]AXIS=VALUE[,VALUE]",
    help="Replace the values of one axis of the sweep. May be repeated. Default: the values of the profile. "
    "Example: -a tile=64x64x256 -a workers=1,2.",
)


audit_option = click.option(
    "--audit/--no-audit",
    default=None,
    help="Check kernels of FILE.py as code that may be written to deceive, which takes longer. Default: `audit` in "
    "[tool.pyperf_suite] of pyproject.toml, else no.",
)

run_options = options(
    device_option(),
    results_option(),
    click.option(
        "--resume",
        is_flag=False,
        flag_value="latest",
        metavar="[RUN]",
        help="Continue the newest run of the same cases, or RUN, without measuring again what it holds. "
        "Default: start a new run. Example: --resume 20261121T021948Z-22a8.",
    ),
    click.option(
        "--deadline",
        "deadline_s",
        default=120.0,
        show_default=True,
        type=Finite(0, min_open=True),
        metavar="SECONDS",
        help="Time limit for one case, and for each step that several ranks take together; a reference that goes on is "
        "waited for. A case that exceeds it counts as failed. Example: --deadline 600.",
    ),
    json_option(),
    all_option,
)
"""Options for the place of measuring and of results, and for printing."""

measuring_options = options(
    profile_option(f"How thoroughly to measure: {', '.join(PROFILE_NAMES)}. Example: --profile standard."),
    axes_option,
    seed_option("Seed of the random order in which cases are measured. Example: --seed 7."),
    click.option(
        "--budget",
        "budget_s",
        type=Finite(0, min_open=True),
        metavar="SECONDS",
        help="Time limit for the whole run; the most informative cases are measured first. Default: no limit. "
        "Example: --budget 300.",
    ),
    run_options,
)
"""The options of every command that measures cases of probes in a profile."""


@dataclass(frozen=True)
class OutcomeOptions:
    """How a command reports its findings."""

    as_json: bool = False
    markdown: Path | None = None
    junit: Path | None = None
    fail_on: str = "undecided"
    everything: bool = False


markdown_option = output_option(
    "--markdown", help="Append a Markdown summary to FILE. Default: none. Example: --markdown $GITHUB_STEP_SUMMARY."
)


def outcome_options(command: Command) -> Any:
    """`--json --markdown FILE --junit FILE --fail-on --all`, handed to the command as one argument `outcome`."""
    from pyperf_suite.regressions.thresholds import DEFAULT_FAIL_ON, FAIL_ON

    @functools.wraps(command)
    def with_outcome(*arguments: Any, **values: Any) -> Any:
        outcome = OutcomeOptions(**{each.name: values.pop(each.name) for each in fields(OutcomeOptions)})
        return command(*arguments, outcome=outcome, **values)

    wrapped: Any = with_outcome
    return options(
        json_option("Print the findings as JSON instead of a table, as in --json > findings.json."),
        markdown_option,
        output_option(
            "--junit", help="Write the findings to FILE as JUnit XML. Default: none. Example: --junit ab.xml."
        ),
        click.option(
            "--fail-on",
            type=click.Choice(FAIL_ON),
            default=DEFAULT_FAIL_ON,
            show_default=True,
            help="Least severe finding that makes the exit code other than 0, each with all before it: 1 for slower "
            "and probably-slower (undecided, with the whole interval beyond the margin), 3 for failed and undecided. "
            "Example: --fail-on slower.",
        ),
        all_option,
    )(wrapped)


def finish(
    findings: Sequence[Judgement],
    requested: OutcomeOptions,
    heading: str,
    notes: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
    unchanged: int = 0,
) -> NoReturn:
    """Print the findings, write the requested files, and exit with the code that the findings make.

    `extra` stands next to the findings in JSON; `unchanged` is as for `exit_code`. Raises UserError where a file cannot
    be written, after all is printed; SystemExit otherwise.
    """
    from pyperf_suite.regressions.verdict import exit_code

    fail_on = requested.fail_on
    code = exit_code(findings, fail_on, unchanged)
    if requested.as_json:
        from pyperf_suite.render.comparisons import comparisons_as_json

        click.echo(comparisons_as_json(heading, findings, notes, code, extra))
    else:
        from pyperf_suite.render.comparisons import MOST_SHOWN, print_comparisons
        from pyperf_suite.render.terminal import console_for

        most = None if requested.everything else MOST_SHOWN
        print_comparisons(console_for(requested.everything), heading, findings, notes, code, fail_on, most)
    if requested.markdown is not None:
        from pyperf_suite.render.comparisons import summary

        append_markdown(requested.markdown, summary(heading, findings, notes))
    if requested.junit is not None:
        from pyperf_suite.files import write_for_user
        from pyperf_suite.render.comparisons import junit_xml

        write_for_user(requested.junit, junit_xml(heading, findings, fail_on))
    raise SystemExit(code)


def rules_of(margin: float | None, **limits: Any) -> RuleFor:
    """The rule by which pairs of a benchmark are judged, with the margin that holds for it."""
    from pyperf_suite.regressions.thresholds import load_thresholds
    from pyperf_suite.regressions.verdict import SequentialRule

    thresholds = load_thresholds()
    return lambda case: SequentialRule(margin=thresholds.margin_of(case.probe, case.label, margin), **limits)


def append_markdown(path: Path | None, content: str) -> None:
    """Append to a file, if one is named: the steps of a job share one summary. Raises UserError if that fails."""
    if path is None:
        return
    try:
        with path.open("ab") as file:
            file.write(content.encode() + b"\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); the findings above are whole.") from None
