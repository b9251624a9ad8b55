"""What an installer and other programs read about the package."""

from __future__ import annotations

import importlib.metadata

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import pyperf_suite

DISTRIBUTION = importlib.metadata.distribution("pyperf_suite")
REQUIREMENTS = [Requirement(line) for line in DISTRIBUTION.requires or []]
ALWAYS = {requirement.name for requirement in REQUIREMENTS if "extra" not in str(requirement.marker)}


def test_the_version_is_the_packages_own():
    assert DISTRIBUTION.version == pyperf_suite.__version__


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("console_scripts", "pyperf-suite", "pyperf_suite.__main__:main"),
        ("pytest11", "pyperf_suite", "pyperf_suite.pytest_plugin.plugin"),
    ],
)
def test_both_front_ends_are_entry_points_that_load(group, name, value):
    [entry_point] = [point for point in DISTRIBUTION.entry_points if (point.group, point.name) == (group, name)]
    assert entry_point.value == value
    assert entry_point.load()


def test_torch_and_triton_are_asked_for_by_an_extra_alone_so_that_an_installed_one_is_kept():
    assert not {"torch", "triton"} & ALWAYS
    assert {requirement.name for requirement in REQUIREMENTS} >= {"torch", "triton"}


def test_supported_pythons_begin_with_3_10():
    supported = SpecifierSet(DISTRIBUTION.metadata["Requires-Python"])
    assert [version in supported for version in ("3.9", "3.10", "3.13")] == [False, True, True]
