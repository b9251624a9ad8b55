"""Probes are found by being there; one of another package that cannot be imported is named and passed over."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from pyperf_suite import extensions
from pyperf_suite import probes as discovery
from pyperf_suite.cli.main import main
from pyperf_suite.errors import UserError
from pyperf_suite.findings.probe import Probe
from pyperf_suite.hardware.devices import Device
from pyperf_suite.probes import all_probes, find_probe, probe_names
from pyperf_suite.workloads import find_workload

GOOD = """
from pyperf_suite.probes.optimizer import PROBE as OTHER
from dataclasses import replace
PROBE = replace(OTHER, name="a_plugin", topic="a topic of its own")
"""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forget found probes, which are kept for a process."""
    for cached in (extensions.extensions, probe_names, discovery._load):
        cached.cache_clear()
    yield
    for cached in (extensions.extensions, probe_names, discovery._load):
        cached.cache_clear()


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have another package bring probes, each a name and the source of its module."""

    def bring(**sources: str) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        for name, source in sources.items():
            (tmp_path / f"plugin_{name}.py").write_text(source)
            monkeypatch.delitem(sys.modules, f"plugin_{name}", raising=False)
        importlib.invalidate_caches()
        found = {discovery.PACKAGE: [EntryPoint(name, f"plugin_{name}:PROBE", discovery.PACKAGE) for name in sources]}
        monkeypatch.setattr(extensions.metadata, "entry_points", lambda group: found.get(group, []))

    return bring


def test_a_probe_of_another_package_is_one_of_them(bring: Callable[..., None]) -> None:
    bring(a_plugin=GOOD)
    assert isinstance(find_probe("a_plugin"), Probe)
    assert find_probe("a_plugin").cases("quick", Device("cpu"))
    # A topic that is none of ours comes after them.
    assert all_probes()[-1].name == "a_plugin"


BROKEN = {
    "raises": ("raise RuntimeError('no such card')", "no such card"),
    "exits": ("import sys; sys.exit(3)", "SystemExit"),
    "lacks_a_module": ("import a_module_that_nobody_has", "a_module_that_nobody_has"),
    "has_no_probe": ("", "PROBE"),
    "is_no_probe": ("PROBE = 7", "is no Probe of that name: 7"),
    "is_another": (GOOD, "is no Probe of that name"),
    "is_no_python": ("def", "SyntaxError"),
}


@pytest.mark.parametrize(("source", "why"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_named_and_passed_over_and_only_who_asks_for_it_is_refused(
    bring: Callable[..., None], source: str, why: str
) -> None:
    bring(broken=source)
    with pytest.warns(UserWarning, match="The probe broken") as sentence:
        found = all_probes()
    assert len(sentence) == 1
    assert why in str(sentence[0].message)
    assert "\n" not in str(sentence[0].message)
    assert {probe.name for probe in found} == set(probe_names()) - {"broken"}
    with pytest.raises(UserError, match="The probe broken") as refused:
        find_probe("broken")
    assert why in str(refused.value)
    assert find_probe("optimizer").name == "optimizer"


def test_a_probe_of_another_package_brings_the_workload_of_its_cases(bring: Callable[..., None]) -> None:
    workload = "from types import SimpleNamespace\nPROBE = replace(PROBE, workload=SimpleNamespace(name='brought'))\n"
    bring(broken="raise RuntimeError('no such card')", a_plugin=GOOD + workload)
    assert find_workload("brought") is find_probe("a_plugin").workload
    with pytest.raises(UserError, match="Unknown operator 'divination'"):
        find_workload("divination")
    find_workload.cache_clear()


def test_a_broken_command_of_another_package_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no_such_module:command", "pyperf_suite.commands")
    known = [*extensions.metadata.entry_points(group="pyperf_suite.commands"), broken]
    monkeypatch.setattr(extensions.metadata, "entry_points", lambda group: known if group == broken.group else [])
    with pytest.warns(UserWarning, match=r"The command broken of no_such_module:command cannot be imported"):
        help_text = main.get_help(click.Context(main))
    assert "compare" in help_text
    assert "broken" not in help_text
