"""The one run behind a pytest session, from the first case collected to the summary: what the plugin's hooks act on.

Imported when there is something of the suite to collect: a session of somebody else's tests pays for none of it.
"""

from __future__ import annotations

import dataclasses
import io
import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import DamagedJournal, UserError
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.hardware.machine import identity
from pyperf_suite.pytests.parent import MeasuredTests
from pyperf_suite.ranks.group import Group, RanksMissing
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.runner.plan import Outlook, Plan, PlannedCase, ProgressLines
from pyperf_suite.runner.profiles import Profile, find_profile
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import create_run, find_run
from pyperf_suite.runner.session import Session
from pyperf_suite.runner.worker import follow
from pyperf_suite.runner.workers import DEADLINE_S, GroupWorkers, WorkerPool
from pyperf_suite.spec.axes import overrides_for
from pyperf_suite.spec.discovery import find_probe, follow_ups, overrides_of

USAGE_ERROR = 2


@contextmanager
def spoken_errors() -> Iterator[None]:
    """A UserError ends the session with its sentence and exit code 2, not with a traceback."""
    try:
        yield
    except UserError as error:
        pytest.exit(str(error), returncode=USAGE_ERROR)


class SuiteRun:
    """The one run behind a pytest session: cases collected, measured in plan order, reported at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._option = config.getoption
        self._config = config
        self._collected: dict[str, dict[str, PlannedCase]] = {}
        self._session: Session | None = None
        self._pool: WorkerPool | None = None
        self.tests: MeasuredTests | None = None
        self.planned: list[PlannedCase] = []
        # Probes that cannot do what was asked, and why: an axis may be meant for another one, which -k selects.
        self.refused: dict[str, str] = {}
        self.replayed: dict[str, list[float]] = {}

    def collect(self, probe_name: str) -> dict[str, PlannedCase]:
        """The probe's cases by label; none, and a reason in `refused`, where what was asked cannot be."""
        if probe_name not in self._collected:
            try:
                profile = find_profile(self._option("suite_profile"))
                overrides = overrides_for(probe_name, overrides_of(self._option("suite_axis")))
                cases = find_probe(probe_name).cases(profile.name, self._device, overrides)
            except UserError as error:
                self.refused[probe_name] = str(error)
                cases = []
            self._collected[probe_name] = {case.label: PlannedCase(probe_name, case) for case in cases}
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
                raise UserError(f"rank {group.rank}: {missing}") from None
        return True

    def heading(self, planned: PlannedCase) -> str:
        return find_probe(planned.probe).group(planned.case)

    def outlook(self) -> str | None:
        return f"pyperf_suite: {Outlook(self._plan()).line}" if self._has_cases else None

    def measure_ahead(self, terminal: pytest.TerminalReporter | None) -> None:
        """All trials but those of the last process, one process after the other; the last are the items' own.

        A run that is cut short then has every case once before it has any case twice.
        """
        if not self._has_cases:
            return
        show = ProgressLines(terminal.write_line if terminal else lambda _: None)
        with spoken_errors():
            if self.tests is not None:
                self.tests.measure(self._opened(), show)
            processes = self._profile().processes
            if processes == 1 or not self.planned:
                return
            ahead = [(planned, process) for planned, process in self._opened().visits() if process < processes - 1]
            self._opened().visit_all(ahead, show, lambda planned, record: f"{planned.case.label}: {record.outcome}")

    def measure(self, planned: PlannedCase) -> list[Record]:
        """Records of one case, none if the budget left it out; the run is opened by its first case."""
        with spoken_errors():
            session = self._opened()
            visits = session.within_budget((planned, process) for process in session.processes(planned))
            return [session.visit(*visit) for visit in visits]

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
                for planned in follow_ups(session.plan, session.records):
                    session.measure(planned)
                session.finish()
            console = Console(emoji=False, file=text, width=width, force_terminal=terminal.hasmarkup)
            if session.cut_short:
                console.print(session.cut_short, highlight=False, soft_wrap=True)
            shown = {planned.probe for planned in self.planned} | {"sentinel"}
            report_run(console, session.folder, list(session.records), shown)
        except UserError as error:
            text.write(f"{error}\n")
        terminal.write(text.getvalue())

    def close(self) -> None:
        """End the run's workers and close its journal; a second call does nothing."""
        for each in (self._session, self._pool, self.tests):
            if each is not None:
                each.close()

    @property
    def _is_disabled(self) -> bool:
        return bool(self._config.getoption("benchmark_disable", False))

    @property
    def _has_cases(self) -> bool:
        """Whether there is something to measure; tests are collected only where they are to be."""
        return self.tests is not None or bool(self.planned and not self._is_disabled)

    @property
    def _device(self) -> Device:
        return resolve(self._option("suite_device"))

    def _opened(self) -> Session:
        if self._session is not None:
            return self._session
        plan = self._plan()
        plan.validate()
        results, wanted = Path(self._option("suite_results")), self._option("suite_resume")
        machine = identity(plan.device)
        folder = find_run(results, machine, plan, wanted) if wanted else create_run(results, machine, plan)
        # All ranks that torchrun or SLURM started, seen from the first.
        workers = GroupWorkers(Group(), plan.device, DEADLINE_S) if rank_environment().launched else None
        with warnings.catch_warnings():
            # Where a project turns warnings into errors, a torn last line must still not stop a resume.
            warnings.simplefilter("always", DamagedJournal)
            session = Session(plan, folder, workers=workers, budget_s=self._option("suite_budget") or math.inf)
            self._session = session.open()
        return self._session

    def _profile(self) -> Profile:
        profile = find_profile(self._option("suite_profile"))
        processes = self._option("suite_processes")
        if processes is None:
            return profile
        if processes < 1:
            raise UserError(f"--suite-processes {processes} was asked for: at least one process has to measure.")
        return dataclasses.replace(profile, processes=processes)

    def _plan(self) -> Plan:
        tests: list[Any] = self.tests.planned if self.tests is not None else []
        cases = (*self.planned, *tests)
        return Plan(cases, self._profile(), self._device, self._option("suite_seed"), tuple(self._option("suite_axis")))
