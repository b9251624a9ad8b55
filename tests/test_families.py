"""Tests that a change runs: sets of parameters and representatives of families, drawn by a seed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.families import FAMILIES, family_of

pytest_plugins = ("pytester",)

MANY = """
import pytest

@pytest.mark.parametrize("number", range(10))
def test_of_ten(number):
    assert number >= 0 or pytest.fail("of one set")

@pytest.mark.parametrize("number", range(3))
def test_of_three(number):
    pass

@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_slow(number):
    pass

@pytest.mark.nightly
def test_that_depends_on_the_load():
    pass
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """The ids of the tests that pytest selects with these arguments, in a folder of many."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    conftest = Path(__file__).with_name("conftest.py").read_text().replace("Path(__file__).parents[1]", repr(ROOT))
    pytester.makeconftest(conftest)
    pytester.makeini("[pytest]\nmarkers =\n  slow: of many\n  nightly: by night\n  gpu: none\n")
    (pytester.path / "core" / "laws").mkdir(parents=True)
    for place in ("test_many.py", "core/laws/test_few.py"):
        (pytester.path / place).write_text(MANY)

    def selected(*arguments: str) -> set[str]:
        done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--collect-only", "-q", *arguments)
        return {line for line in done.outlines if "::" in line}

    return selected


ROOT = str(Path(__file__).parents[1])
QUICK = ("-m", "not slow", "test_many.py")


def test_a_seed_draws_the_same_sets_each_time_and_another_one_others(run):
    seeds = "ab1", "ab2", "ab3", "ab4"
    drawn = {seed: run("--draw", "4", "--draw-seed", seed, *QUICK) for seed in seeds}
    assert {len(tests) for tests in drawn.values()} == {4 + 3}
    assert drawn["ab1"] == run("--draw", "4", "--draw-seed", "ab1", *QUICK)
    assert len({frozenset(tests) for tests in drawn.values()}) == len(seeds)
    assert len(run(*QUICK)) == 13
    [one] = run("--draw", "4", "-m", "not slow", "test_many.py::test_of_ten[7]")
    assert one == "test_many.py::test_of_ten[7]", "a set that is named is run, drawn or not"


def test_of_a_family_as_many_run_as_stand_with_it_of_other_files_one_and_none_of_the_night(run):
    drawn = [run("--families", "--draw-seed", seed, "-m", "slow") for seed in ("ab1", "ab2")]
    for tests in drawn:
        places = [test.partition("::")[0] for test in tests]
        assert (places.count("core/laws/test_few.py"), places.count("test_many.py")) == (4, 1)
        assert not any("load" in test for test in tests)
    assert drawn[0] != drawn[1]
    assert sum("load" in test for test in run("-m", "slow")) == 2


def test_the_seed_is_the_commit_or_without_a_repository_the_version(run, pytester):
    def seed() -> str:
        header = pytester.runpytest_inprocess("--collect-only", "--draw", "2", *QUICK).stdout.str()
        return re.search(r"drawn by (\S+); again with --draw-seed (\S+) ", header)[1]

    from pyperf_suite import __version__

    assert seed() == __version__
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *command], cwd=pytester.path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=pytester.path, check=True, capture_output=True, text=True)
    assert head.stdout.startswith(seed())


def test_a_test_that_fails_is_named_with_the_command_that_runs_it_alone(run, pytester):
    text = "import pytest\n@pytest.mark.parametrize('text', ['a b', \"it's (1)\"])\ndef test_it(text):\n    assert 0\n"
    (pytester.path / "test_it.py").write_text(text)
    said = pytester.runpytest_inprocess("test_it.py").outlines
    alone = [line.partition("alone: ")[2] for line in said if line.startswith("alone: ")]
    assert len(alone) == 2
    for command in alone:
        done = subprocess.run(["sh", "-c", command], cwd=pytester.path, capture_output=True, text=True)
        assert "1 failed" in done.stdout, done.stdout


def test_every_place_of_a_family_has_tests_that_belong_to_it():
    files = {str(path.relative_to(Path(ROOT) / "tests")): path for path in Path(ROOT, "tests").rglob("test_*.py")}
    for family in FAMILIES:
        for place in family.places:
            path, _, function = place.partition("::")
            names = [name for name in files if name.startswith(path) and f"def {function}" in files[name].read_text()]
            assert names, place
            assert {family_of(f"tests/{name}::{function}")[0] for name in names} == {family.name}, place
