import io
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from pyperf_suite.cli import main as cli
from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Findings, Heading, Table, remark
from pyperf_suite.findings.summary import failures_of
from pyperf_suite.render.terminal import print_findings, print_summary
from pyperf_suite.render.text import markdown_page
from tests.records import SMALL, a_record

# Clears a terminal, names its window, ends a tag that was never begun, begins one, turns the writing round.
HOSTILE = "\x1b[2J\x1b]0;owned\x07[/bold][red]x[/red]\u202eabc\x9b31m<script>alert(1)</script>"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture
def hostile_record():
    return a_record(SMALL, outcome="failed", reason=HOSTILE)


def test_the_report_of_a_run_shows_it_and_does_not_obey(hostile_record):
    table = Table(HOSTILE, (Heading(HOSTILE), Heading("b")), ((HOSTILE, 1),))
    findings = {HOSTILE: Findings((remark("{said}", said=HOSTILE),), (table,))}
    text = io.StringIO()
    console = Console(file=text, width=200)
    print_summary(console, failures_of([hostile_record]))
    print_findings(console, findings, [hostile_record])
    assert text.getvalue().count("[/bold][red]x[/red]") == 6
    as_markdown = markdown_page("title", findings, [hostile_record], [])
    assert "<script" not in as_markdown.replace("\\<script", "")
    assert not OBEYED.search(text.getvalue() + as_markdown)


def test_the_progress_of_a_run_survives_a_reason_with_markup_in_it(hostile_record, tmp_path, monkeypatch):
    from pyperf_suite import run
    from pyperf_suite.runner.session import Session

    monkeypatch.setattr(run, "BAR_EVERY_S", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then draws its progress as in a terminal
    monkeypatch.setattr(Session, "open", lambda self: self)
    monkeypatch.setattr(Session, "visit_first", lambda *_: 0)
    monkeypatch.setattr(Session, "measure_trial", lambda self, planned, process: hostile_record)
    monkeypatch.setattr(Session, "finish", lambda self: None)
    answer = CliRunner().invoke(cli.main, ["run", "tile_wave", "--device", "cpu", "--results", str(tmp_path)])
    assert answer.exception is None or isinstance(answer.exception, SystemExit)
    assert "failed: \ufffd[2J\ufffd]0;owned\ufffd[/bold]" in answer.stderr


def test_a_warning_shows_it_and_does_not_obey(capsys):
    cli._speak_warning(HOSTILE)
    assert not OBEYED.search(capsys.readouterr().err)


def test_an_error_shows_it_and_does_not_obey():
    @click.command()
    def wrong():
        raise UserError(HOSTILE)

    answer = CliRunner().invoke(cli.CommandLine("group", commands={"wrong": wrong}), ["wrong"])
    assert answer.exit_code == 2
    assert "owned" in answer.stderr
    assert not OBEYED.search(answer.stderr)


def test_no_source_starts_a_shell_by_its_name():
    """Other ways to hand a text to a shell, or to run one as a program, are ruff's to see: S102, S307, S602 to S605."""
    root = Path(__file__).parents[2]
    folders = (root / name for name in ("pyperf_suite", "kernels", "tools", ".ci"))
    sources = [*root.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    assert len(sources) > 50
    shell = re.compile(r"""["'](/bin/)?(ba)?sh["'],|create_subprocess_shell""")
    assert not [path for path in sources if shell.search(path.read_text())]
