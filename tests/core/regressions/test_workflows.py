import re
import shlex
from pathlib import Path

import click
import pytest

from pyperf_suite.cli.main import main

WORKFLOWS = sorted((Path(__file__).parents[3] / "examples" / "workflows").glob("*.yml"))


def commands_of(workflow: Path) -> list[list[str]]:
    """Return a workflow's commands of the suite, each as a list of words; a line that ends in a backslash goes on."""
    text = workflow.read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [shlex.split(line)[1:] for line in lines if line.startswith("pyperf-suite ")]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_command_of_a_workflow_exists_and_takes_its_options(workflow):
    commands = commands_of(workflow)
    assert commands
    for name, *arguments in commands:
        command = main.get_command(click.Context(main), name)
        command.make_context(name, list(arguments)).close()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_and_ends_by_itself(workflow):
    text = workflow.read_text()
    assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE)
    assert re.search(r"^    timeout-minutes: \d+$", text, re.MULTILINE)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_nothing_that_a_stranger_writes_reaches_a_shell(workflow):
    assert "${{" not in workflow.read_text()
