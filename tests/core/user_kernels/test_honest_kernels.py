"""Kernels that do their work in unusual ways pass. count_cheats.py tries all cases of honest_kernels.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyperf_suite.user_kernels import declared, workload
from tests.core.user_kernels.catalogue import QUICK_ONES, Entry, entries, marked, name_of, trial

HONEST = entries("honest_kernels.md")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Place of each kernel: in a module of its own, imported by one file for all, so one process makes inputs."""
    folder, by_kernel = tmp_path_factory.mktemp("honest"), {}
    for number, entry in enumerate(HONEST):
        library = next(iter(reversed(entry.needs)), "numpy")
        (folder / f"honest_{number}.py").write_text(entry.text(name_of(entry)), "utf-8")
        with (folder / f"all_{library}.py").open("a") as file:
            file.write(f"from honest_{number} import case as case_{number}\n")
        by_kernel[entry.name] = f"all_{library}.py:case_{number}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(declared.ROOT_VARIABLE, str(folder))
        yield by_kernel
        workload.forget_reference()


@pytest.mark.parametrize("entry", marked(HONEST))
def test_a_kernel_that_does_its_work_passes(entry: Entry, places: dict[str, str], tmp_path: Path) -> None:
    answer = trial(entry, tmp_path, name_of(entry), entry.one_case(), places[entry.name])
    assert answer["outcome"] == "ok", answer["reason"]
    assert answer["verification"]["passed"]
    assert answer["metrics"]["time"]["value"] > 0


def test_no_kernel_may_end_otherwise_and_no_two_have_one_name() -> None:
    assert len(HONEST) >= 60
    assert all(entry.ends == ("ok",) for entry in HONEST)
    assert len({entry.name for entry in HONEST}) == len(HONEST)
    assert {entry.name for entry in HONEST + entries("cheats.md")} >= QUICK_ONES
