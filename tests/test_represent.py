"""What `--represent` makes slow: all but N sets of parameters of each test, which run in `make test-rest`."""

from pathlib import Path

pytest_plugins = ("pytester",)

MANY = """
import pytest

@pytest.mark.parametrize("number", range(10))
def test_of_ten(number):
    pass

@pytest.mark.parametrize("number", range(3))
def test_of_three(number):
    pass
"""


def test_quick_and_slow_tests_are_all_sets_of_parameters_and_the_same_in_each_run(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makeconftest((Path(__file__).with_name("conftest.py")).read_text())
    pytester.makeini("[pytest]\nmarkers = slow: of many\n")
    pytester.makepyfile(test_many=MANY)

    def run(*arguments: str) -> set[str]:
        done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--collect-only", "-q", *arguments)
        return {line for line in done.outlines if "::" in line}

    quick, slow, whole = (run("--represent", "4", "-m", which) for which in ("not slow", "slow", "slow or not slow"))
    assert (len(quick), len(slow), quick | slow) == (7, 6, whole)
    assert quick == run("--represent", "4", "-m", "not slow")
    assert run("-m", "not slow") == whole
