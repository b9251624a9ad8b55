"""Making the environment: packages kept of the machine's own, and sentences where something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PINS = ["# run", "numpy==2.4.6", "scipy==1.17.1", "rich==15.0.0", "Jinja2==3.1.6", "", "torch==2.13.0"]


def test_a_torch_of_the_machine_is_kept_with_its_numpy_and_frees_what_it_requires(tool):
    held = {"numpy": "1.26.4", "torch": "2.9.0a0+nv25.9"}
    kept = tool("make_venv").constraints_keeping(held, {*held, "jinja2"}, PINS)
    # scipy is compiled against numpy, so pip must find one that fits; rich has nothing to do with torch.
    assert kept == ["rich==15.0.0", "numpy==1.26.4", "torch==2.9.0a0+nv25.9"]


def test_what_meets_a_requirement_is_left_alone_whoever_owns_it(tool, tmp_path, monkeypatch):
    for owner, name, version in (
        ("machine", "Plain_Name", "2.0"),
        ("machine", "too-old", "1.0"),
        ("environment", "inside", "3.0"),
        ("environment", "too-old", "0.5"),  # stands first on the path, so this one counts
    ):
        folder = tmp_path / owner / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "environment"), str(tmp_path / "machine"), *sys.path])
    lines = ["plain-name>=1.5", "too-old>=1.0", "inside>=3", "absent>=1", "elsewhere>=1; python_version < '3'"]
    found = tool("make_venv").survey(lines)
    assert found["unmet"] == ["too-old>=1.0", "absent>=1"]
    assert found["ours"] == ["too-old>=1.0", "inside>=3", "absent>=1"]
    assert found["outside"]["plain-name"] == "2.0"
    assert not {"inside", "too-old"} & set(found["outside"])


def test_without_an_index_optional_packages_stay_absent_and_needed_ones_are_an_error(tool):
    left_out = tool("make_venv").left_out
    assert "plotly (the page" in left_out(["plotly>=6", "ruff>=0.6"])
    with pytest.raises(ValueError, match=r"gave click>=8\.1, which nothing works without"):
        left_out(["plotly>=6", "click>=8.1"])


def test_uv_is_handed_what_pip_is_set_to_and_not_used_where_it_cannot_follow(tool):
    uv_arguments = tool("make_venv").uv_arguments
    assert uv_arguments({}) == []
    assert uv_arguments({"timeout": "60", "find-links": ""}) == []
    settings = {"index-url": "https://a", "extra-index-url": "https://b\nhttps://c", "no-index": "0", "cert": "/ca.pem"}
    assert uv_arguments(settings) == ["--index", "https://b", "--index", "https://c", "--default-index", "https://a"]
    assert uv_arguments({"no-index": "true", "find-links": "/w"}) == ["--find-links", "/w", "--no-index"]
    assert uv_arguments({"proxy": "http://proxy"}) is None


def test_an_activated_environment_is_not_remade_by_its_own_python(tool, tmp_path, monkeypatch):
    python_outside = tool("make_venv").python_outside
    assert python_outside(tmp_path) is None
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    behind = python_outside(tmp_path)
    assert behind is not None
    assert behind.parent == Path(sys.base_prefix) / "bin"
    assert subprocess.run([behind, "-c", ""]).returncode == 0


def program(folder: Path, name: str, script: str) -> Path:
    """Write an executable shell script."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_the_compiler_is_the_one_cxx_names_or_the_first_on_the_path(tool, tmp_path, monkeypatch):
    program(tmp_path, "g++", "exit 0")
    program(tmp_path, "clang++", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert tool("compiler").find_cxx() == "g++"
    monkeypatch.setenv("CXX", "clang++ -stdlib=libc++")
    assert tool("compiler").find_cxx() == "clang++ -stdlib=libc++"


@pytest.mark.parametrize(
    ("cxx", "sentence"),
    [("", "tried $CXX, which is not set, and c++, g++, clang++"), ("icpx -O3", "CXX=icpx -O3 cannot be run")],
)
def test_a_missing_compiler_is_one_sentence_and_exit_code_2(tool, tmp_path, monkeypatch, capsys, cxx, sentence):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(SystemExit) as stopped:
        tool("compiler").find_cxx()
    assert stopped.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert sentence in line


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("no-such-python", "PYTHON=no-such-python cannot be run"),
        ("./python-old", "PYTHON=./python-old is Python 3.9.18, and pyperf_suite needs 3.10 or newer"),
    ],
)
def test_make_refuses_a_python_that_is_absent_or_too_old_with_a_sentence(checkout, tmp_path, python, sentence):
    shutil.copy(checkout / "Makefile", tmp_path)
    for prerequisite in ("setup.py", "pyproject.toml", "constraints.txt", "tools/make_venv.py", "tools/compiler.py"):
        (tmp_path / prerequisite).parent.mkdir(exist_ok=True)
        (tmp_path / prerequisite).touch()
    program(tmp_path, "python-old", '[ "$1" = -V ] && echo Python 3.9.18; exit 1')
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "bench", f"PYTHON={python}"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert sentence in done.stderr
