"""The suite under pytest: cases become items, tests of any project are measured, and pytest-benchmark reports both.

A thin front end: it never touches a device. What fresh processes measured is replayed into pytest-benchmark through its
public surface alone, a `timer` whose pairs of calls return 0.0 and then the sample, and `pedantic`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyperf_suite.errors import ExitCode
from pyperf_suite.pytest_plugin import CHILD, spoken_errors
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.ranks.watchdog import stand_by

if TYPE_CHECKING:
    from pyperf_suite.pytest_plugin.fixtures import Measurer, PytestChild, ReplayClock  # noqa: F401 - names inside the keys below, for mypy
    from pyperf_suite.pytest_plugin.run import SuiteRun
    from pyperf_suite.runner.plan import PlannedCase  # noqa: F401

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
_PLANNED = pytest.StashKey["PlannedCase"]()
_CLOCK = pytest.StashKey["ReplayClock"]()
_RUN = pytest.StashKey["SuiteRun"]()
# By name, without --suite-, what argparse is told.
OPTIONS: dict[str, dict[str, Any]] = {
    "profile": {"metavar": "NAME", "default": "quick", "help": "How thoroughly to measure: quick (default), standard "
     "or full. Example: --suite-profile standard."},
    "device": {"metavar": "DEVICE", "default": "auto", "help": "Device to measure on: auto (default), cpu, or cuda:N. "
     "Example: --suite-device cuda:1."},
    "results": {"metavar": "FOLDER", "default": "bench_results", "help": "Folder that holds the runs (default "
     "bench_results). Example: --suite-results /data/bench_results."},
    "seed": {"metavar": "N", "type": int, "default": 0, "help": "Seed of the random order in which cases are measured "
     "(default 0). Example: --suite-seed 7."},
    "budget": {"metavar": "SECONDS", "type": float, "help": "Time limit for the whole run; the most informative cases "
     "are measured first and the rest is skipped (default no limit). Example: --suite-budget 300."},
    "processes": {"metavar": "N", "type": int, "help": "Number of fresh processes that measure each test (default: "
     "that of the profile). Example: --suite-processes 5."},
    "deadline": {"metavar": "SECONDS", "type": float, "default": 120.0, "help": "Time limit for a test in each fresh "
     "process (default 120). Example: --suite-deadline 600."},
    "resume": {"metavar": "RUN", "nargs": "?", "const": "latest", "help": "Continue the newest run of the same cases, "
     "or the named run, without measuring again what it holds (default: start a new run). Example: --suite-resume "
     "20261121T021948Z-22a8."},
    "axis": {"metavar": "[PROBE.]AXIS=VALUE[,VALUE]", "action": "append", "default": [], "help": "Replace the values "
     "of one axis of a probe (default: those of the profile). May be repeated. Example: --suite-axis "
     "tile_wave.tile=64x64x256."},
    "measure": {"action": "store_true", "help": "Measure the functions given to pytest-benchmark's fixture as the "
     "suite does: with its warm-up and stop rule, in each of the profile's processes (default: leave them to "
     "pytest-benchmark)."},
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Options of the suite; without them, tests that do not ask for `suite` run as if it were not there."""
    if options := os.environ.pop(CHILD, ""):
        from pyperf_suite.pytest_plugin.fixtures import PytestChild

        pluginmanager.register(PytestChild(json.loads(options)), CHILD)
    group = parser.getgroup("pyperf-suite", "pyperf_suite: microbenchmarks of transformer training")
    for name, told in OPTIONS.items():
        group.addoption(f"--suite-{name}", **told)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known; nothing is opened before a case of the suite is collected."""
    config.addinivalue_line("markers", "probe(name): the cases of this probe of pyperf_suite, one item each.")
    if config.getoption("suite_measure"):
        why_not = ""
        if getattr(config.pluginmanager.get_plugin("codspeed_plugin"), "is_codspeed_enabled", False):
            why_not = (
                "pytest-codspeed measures in the place of pytest-benchmark: leave out --codspeed, or unset "
                "CODSPEED_ENV."
            )
        elif not hasattr(config.option, "benchmark_disable"):
            why_not = "pytest-benchmark, whose fixture it measures for, is switched off: leave out -p no:benchmark."
        elif _is_parallel(config):
            why_not = "pytest-xdist runs tests side by side, and they would disturb each other: add -n 0."
        if why_not:
            pytest.exit(f"--suite-measure: {why_not}", returncode=ExitCode.USAGE)
        config.pluginmanager.register(_InPlaceOfBenchmark(), "pyperf_suite_measure")
    if not config.getoption("benchmark_only", False):
        return
    with spoken_errors():
        place = rank_environment()
        stand_by()
    if place.rank and not place.is_pod:
        # One rank of several records and reports; what the others would print is the same lines again.
        config.option.verbose, config.option.no_header, config.option.no_summary = -2, True, True


def _run(config: pytest.Config) -> SuiteRun:
    """The run behind the session, made at first use; hooks that need none look for `_RUN` instead."""
    if _RUN not in config.stash:
        with spoken_errors():
            from pyperf_suite.pytest_plugin.run import SuiteRun

            config.stash[_RUN] = SuiteRun(config)
    return config.stash[_RUN]


def _is_parallel(config: pytest.Config) -> bool:
    return config.getoption("dist", "no") != "no" or hasattr(config, "workerinput")


class _InPlaceOfBenchmark:
    """The plugin that is there with --suite-measure: registered late, its fixture comes before pytest-benchmark's."""

    @pytest.fixture
    def benchmark(self, benchmark: Any, request: pytest.FixtureRequest) -> Any:
        clock = request.node.stash.get(_CLOCK, None)
        if clock is None or _PLANNED in request.node.stash:
            return benchmark
        from pyperf_suite.pytest_plugin.fixtures import MeasuredBenchmark

        child = _child(request.config)
        taken = MeasuredBenchmark.take_over(benchmark, _measurer(request.config), clock)
        if child is not None:
            child.benchmark = taken
        return taken


@pytest.fixture
def suite(benchmark: Any, request: pytest.FixtureRequest) -> Any:
    """Measure a function in fresh processes, verified: `suite(function, *args, reference=..., bytes=..., flop=...)`.

    Returns a result whose `seconds` and `interval` a test can assert on; docs/pytest.md has the rest.
    """
    from pyperf_suite.pytest_plugin.fixtures import SuiteFixture

    clock = request.node.stash.get(_CLOCK, None)
    if clock is None:
        if _times(benchmark):
            pytest.fail("suite measures tests that name it as an argument: do not get it by request.getfixturevalue")
        return SuiteFixture(request.node.nodeid, benchmark, None, None)
    return SuiteFixture(request.node.nodeid, benchmark, _measurer(request.config), clock)


def _times(benchmark: Any) -> bool:
    """True if pytest-benchmark times the test's function; False where another plugin's fixture is in its place."""
    return not getattr(benchmark, "disabled", True)


def _child(config: pytest.Config) -> PytestChild | None:
    return config.pluginmanager.get_plugin(CHILD)


def _measurer(config: pytest.Config) -> Measurer:
    """Return the measurer of a test that has a clock."""
    measurer = _child(config) or _run(config).tests
    assert measurer is not None
    return measurer


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect the suite's own bench_*.py, whatever `python_files` says, so that it runs from an empty folder too."""
    if file_path.parent != BENCHMARKS or not file_path.match("bench_*.py"):
        return None
    by_pattern = any(file_path.match(pattern) for pattern in parent.config.getini("python_files"))
    if by_pattern or parent.session.isinitpath(file_path):
        return None  # pytest collects it by itself
    return pytest.Module.from_parent(parent, path=file_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item a case. Items carry its label, a plain text, because pytest-benchmark stores parameters as JSON."""
    marker = metafunc.definition.get_closest_marker("probe")
    if marker is None or "case_label" not in metafunc.fixturenames:
        return
    planned = _run(metafunc.config).collect(marker.args[0])
    metafunc.parametrize("case_label", list(planned), ids=list(planned))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give an item of the suite its case, its clock and its heading in pytest-benchmark's table."""
    marker = item.get_closest_marker("probe")
    if marker is None and isinstance(item, pytest.Function) and _is_measured(item):
        _give_clock(item)
    if "suite" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"))
    if marker is None or not isinstance(item, pytest.Function) or "case_label" not in item.callspec.params:
        return
    planned = _run(item.config).collect(marker.args[0]).get(str(item.callspec.params["case_label"]))
    if planned is None:
        return  # what was requested of this probe cannot be; said below if the item is not deselected
    item.stash[_PLANNED] = planned
    _give_clock(item, group=_run(item.config).heading(planned))
    # A case that failed has nothing to replay; that is reported as its failure, not as a warning too.
    item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"))


def _is_measured(item: pytest.Function) -> bool:
    """True if the suite measures this test's call to its fixture."""
    option, names = item.config.getoption, item.fixturenames
    if "benchmark" not in names or not ("suite" in names or option("suite_measure")):
        return False
    off = option("benchmark_disable", False) and not option("benchmark_enable", False)
    marker = item.get_closest_marker("benchmark")
    # A test that asks for a clock of its own has pytest-benchmark read it.
    own_clock = "suite" not in names and marker is not None and "timer" in marker.kwargs
    return not (off or own_clock or _is_parallel(item.config))


def _give_clock(item: pytest.Function, **options: Any) -> None:
    """Have pytest-benchmark read the item's times off a clock of ours, with its own options for the rest."""
    with spoken_errors():
        from pyperf_suite.pytest_plugin.fixtures import ReplayClock

    marker = item.get_closest_marker("benchmark")
    own = dict(marker.kwargs) if marker is not None else {}
    item.stash[_CLOCK] = ReplayClock()
    item.add_marker(pytest.mark.benchmark(**(own | options | {"timer": item.stash[_CLOCK]})), append=False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the suite's items in the order of a run, by the seed; all others keep their places."""
    places = [place for place, item in enumerate(items) if _PLANNED in item.stash]
    if not places:
        return  # a session of somebody else's tests pays for no import of ours
    planned = dict.fromkeys(items[place].stash[_PLANNED] for place in places)  # an item may be repeated
    turns = {each: turn for turn, each in enumerate(_run(config).request.in_order(list(planned)))}
    in_turn = sorted((items[place] for place in places), key=lambda item: turns[item.stash[_PLANNED]])
    for place, item in zip(places, in_turn, strict=True):
        items[place] = item


def pytest_collection_finish(session: pytest.Session) -> None:
    """Know the plan once deselection by -k is over, and end here where something that cannot be is left in it."""
    timed = [item for item in session.items if _CLOCK in item.stash and not _is_skipped(item)]
    is_forked = getattr(session.config.option, "forked", None)  # None without the plugin
    forks = [item.name for item in timed if is_forked or (is_forked is False and item.get_closest_marker("forked"))]
    if forked := next(iter(forks), ""):
        sentence = f"pytest-forked runs {forked} in a copy of this process, from which nothing measured comes back"
        pytest.exit(f"{sentence}: leave out --forked, or its marker.", returncode=ExitCode.USAGE)
    tests = [item for item in timed if _PLANNED not in item.stash]
    if tests and _child(session.config) is None:
        _run(session.config).collect_tests(tests)
    run = session.config.stash.get(_RUN, None)
    if run is None:
        return
    for item in session.items:
        marker = item.get_closest_marker("probe")
        if marker is not None and marker.args[0] in run.refused:
            pytest.exit(run.refused[marker.args[0]], returncode=ExitCode.USAGE)
    run.planned = list(dict.fromkeys(item.stash[_PLANNED] for item in timed if _PLANNED in item.stash))


def _is_skipped(item: pytest.Item) -> bool:
    """True if marks skip the test, as with --benchmark-skip; conditions in words are left to the test's own turn."""
    marks = item.iter_markers("skipif")
    conditions = [each for mark in marks for each in (*mark.args, mark.kwargs.get("condition"))]
    return any(item.iter_markers("skip")) or any(each for each in conditions if isinstance(each, int))


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say how much is ahead."""
    return config.stash[_RUN].outlook() if _RUN in config.stash else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Measure what comes before the items' own trials; in ranks but the first do what that one asks, and no more."""
    run = session.config.stash.get(_RUN, None)
    if run is None:
        return None
    is_xdist_worker = hasattr(session.config, "workerinput")
    option = session.config.option
    goes_on = not session.testsfailed or option.continue_on_collection_errors
    if goes_on and not is_xdist_worker and not (option.collectonly or option.setuponly or option.setupplan):
        is_first = run.measure_ahead(session.config.pluginmanager.get_plugin("terminalreporter"))
        return None if is_first else True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passes here, but not in a process in which it was measured."""
    result = yield
    run = item.config.stash.get(_RUN, None)
    if run is not None and run.tests is not None and (reason := run.tests.failed_elsewhere(item.nodeid)):
        pytest.fail(reason, pytrace=False)
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Keep the raw rounds of our items in every exported JSON; pytest-benchmark drops them by default."""
    samples = config.stash[_RUN].replayed if _RUN in config.stash else {}
    for entry in output_json["benchmarks"]:
        if entry["fullname"] in samples:
            entry["stats"]["data"] = samples[entry["fullname"]]


_TABLE_OPTIONS = ("--benchmark-columns", "--benchmark-compare", "--benchmark-histogram", "--benchmark-sort")


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_benchmark_group_stats(config: pytest.Config) -> Generator[None, Any, Any]:
    """Leave our items out of pytest-benchmark's tables unless those were requested: the run's own ones say more."""
    groups = yield
    requested = (*config.invocation_params.args, *config.getini("addopts"))
    if _RUN not in config.stash or config.option.verbose > 0 or any(each in str(requested) for each in _TABLE_OPTIONS):
        return groups
    ours = config.stash[_RUN].replayed
    kept = [(name, [each for each in held if each["fullname"] not in ours]) for name, held in groups]
    return [(name, held) for name, held in kept if held]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Below pytest-benchmark's table, what the run means."""
    if _RUN in config.stash:
        config.stash[_RUN].report(terminalreporter)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Name the form that collects the suite's own cases, where `--benchmark-only` found nothing to run."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.getoption("benchmark_only", False):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and not reporter.stats.get("deselected"):
            own = "pytest --pyargs pyperf_suite.benchmarks --benchmark-only"
            reporter.write_line(f"No benchmark was found here. The cases of pyperf_suite itself are run by: {own}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the workers, however the session ended."""
    if _RUN in config.stash:
        config.stash[_RUN].close()


@pytest.fixture
def measured(request: pytest.FixtureRequest, benchmark: Any, case_label: str) -> Callable[[], None]:  # noqa: ARG001
    """Measure the item's case and replay it; a failed one fails the item, an unsupported one skips it, with reason."""
    from pyperf_suite.pytest_plugin.fixtures import end_test, extra_info

    run = _run(request.config)
    item = request.node

    def replay() -> None:
        if not _times(benchmark):
            outcome, reason = run.verify(item.stash[_PLANNED])
            if outcome != "ok":
                end_test(outcome, reason)
            return
        records = run.measure(item.stash[_PLANNED])
        if not records:
            pytest.skip("the budget was used up before this case was measured")
        unsuccessful = [record for record in records if record.outcome != "ok"]
        if unsuccessful:
            end_test(unsuccessful[0].outcome, unsuccessful[0].reason)
        if item.stash[_PLANNED].is_exact:
            return  # figures that are read have no rounds for a table of times; the summary shows them
        samples = [sample for record in records for sample in record.kept_seconds]
        benchmark.extra_info.update(extra_info(records, run.records_path))
        run.replayed[benchmark.fullname] = samples
        item.stash[_CLOCK].load(samples)
        benchmark.pedantic(lambda: None, rounds=len(samples), iterations=1)

    return replay
