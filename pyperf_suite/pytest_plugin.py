"""The suite under pytest: cases become items, and what a worker measured is replayed into pytest-benchmark.

A thin front end: it never touches a device. pytest-benchmark is used through its public surface alone, a `timer` whose
pairs of calls return 0.0 and then the sample, and `pedantic`.
"""

from __future__ import annotations

import io
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyperf_suite.errors import TornJournal, UserError

if TYPE_CHECKING:
    from pyperf_suite.runner.plan import Plan, PlannedCase
    from pyperf_suite.runner.record import Record

BENCHMARKS = Path(__file__).parent / "benchmarks"

USAGE_ERROR = 2

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
    if config.getoption("benchmark_only", False) and int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0):
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
    """Shuffle the suite's items among themselves by the seed; all others keep their places."""
    places = [place for place, item in enumerate(items) if _PLANNED in item.stash]
    if not places:
        return  # a session of somebody else's tests pays for no import of ours
    from pyperf_suite.runner.plan import in_random_order

    by_planned = {items[place].stash[_PLANNED]: items[place] for place in places}
    shuffled = in_random_order(list(by_planned), config.getoption("suite_seed"))
    for place, planned in zip(places, shuffled, strict=True):
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
    """In ranks of a launcher other than the first: do what the first one asks, which alone records and tells."""
    return session.config.stash[_RUN].follow_the_first_rank() or None


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
        unsuccessful = [record for record in records if record.outcome != "ok"]
        if unsuccessful:
            _settle((unsuccessful[0].outcome, unsuccessful[0].reason))
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


class SuiteRun:
    """The one run behind a pytest session: cases collected, measured in plan order, reported at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._collected: dict[str, dict[str, PlannedCase]] = {}
        self._session: Any = None
        self._pool: Any = None
        self.planned: list[PlannedCase] = []
        # Probes that cannot do what was asked, and why: an axis may be meant for another one, which -k selects.
        self.refused: dict[str, str] = {}
        self.replayed: dict[str, list[float]] = {}

    def collect(self, probe_name: str) -> dict[str, PlannedCase]:
        """The probe's cases by label; none, and a reason in `refused`, where what was asked cannot be."""
        if probe_name not in self._collected:
            from pyperf_suite.hardware.devices import resolve
            from pyperf_suite.probes import find_probe, overrides_of
            from pyperf_suite.probes.axes import overrides_for
            from pyperf_suite.runner.plan import PlannedCase
            from pyperf_suite.runner.profiles import find_profile

            try:
                profile = find_profile(self._config.getoption("suite_profile"))
                device = resolve(self._config.getoption("suite_device"))
                overrides = overrides_for(probe_name, overrides_of(self._config.getoption("suite_axis")))
                cases = find_probe(probe_name).cases(profile.name, device, overrides)
            except UserError as error:
                self.refused[probe_name] = str(error)
                cases = []
            self._collected[probe_name] = {case.label: PlannedCase(probe_name, case) for case in cases}
        return self._collected[probe_name]

    def follow_the_first_rank(self) -> bool:
        """Whether this is another rank of a run of ours, whose part is over when this returns."""
        if not self.planned or self._config.getoption("benchmark_disable", False):
            return False
        from pyperf_suite.ranks.environment import rank_environment

        if rank_environment().rank == 0:
            return False
        from pyperf_suite.ranks.group import Group, RanksMissing
        from pyperf_suite.runner.worker import follow

        with _SpokenErrors(), Group() as group:
            try:
                follow(group)
            except RanksMissing as missing:
                raise UserError(f"rank {group.rank}: {missing}") from None
        return True

    def heading(self, planned: PlannedCase) -> str:
        """The group of a case in pytest-benchmark's table."""
        from pyperf_suite.probes import find_probe

        return find_probe(planned.probe).group(planned.case)

    def outlook(self) -> str | None:
        """One line about the run ahead; None where there is none."""
        if not self.planned or self._config.getoption("benchmark_disable", False):
            return None
        return f"pyperf_suite: {self._plan().outlook}"

    def measure(self, planned: PlannedCase) -> list[Record]:
        """Records of one case; the run is opened by its first case."""
        with _SpokenErrors():
            if self._session is None:
                self._session = self._open()
            records: list[Record] = self._session.measure(planned)
            return records

    def verify(self, planned: PlannedCase) -> tuple[str, str]:
        """Outcome and reason of running the case once, untimed and unrecorded: what --benchmark-disable asks for."""
        from pyperf_suite.runner.worker_pool import WorkerPool

        with _SpokenErrors():
            if self._pool is None:
                self._pool = WorkerPool(self._plan().device)
            answer = self._pool.measure(0, planned.case, None)
        return answer["outcome"], answer.get("reason", "")

    def extra_info(self, records: list[Record]) -> dict[str, Any]:
        """What pytest-benchmark's JSON says beside the rounds; plain values, as it stores no others."""
        seconds = sorted(record.seconds for record in records)
        work, median_s = records[0].work, seconds[len(seconds) // 2]
        # What computes nothing moves bytes: nccl-tests' algbw.
        rate = (
            {"tflop_per_s": work["flop"] / median_s / 1e12}
            if work["flop"]
            else {"gb_per_s": work["bytes"] / median_s / 1e9}
        )
        return {
            "case_id": records[0].case_id,
            **rate,
            "kernel": records[0].kernel["name"],
            "processes": len(records),
            "converged": all(record.quality["converged"] for record in records),
            "records": str(self._session.folder.records_path),
        }

    def report(self, terminal: pytest.TerminalReporter) -> None:
        """The summary, and where the results lie."""
        if self._session is None or not self._session.records:
            return
        from rich.console import Console

        from pyperf_suite.report.run_report import report_run

        terminal.section("pyperf_suite")
        text = io.StringIO()
        width = shutil.get_terminal_size((160, 24)).columns
        try:
            if self._complete():
                self._follow_up()
                self._session.finish()
            console = Console(file=text, width=width, force_terminal=terminal.hasmarkup)
            report_run(console, self._session.folder, self._session.records)
        except UserError as error:
            text.write(f"{error}\n")
        terminal.write(text.getvalue())

    def _complete(self) -> bool:
        return all(self._session.is_finished(planned) for planned in self.planned)

    def _follow_up(self) -> None:
        """What probes ask for after the items: known too late to be an item, but part of the run and its summary."""
        from pyperf_suite.probes.following import follow_ups

        for planned in follow_ups(self._session.plan, self._session.records):
            self._session.measure(planned)

    def close(self) -> None:
        """End the run's workers and close its journal; a second call does nothing."""
        if self._session is not None:
            self._session.close()
        if self._pool is not None:
            self._pool.close()

    def _open(self) -> Any:
        from pyperf_suite.hardware.identity import identity
        from pyperf_suite.runner.results import create_run, find_run
        from pyperf_suite.runner.session import Session

        plan = self._plan()
        plan.validate()
        results = Path(self._config.getoption("suite_results"))
        wanted = self._config.getoption("suite_resume")
        machine = identity(plan.device)
        folder = find_run(results, machine, plan, wanted) if wanted else create_run(results, machine, plan)
        with warnings.catch_warnings():
            # Where a project turns warnings into errors, a torn last line must still not stop a resume.
            warnings.simplefilter("always", TornJournal)
            session = Session(plan, folder, workers=self._workers_of_the_launcher(plan))
            session.open()
        return session

    def _workers_of_the_launcher(self, plan: Plan) -> Any:
        """All ranks that torchrun or SLURM started, seen from the first; None where there is no launcher."""
        from pyperf_suite.ranks.environment import rank_environment

        if not rank_environment().launched:
            return None
        from pyperf_suite.ranks.group import Group
        from pyperf_suite.runner.group_workers import GroupWorkers
        from pyperf_suite.runner.worker_pool import DEADLINE_S

        return GroupWorkers(Group(), plan.device, DEADLINE_S)

    def _plan(self) -> Plan:
        from pyperf_suite.hardware.devices import resolve
        from pyperf_suite.runner.plan import Plan
        from pyperf_suite.runner.profiles import find_profile

        option = self._config.getoption
        return Plan(
            tuple(self.planned),
            find_profile(option("suite_profile")),
            resolve(option("suite_device")),
            option("suite_seed"),
        )


class _SpokenErrors:
    """A UserError ends the session with its sentence and exit code 2, not with a traceback."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, UserError):
            pytest.exit(str(error), returncode=USAGE_ERROR)
