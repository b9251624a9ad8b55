import dataclasses
import itertools
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from pyperf_suite.cli.main import MAP, main
from pyperf_suite.errors import nearest, offer
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes import find_probe, probe_names
from tests.commands import invoke

OWN_PROGRAMS = ("pyperf-suite", "pyperf_suite")

AXES = {
    axis.name for name in probe_names() for axis in dataclasses.fields(find_probe(name).axes("quick", Device("cpu")))
}


def examples(command: click.Command) -> list[str]:
    """The lines of a command's help below `Examples:`, those that were wrapped joined."""
    _, _, text = (command.help or "").partition("Examples:")
    lines: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("-"):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return lines


def own_calls(text: str) -> Iterator[list[str]]:
    """The arguments of every call of the suite in a line of shell."""
    plain = re.sub(r'"?\$\(([^()]*)\)"?', r" ; \1 ; ", text)
    for part in re.split(r"&&|\|| ; ", plain):
        words = shlex.split(re.sub(r" [<>]{1,2} ?\S+", "", part), comments=True)
        places = [position for position, word in enumerate(words) if word in OWN_PROGRAMS]
        if places:
            yield words[places[0] + 1 :]


def parse(arguments: list[str]) -> None:
    name, command, rest = main.resolve_command(click.Context(main), arguments)
    assert command is not None
    command.make_context(name, list(rest))


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_commands_help_has_two_examples_that_parse(name):
    lines = examples(main.commands[name])
    calls = [call for line in lines for call in own_calls(line)]
    assert len(lines) >= 2
    assert len(calls) >= 2
    assert name in [call[0] for call in calls if call]
    for call in calls:
        parse(call)
        for axis in [value for option, value in itertools.pairwise(call) if option == "-a"]:
            assert axis.partition("=")[0].rpartition(".")[2] in AXES


def test_nothing_asked_is_answered_with_a_map_that_fits_a_screen():
    result = invoke()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 120
    for words in ("design a model", "accept a cluster", "own kernels", "train on this machine"):
        assert words in result.output
    first_words = {call[0] for line in lines for call in own_calls(re.split(r"\s{3,}", line.strip())[0]) if call}
    there = "doctor run report size explain layout study collectives ab track"
    assert first_words >= set(there.split())


def test_every_command_on_the_map_parses_and_every_probe_on_it_is_there():
    calls = [call for line in MAP.splitlines() for call in own_calls(re.split(r"\s{3,}", line.strip())[0])]
    assert len(calls) >= 10
    for call in calls:
        if call[:1] == ["run"]:
            assert set(call[1:]) <= {*probe_names(), "bench_softmax.py"}
    for call in calls:
        if call and call[0] in main.list_commands(None):
            parse(call)


def test_nearest_names_are_few_and_everything_is_offered_where_none_is_near():
    assert nearest("TILE", ["tile", "time", "mile", "title", "k"])[0] == "tile"
    assert len(nearest("tile", ["tile1", "tile2", "tile3", "tile4"])) == 3
    assert offer("zzz", ["a", "b"]) == "choose from a, b."
