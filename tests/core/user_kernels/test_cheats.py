"""Kernels that cheat fail, each for what it does; kernels that work in unusual ways pass; limits are limits.

The pages are cheats.md, honest_kernels.md and uncaught.md. count_cheats.py counts how often each ends as it must.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.user_kernels import workload as user_kernel
from tests.core.user_kernels.catalogue import DOCUMENT, PASSES, Entry, document, end_of, entries, trial

CHEATS, HONEST, UNCAUGHT = entries("cheats.md"), entries("honest_kernels.md"), entries("uncaught.md")

# Names that say nothing of what a kernel does: each is measured under one of them, and must not depend on which.
NAMES = ("measured", "softmax_v2", "kernel")

# What `make test` tries too.
QUICK = {"cached by shape", "one row for all", "half precision inside", "a softmax", "indices"}


def name_of(entry: Entry) -> str:
    """A name for the kernel that is the same in every process."""
    return NAMES[sum(entry.name.encode()) % len(NAMES)]


def marks(entry: Entry) -> Any:
    """The kernel as a parameter, with what it needs."""
    gpu = [pytest.mark.gpu] if entry.on_gpu else []
    return pytest.param(entry, id=entry.name, marks=gpu if entry.name in QUICK else [*gpu, pytest.mark.slow])


def require(entry: Entry) -> None:
    """Skip where what the kernel is written with is not installed."""
    for each in entry.needs:
        if not (shutil.which(each) or importlib.util.find_spec(each)):
            pytest.skip(f"needs {each}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a bench file lies, with a reference process of its own."""
    monkeypatch.setenv(user_kernel.ROOT_VARIABLE, str(tmp_path))
    yield tmp_path
    user_kernel.forget_reference()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where each kernel stands: in a module of its own, imported by one file for all, so one process makes inputs."""
    folder, places = tmp_path_factory.mktemp("honest"), {}
    for number, entry in enumerate(HONEST):
        library = next(iter(reversed(entry.needs)), "numpy")
        (folder / f"honest_{number}.py").write_text(entry.text(name_of(entry)), "utf-8")
        with (folder / f"all_{library}.py").open("a") as file:
            file.write(f"from honest_{number} import case as case_{number}\n")
        places[entry.name] = f"all_{library}.py:case_{number}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(user_kernel.ROOT_VARIABLE, str(folder))
        yield places
        user_kernel.forget_reference()


@pytest.mark.parametrize("entry", list(map(marks, CHEATS)))
def test_a_kernel_that_cheats_fails_for_what_it_does(entry: Entry, folder: Path) -> None:
    require(entry)
    end, is_right = end_of(entry, folder, name_of(entry), next(entry.cases()))
    assert is_right, end


@pytest.mark.parametrize("entry", list(map(marks, HONEST)))
def test_a_kernel_that_does_its_work_passes(entry: Entry, honest: dict[str, str], tmp_path: Path) -> None:
    require(entry)
    for values in entry.fewest_cases():
        answer = trial(entry, tmp_path, name_of(entry), values, honest[entry.name])
        assert answer["outcome"] == "ok", answer["reason"]
        assert answer["verification"]["passed"]
        assert answer["metrics"]["time"]["value"] > 0


@pytest.mark.parametrize("entry", list(map(marks, UNCAUGHT)))
def test_what_the_document_says_can_pass_does(entry: Entry, folder: Path) -> None:
    require(entry)
    end, is_right = end_of(entry, folder, name_of(entry), next(entry.cases()))
    assert is_right, end


def test_every_cheat_has_a_reason_and_no_two_kernels_one_name() -> None:
    assert len(CHEATS) >= 84
    assert len(HONEST) >= 60
    assert not any({"ok", PASSES} & {*entry.ends} for entry in CHEATS)
    assert all(entry.ends == ("ok",) for entry in HONEST)
    assert all(entry.ends == (PASSES,) for entry in UNCAUGHT)
    names = [entry.name for entry in CHEATS + HONEST + UNCAUGHT]
    assert len(set(names)) == len(names)
    assert {*names} >= QUICK


def test_the_document_lists_what_the_pages_list() -> None:
    assert DOCUMENT.read_text("utf-8") == document(), "run python tests/core/user_kernels/catalogue.py --write"
