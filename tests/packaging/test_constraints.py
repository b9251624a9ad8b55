"""Metadata that an installer reads, and the pins that `make` installs by: exact, in the promised ranges."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import Environment, default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import pyperf_suite

DISTRIBUTION = importlib.metadata.distribution("pyperf_suite")
REQUIREMENTS = [Requirement(line) for line in DISTRIBUTION.requires or []]
ALWAYS = {requirement.name for requirement in REQUIREMENTS if "extra" not in str(requirement.marker)}
BUILD_REQUIREMENTS = [Requirement("setuptools>=70.1"), Requirement("pybind11>=2.13")]


@pytest.fixture(scope="module")
def pins(checkout: Path) -> list[Requirement]:
    """The lines of constraints.txt; one that is no requirement (a URL, an option) fails here."""
    lines = (checkout / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def environment(python: str) -> Environment:
    """The environment that markers see on Linux under that Python."""
    return {**default_environment(), "python_version": python, "platform_system": "Linux", "extra": ""}


def valid_for(pins: list[Requirement], python: str) -> Iterator[Requirement]:
    """The pins that hold under that Python."""
    seen = environment(python)
    return (pin for pin in pins if pin.marker is None or pin.marker.evaluate(seen))


def test_every_pin_is_one_exact_version(pins):
    for pin in pins:
        assert [specifier.operator for specifier in pin.specifier] == ["=="], str(pin)
        assert "*" not in str(pin.specifier)
        assert pin.url is None


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_nothing_is_pinned_twice(pins, python):
    names = [canonicalize_name(pin.name) for pin in valid_for(pins, python)]
    assert len(names) == len(set(names))


def is_required(requirement: Requirement, python: str) -> bool:
    """True if it is installed under that Python, by itself or with one of the extras."""
    extras = ("", *(DISTRIBUTION.metadata.get_all("Provides-Extra") or ()))
    marker, seen = requirement.marker, environment(python)
    return marker is None or any(marker.evaluate({**seen, "extra": extra}) for extra in extras)


@pytest.mark.parametrize(
    ("requirement", "python"),
    [
        pytest.param(requirement, python, id=f"{requirement.name}-{python}")
        for requirement in REQUIREMENTS + BUILD_REQUIREMENTS
        for python in ("3.10", "3.11", "3.12", "3.13")
        if is_required(requirement, python)
    ],
)
def test_every_requirement_is_pinned_within_its_range(pins, requirement, python):
    [pin] = [
        pin for pin in valid_for(pins, python) if canonicalize_name(pin.name) == canonicalize_name(requirement.name)
    ]
    [exact] = pin.specifier
    assert requirement.specifier.contains(exact.version)


def test_the_version_is_the_packages_own_and_supported_pythons_begin_with_3_10():
    assert DISTRIBUTION.version == pyperf_suite.__version__
    supported = SpecifierSet(DISTRIBUTION.metadata["Requires-Python"])
    assert [version in supported for version in ("3.9", "3.10", "3.13")] == [False, True, True]


def test_torch_and_triton_are_asked_for_by_an_extra_alone_so_that_an_installed_one_is_kept():
    assert not {"torch", "triton"} & ALWAYS
    assert {requirement.name for requirement in REQUIREMENTS} >= {"torch", "triton"}
