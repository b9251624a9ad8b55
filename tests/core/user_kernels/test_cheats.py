"""Kernels that cheat fail, each for what it does; what the document says can pass does.

The pages are cheats.md and uncaught.md. count_cheats.py counts how often each ends as it must.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyperf_suite.user_kernels import declared, workload
from pyperf_suite.workloads.workload import AUDIT_VARIABLE
from tests.core.user_kernels.catalogue import DOCUMENT, PASSES, Entry, document, end_of, entries, marked, name_of

CHEATS, UNCAUGHT = entries("cheats.md"), entries("uncaught.md")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of a bench file, with a reference process of its own."""
    monkeypatch.setenv(declared.ROOT_VARIABLE, str(tmp_path))
    monkeypatch.setenv(AUDIT_VARIABLE, "1")
    yield tmp_path
    workload.forget_reference()


@pytest.mark.parametrize("entry", marked(CHEATS))
def test_a_kernel_that_cheats_fails_for_what_it_does(entry: Entry, folder: Path) -> None:
    end, is_right = end_of(entry, folder, name_of(entry), entry.one_case())
    assert is_right, end


@pytest.mark.parametrize("entry", marked(UNCAUGHT))
def test_what_the_document_says_can_pass_does(entry: Entry, folder: Path) -> None:
    end, is_right = end_of(entry, folder, name_of(entry), entry.one_case())
    assert is_right, end


def test_every_cheat_has_a_reason_and_no_two_kernels_one_name() -> None:
    assert len(CHEATS) >= 84
    assert not any({"ok", PASSES} & {*entry.ends} for entry in CHEATS)
    assert all(entry.ends == (PASSES,) for entry in UNCAUGHT)
    names = [entry.name for entry in CHEATS + UNCAUGHT]
    assert len(set(names)) == len(names)


def test_the_document_lists_what_the_pages_list() -> None:
    assert DOCUMENT.read_text("utf-8") == document(), "run python tests/core/user_kernels/catalogue.py --write"
