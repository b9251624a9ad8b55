"""A user's file from the command line: planned, measured, resumed, and told of by everything that reads a run."""

import json
import sys
from pathlib import Path

import pytest

from pyperf_suite.record.journal import read_journal
from pyperf_suite.user_kernels.declared import describe, kernels_of
from pyperf_suite.user_kernels.probe import described
from tests.commands import invoke

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are bounded by what Linux offers")

BENCH = '''import pyperf_suite as suite


def fails(items):
    raise OSError("never")


@suite.kernel(n=(100, 1000))
def sorting(n):
    """Sorts numbers."""
    ways = {"fails": fails, "reversed": lambda items: sorted(items, reverse=True)[::-1], "sorted": sorted}
    return suite.launch(ways, list(range(n)), reference=sorted, bytes=8 * n)


@suite.kernel()
def other():
    return suite.launch(sum, [1, 2], reference=sum)
'''


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder that looks like the top of somebody's checkout, with the file in a folder below."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / ".git").mkdir()
    (folder / "benches").mkdir()
    (folder / "benches" / "bench.py").write_text(BENCH)
    return folder


@pytest.fixture(autouse=True)
def below(checkout, monkeypatch):
    monkeypatch.chdir(checkout / "benches")


@pytest.fixture(scope="module")
def finished(checkout):
    """One run of one kernel, and what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(checkout / "benches")
        kernels_of.clear()
        yield checkout, invoke("run", "bench.py:sorting", "--results", str(checkout / "results"))


def test_kernels_of_a_file_that_was_described_need_no_import_of_their_own(tmp_path, monkeypatch):
    """A file of 30 kernels that imports torch took two minutes to be described."""
    monkeypatch.chdir(tmp_path)
    kernels = "".join(
        f"@suite.kernel(n=8)\ndef {name}(n):\n    return suite.launch(lambda x: x, suite.rand(n))\n" for name in "ab"
    )
    counts = "open('imports', 'a').write('.')\n"
    (tmp_path / "several.py").write_text(f"import pyperf_suite as suite\n{counts}{kernels}")
    names = [each.name for each in describe("several.py")]
    assert [described(name).name for name in names] == names == ["several.py:a", "several.py:b"]
    assert (tmp_path / "imports").read_text() == "."


def records_of(checkout: Path):
    (path,) = checkout.glob("results/*/*/records.jsonl")
    return [record for record in read_journal(path) if record.kind == "timing"]


@pytest.mark.slow
def test_a_run_measures_every_case_and_tells_a_table_and_a_figure(finished):
    checkout, result = finished
    assert result.exit_code == 3, result.output
    summary = result.output.partition("Summary")[2]
    assert summary.split(" cases failed, ")[0].endswith("2 of 6"), "what failed comes first"
    assert "sorting[fails n=100]" in summary
    assert "relative to sorted" in result.output
    assert list(checkout.glob("results/*/*/*.png"))
    by_outcome = {}
    for record in records_of(checkout):
        by_outcome.setdefault(record.outcome, []).append(record)
    assert len(by_outcome["ok"]) == 4
    # A failure costs its cases, and says where.
    assert {record.reason for record in by_outcome["failed"]} == {"benches/bench.py:5: fails raised OSError: never."}


@pytest.mark.slow
def test_a_kernel_has_the_same_name_from_wherever_its_checkout_it_is_asked_for(finished, checkout, monkeypatch):
    assert {record.probe for record in records_of(checkout)} == {"benches/bench.py:sorting"}
    monkeypatch.chdir(checkout)
    kernels_of.clear()
    assert describe("benches/bench.py")[0].name == "benches/bench.py:sorting"


@pytest.mark.slow
def test_a_run_is_resumed_and_only_what_failed_is_measured_again(finished, checkout):
    before = len(records_of(checkout))
    result = invoke("run", "bench.py:sorting", "--results", str(checkout / "results"), "--resume", "--json")
    assert result.exit_code == 3, result.output
    assert len(records_of(checkout)) == before + 2
    [probe] = json.loads(result.stdout)["probes"]
    assert (probe["name"], probe["topic"]) == ("benches/bench.py:sorting", "your kernels")
    assert len(probe["cases"]) == 4


@pytest.mark.slow
def test_what_reads_a_run_needs_no_file_of_the_users(finished, checkout, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    results = str(checkout / "results")
    message = json.loads(invoke("findings", "latest", "--results", results).stdout)
    [table] = message["probes"][0]["tables"]
    assert [column["name"] for column in table["columns"]][:3] == ["n", "implementation", "time"]
    assert "open it in a browser" in invoke("report", results, "-o", str(tmp_path / "page.html")).output
    assert "benches/bench.py:sorting" in (tmp_path / "page.html").read_text()
    assert "bench.py:sorting" in invoke("history", "--results", results).output


def test_the_list_names_the_axes_of_each_kernel_of_a_file():
    output = invoke("run", "--list", "bench.py").output
    assert "-a n=100,1000" in output
    assert "-a implementation=fails,reversed,sorted" in output
    assert "benches/bench.py:other" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bench.py:sorting", "-a", "m=1"), "There is no axis 'm' here"),
        (("bench.py:sorting", "-a", "n=x"), "n takes int values"),
        (("bench.py:sorting", "-a", "implementation=sort"), "did you mean sorted"),
        (("bench.py:nothing",), "there is no kernel nothing in it: its kernels are sorting, other"),
        (("nothing.py",), "There is no file nothing.py"),
        (("no.such.module:kernel",), "ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence_and_exit_code_2(arguments, words, tmp_path):
    result = invoke("run", *arguments, "--results", str(tmp_path))
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1
