"""Tests of any project under the suite: `--suite-measure` for pytest-benchmark's fixture, and the `suite` fixture.

A session that measures starts processes, so what one session shows is asserted by several tests.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.record import Record
from tests.commands import invoke
from tests.core.repository import Repository

pytest_plugins = ("pytester",)
pytestmark = pytest.mark.slow

BENCHMARKS = """
import asyncio, os, pathlib, sys, time, unittest
import pytest

CALLS = pathlib.Path(os.environ["CALLS"])


@pytest.fixture(scope="module")
def values():
    with CALLS.joinpath("fixture").open("a") as log:
        log.write(f"{os.getpid()} ")
    return list(range(1000))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("key", [abs, None], ids=["abs", "plain"])
def test_sorted(benchmark, values, key, reverse):
    assert benchmark(sorted, values, key=key, reverse=reverse)[0] == (999 if reverse else 0)


class TestClass:
    @pytest.mark.benchmark(group="of a class")
    def test_method(self, benchmark, tmp_path, cache, capsys):
        benchmark.extra_info["own"] = "kept"
        print("x" * 3_000_000)
        assert benchmark(len, "abc") == 3
        assert benchmark.stats["median"] > 0
        assert benchmark.stats.stats.rounds >= 12


class TestCase(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, benchmark):
        self.benchmark = benchmark

    def test_unittest(self):
        self.assertEqual(self.benchmark(sum, [1, 2]), 3)


def test_pedantic(benchmark):
    def counted(made, log=CALLS / "pedantic"):
        with log.open("a") as file:
            file.write(f"{os.getpid()} ")
        return made

    cleaned = []
    made = benchmark.pedantic(
        counted, setup=lambda: (([],), {}), teardown=cleaned.append, rounds=4, warmup_rounds=2
    )
    assert made == [] and cleaned


def test_iterations(benchmark):
    assert benchmark.pedantic(divmod, args=(7, 2), rounds=3, iterations=5) == (3, 1)


def test_bad_rounds(benchmark):
    with pytest.raises(ValueError, match="rounds"):
        benchmark.pedantic(len, args=("a",), rounds=0)


def test_raises(benchmark):
    def fails():
        raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        benchmark(fails)


def test_breaks(benchmark):
    benchmark(int, "no number")


def test_stops(benchmark):
    with pytest.raises(StopIteration):
        benchmark(next, iter(()))


def test_never_comes_to_it(benchmark):
    assert benchmark is None


def test_async(benchmark):
    async def answer():
        return 42

    assert benchmark(lambda: asyncio.run(answer())) == 42


def test_wrong(benchmark):
    assert benchmark(lambda: 3) == 4


def test_wrong_elsewhere(benchmark):
    here = benchmark(os.getpid)
    assert str(here) == os.environ["PARENT"]


def test_judges_its_time(benchmark):
    benchmark(lambda: None)
    assert os.environ["PARENT"] == str(os.getpid()) or benchmark.stats["mean"] > 1e9


@pytest.mark.benchmark(timer=time.process_time, min_time=0.001, max_time=0.01, min_rounds=1)
def test_own_clock(benchmark):
    benchmark(lambda: None)


def test_twice(benchmark):
    benchmark(len, "")
    with pytest.raises(Exception, match="once"):
        benchmark(len, "")


def test_forks(benchmark):
    forked = []

    def fork_once():
        if not forked and str(os.getpid()) != os.environ["PARENT"]:
            forked.append(os.fork())

    benchmark(fork_once)


def test_exit(benchmark):
    benchmark(lambda: os._exit(3) if str(os.getpid()) != os.environ["PARENT"] else None)


def test_hangs(benchmark):
    benchmark(lambda: time.sleep(600) if str(os.getpid()) != os.environ["PARENT"] else None)


@pytest.mark.skip(reason="not today")
def test_skipped(benchmark):
    benchmark(len, "")


@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_xfails(benchmark):
    benchmark(lambda: 1 / 0)


def test_plain():
    pass


def test_after(benchmark):
    assert benchmark(len, "ab") == 2
"""

# A product so small that it takes no torch: what the machine does meanwhile is not what is tested.
QUICK_SENTINEL = """
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.runner import session
from pyperf_suite.record.case import Case
from pyperf_suite.workloads.matmul import MatmulParameters

session.SENTINELS["cpu"] = Case("matmul", MatmulParameters(8, 8, 8, Schedule("data_parallel", 1)), "native")
"""

# pytest.main, so that the tests above know the asking process.
STARTED = "import os, sys, pytest; os.environ['PARENT'] = str(os.getpid()); sys.exit(pytest.main(sys.argv[1:]))"


@dataclass
class Run:
    """Results of a pytest session: exit code, output, outcomes by test, its exported JSON and its journal's records."""

    folder: Path
    code: int
    output: str

    @property
    def outcomes(self) -> dict[str, str]:
        found = re.findall(r"^(PASSED|FAILED|SKIPPED|XFAIL|ERROR) \S*?::(\S+)", self.output, re.MULTILINE)
        return {name: outcome for outcome, name in found}

    @property
    def exported(self) -> dict[str, dict[str, Any]]:
        content = json.loads((self.folder / "out.json").read_text())
        return {each["name"]: each for each in content["benchmarks"]}

    @property
    def records(self) -> list[Record]:
        (path,) = self.folder.glob("bench_results/*/*/records.jsonl")
        return [record for record in read_journal(path) if record.kind != "sentinel"]

    def of(self, test: str) -> list[Record]:
        return [record for record in self.records if record.probe.endswith(f"::{test}")]


def pytest_in(folder: Path, source: str, *arguments: str) -> Run:
    """A session of its own, in which `source` is the only file of tests."""
    (folder / "test_theirs.py").write_text(source)
    (folder / "conftest.py").write_text(QUICK_SENTINEL)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -rA --strict-markers\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-c", STARTED, *arguments],
        cwd=folder,
        env=environment | {"CALLS": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Run(folder, done.returncode, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def drop_in(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The benchmarks above, measured in two processes."""
    return pytest_in(
        tmp_path_factory.mktemp("drop_in"),
        BENCHMARKS,
        *("--suite-measure", "--suite-processes=2", "--suite-deadline=10", "--suite-device=cpu"),
        *("--benchmark-json=out.json", "--junitxml=junit.xml", "--lf", "--basetemp=base"),
    )


def test_existing_benchmarks_end_as_they_do_without_the_suite(drop_in):
    failing = {
        "test_wrong",
        "test_wrong_elsewhere",
        "test_exit",
        "test_hangs",
        "test_breaks",
        "test_never_comes_to_it",
    }
    assert {name for name, outcome in drop_in.outcomes.items() if outcome == "FAILED"} == failing
    assert drop_in.outcomes["test_xfails"] == "XFAIL"
    passed = {name for name, outcome in drop_in.outcomes.items() if outcome == "PASSED"}
    assert passed >= {"test_sorted[abs-False]", "TestClass::test_method", "TestCase::test_unittest", "test_pedantic"}
    assert passed >= {
        "test_raises",
        "test_stops",
        "test_bad_rounds",
        "test_async",
        "test_judges_its_time",
        "test_twice",
        "test_plain",
    }
    assert drop_in.code == 1


def test_each_process_measures_every_parametrisation_and_all_samples_are_exported(drop_in):
    records = drop_in.of("test_sorted")
    cases = {(record.case["parameters"]["key"], record.case["parameters"]["reverse"]) for record in records}
    assert cases == {("abs", False), ("abs", True), ("None", False), ("None", True)}
    assert sorted(record.process for record in records) == [0] * 4 + [1] * 4
    assert all(record.outcome == "ok" and record.probe == "test_theirs.py::test_sorted" for record in records)
    assert all(
        record.sampling["warmup_launches"] > 0 and "load_average" in record.quality["before"] for record in records
    )
    exported = drop_in.exported["test_sorted[abs-False]"]
    its_own = [each for each in records if each.case_id == exported["extra_info"]["case_id"]]
    assert exported["stats"]["data"] == [sample for record in its_own for sample in record.kept_seconds]
    assert exported["extra_info"]["processes"] == 2


def test_group_extra_info_clock_and_assertions_on_time_of_a_test_stay(drop_in):
    exported = drop_in.exported["test_method"]
    assert (exported["group"], exported["extra_info"]["own"]) == ("of a class", "kept")
    assert drop_in.of("TestClass::test_method")[0].outcome == "ok"
    assert not drop_in.of("test_own_clock")
    assert "process_time" in drop_in.exported["test_own_clock"]["options"]["timer"]
    assert {record.outcome for record in drop_in.of("test_judges_its_time")} == {"ok"}


def test_pedantic_makes_its_rounds_alone_and_a_modules_fixture_is_made_once_in_each_process(drop_in):
    calls = (drop_in.folder / "pedantic").read_text().split()
    assert sorted(calls.count(process) for process in set(calls)) == [1, 6, 6]  # one in the session itself
    assert [len(record.metrics["time"].samples) for record in drop_in.of("test_pedantic")] == [4, 4]
    assert {record.sampling["launches_per_sample"] for record in drop_in.of("test_iterations")} == {5}
    assert drop_in.exported["test_iterations"]["stats"]["rounds"] == 6
    made = (drop_in.folder / "fixture").read_text().split()
    assert len(made) == len(set(made)) == 3


def test_a_test_that_costs_its_process_is_not_tried_again_and_the_rest_goes_on(drop_in):
    assert [record.outcome for record in drop_in.of("test_forks")] == ["ok", "ok"]
    for test, why in (("test_exit", "exit code 3"), ("test_hangs", "deadline of 10 s (--suite-deadline)")):
        (record,) = drop_in.of(test)
        assert record.outcome == "failed"
        assert why in record.reason
        assert record.reason in drop_in.output
    assert [record.outcome for record in drop_in.of("test_after")] == ["ok", "ok"]


def test_a_wrong_result_is_recorded_and_told_also_where_the_session_itself_has_it_right(drop_in):
    assert {record.outcome for record in drop_in.of("test_wrong")} == {"failed"}
    assert "assert 3 == 4" in drop_in.of("test_wrong")[0].reason
    assert re.search(
        r"passes here, but it failed in process 1 of the 2 that measured it: test_theirs.py", drop_in.output
    )


def test_what_raises_is_a_failed_record_with_its_reason(drop_in):
    for test, reason in {
        "test_raises": "LookupError: on purpose",
        "test_breaks": "ValueError: invalid literal for int",
        "test_stops": "StopIteration",
        "test_xfails": "ZeroDivisionError: division by zero",
        "test_never_comes_to_it": "assert <",
    }.items():
        records = drop_in.of(test)
        assert {(record.outcome, record.process) for record in records} == {("failed", 0), ("failed", 1)}
        assert all(reason in record.reason for record in records), records
    assert "ValueError: invalid literal for int" in drop_in.output
    assert not drop_in.of("test_skipped")


EXAMPLE = Path(__file__).parents[3] / "examples" / "pytest" / "test_softmax.py"

SUITE = (
    EXAMPLE.read_text()
    + """
import os


def test_slow(suite):
    assert suite(sorted, [3, 1, 2], reference=lambda v: [1, 2, 3]).seconds > 1000


def test_wrong(suite):
    suite(np.exp, np.ones(100, np.float32), reference=lambda x: np.exp(x) + 1)


def test_two(suite):
    x = np.ones((64, 64))
    ways = {"dot": np.dot, "einsum": lambda a, b: np.einsum("ij,jk", a, b)}
    result = suite(ways, x, x, flop=2 * 64**3, bytes=3 * x.nbytes)
    assert result["dot"].seconds == result.seconds != result["einsum"].seconds
    assert 0 < result.interval[0] <= result.seconds <= result.interval[1] < 1
    assert result.processes == 2
    assert result.flop_per_s > 0 and result.bytes_per_s > 0
    assert result.speedup.low <= result.speedup.value <= result.speedup.high
    with pytest.raises(KeyError):
        result["cublas"]


def test_raises(suite):
    def broken(x):
        raise RuntimeError("oops")

    suite(broken, np.ones(3))


def test_exit(suite):
    suite(lambda: os._exit(4))


def test_skips(suite):
    suite(lambda: pytest.skip("not of this machine"))


def test_again(suite):
    suite(sorted, [3, 1, 2])
    with pytest.raises(TypeError, match="once a test"):
        suite(sorted, [3, 1, 2, 4])


def test_meant_otherwise(suite):
    with pytest.raises(ValueError, match="baseline"):
        suite(softmax, baseline="cublas")


def test_coroutine(suite):
    async def answer():
        return 42

    with pytest.raises(TypeError, match="coroutine"):
        suite(answer)
"""
)


@pytest.fixture(scope="module")
def with_fixture(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Tests that ask for `suite`, without any option of the suite's but the number of processes."""
    folder = tmp_path_factory.mktemp("with_fixture")
    return pytest_in(folder, SUITE, "--suite-processes=2", "--suite-device=cpu", "--benchmark-json=out.json")


def test_a_test_can_measure_verify_and_assert_on_the_result(with_fixture):
    failing = {"test_slow", "test_wrong", "test_raises", "test_exit"}
    assert {name for name, outcome in with_fixture.outcomes.items() if outcome == "FAILED"} == failing
    records = with_fixture.of("test_softmax")
    assert sorted((record.case["parameters"]["n"], record.process) for record in records) == [
        (64, 0), (64, 1), (512, 0), (512, 1),
    ]  # fmt: skip
    assert all(record.verification["passed"] and record.verification["launches_checked"] > 0 for record in records)
    assert all(record.work["bytes"] == 2 * 4 * 32 * record.case["parameters"]["n"] for record in records)
    assert {record.outcome for record in with_fixture.of("test_slow")} == {"ok"}


def test_a_function_that_skips_its_test_is_unsupported_and_skips_it(with_fixture):
    assert re.search(r"SKIPPED \[1\].*not of this machine", with_fixture.output)
    assert {(each.outcome, each.reason) for each in with_fixture.of("test_skips")} == {
        ("unsupported", "not of this machine")
    }


def test_what_is_wrong_or_raises_fails_with_a_sentence_and_is_recorded(with_fixture):
    # Any of a hundred equal elements may be named, with limits that are measured in each process.
    sentences = {record.reason for record in with_fixture.of("test_wrong")}
    assert all(re.search(r"out\[\d+\] is 2\.71828, where 3\.71828 is right", sentence) for sentence in sentences)
    assert any(sentence in with_fixture.output for sentence in sentences)
    line = SUITE.splitlines().index('        raise RuntimeError("oops")') + 1
    assert {record.reason for record in with_fixture.of("test_raises")} == {
        f"test_theirs.py:{line}: broken raised RuntimeError: oops."
    }


def test_several_implementations_are_recorded_and_the_first_is_in_the_table(with_fixture):
    records = with_fixture.of("test_two")
    assert [record.case["implementation"] for record in records] == ["dot", "einsum"] * 2
    exported = with_fixture.exported["test_two"]
    dot = [sample for record in records[::2] for sample in record.kept_seconds]
    assert exported["stats"]["data"] == dot
    assert set(exported["extra_info"]["seconds"]) == {"dot", "einsum"}


def test_a_report_and_a_history_know_the_tests(with_fixture):
    results, page = str(with_fixture.folder / "bench_results"), with_fixture.folder / "page.html"
    for command in (["report", results, "-o", str(page)], ["history", "--results", results]):
        done = invoke(*command)
        assert done.exit_code == 0, done.output
    assert "test_theirs.py::test_softmax" in done.output
    assert "pytest test_theirs.py::test_softmax" in page.read_text()


def test_with_benchmarks_disabled_results_are_verified_and_times_are_skipped(tmp_path):
    run = pytest_in(tmp_path, SUITE, "--benchmark-disable", "-k", "softmax or wrong or slow")
    assert run.outcomes["test_wrong"] == "FAILED"
    assert run.code == 1
    assert re.search(r"SKIPPED \[3\].*nothing was timed", run.output)
    assert not (tmp_path / "bench_results").exists()


SMALL = "def test_a(benchmark):\n    assert benchmark(len, 'a') == 1\ndef test_b(benchmark):\n    benchmark(len, '')\n"


SKIPS = """
import os, pathlib, pytest
with pathlib.Path(os.environ["CALLS"], "processes").open("a") as log:
    log.write(f"{os.getpid()} ")
"""


@pytest.mark.parametrize(
    ("source", "arguments", "processes"),
    [
        (SMALL, ("--benchmark-skip",), 1),
        (SMALL, ("--benchmark-disable",), 1),
        (SMALL, ("--collect-only",), 1),
        (SMALL, ("-k", "nothing"), 1),
        ("pytestmark = pytest.mark.skipif(condition=True, reason='not here')\n" + SMALL, (), 1),
        # Only the test itself knows this: a process has to be asked.
        ("def test_a(benchmark):\n    pytest.skip('no GPU')\n    benchmark(len, '')\n", (), 2),
    ],
    ids=["skip", "disable", "collect", "deselected", "mark", "test"],
)
def test_where_nothing_is_timed_nothing_is_started_and_no_run_is_left(tmp_path, source, arguments, processes):
    run = pytest_in(tmp_path, SKIPS + source, "--suite-measure", "--suite-device=cpu", *arguments)
    assert run.code in (0, 5), run.output
    assert len((tmp_path / "processes").read_text().split()) == processes
    assert not (tmp_path / "bench_results").exists()


def test_where_nothing_is_collected_one_sentence_names_the_form_that_runs_the_suites_own_cases(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # pytest-benchmark switches itself off for it
    found = pytester.runpytest_subprocess("--benchmark-only")
    found.stdout.fnmatch_lines(["*pytest --pyargs pyperf_suite.benchmarks --benchmark-only"])
    assert "pyargs" not in pytester.runpytest_subprocess().stdout.str()
    pytester.makepyfile(test_small=SMALL)
    assert "pyargs" not in pytester.runpytest_subprocess("--benchmark-only", "-k", "nothing").stdout.str()


def test_a_resumed_session_measures_only_what_is_missing(tmp_path):
    options = ("--suite-measure", "--suite-device=cpu")
    first = pytest_in(tmp_path, SMALL, *options, "-p", "no:cacheprovider")
    before = [record.started_at for record in first.records]
    again = pytest_in(tmp_path, SMALL, *options, "--suite-resume", "--benchmark-json=out.json")
    assert (first.code, again.code) == (0, 0)
    assert [record.started_at for record in again.records] == before
    assert again.exported["test_a"]["stats"]["data"] == again.of("test_a")[0].kept_seconds


def test_records_name_the_commit_of_the_tests_repository(tmp_path):
    repository = Repository(tmp_path / "theirs")
    repository.commit("first", **{"test_theirs.py": SMALL})
    run = pytest_in(repository.root, SMALL, "--suite-measure", "--suite-device=cpu")
    sources = [record.state["source"] for record in run.records]
    assert sources == 2 * [{"commit": repository.git("rev-parse", "HEAD"), "dirty": False}]


def test_tests_that_a_budget_leaves_out_are_skipped(tmp_path):
    run = pytest_in(tmp_path, SMALL, "--suite-measure", "--suite-budget=0.001")
    assert re.search(r"SKIPPED \[2\].*the budget was used up", run.output)
    assert run.records == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-n", "1"), "pytest-xdist"),
        (("-p", "no:benchmark"), "pytest-benchmark"),
        (("-p", "breaks_children"), "could not be started"),
        (("-p", "pytest_forked", "--forked"), "leave out --forked"),
        (("-p", "pytest_codspeed"), "leave out --codspeed"),
    ],
    ids=["xdist", "no-benchmark", "child", "forked", "codspeed"],
)
def test_where_no_process_can_measure_one_sentence_says_why(tmp_path, arguments, words):
    if "-n" in arguments:
        pytest.importorskip("xdist")
    (tmp_path / "breaks_children.py").write_text(
        "import os\ndef pytest_configure():\n    assert os.environ['PARENT'] == str(os.getpid()), 'not here'\n"
    )
    write_doubles(tmp_path)
    run = pytest_in(tmp_path, SMALL, "--suite-measure", *arguments)
    assert run.code == 2
    assert words in run.output
    assert "Traceback" not in run.output


# Plugins as far as they meet the suite's, by the names of their packages.
DOUBLES = {
    "pytest_forked": """
        def pytest_addoption(parser):
            parser.addoption("--forked", action="store_true")
    """,
    "pytest_codspeed": """
        import pytest

        class Plugin:
            is_codspeed_enabled = True

        @pytest.hookimpl(tryfirst=True)
        def pytest_configure(config):
            config.option.benchmark_disable = True
            config.pluginmanager.register(Plugin(), "codspeed_plugin")

        @pytest.fixture
        def benchmark():
            return lambda function, *args: function(*args)
    """,
    "pytest_randomly": """
        import random

        def pytest_addoption(parser):
            parser.addoption("--randomly-seed", dest="randomly_seed", default="default")

        def pytest_configure(config):
            if config.option.randomly_seed in ("default", "last"):
                config.option.randomly_seed = random.Random().getrandbits(32)

        def pytest_runtest_call(item):
            random.seed(item.config.option.randomly_seed)
    """,
    "pytest_memray": """
        import pytest

        class Manager:
            def pytest_pyfunc_call(self, pyfuncitem):
                pyfuncitem.obj.__globals__["note"]("pytest_memray")

        def pytest_configure(config):
            config.pluginmanager.register(Manager(), "memray_manager")
    """,
    "pytest_monitor": """
        import pytest

        def pytest_addoption(parser):
            parser.addoption("--no-monitor", dest="mtr_none", action="store_true")

        def pytest_sessionstart(session):
            session.monitors = not session.config.option.mtr_none

        @pytest.fixture(autouse=True)
        def monitored(request):
            if request.session.monitors:
                request.function.__globals__["note"]("pytest_monitor")

        def pytest_pyfunc_call(pyfuncitem):
            try:
                pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
            except BaseException:
                pyfuncitem.obj.__globals__["note"]("pytest_monitor")
            return True
    """,
    "pytest_timeout": """
        import os

        def pytest_addoption(parser):
            parser.addoption("--timeout")

        def pytest_runtest_protocol(item):
            item.obj.__globals__["note"]("pytest_timeout")
    """,
}


def write_doubles(folder: Path) -> None:
    for name, source in DOUBLES.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))


BESIDE_PLUGINS = """
import os, pathlib, random

def note(name):
    with pathlib.Path(os.environ["CALLS"], name).open("a") as log:
        log.write(f"{os.getpid()} ")

def test_draws(benchmark):
    drawn = random.random()
    with pathlib.Path(os.environ["CALLS"], "drawn").open("a") as log:
        log.write(f"{os.getpid()} {drawn} ")
    benchmark(len, "a")

def test_verified(suite):
    suite(sorted, [2, 1], reference=sorted)
"""


def test_fresh_processes_share_the_drawn_seed_and_neither_trace_nor_stop_tests(tmp_path):
    write_doubles(tmp_path)
    names = ("pytest_randomly", "pytest_memray", "pytest_monitor", "pytest_timeout")
    beside = [word for name in names for word in ("-p", name)]
    arguments = ("--suite-measure", "--suite-processes=2", "--timeout=1", "--randomly-seed=last")
    run = pytest_in(tmp_path, BESIDE_PLUGINS, *beside, *arguments)
    assert run.code == 0, run.output
    assert [record.outcome for record in run.records] == ["ok"] * 4
    drawn = (tmp_path / "drawn").read_text().split()
    assert len(set(drawn[::2])) == 3
    assert len(set(drawn[1::2])) == 1
    session = drawn[-2]
    for name in names[1:]:
        assert set((tmp_path / name).read_text().split()) == {session}, name


def test_where_another_plugins_fixture_measures_the_suites_tests_are_verified(tmp_path):
    write_doubles(tmp_path)
    run = pytest_in(tmp_path, SUITE, "-p", "pytest_codspeed", "-k", "wrong or meant_otherwise")
    assert run.outcomes == {"test_wrong": "FAILED", "test_meant_otherwise": "PASSED"}
    assert "AttributeError" not in run.output
