"""The suite under pytest: bare --benchmark-only, its options, its outcomes, and pytest-benchmark's own features."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pyperf_suite.pytest_plugin import BENCHMARKS, ReplayClock
from pyperf_suite.runner.results import read_journal

pytestmark = pytest.mark.slow

pytest_plugins = ("pytester",)

SMALL = ("--suite-axis", "baseline.shape=16x16x16,24x8x40", "--suite-axis", "baseline.workers=1")


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty folder in which the installed suite is run."""
    # Under xdist, the inner pytest must not take itself for one of the outer one's workers.
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_subprocess(
        "--pyargs", "pyperf_suite.benchmarks", "-p", "no:cacheprovider", "-k", "baseline", *SMALL, *arguments
    )


def journal(suite: pytest.Pytester, folder: str = "bench_results") -> Path:
    (path,) = (suite.path / folder).glob("*/*/records.jsonl")
    return path


def test_from_an_empty_folder_every_case_is_measured_recorded_and_summed_up(suite: pytest.Pytester) -> None:
    result = run(suite, "--benchmark-only", "--benchmark-json", "out.json")
    result.assert_outcomes(passed=4, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(
        [
            "*benchmark 'baseline float32 1 workers': 4 tests*",
            "*geometric mean of 2 products*",
            "records   *records.jsonl",
        ]
    )
    timing = [record for record in read_journal(journal(suite)) if record.kind == "timing"]
    assert len(timing) == 4
    exported = json.loads((suite.path / "out.json").read_text())["benchmarks"]
    by_case = {record.case_id: record.metrics["time"].samples for record in timing}
    for benchmark in exported:
        # The replay is exact, and raw rounds are there although --benchmark-save-data was not given.
        assert benchmark["stats"]["data"] == by_case[benchmark["extra_info"]["case_id"]]
        assert benchmark["stats"]["median"] == pytest.approx(sorted_median(benchmark["stats"]["data"]))
        assert "UNSERIALIZABLE" not in json.dumps(benchmark)


def sorted_median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def test_a_saved_run_can_be_compared_with_by_pytest_benchmark(suite: pytest.Pytester) -> None:
    assert run(suite, "--benchmark-only", "--benchmark-save", "before").ret == 0
    result = run(suite, "--benchmark-only", "--benchmark-compare", "0001", "--benchmark-compare-fail", "median:10000%")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*(0001_before)*"])
    saved = json.loads(next((suite.path / ".benchmarks").glob("*/*before.json")).read_text())
    assert all(benchmark["stats"]["data"] for benchmark in saved["benchmarks"])


def test_a_benchmark_file_named_by_its_path_is_collected_once(suite: pytest.Pytester) -> None:
    named = str(BENCHMARKS / "bench_probes.py")
    result = suite.runpytest_subprocess(
        named, "-p", "no:cacheprovider", "-k", "test_baseline", "--benchmark-only", *SMALL
    )
    result.assert_outcomes(passed=4)


def test_what_is_read_and_not_timed_passes_beside_the_table_of_times(suite: pytest.Pytester) -> None:
    file = (str(BENCHMARKS / "bench_probes.py"), "-k", "test_topology")
    result = suite.runpytest_subprocess(
        *file, "-p", "no:cacheprovider", "--benchmark-only", "--benchmark-json", "out.json"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["topology", "*What was found, against what could be*"])
    assert json.loads(journal(suite).read_text())["kind"] == "static"
    result = suite.runpytest_subprocess(*file, "-p", "no:cacheprovider", "--benchmark-disable")
    result.assert_outcomes(passed=1)


def test_disabled_benchmarks_are_verified_once_and_leave_no_results(suite: pytest.Pytester) -> None:
    result = run(suite, "--benchmark-disable")
    assert result.parseoutcomes()["passed"] == 4
    assert not (suite.path / "bench_results").exists()


def test_collecting_alone_measures_nothing(suite: pytest.Pytester) -> None:
    result = run(suite, "--benchmark-only", "--collect-only", "-q")
    assert result.ret == 0
    assert not (suite.path / "bench_results").exists()


def test_the_order_is_shuffled_by_the_seed(suite: pytest.Pytester) -> None:
    def order(seed: str) -> list[str]:
        result = run(suite, "--collect-only", "-q", "--suite-seed", seed)
        return [line for line in result.outlines if "::" in line]

    first = order("1")
    assert first == order("1")
    assert sorted(first) == sorted(order("2"))
    assert any(first != order(seed) for seed in ("2", "3"))


def test_stopping_early_keeps_records_and_resuming_measures_only_the_rest(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        power_cut="""
        import pytest

        def pytest_runtest_logreport(report):
            if report.when == "call":
                pytest.exit("power cut", returncode=3)
        """
    )
    assert run(suite, "--benchmark-only", "-p", "power_cut").ret == 3
    kept = read_journal(journal(suite))
    assert sum(record.kind == "timing" for record in kept) == 1
    assert run(suite, "--benchmark-only", "--suite-resume").ret == 0
    records = [record for record in read_journal(journal(suite)) if record.kind == "timing"]
    assert len(records) == len({record.case_id for record in records}) == 4
    assert read_journal(journal(suite))[: len(kept)] == kept


def test_all_cases_are_measured_in_one_process_before_any_in_the_next(suite: pytest.Pytester) -> None:
    few = ("--suite-axis", "baseline.layout=NN", "--suite-axis", "baseline.dtype=float32")
    assert run(suite, "--benchmark-only", "--suite-profile", "standard", *few).ret == 0
    timing = [record for record in read_journal(journal(suite)) if record.kind == "timing"]
    assert [record.process for record in timing] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({record.case_id for record in timing}) == 4


def test_items_that_a_budget_left_out_are_skipped_and_can_be_resumed(suite: pytest.Pytester) -> None:
    result = run(suite, "--benchmark-only", "--suite-budget", "0.001")
    assert result.ret == 0
    result.assert_outcomes(skipped=4, deselected=result.parseoutcomes()["deselected"])
    assert not [record for record in read_journal(journal(suite)) if record.kind == "timing"]
    assert run(suite, "--benchmark-only", "--suite-resume").ret == 0
    assert len([record for record in read_journal(journal(suite)) if record.kind == "timing"]) == 4


def test_a_torn_last_line_does_not_stop_a_resume_even_where_warnings_are_errors(suite: pytest.Pytester) -> None:
    assert run(suite, "--benchmark-only").ret == 0
    torn = journal(suite).read_bytes()[:-50]
    journal(suite).write_bytes(torn)
    result = run(suite, "--benchmark-only", "--suite-resume", "-W", "error")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*DamagedJournal: *set aside*"])
    assert journal(suite).read_bytes().startswith(torn[: torn.rfind(b"\n")])


def test_failed_and_unsupported_cases_are_told_by_pytest_and_recorded(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        unlucky="""
        from pyperf_suite.runner.workers import WorkerPool

        answers = [
            {"outcome": "failed", "reason": "Wrong result before timing: one element is off."},
            {"outcome": "unsupported", "reason": "This machine has no abacus."},
        ]
        real = WorkerPool.measure

        def measure(self, process, case, effort):
            # The sentinel comes first and stays real.
            if case.parameters.m == 512 or not answers:
                return real(self, process, case, effort)
            return answers.pop()

        WorkerPool.measure = measure
        """
    )
    result = run(suite, "--benchmark-only", "-rsf", "-p", "unlucky")
    result.assert_outcomes(passed=2, failed=1, skipped=1, warnings=0, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*one element is off*"])
    result.stdout.fnmatch_lines(["SKIPPED*unsupported: This machine has no abacus.*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    outcomes = [record.outcome for record in read_journal(journal(suite)) if record.kind == "timing"]
    assert sorted(outcomes) == ["failed", "ok", "ok", "unsupported"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--suite-profile", "thorough"), "*Unknown profile 'thorough'*quick, standard, full*"),
        (("--suite-device", "abacus"), "*abacus*"),
        (("--suite-device", "cuda:99"), "*cuda:99*"),
        (("--suite-axis", "baseline.dtype=float7"), "*dtype=float7 was asked for: choose from*"),
        (("--suite-axis", "baseline.shape=0x1x1"), "*m=0*"),
        (("--suite-axis", "baseline.shape=9x9"), "*'9x9' is not a shape*"),
        (("--suite-axis", "baseline.colour=red"), "*no axis 'colour'*"),
        (("--suite-axis", "baseline.shape=2000000x2000000x1"), "*GB of memory*"),
        (("--suite-axis", "baseline.workers=99999"), "*99999 workers*"),
        (("--suite-results", "a-file/results"), "*cannot be written*"),
        (("--suite-resume",), "*no run of the same cases*"),
    ],
)
def test_what_cannot_be_ends_in_one_sentence_and_exit_code_2(
    suite: pytest.Pytester, arguments: tuple[str, ...], sentence: str
) -> None:
    (suite.path / "a-file").touch()
    result = run(suite, "--benchmark-only", *arguments)
    assert result.ret == 2
    result.stdout.fnmatch_lines([sentence])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*ERROR collecting*")
    assert not (suite.path / "bench_results").exists()


def test_an_axis_of_one_probe_needs_no_prefix_where_only_that_probe_is_selected(suite: pytest.Pytester) -> None:
    shapes = ("--suite-axis", "shape=16x16x16", "--suite-axis", "workers=1")
    chosen = ("--pyargs", "pyperf_suite.benchmarks", "-p", "no:cacheprovider", "-k", "baseline", "--collect-only", "-q")
    result = suite.runpytest_subprocess(*chosen, *shapes)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*baseline*m=16 n=16 k=16*"])


def test_beside_other_peoples_tests_the_plugin_changes_nothing(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_own="def test_plain():\n    pass\n\ndef test_timed(benchmark):\n    benchmark(lambda: None)\n",
        bench_own="def test_not_collected():\n    assert False\n",
    )
    result = suite.runpytest_subprocess("-p", "no:cacheprovider", "--benchmark-save", "own")
    result.assert_outcomes(passed=2)
    saved = json.loads(next((suite.path / ".benchmarks").glob("*/*own.json")).read_text())
    assert "data" not in saved["benchmarks"][0]["stats"]
    result.stdout.no_fnmatch_line("*= pyperf_suite =*")


def test_without_pytest_benchmark_other_tests_still_run(suite: pytest.Pytester) -> None:
    suite.makepyfile("def test_plain():\n    pass\n")
    suite.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:benchmark").assert_outcomes(passed=1)


def test_a_session_without_items_of_the_suite_imports_nothing_heavy_of_it(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        "import sys\ndef test_plain():\n    assert not {'pyperf_suite.runner', 'numpy', 'rich'} & set(sys.modules)\n"
    )
    suite.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_with_xdist_installed_a_serial_run_measures_and_a_parallel_one_verifies(
    suite: pytest.Pytester,
) -> None:
    pytest.importorskip("xdist")
    assert run(suite, "--benchmark-only", "-n", "0").ret == 0
    result = run(suite, "-n", "2", "--suite-results", "parallel")
    assert result.parseoutcomes()["passed"] == 4
    assert not (suite.path / "parallel").exists()


def test_the_replay_clock_tells_each_sample_as_the_difference_of_a_pair() -> None:
    clock = ReplayClock()
    samples = [0.1, 1e-9, 3.0000000000000004]
    clock.load(samples)
    told = []
    for _ in samples:
        begin = clock()
        told.append(clock() - begin)
    assert told == samples
