"""The one run behind a pytest session, from the first case collected to the summary: what the plugin's hooks act on.

Imported when there is something of the suite to collect: a session of somebody else's tests pays for none of it.
Tests are measured in fresh pytest processes, one at a time, started with the session's own arguments, and replayed when
they run; a record calls a test by its node id and parametrisation.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import json
import math
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import DamagedJournal, ExitCode, UserError
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.hardware.machine import identity
from pyperf_suite.probes import find_probe, follow_ups, planned_cases
from pyperf_suite.process.system import owned_folder
from pyperf_suite.pytest_plugin import CHILD, Call, spoken_errors
from pyperf_suite.pytest_plugin.fixtures import BENCHMARK, Result, Timing, end_test, extra_info
from pyperf_suite.ranks.group import Group, RanksMissing
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.record.case import Case
from pyperf_suite.record.reading import readings
from pyperf_suite.record.record import Record
from pyperf_suite.runner.plan import Outlook, Plan, PlannedCase, Progress, ProgressLines
from pyperf_suite.runner.profiles import Effort, Profile, find_profile
from pyperf_suite.runner.results import create_run, find_run
from pyperf_suite.runner.session import SENTINELS, Session
from pyperf_suite.runner.worker import follow
from pyperf_suite.runner.workers import DEADLINE_S, GroupWorkers, WorkerLost, WorkerPool, WorkerProcess
from pyperf_suite.user_kernels.api import Launch
from pyperf_suite.workloads import find_workload

_LONGEST_TEXT = 80


@dataclass(frozen=True)
class Node:
    """A test as pytest names it, and as records do: `name` without parametrisation, and the parametrisation."""

    nodeid: str
    name: str
    parameters: Any

    def planned(self, implementation: str = BENCHMARK) -> PlannedCase:
        return PlannedCase(self.name, Case(self.name, self.parameters, implementation))


def nodes_of(items: Iterable[pytest.Item]) -> dict[str, Node]:
    """By node id. Tests whose parameters would be written the same are distinguished by pytest's id of them."""
    described = {item.nodeid: (_name_of(item), _parametrisation(item)) for item in items}
    similar = Counter((name, tuple(sorted(values.items()))) for name, values in described.values())
    nodes = {}
    for nodeid, (name, values) in described.items():
        if similar[name, tuple(sorted(values.items()))] > 1:
            values = values | {"id": nodeid.removeprefix(name)}
        nodes[nodeid] = Node(nodeid, name, find_workload(name).type_for(values)(**values))
    return nodes


def _name_of(item: pytest.Item) -> str:
    """The node id without the parametrisation that stands in brackets behind it."""
    return item.nodeid.removesuffix(f"[{item.callspec.id}]") if hasattr(item, "callspec") else item.nodeid


def _parametrisation(item: pytest.Item) -> dict[str, bool | int | float | str]:
    if not hasattr(item, "callspec"):
        return {}
    texts = {name: _plain(value) for name, value in item.callspec.params.items()}
    found = {name: value for name, value in texts.items() if value is not None}
    return found if len(found) == len(texts) else found | {"id": item.callspec.id}


def _plain(value: Any) -> bool | int | float | str | None:
    """A value as records hold it; None for an object that no text distinguishes from others."""
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or str(value)
    unclear = len(text) > _LONGEST_TEXT or not text.isprintable() or " at 0x" in text or text == "<lambda>"
    return None if unclear else text


class Children:
    """Answers of tests in fresh processes. Where one is lost, the next test gets another."""

    def __init__(self, config: pytest.Config, device: Device, effort: Effort, deadline_s: float) -> None:
        self._config, self._device, self._effort, self._deadline_s = config, device, effort, deadline_s
        self._process: WorkerProcess | None = None
        self._expected = ""

    @functools.cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return owned_folder("pytest")

    def ask(self, node: Node, following: Node | None, begin: Callable[[], object] | None = None) -> dict[str, Any]:
        """How the test ended and what it measured; `following` is the one requested next, None for the last.

        Before the test takes a time it waits for `begin`, if given. Raises WorkerLost with the reason where the process
        ended in the test, or ran past the deadline, and UserError where none can be started.
        """
        if self._process is not None and self._expected != node.nodeid:
            self.end()  # it keeps fixtures for another test
        process = self._process or self._start()
        self._expected = following.nodeid if following is not None else ""
        request = {
            "node": node.nodeid,
            "next": self._expected,
            "case": node.planned().case.to_json(),
            "effort": self._effort.to_json(),
            "waits": begin is not None,
        }
        try:
            process.send(request)
            answer = process.receive(self._deadline_s)
            if begin is not None and "begins" in answer:
                begin()
                process.send({})
                answer = process.receive(self._deadline_s)
        except BaseException:  # Ctrl-C and a timeout too: what it answers now is for nobody
            self.end()
            raise
        if following is None:
            self.end()
        return answer

    def end(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def close(self) -> None:
        self.end()
        if "_folder" in vars(self):
            self._folder.cleanup()

    def _start(self) -> WorkerProcess:
        try:
            self._process = WorkerProcess(self._command(), {CHILD: "1"})
            self._process.receive(self._deadline_s)
        except (OSError, WorkerLost) as error:
            self._process = None
            what = str(error).removeprefix("The worker process ")
            raise UserError(
                f"A fresh pytest process, in which tests are measured, could not be started: {what}"
            ) from None
        return self._process

    def _command(self) -> tuple[str, ...]:
        """This session's own, but for the folders that pytest writes to."""
        program = Path(sys.argv[0])
        started_as = (
            (str(program),) if program.name in ("pytest", "py.test") and program.is_file() else ("-m", "pytest")
        )
        own = [f"--rootdir={self._config.rootpath}"]
        own += ["-c", str(self._config.inipath)] if self._config.inipath is not None else []
        if self._config.pluginmanager.hasplugin("cacheprovider"):
            own += ["-o", f"cache_dir={self._folder.name}"]
        if self._config.pluginmanager.hasplugin("pytest_cov"):
            own.append("--no-cov")  # tracing takes time
        return (sys.executable, *started_as, *own, *map(str, self._config.invocation_params.args))


def following(nodes: Iterable[Node]) -> Iterable[tuple[Node, Node | None]]:
    """Each with the one after it."""
    listed = list(nodes)
    return zip(listed, [*listed[1:], None], strict=False)


@dataclass(frozen=True)
class PytestTrial:
    """A test in one fresh process: what it measured, and how it failed there, empty where it did not.

    `lost` says why the process gave no answer.
    """

    process: int
    records: Sequence[Record]
    failure: str = ""
    lost: str = ""


class MeasuredTests:
    """Chosen tests of a session, measured before any of them runs in it: never do two sessions run at a time.

    Fresh processes come one after the other, and each runs all the tests, so that its start is paid once.
    """

    def __init__(self, config: pytest.Config, profile: Profile, items: Iterable[pytest.Item]) -> None:
        self._nodes = nodes_of(items)
        self._processes = profile.processes
        device, deadline_s = resolve(config.getoption("suite_device")), config.getoption("suite_deadline")
        if not deadline_s > 0:
            raise UserError(f"--suite-deadline {deadline_s:g} was requested: a test takes longer than no time.")
        self._children = Children(config, device, profile.effort, deadline_s)
        self._trials: dict[str, list[PytestTrial]] = {nodeid: [] for nodeid in self._nodes}
        self._left_out: set[str] = set()
        self._opened: Callable[[], Session]
        self._session: Session | None = None

    @property
    def planned(self) -> list[PlannedCase]:
        return [node.planned() for node in self._nodes.values()]

    @property
    def complete(self) -> bool:
        return not self._left_out

    def measure(self, opened: Callable[[], Session], is_new: bool, show: Progress) -> None:
        """Run all tests in each process in turn, and keep what they measured in the journal of the `opened` session.

        One that `is_new` and has no budget is opened when the first test is about to be timed, or has failed.
        """
        self._opened = opened
        held = {} if is_new else _held(self._open().records)
        trials = [(node, process) for process in range(self._processes) for node in self._nodes.values()]
        done = 0
        for process in range(self._processes):
            for node, after in following(self._to_run(process, held)):
                if is_new or list(self._open().within_budget([(node.planned(), process)])):
                    self._trials[node.nodeid].append(self._trial(node, after, process))
                else:
                    self._left_out.add(node.nodeid)
                done += 1
                if self._session is not None:
                    left = [(each.planned(), number) for each, number in trials[done:]]
                    show(done, len(trials), node.nodeid, functools.partial(self._session.seconds_left, left))
            self._children.end()

    def _open(self) -> Session:
        self._session = self._session or self._opened()
        return self._session

    def _to_run(self, process: int, held: dict[tuple[str, str, int], list[Record]]) -> list[Node]:
        """The tests that this process runs: not those that a resumed run holds, nor those that cost one before."""
        wanted = []
        for node in self._nodes.values():
            records = held.get(_key(node.name, asdict(node.parameters), process))
            if records:
                self._trials[node.nodeid].append(PytestTrial(process, records))
            elif not any(trial.lost for trial in self._trials[node.nodeid]):
                wanted.append(node)
        return wanted

    def _trial(self, node: Node, after: Node | None, process: int) -> PytestTrial:
        began_s, now = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)

        def begin() -> None:
            nonlocal began_s
            waits_s = time.monotonic()
            self._open()
            began_s += time.monotonic() - waits_s

        try:
            said = self._children.ask(node, after, None if self._session else begin)
        except WorkerLost as lost:
            reason = str(lost).replace("The worker process", "The fresh process in which it was measured")
            record = self._open().record(node.planned(), process, {"outcome": "failed", "reason": reason})
            return PytestTrial(process, [record], lost=reason)
        seconds = time.monotonic() - began_s
        failure, answers = "" if said["judged_time"] and said["answers"] else said["reason"], said["answers"]
        if failure and not answers:
            answers = {BENCHMARK: {"outcome": "failed", "reason": failure}}
        records = []
        for name, answer in answers.items():
            if failure and answer["outcome"] == "ok":
                answer |= {"outcome": "failed", "reason": f"The test failed after it was measured: {failure}"}
                answer["verification"] |= {"passed": False, "message": failure}
            answer["started_at"] = now.isoformat(timespec="milliseconds")
            share_s = seconds / len(answers)
            records.append(self._open().record(node.planned(name), process, answer, seconds=share_s))
        if self._session is not None:
            self._session.outlook.learn(node.planned(), process, seconds)
        return PytestTrial(process, records, failure)

    def time(self, nodeid: str, call: Call) -> Timing:
        """What all processes measured of the test's call, which is made here once, untimed."""
        trials = self._trials_of(nodeid)
        records = [record for trial in trials for record in trial.records if "time" in record.metrics]
        result = call.once()
        if not records:
            why = _first_failure(trials)
            pytest.fail(f"The function returned here, but not where it was to be measured: {why}", pytrace=False)
        samples = [sample for record in records for sample in record.kept_seconds]
        return Timing(samples, extra_info(records, self._open().folder.records_path), result)

    def measured(self, nodeid: str, launch: Launch) -> tuple[Result, Sequence[float], Mapping[str, Any]]:
        """What all processes measured of each implementation; the function is not called here.

        Fails the test where one of them was wrong.
        """
        trials = self._trials_of(nodeid)
        records = [record for trial in trials for record in trial.records]
        for record in records:
            if record.outcome != "ok":
                end_test(record.outcome, f"{record.case['implementation']}: {record.reason}")
        by_name = {reading.case.implementation: reading for reading in readings(records)}
        if set(by_name) != set(launch.functions):
            pytest.fail(f"Nothing was measured in the fresh processes: {_first_failure(trials)}", pytrace=False)
        first = next(iter(launch.functions))
        own = [record for record in records if record.case["implementation"] == first]
        samples = [sample for record in own for sample in record.kept_seconds]
        info = extra_info(own, self._open().folder.records_path)
        if len(by_name) > 1:
            info["seconds"] = {name: reading.seconds for name, reading in by_name.items()}
        return Result(by_name, launch.bytes, first, launch.baseline), samples, info

    def _trials_of(self, nodeid: str) -> list[PytestTrial]:
        """The trials of a test. Skips one that the budget left out, and fails one that cost a process."""
        trials = self._trials.get(nodeid, [])
        lost = next((trial for trial in trials if trial.lost), None)
        if lost is not None:
            pytest.fail(lost.lost, pytrace=False)
        if not trials and nodeid in self._left_out:
            pytest.skip("the budget was used up before this test was measured")
        return trials

    def failed_elsewhere(self, nodeid: str) -> str:
        """How a test failed in a fresh process, as a sentence; empty where it did not."""
        for trial in self._trials.get(nodeid, ()):
            if trial.failure:
                which = f"process {trial.process + 1} of the {self._processes} that measured it"
                return f"The test passes here, but it failed in {which}: {trial.failure}"
        return ""

    def close(self) -> None:
        self._children.close()


def _first_failure(trials: Iterable[PytestTrial]) -> str:
    return next((trial.failure for trial in trials if trial.failure), "the test did not come to measure anything")


def _held(records: Iterable[Record]) -> dict[tuple[str, str, int], list[Record]]:
    found: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        if record.outcome == "ok" and record.kind == "timing":
            found.setdefault(_key(record.probe, record.case["parameters"], record.process), []).append(record)
    return found


def _key(name: str, parameters: Any, process: int) -> tuple[str, str, int]:
    return name, json.dumps(parameters, sort_keys=True), process


class SuiteRun:
    """The one run behind a pytest session: cases collected, measured in plan order, reported at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._option = config.getoption
        self._config = config
        self._collected: dict[str, dict[str, PlannedCase]] = {}
        self._session: Session | None = None
        self._pool: WorkerPool | None = None
        # Workers that start while the first test does: whose sentinel comes first, and on a CPU whose comes last.
        self._started: list[WorkerPool] = []
        self.tests: MeasuredTests | None = None
        self.planned: list[PlannedCase] = []
        # Probes that cannot do what was requested, and why: an axis may be meant for another one, which -k selects.
        self.refused: dict[str, str] = {}
        self.replayed: dict[str, list[float]] = {}

    def collect(self, probe_name: str) -> dict[str, PlannedCase]:
        """The probe's cases by label; none, and a reason in `refused`, where what was requested cannot be."""
        if probe_name not in self._collected:
            try:
                profile = find_profile(self._option("suite_profile"))
                planned = planned_cases([probe_name], profile.name, self._device, self._option("suite_axis"))
            except UserError as error:
                self.refused[probe_name] = str(error)
                planned = []
            self._collected[probe_name] = {each.case.label: each for each in planned}
        return self._collected[probe_name]

    def collect_tests(self, items: list[pytest.Item]) -> None:
        with spoken_errors():
            self.tests = MeasuredTests(self._config, self._profile(), items)

    def follow_the_first_rank(self) -> bool:
        """Whether this is another rank of a run of ours, whose part is over when this returns."""
        if not self.planned or self._is_disabled or rank_environment().rank == 0:
            return False
        with spoken_errors(), Group() as group:
            try:
                follow(group)
            except RanksMissing as missing:
                raise UserError(f"rank {group.rank}: {missing}", ExitCode.FAILED) from None
        return True

    def heading(self, planned: PlannedCase) -> str:
        return find_probe(planned.probe).group(planned.case)

    def outlook(self) -> str | None:
        if not self._has_cases:
            return None
        outlook = Outlook(self._plan())
        # How long tests take nobody knows before, and how busy the machine is takes a while to see.
        return f"pyperf_suite: {outlook.line if self.planned else outlook.size}"

    def measure_ahead(self, terminal: pytest.TerminalReporter | None) -> None:
        """All trials but those of the last process, one process after the other; the last are the items' own.

        A run that is cut short then has every case once before it has any case twice. Of a profile with one process the
        first of two visits.
        """
        if not self._has_cases:
            return
        show = ProgressLines(terminal.write_line if terminal else lambda _: None)
        with spoken_errors():
            if self.tests is not None:
                self._start_ahead()
                is_new = not self._option("suite_resume") and self._option("suite_budget") is None
                self.tests.measure(self._opened, is_new, show)
            processes = self._profile().processes
            if not self.planned:
                return
            describe = lambda planned, record: f"{planned.case.label}: {record.outcome}"  # noqa: E731
            session = self._opened()
            if processes == 1:
                session.visit_first(session.trials(), show, describe)
                return
            ahead = [(planned, process) for planned, process in session.trials() if process < processes - 1]
            session.measure_trials(ahead, show, describe)

    def measure(self, planned: PlannedCase) -> list[Record]:
        """Records of one case, none if the budget left it out; the run is opened by its first case."""
        with spoken_errors():
            session = self._opened()
            trials = session.within_budget((planned, process) for process in session.processes(planned))
            return [session.measure_trial(*trial) for trial in trials]

    def verify(self, planned: PlannedCase) -> tuple[str, str]:
        """Outcome and reason of running the case once, untimed and unrecorded: what --benchmark-disable asks for."""
        with spoken_errors():
            self._pool = self._pool or WorkerPool(self._device)
            answer = self._pool.measure(0, planned.case, None)
        return answer["outcome"], answer.get("reason", "")

    @property
    def records_path(self) -> Path:
        return self._opened().folder.records_path

    def report(self, terminal: pytest.TerminalReporter) -> None:
        """Ends the run where it is complete, and writes its summary and where the results lie."""
        session = self._session
        if session is None or not session.records:
            return
        from rich.console import Console

        from pyperf_suite.render.run_report import report_run

        terminal.section("pyperf_suite")
        text = io.StringIO()
        width = shutil.get_terminal_size((160, 24)).columns
        try:
            if (self.tests is None or self.tests.complete) and all(map(session.is_finished, self.planned)):
                # What probes ask for after the items is known too late to be an item, but part of the run.
                for planned in follow_ups(session.plan, session.records) if self.planned else ():
                    session.measure(planned)
                session.finish()
            console = Console(emoji=False, file=text, width=width, force_terminal=terminal.hasmarkup)
            if session.cut_short:
                console.print(session.cut_short, highlight=False, soft_wrap=True)
            shown = {planned.probe for planned in self.planned} | {"sentinel"}
            report_run(console, session.folder, list(session.records), self._option("verbose") > 0, shown, "-v")
        except UserError as error:
            text.write(f"{error}\n")
        terminal.write(text.getvalue())

    def close(self) -> None:
        """End the run's workers and close its journal; a second call does nothing."""
        for each in (self._session, self._pool, *self._started, self.tests):
            if each is not None:
                each.close()

    @property
    def _is_disabled(self) -> bool:
        option = self._config.getoption
        return bool(option("benchmark_disable", False) and not option("benchmark_enable", False))

    @property
    def _has_cases(self) -> bool:
        """Whether there is something to measure; tests are collected only where they are to be."""
        return self.tests is not None or bool(self.planned and not self._is_disabled)

    @property
    def _device(self) -> Device:
        return resolve(self._option("suite_device"))

    def _start_ahead(self) -> None:
        if not rank_environment().launched:
            device = self._device
            self._started = [WorkerPool(device) for _ in range(2 if device.kind == "cpu" else 1)]
            for pool in self._started:
                pool.start(SENTINELS[device.kind])

    def _opened(self) -> Session:
        if self._session is not None:
            return self._session
        plan = self._plan()
        plan.validate()
        results, wanted = Path(self._option("suite_results")), self._option("suite_resume")
        machine = identity(plan.device)
        folder = find_run(results, machine, plan, wanted) if wanted else create_run(results, machine, plan)
        # All ranks that torchrun or SLURM started, seen from the first.
        ranks = GroupWorkers(Group(), plan.device, DEADLINE_S) if rank_environment().launched else None
        first, last = (*self._started, None, None)[:2]
        with warnings.catch_warnings(record=True) as caught:
            # Where a project turns warnings into errors, a torn last line must still not stop a resume.
            warnings.simplefilter("always", DamagedJournal)
            budget_s = self._option("suite_budget") or math.inf
            session = Session(plan, folder, workers=ranks or first, last_workers=last, budget_s=budget_s)
            self._session = session.open()
        for warning in caught:  # for pytest's summary: what is warned of between tests is in none
            said = {"warning_message": warning, "when": "runtest", "nodeid": "", "location": None}
            self._config.hook.pytest_warning_recorded.call_historic(kwargs=said)
        return self._session

    def _profile(self) -> Profile:
        profile = find_profile(self._option("suite_profile"))
        processes = self._option("suite_processes")
        if processes is None:
            return profile
        if processes < 1:
            raise UserError(f"--suite-processes {processes} was requested: at least one process has to measure.")
        return dataclasses.replace(profile, processes=processes)

    def _plan(self) -> Plan:
        tests: list[Any] = self.tests.planned if self.tests is not None else []
        cases = (*self.planned, *tests)
        return Plan(cases, self._profile(), self._device, self._option("suite_seed"), tuple(self._option("suite_axis")))
