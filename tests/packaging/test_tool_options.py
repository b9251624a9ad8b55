"""Options of the tools' commands are the parameters of the functions that take them."""

from __future__ import annotations

import inspect

import click
import pytest

from tools import mutants, selfcheck, validate
from tools.fit import __main__ as fit

COMMANDS: list[click.Command] = [mutants.main, selfcheck.selfcheck, validate.main, fit.main]


@pytest.mark.parametrize("command", COMMANDS, ids=[command.callback.__module__ for command in COMMANDS])
def test_a_command_takes_its_options_by_their_names(command):
    assert [each.name for each in command.params] == [*inspect.signature(command.callback).parameters]
