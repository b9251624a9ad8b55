"""The suite under pytest: cases become items, and what a worker measured is replayed into pytest-benchmark.

A thin front end: it never touches a device. pytest-benchmark is used through its public surface alone, a `timer` whose
pairs of calls return 0.0 and then the sample, and `pedantic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyperf_suite.pytest_run import USAGE_ERROR, SpokenErrors, SuiteRun
from pyperf_suite.ranks.environment import rank_environment
from pyperf_suite.ranks.starting import stand_by

if TYPE_CHECKING:
    from pyperf_suite.runner.plan import PlannedCase  # noqa: F401 - the name inside the key below, for mypy

BENCHMARKS = Path(__file__).parent / "benchmarks"

_PLANNED = pytest.StashKey["PlannedCase"]()
_CLOCK = pytest.StashKey["ReplayClock"]()
_RUN = pytest.StashKey["SuiteRun"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the suite; none has an effect on items that are not the suite's."""
    group = parser.getgroup("pyperf-suite", "pyperf_suite: microbenchmarks of transformer training")
    group.addoption(
        "--suite-profile",
        default="quick",
        metavar="NAME",
        help="quick (default), standard or full; `pyperf-suite run --list` says how long each takes here.",
    )
    group.addoption("--suite-device", default="auto", metavar="DEVICE", help="auto (default), cpu, or cuda:N.")
    group.addoption("--suite-results", default="bench_results", metavar="FOLDER", help="Where runs are kept.")
    group.addoption(
        "--suite-seed", default=0, type=int, metavar="N", help="Seed of the order in which cases are visited."
    )
    group.addoption(
        "--suite-budget",
        type=float,
        metavar="SECONDS",
        help="End the run in order within so many seconds, the most informative cases first; the rest is skipped.",
    )
    group.addoption(
        "--suite-resume",
        nargs="?",
        const="latest",
        metavar="RUN",
        help="Go on with the newest run of the same cases, or with the run named; what it holds is not measured again.",
    )
    group.addoption(
        "--suite-axis",
        action="append",
        default=[],
        metavar="[PROBE.]AXIS=VALUE[,VALUE]",
        help="Replace an axis of a probe, as in tile_wave.tile=64x64x256.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known and the run ready; nothing is opened before a case of the suite is collected."""
    config.addinivalue_line("markers", "probe(name): the cases of this probe of pyperf_suite, one item each.")
    config.stash[_RUN] = SuiteRun(config)
    if not config.getoption("benchmark_only", False):
        return
    with SpokenErrors():
        rank = rank_environment().rank
        stand_by()
    if rank:
        # One rank of several records and tells; what the others would print is the same lines again.
        config.option.verbose, config.option.no_header, config.option.no_summary = -2, True, True


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect the suite's own bench_*.py, whatever `python_files` says, so that it runs from an empty folder too."""
    if file_path.parent != BENCHMARKS or not file_path.match("bench_*.py"):
        return None
    by_pattern = any(file_path.match(pattern) for pattern in parent.config.getini("python_files"))
    if by_pattern or parent.session.isinitpath(file_path):
        return None  # pytest collects it by itself
    module: pytest.Module = pytest.Module.from_parent(parent, path=file_path)
    return module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item a case. Items carry its label, a plain text, because pytest-benchmark stores parameters as JSON."""
    marker = metafunc.definition.get_closest_marker("probe")
    if marker is None or "case_label" not in metafunc.fixturenames:
        return
    planned = metafunc.config.stash[_RUN].collect(marker.args[0])
    metafunc.parametrize("case_label", list(planned), ids=list(planned))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give an item of the suite its case, its clock and its heading in pytest-benchmark's table."""
    marker = item.get_closest_marker("probe")
    if marker is None or not isinstance(item, pytest.Function) or "case_label" not in item.callspec.params:
        return
    planned = item.config.stash[_RUN].collect(marker.args[0]).get(str(item.callspec.params["case_label"]))
    if planned is None:
        return  # what was asked of this probe cannot be; said below if the item is not deselected
    clock = ReplayClock()
    item.stash[_PLANNED] = planned
    item.stash[_CLOCK] = clock
    item.add_marker(pytest.mark.benchmark(timer=clock, group=item.config.stash[_RUN].heading(planned)))
    # A case that failed has nothing to replay; that is told as its failure, not as a warning beside it.
    item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the suite's items in the order of a run, by the seed; all others keep their places."""
    places = [place for place, item in enumerate(items) if _PLANNED in item.stash]
    if not places:
        return  # a session of somebody else's tests pays for no import of ours
    from pyperf_suite.runner.plan import in_random_order, most_informative_first

    by_planned = {items[place].stash[_PLANNED]: items[place] for place in places}
    order = in_random_order if config.getoption("suite_budget") is None else most_informative_first
    for place, planned in zip(places, order(list(by_planned), config.getoption("suite_seed")), strict=True):
        items[place] = by_planned[planned]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Know the plan once deselection by -k is over, and end here where something that cannot be is left in it."""
    refused = session.config.stash[_RUN].refused
    for item in session.items:
        marker = item.get_closest_marker("probe")
        if marker is not None and marker.args[0] in refused:
            pytest.exit(refused[marker.args[0]], returncode=USAGE_ERROR)
    session.config.stash[_RUN].planned = [item.stash[_PLANNED] for item in session.items if _PLANNED in item.stash]


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Say how much is ahead."""
    return config.stash[_RUN].outlook()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """In ranks of a launcher other than the first, do what the first one asks, which alone records and reports.

    In the first, or where there is no launcher, measure what comes before the items' own visits.
    """
    run = session.config.stash[_RUN]
    if run.follow_the_first_rank():
        return True
    is_xdist_worker = hasattr(session.config, "workerinput")
    if not session.config.option.collectonly and not session.testsfailed and not is_xdist_worker:
        run.measure_ahead(session.config.pluginmanager.get_plugin("terminalreporter"))
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Keep the raw rounds of our items in every exported JSON; pytest-benchmark drops them unless asked."""
    samples = config.stash[_RUN].replayed
    for entry in output_json["benchmarks"]:
        if entry["fullname"] in samples:
            entry["stats"]["data"] = samples[entry["fullname"]]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Below pytest-benchmark's table, what the run means."""
    config.stash[_RUN].report(terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the workers, however the session ended."""
    config.stash[_RUN].close()


@pytest.fixture
def measured(request: pytest.FixtureRequest, benchmark: Any, case_label: str) -> Callable[[], None]:  # noqa: ARG001
    """Measure the item's case in the suite's workers and replay it into pytest-benchmark.

    A failed case fails the item, an unsupported one skips it, both with the reason as one sentence.
    """
    run = request.config.stash[_RUN]
    item = request.node

    def replay() -> None:
        if benchmark.disabled:
            _settle(run.verify(item.stash[_PLANNED]))
            benchmark(lambda: None)
            return
        records = run.measure(item.stash[_PLANNED])
        if not records:
            pytest.skip("the budget was used up before this case was measured")
        unsuccessful = [record for record in records if record.outcome != "ok"]
        if unsuccessful:
            _settle((unsuccessful[0].outcome, unsuccessful[0].reason))
        if item.stash[_PLANNED].is_exact:
            return  # figures that are read have no rounds for a table of times; the summary tells of them
        samples = [sample for record in records for sample in record.kept_seconds]
        benchmark.extra_info.update(run.extra_info(records))
        run.replayed[benchmark.fullname] = samples
        clock = item.stash[_CLOCK]
        clock.load(samples)
        benchmark.pedantic(lambda: None, rounds=len(samples), iterations=1)

    return replay


def _settle(outcome_and_reason: tuple[str, str]) -> None:
    outcome, reason = outcome_and_reason
    if outcome == "unsupported":
        pytest.skip(f"unsupported: {reason}")
    if outcome == "failed":
        pytest.fail(reason, pytrace=False)


class ReplayClock:
    """A timer whose pairs of calls differ by the loaded samples, one pair a sample, exactly: 0.0, then the sample."""

    __name__ = "pyperf_suite_replay"

    def __init__(self) -> None:
        self._readings: Iterator[float] = iter(())

    def load(self, samples: list[float]) -> None:
        """Samples in seconds to be told next."""
        self._readings = iter([reading for sample in samples for reading in (0.0, sample)])

    def __call__(self) -> float:
        return next(self._readings, 0.0)
