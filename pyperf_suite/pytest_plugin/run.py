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
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pyperf_suite.errors import DamagedJournal, UserError
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.hardware.machine import source_of
from pyperf_suite.probes import find_probe
from pyperf_suite.process.system import OwnedFolder
from pyperf_suite.pytest_plugin import CHILD, Call, spoken_errors
from pyperf_suite.pytest_plugin.fixtures import BENCHMARK, DRAWN, Result, Timing, end_test, extra_info
from pyperf_suite.pytest_plugin.nodes import Node, nodes_of
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.record.reading import readings
from pyperf_suite.record.record import Record
from pyperf_suite.run import Run, RunRequest, join_only_for_ranks, open_run, started
from pyperf_suite.runner.plan import Outlook, PlannedCase, Progress, ProgressLines
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.session import Session
from pyperf_suite.runner.workers import WorkerLost, WorkerPool, WorkerProcess
from pyperf_suite.user_kernels.api import Launch


@functools.cache
def _source_of(file: Path) -> dict[str, Any]:
    """The commit of the repository that holds the file of a test: its code is measured, not this package."""
    return source_of(file.parent, file.name)


class PytestProcess(WorkerProcess):
    """A fresh pytest process."""

    OPTION = "--suite-deadline"


class Children:
    """Answers of tests in fresh processes. Where one is lost, the next test gets another."""

    def __init__(self, config: pytest.Config, device: Device, effort: Effort, deadline_s: float) -> None:
        self._config, self._device, self._effort, self._deadline_s = config, device, effort, deadline_s
        self._process: PytestProcess | None = None
        self._expected = ""

    @functools.cached_property
    def _folder(self) -> OwnedFolder:
        return OwnedFolder("pytest")

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

    def _start(self) -> PytestProcess:
        program, config = Path(sys.argv[0]), self._config
        is_program = program.name in ("pytest", "py.test") and program.is_file()
        options = [f"--rootdir={config.rootpath}"]
        options += ["-c", str(config.inipath)] if config.inipath is not None else []
        if config.pluginmanager.hasplugin("cacheprovider"):
            options += ["-o", f"cache_dir={self._folder.name}"]
        if config.pluginmanager.hasplugin("pytest_cov"):
            options.append("--no-cov")  # tracing takes time
        started_as = (str(program),) if is_program else ("-m", "pytest")
        # This session's own command, but for the folders that pytest writes to.
        command = (sys.executable, *started_as, *options, *map(str, config.invocation_params.args))
        try:
            # Options that plugins of the session drew, which each process would draw anew.
            drawn = {name: value for name, value in vars(config.option).items() if name in DRAWN}
            self._process = PytestProcess(command, {CHILD: json.dumps(drawn)})
            self._process.receive(self._deadline_s)
        except (OSError, WorkerLost) as error:
            self._process = None
            what = str(error).removeprefix("The worker process ")
            raise UserError(
                f"A fresh pytest process, in which tests are measured, could not be started: {what}"
            ) from None
        return self._process


class MeasuredTests:
    """Chosen tests of a session, measured before any of them runs in it by one fresh process after the other."""

    def __init__(self, config: pytest.Config, request: RunRequest, items: Sequence[pytest.Item]) -> None:
        self._named, profile, deadline_s = nodes_of(items), request.how, config.getoption("suite_deadline")
        # Repetitions of a test are one.
        self.nodes = {node.nodeid: node for node in self._named.values()}
        self._processes = profile.processes
        if not deadline_s > 0:
            raise UserError(f"--suite-deadline {deadline_s:g} was requested: a test takes longer than no time.")
        self._children = Children(config, resolve(request.device), profile.effort, deadline_s)
        # By node id: what its processes measured, how it failed in one and in which, and why one gave no answer.
        self._records: dict[str, list[Record]] = {nodeid: [] for nodeid in self.nodes}
        self._failed: dict[str, tuple[int, str]] = {}
        self._lost: dict[str, str] = {}
        self._left_out: set[str] = set()
        self._opened: Callable[[], Session]
        self._session: Session | None = None

    @property
    def planned(self) -> list[PlannedCase]:
        return [node.planned() for node in self.nodes.values()]

    @property
    def complete(self) -> bool:
        return not self._left_out

    def measure(self, opened: Callable[[], Session], is_new: bool, show: Progress) -> None:
        """Run all tests in each process in turn, into the `opened` session: one that `is_new` opens when needed."""
        self._opened = opened
        trials = [(node, process) for process in range(self._processes) for node in self.nodes.values()]
        done = 0
        for process in range(self._processes):
            wanted = self._to_run(process, () if is_new else self._open().records)
            for node, after in zip(wanted, [*wanted[1:], None], strict=False):
                if is_new or list(self._open().within_budget([(node.planned(), process)])):
                    self._try(node, after, process)
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

    def _to_run(self, process: int, records: Iterable[Record]) -> list[Node]:
        """The tests that this process runs: not those that a resumed run holds, nor those that cost one before."""
        by_case: dict[str, list[Record]] = {}
        for record in records:
            if record.outcome == "ok" and record.kind == "timing" and record.process == process:
                test = dataclasses.replace(record.parsed_case(), implementation=BENCHMARK)
                by_case.setdefault(test.case_id, []).append(record)
        wanted = []
        for node in self.nodes.values():
            if kept := by_case.get(node.planned().case.case_id):
                self._records[node.nodeid] += kept
            elif node.nodeid not in self._lost:
                wanted.append(node)
        return wanted

    def _try(self, node: Node, after: Node | None, process: int) -> None:
        """Run a test in a fresh process, and record what it measured or why it failed."""
        began_s, now = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)

        def begin() -> None:
            nonlocal began_s
            waits_s = time.monotonic()
            self._open()
            began_s += time.monotonic() - waits_s

        try:
            reply = self._children.ask(node, after, None if self._session else begin)
        except WorkerLost as lost:
            reason = str(lost).replace("The worker process", "The fresh process in which it was measured")
            reply = {"judged_time": False, "reason": reason, "answers": {}}
            self._lost[node.nodeid] = reason
        seconds = time.monotonic() - began_s
        failure, answers = "" if reply["judged_time"] and reply["answers"] else reply["reason"], reply["answers"]
        if failure:
            self._failed.setdefault(node.nodeid, (process, failure))
            answers = answers or {BENCHMARK: {"outcome": "failed", "reason": failure}}
        for name, answer in answers.items():
            if failure and answer["outcome"] == "ok":
                answer |= {"outcome": "failed", "reason": f"The test failed after it was measured: {failure}"}
                answer["verification"] |= {"passed": False, "message": failure}
            answer["state"] = {"source": _source_of(node.file)}
            answer["started_at"] = now.isoformat(timespec="milliseconds")
            record = self._open().record(node.planned(name), process, answer, seconds=seconds / len(answers))
            self._records[node.nodeid].append(record)
        if self._session is not None:
            self._session.outlook.learn(node.planned(), process, seconds)

    def time(self, nodeid: str, call: Call) -> Timing:
        """Return all processes' times of the test's call, which is made here once, untimed."""
        nodeid = self._named[nodeid].nodeid
        records = [record for record in self._records_of(nodeid) if "time" in record.metrics]
        result = call.once()
        if not records:
            why = self._why_nothing(nodeid)
            pytest.fail(f"The function returned here, but not where it was to be measured: {why}", pytrace=False)
        samples = [sample for record in records for sample in record.kept_seconds]
        return samples, extra_info(records, self._open().folder.records_path), result

    def measured(self, nodeid: str, launch: Launch) -> tuple[Result, Sequence[float], Mapping[str, Any]]:
        """All processes' times of each implementation; fails the test where one was wrong, and calls nothing here."""
        nodeid = self._named[nodeid].nodeid
        records = self._records_of(nodeid)
        for record in records:
            if record.outcome != "ok":
                end_test(record.outcome, f"{record.case['implementation']}: {record.reason}")
        by_name = {reading.case.implementation: reading for reading in readings(records)}
        if set(by_name) != set(launch.functions):
            pytest.fail(f"Nothing was measured in the fresh processes: {self._why_nothing(nodeid)}", pytrace=False)
        first = next(iter(launch.functions))
        own = [record for record in records if record.case["implementation"] == first]
        samples = [sample for record in own for sample in record.kept_seconds]
        info = extra_info(own, self._open().folder.records_path)
        if len(by_name) > 1:
            info["seconds"] = {name: reading.seconds for name, reading in by_name.items()}
        return Result(by_name, launch.bytes, first, launch.baseline), samples, info

    def _records_of(self, nodeid: str) -> list[Record]:
        """The records of a test. Skips one that the budget left out, and fails one that cost a process."""
        if nodeid in self._lost:
            pytest.fail(self._lost[nodeid], pytrace=False)
        if not self._records.get(nodeid) and nodeid in self._left_out:
            pytest.skip("the budget was used up before this test was measured")
        return self._records.get(nodeid, [])

    def _why_nothing(self, nodeid: str) -> str:
        return self._failed.get(nodeid, (0, "the test did not come to measure anything"))[1]

    def failed_elsewhere(self, nodeid: str) -> str:
        """How a test failed in a fresh process, as a sentence; empty where it did not."""
        nodeid = self._named[nodeid].nodeid if nodeid in self._named else nodeid
        if nodeid not in self._failed or nodeid in self._lost:
            return ""
        process, failure = self._failed[nodeid]
        which = f"process {process + 1} of the {self._processes} that measured it"
        return f"The test passes here, but it failed in {which}: {failure}"

    def close(self) -> None:
        self._children.close()


class SuiteRun:
    """The one run behind a pytest session: cases collected, measured in plan order, reported at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, option = config, config.getoption
        self.request = RunRequest(
            profile=option("suite_profile"),
            device=option("suite_device"),
            axes=tuple(option("suite_axis")),
            seed=option("suite_seed"),
            budget_s=option("suite_budget"),
            results=Path(option("suite_results")),
            resume=option("suite_resume"),
            processes=option("suite_processes"),
        )
        self._collected: dict[str, dict[str, PlannedCase]] = {}
        self._run: Run | None = None
        self._pool: WorkerPool | None = None
        # Workers that start while the first test does.
        self._started: Sequence[WorkerPool] = ()
        self.tests: MeasuredTests | None = None
        self.planned: list[PlannedCase] = []
        # Probes that cannot do what was requested, and why: an axis may be meant for another one, which -k selects.
        self.refused: dict[str, str] = {}
        self.replayed: dict[str, list[float]] = {}

    def collect(self, probe_name: str) -> dict[str, PlannedCase]:
        """The probe's cases by label; none, and a reason in `refused`, where what was requested cannot be."""
        if probe_name not in self._collected:
            planned: list[PlannedCase] = []
            try:
                planned = self.request.planned([probe_name])
            except UserError as error:
                self.refused[probe_name] = str(error)
            self._collected[probe_name] = {each.case.label: each for each in planned}
        return self._collected[probe_name]

    def collect_tests(self, items: list[pytest.Item]) -> None:
        with spoken_errors():
            self.tests = MeasuredTests(self._config, self.request, items)
        unnamed = dict.fromkeys((node.name, each) for node in self.tests.nodes.values() for each in node.unnamed)
        for test, parameter in unnamed:
            sentence = (
                f"{test}: no text tells the values of {parameter} apart, so their series end where the list changes: "
                "name each, as in pytest.param(value, id='name')."
            )
            self._warn(pytest.PytestWarning(sentence))

    def heading(self, planned: PlannedCase) -> str:
        return find_probe(planned.probe).group(planned.case)

    def outlook(self) -> str | None:
        if not self._has_cases:
            return None
        outlook = Outlook(self._whole.plan())
        # How long tests take nobody knows before, and how busy the machine is takes a while to see.
        return f"pyperf_suite: {outlook.line if self.planned else outlook.size}"

    def measure_ahead(self, terminal: pytest.TerminalReporter | None) -> bool:
        """All trials but those of the last process, one process after the other; the last are the items' own.

        A run that is cut short then has every case once before it has any case twice. Of a profile with one process the
        first of two visits. False in ranks of a launcher other than the first, whose part is then over.
        """
        if not self._has_cases:
            return True
        show = ProgressLines(terminal.write_line if terminal else lambda _: None)
        with spoken_errors():
            join_only_for_ranks(self._whole)
            if rank_environment().rank:
                return open_run(self._whole) is not None
            if self.tests is not None:
                self._started = () if rank_environment().launched else started(resolve(self.request.device))
                is_new = self.request.resume is None and self.request.budget_s is None
                self.tests.measure(self._opened, is_new, show)
            if not self.planned:
                return True
            session, last = self._opened(), self.request.how.processes - 1
            if last == 0:
                session.visit_first(session.trials(), show)
            else:
                ahead = [(planned, process) for planned, process in session.trials() if process < last]
                session.measure_trials(ahead, show)
        return True

    def measure(self, planned: PlannedCase) -> list[Record]:
        """Records of one case, none if the budget left it out; the run is opened by its first case."""
        with spoken_errors():
            return self._opened().measure(planned)

    def verify(self, planned: PlannedCase) -> tuple[str, str]:
        """Outcome and reason of running the case once, untimed and unrecorded: what --benchmark-disable asks for."""
        with spoken_errors():
            self._pool = self._pool or WorkerPool(resolve(self.request.device))
            answer = self._pool.measure(0, planned.case, None)
        return answer["outcome"], answer.get("reason", "")

    @property
    def records_path(self) -> Path:
        return self._opened().folder.records_path

    def report(self, terminal: pytest.TerminalReporter) -> None:
        """Ends the run where it is complete, and writes its summary and where the results lie."""
        if self._run is None or not self._run.session.records:
            return
        terminal.section("pyperf_suite")
        session, text, width = self._run.session, io.StringIO(), shutil.get_terminal_size((160, 24)).columns
        try:
            if (self.tests is None or self.tests.complete) and all(map(session.is_finished, self.planned)):
                if self.planned:
                    # Cases that probes request after the items come too late to be items, but are part of the run.
                    self._run.follow_up(lambda *_: None)
                session.finish()
            console = Console(emoji=False, file=text, width=width, force_terminal=terminal.hasmarkup)
            if session.cut_short:
                console.print(session.cut_short, highlight=False, markup=False, soft_wrap=True)
            shown = {planned.probe for planned in self.planned} | {"sentinel"}
            self._run.report(console, self._config.getoption("verbose") > 0, probes=shown, more="-v")
        except UserError as error:
            text.write(f"{error}\n")
        terminal.write(text.getvalue())

    def close(self) -> None:
        """End the run's workers and close its journal; a second call does nothing."""
        session = self._run.session if self._run is not None else None
        for each in (session, self._pool, *self._started, self.tests):
            if each is not None:
                each.close()

    @property
    def _has_cases(self) -> bool:
        """True if there is something to measure; tests are collected only where they are to be."""
        option = self._config.getoption
        is_disabled = option("benchmark_disable", False) and not option("benchmark_enable", False)
        return self.tests is not None or bool(self.planned and not is_disabled)

    @property
    def _whole(self) -> RunRequest:
        """The request with the cases that were collected."""
        tests = self.tests.planned if self.tests is not None else []
        return dataclasses.replace(self.request, cases=(*self.planned, *tests))

    def _opened(self) -> Session:
        if self._run is not None:
            return self._run.session
        with warnings.catch_warnings(record=True) as caught:
            # A torn last line must not stop a resume, not even where a project turns warnings into errors.
            warnings.simplefilter("always", DamagedJournal)
            self._run = open_run(self._whole, self._started)
            assert self._run is not None, "it is the first rank"
            self._run.session.open()
        for warning in caught:
            self._warn(warning.message)
        return self._run.session

    def _warn(self, warning: Any) -> None:
        """Put a warning into pytest's summary, which has none of those between tests, also where they are errors."""
        message = warnings.WarningMessage(warning, type(warning), __file__, 0)
        said = {"warning_message": message, "when": "collect", "nodeid": "", "location": None}
        self._config.hook.pytest_warning_recorded.call_historic(kwargs=said)
