"""The suite under pytest: bare --benchmark-only, its options, its outcomes, and pytest-benchmark's own features."""

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest.pytester import SysModulesSnapshot

import pyperf_suite.render.run_report
import pyperf_suite.runner.session  # noqa: F401
from pyperf_suite.pytest_plugin.plugin import BENCHMARKS
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.record import Record
from pyperf_suite.run import RunRequest

pytest_plugins = ("pytester",)

SMALL = ("--suite-axis", "baseline.shape=16x16x16,24x8x40", "--suite-axis", "baseline.workers=1")
SHIPPED = ("--pyargs", "pyperf_suite.benchmarks", "-p", "no:cacheprovider")
OWN_FILES = ("test_one_probe", "test_topology", "power_cut")
ONE_PROBE = "import pytest\n@pytest.mark.probe('baseline')\ndef test_baseline(measured):\n    measured()\n"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty folder in which the installed suite is run."""
    # Under xdist, the inner pytest must not take itself for one of the outer one's workers.
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)
    # Only the test's own files, of all imports by a session in this process, are to be imported anew.
    monkeypatch.setattr(SysModulesSnapshot, "restore", lambda _: [sys.modules.pop(name, None) for name in OWN_FILES])
    pytester.syspathinsert()
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """A session in this process with the items of one probe."""
    suite.makepyfile(test_one_probe=ONE_PROBE)
    return suite.runpytest_inprocess("test_one_probe.py", "-p", "no:cacheprovider", *SMALL, *arguments)


def journal(suite: pytest.Pytester) -> Path:
    (path,) = suite.path.glob("bench_results/*/*/records.jsonl")
    return path


def timed(suite: pytest.Pytester) -> list[Record]:
    return [record for record in read_journal(journal(suite)) if record.kind == "timing"]


@pytest.mark.slow
def test_from_an_empty_folder_every_case_is_measured_recorded_and_summed_up(suite):
    result = suite.runpytest_subprocess(
        *SHIPPED, "-k", "baseline", *SMALL, "--benchmark-only", "--benchmark-json", "out.json"
    )
    result.assert_outcomes(passed=4, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(
        [
            "*geometric mean of 2 products*",
            "records  *records.jsonl",
        ]
    )
    result.stdout.no_fnmatch_line("*benchmark 'baseline*")  # a table of pytest-benchmark's comes on request
    exported = json.loads((suite.path / "out.json").read_text())["benchmarks"]
    by_case = {record.case_id: record.metrics["time"].samples for record in timed(suite)}
    assert len(by_case) == len(timed(suite)) == 4
    for benchmark in exported:
        # The replay is exact, and raw rounds are there although --benchmark-save-data was not given.
        assert benchmark["stats"]["data"] == by_case[benchmark["extra_info"]["case_id"]]
        assert benchmark["stats"]["median"] == pytest.approx(statistics.median(benchmark["stats"]["data"]))
        assert "UNSERIALIZABLE" not in json.dumps(benchmark)


@pytest.mark.slow
def test_a_benchmark_file_named_by_its_path_is_collected_once(suite):
    named = (str(BENCHMARKS / "bench_probes.py"), "-p", "no:cacheprovider", "-k", "test_baseline")
    result = suite.runpytest_inprocess(*named, "--collect-only", "-q", *SMALL)
    assert sum("::test_baseline[" in line for line in result.outlines) == 4
    assert not (suite.path / "bench_results").exists()


@pytest.mark.slow
def test_what_is_read_and_not_timed_passes_beside_the_table_of_times(suite):
    suite.makepyfile(test_topology=ONE_PROBE.replace("baseline", "topology"))
    result = suite.runpytest_inprocess("test_topology.py", "-p", "no:cacheprovider", "--benchmark-only")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["topology", "*What was found, against what could be*"])
    assert json.loads(journal(suite).read_text())["kind"] == "static"
    result = suite.runpytest_inprocess("test_topology.py", "-p", "no:cacheprovider", "--benchmark-disable")
    result.assert_outcomes(passed=1)


def test_disabled_benchmarks_are_verified_once_and_leave_no_results(suite, instant_workers):
    run(suite, "--benchmark-disable").assert_outcomes(passed=4)
    assert len({case.case_id for _, case, _ in instant_workers.requested}) == 4
    assert [(process, effort) for process, _, effort in instant_workers.requested] == [(0, None)] * 4
    assert not (suite.path / "bench_results").exists()


def test_the_order_is_shuffled_by_the_seed(suite):
    def order(seed: str, *more: str) -> list[str]:
        result = run(suite, "--collect-only", "-q", "--suite-seed", seed, *more)
        return [line for line in result.outlines if "::" in line]

    first = order("1")
    assert first == order("1")
    assert sorted(first) == sorted(order("2"))
    assert any(first != order(seed) for seed in ("2", "3"))
    for budget_s in (None, 60.0):
        request = RunRequest(("baseline",), device="cpu", axes=SMALL[1::2], seed=1, budget_s=budget_s)
        planned = [f"test_one_probe.py::test_baseline[{each.case.label}]" for each in request.plan().cases]
        assert order("1", *(("--suite-budget", "60") if budget_s else ())) == planned, "as pyperf-suite run has it"
    assert not (suite.path / "bench_results").exists(), "collecting alone measures nothing"


@pytest.mark.slow
def test_stopping_early_keeps_records_and_resuming_measures_only_the_rest(suite, instant_workers, monkeypatch):
    answer = instant_workers.answer

    def cut(case: Case) -> dict[str, Any]:
        if len(instant_workers.requested) > 3:  # the sentinel is the first
            pytest.exit("power cut", returncode=3)
        return answer(case)

    monkeypatch.setattr(instant_workers, "answer", cut)
    assert run(suite, "--benchmark-only").ret == 3
    kept = read_journal(journal(suite))
    assert sum(record.kind == "timing" for record in kept) == 2
    monkeypatch.setattr(instant_workers, "answer", answer)
    assert run(suite, "--benchmark-only", "--suite-resume").ret == 0
    assert len(timed(suite)) == len({record.case_id for record in timed(suite)}) == 4
    assert read_journal(journal(suite))[: len(kept)] == kept


def test_all_cases_are_measured_in_one_process_before_any_in_the_next(suite, instant_workers):
    few = ("--suite-axis", "baseline.layout=NN", "--suite-axis", "baseline.dtype=float32")
    assert run(suite, "--benchmark-only", "--suite-profile", "standard", *few).ret == 0
    assert [record.process for record in timed(suite)] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({record.case_id for record in timed(suite)}) == 4


def test_items_that_a_budget_left_out_are_skipped_and_can_be_resumed(suite, instant_workers):
    result = run(suite, "--benchmark-only", "--suite-budget", "0.001")
    assert result.ret == 0
    result.assert_outcomes(skipped=4)
    assert timed(suite) == []
    assert run(suite, "--benchmark-only", "--suite-resume").ret == 0
    assert len(timed(suite)) == 4


def test_a_torn_last_line_does_not_stop_a_resume_even_where_warnings_are_errors(suite, instant_workers):
    assert run(suite, "--benchmark-only").ret == 0
    torn = journal(suite).read_bytes()[:-50]
    journal(suite).write_bytes(torn)
    result = run(suite, "--benchmark-only", "--suite-resume", "-W", "error")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*DamagedJournal: *"])
    assert journal(suite).read_bytes().startswith(torn[: torn.rfind(b"\n")])


def test_failed_and_unsupported_cases_are_reported_by_pytest_and_recorded(suite, instant_workers):
    usual = instant_workers.answer
    answers = [
        {"outcome": "failed", "reason": "Wrong result before timing: one element is off."},
        {"outcome": "unsupported", "reason": "This machine has no abacus."},
    ]

    def answer(case: Case) -> dict[str, Any]:
        is_sentinel = case.parameters.m == 8
        return usual(case) if is_sentinel or not answers else answers.pop()

    instant_workers.answer = answer
    result = run(suite, "--benchmark-only", "-rsf")
    result.assert_outcomes(passed=2, failed=1, skipped=1, warnings=0)
    result.stdout.fnmatch_lines(["*one element is off*"])
    result.stdout.fnmatch_lines(["SKIPPED*This machine has no abacus.*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    assert sorted(record.outcome for record in timed(suite)) == ["failed", "ok", "ok", "unsupported"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--suite-profile", "thorough"), "*'thorough'*quick, standard, full*"),
        (("--suite-device", "abacus"), "*abacus*"),
        (("--suite-device", "cuda:99"), "*cuda:99*"),
        (("--suite-axis", "baseline.dtype=float7"), "*dtype=float7*"),
        (("--suite-axis", "baseline.shape=0x1x1"), "*m=0*"),
        (("--suite-axis", "baseline.shape=9x9"), "*'9x9'*"),
        (("--suite-axis", "baseline.colour=red"), "*'colour'*"),
        (("--suite-axis", "baseline.shape=2000000x2000000x1"), "*GB of memory*"),
        (("--suite-axis", "baseline.workers=99999"), "*99999 workers*"),
        (("--suite-results", "a-file/results"), "*cannot be written*"),
        (("--suite-resume",), "*no run of the same cases*"),
    ],
)
def test_what_cannot_be_ends_in_one_sentence_and_exit_code_2(suite, arguments, words):
    (suite.path / "a-file").touch()
    result = run(suite, "--benchmark-only", *arguments)
    assert result.ret == 2
    result.stdout.fnmatch_lines([words])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*ERROR collecting*")
    assert not (suite.path / "bench_results").exists()


@pytest.mark.slow
def test_tests_of_others_are_left_alone_and_nothing_heavy_is_imported_for_them(suite):
    suite.makepyfile(
        test_own="""
        import sys

        def test_timed(benchmark):
            benchmark(lambda: None)

        def test_plain():
            assert not {'pyperf_suite.runner', 'numpy', 'rich'} & set(sys.modules)
        """,
        bench_own="def test_not_collected():\n    assert False\n",
    )
    result = suite.runpytest_subprocess("-p", "no:cacheprovider", "--benchmark-save", "own")
    result.assert_outcomes(passed=2)
    saved = json.loads(next((suite.path / ".benchmarks").glob("*/*own.json")).read_text())
    assert "data" not in saved["benchmarks"][0]["stats"]
    result.stdout.no_fnmatch_line("*= pyperf_suite =*")
    without = suite.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:benchmark", "-k", "plain")
    without.assert_outcomes(passed=1, deselected=1)


@pytest.mark.slow
def test_with_xdist_installed_a_serial_run_measures_and_a_parallel_one_verifies(suite, instant_workers):
    pytest.importorskip("xdist")
    assert run(suite, "--benchmark-only", "-n", "0").ret == 0
    assert len(timed(suite)) == 4
    few = ("--suite-axis", "baseline.layout=NN", "--suite-axis", "baseline.shape=16x16x16")
    result = suite.runpytest_subprocess(
        "test_one_probe.py", "-p", "no:cacheprovider", "-n", "1", *SMALL[2:], *few, "--suite-results", "parallel"
    )
    assert result.parseoutcomes()["passed"] == 2
    assert not (suite.path / "parallel").exists()
