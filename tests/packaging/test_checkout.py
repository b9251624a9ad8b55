"""pytest started in a checkout that is not the package it would test."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest


@pytest.fixture
def said_with(checkout: Path, monkeypatch, capsys) -> Callable[..., str]:
    """Run the checkout's conftest.py with other answers to `find_spec`; return the sentence it exits with."""

    def run(**places: str | None) -> str:
        def find_spec(name: str) -> ModuleSpec | None:
            origin = places[name.replace(".", "_")]
            return None if origin is None else ModuleSpec(name, None, origin=origin)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        with pytest.raises(SystemExit) as stopped:
            runpy.run_path(str(checkout / "conftest.py"))
        assert stopped.value.code == 2
        [sentence] = capsys.readouterr().err.splitlines()
        return sentence

    return run


HERE = "here"


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"pyperf_suite": None}, f"pyperf_suite is not installed for {sys.executable}: run `make test`"),
        (
            {"pyperf_suite": HERE, "pyperf_suite__native": None},
            f"the C++ extension of pyperf_suite is not built for {sys.executable}: run `make test`",
        ),
        ({"pyperf_suite": HERE, "pyperf_suite__native": HERE}, "built here, but not installed"),
    ],
    ids=["nowhere", "not built", "not installed"],
)
def test_what_is_missing_is_named_with_what_to_run(said_with, checkout, monkeypatch, places, words):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    here = str(checkout / "pyperf_suite" / "__init__.py")
    assert words in said_with(**{name: here if place == HERE else place for name, place in places.items()})


def test_pytest_ends_with_that_sentence_and_exit_code_2(checkout, tmp_path):
    shutil.copy(checkout / "conftest.py", tmp_path)
    (tmp_path / "test_something.py").write_text("def test_something():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    [sentence] = [line for line in (done.stdout + done.stderr).splitlines() if line]
    assert f"is {checkout / 'pyperf_suite'}, not the one of this checkout: run `make test`" in sentence


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("nm"), reason="needs nm of binutils, on Linux")
def test_the_extension_shows_other_libraries_nothing_but_its_entry() -> None:
    native = importlib.util.find_spec("pyperf_suite._native")
    assert native is not None
    said = subprocess.run(
        ["nm", "-D", "--defined-only", str(native.origin)], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in said.stdout.splitlines()] == ["PyInit__native"]
