"""How every command that judges benchmarks ends: the same options, the same table, the same files, the same exit codes.

A command takes `@outcome_options`, gets `outcome: OutcomeOptions`, and calls `finish` as the last thing it does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from pyperf_suite.cli.options import json_option, options, path_option, wide_option
from pyperf_suite.errors import UserError
from pyperf_suite.regressions.thresholds import DEFAULT_FAIL_ON, FAIL_ON

if TYPE_CHECKING:
    from pyperf_suite.regressions.pairs.ab import RuleFor
    from pyperf_suite.regressions.verdict import Judgement

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class OutcomeOptions:
    """How a command is to tell its findings. `fail_on` None leaves it to pyproject.toml."""

    as_json: bool = False
    markdown: Path | None = None
    junit: Path | None = None
    fail_on: str | None = None
    wide: bool = False


def outcome_options(command: Command) -> Any:
    """`--json --markdown FILE --junit FILE --fail-on --wide`, handed to the command as one argument `outcome`."""

    @functools.wraps(command)
    def with_outcome(
        *arguments: Any,
        as_json: bool,
        markdown: Path | None,
        junit: Path | None,
        fail_on: str | None,
        wide: bool,
        **others: Any,
    ) -> Any:
        return command(*arguments, outcome=OutcomeOptions(as_json, markdown, junit, fail_on, wide), **others)

    wrapped: Any = with_outcome
    return options(
        json_option("Print the findings as JSON instead of a table, as in --json > findings.json."),
        path_option(
            "--markdown",
            help="Append a Markdown summary to FILE. Default: none. Example: --markdown $GITHUB_STEP_SUMMARY.",
        ),
        path_option("--junit", help="Write the findings to FILE as JUnit XML. Default: none. Example: --junit ab.xml."),
        click.option(
            "--fail-on",
            type=click.Choice(FAIL_ON),
            help="Least severe finding that makes the exit code other than 0, each with all before it: 1 for slower, 3 "
            "for failed and undecided; nominated counts an unconfirmed slower change as slower. "
            f"Default: pyproject.toml, else {DEFAULT_FAIL_ON}. Example: --fail-on slower.",
        ),
        wide_option,
    )(wrapped)


def finish(
    findings: Sequence[Judgement],
    requested: OutcomeOptions,
    heading: str,
    notes: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> NoReturn:
    """Print the findings, write the requested files, and exit with the code that the findings make.

    `extra` stands next to the findings in JSON. Raises UserError where a file cannot be written, after all is printed,
    and where pyproject.toml does not say thresholds; SystemExit otherwise.
    """
    from pyperf_suite.regressions.thresholds import load_thresholds
    from pyperf_suite.regressions.verdict import exit_code

    fail_on = requested.fail_on or load_thresholds().fail_on or DEFAULT_FAIL_ON
    code = exit_code(findings, fail_on)
    if requested.as_json:
        from pyperf_suite.render.comparisons import comparisons_as_json

        click.echo(comparisons_as_json(heading, findings, notes, code, extra))
    else:
        from pyperf_suite.render.comparisons import print_comparisons
        from pyperf_suite.render.terminal import console_for

        print_comparisons(console_for(requested.wide), heading, findings, notes, code, fail_on)
    _write_files(findings, requested, heading, notes, fail_on)
    raise SystemExit(code)


def rules_of(margin: float | None, **limits: Any) -> RuleFor:
    """The rule by which pairs of a benchmark are judged, with the margin that holds for it."""
    from pyperf_suite.regressions.thresholds import load_thresholds
    from pyperf_suite.regressions.verdict import SequentialRule

    thresholds = load_thresholds()
    return lambda case: SequentialRule(margin=thresholds.margin_of(case.probe, case.label, margin), **limits)


def _write_files(
    findings: Sequence[Judgement], requested: OutcomeOptions, heading: str, notes: Sequence[str], fail_on: str
) -> None:
    from pyperf_suite.files import write_for_user
    from pyperf_suite.render.comparisons import junit_xml, summary

    if requested.markdown is not None:
        # Appended: the steps of a job share one summary, and each adds its own.
        _append(requested.markdown, summary(heading, findings, notes).encode() + b"\n")
    if requested.junit is not None:
        write_for_user(requested.junit, junit_xml(heading, findings, fail_on))


def _append(path: Path, content: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); the findings above are whole.") from None
