"""The commit that a record names."""

from __future__ import annotations

import subprocess

import pytest

from pyperf_suite.hardware import machine as module
from pyperf_suite.hardware.machine import source_of


def git(folder, *arguments):
    """Run git there, as somebody, and return what it prints."""
    named = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *named, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path):
    """A package in a checkout of its own, committed once."""
    folder = tmp_path / "checkout" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Begin")
    return folder


def test_a_checkout_names_its_commit(package):
    assert source_of(package) == {"commit": git(package, "rev-parse", "HEAD"), "dirty": False}


def test_changed_files_are_told_and_new_ones_are_not(package):
    (package / "notes.txt").write_text("of no weight")
    assert source_of(package)["dirty"] is False
    (package / "__init__.py").write_text("changed = True")
    assert source_of(package)["dirty"] is True


def test_a_package_installed_inside_another_projects_checkout_has_no_commit(package):
    installed = package / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert source_of(installed) == {}


def test_where_there_is_no_checkout_there_is_no_commit(tmp_path):
    assert source_of(tmp_path) == {}


def test_where_there_is_no_git_there_is_no_commit(package, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert source_of(package) == {}


def test_a_git_that_hangs_is_not_waited_for(package, tmp_path, monkeypatch):
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\nexec sleep 30\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(module, "GIT_DEADLINE_S", 0.1)
    assert source_of(package) == {}


def test_another_repository_that_the_environment_points_to_is_not_asked(package, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert source_of(package)["commit"] == git_without(package, monkeypatch)


def git_without(folder, monkeypatch):
    """The commit, asked without that variable."""
    monkeypatch.delenv("GIT_DIR")
    return git(folder, "rev-parse", "HEAD")
