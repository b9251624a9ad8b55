"""The one run behind a pytest session, from the first case collected to the summary: what the plugin's hooks act on.

What is heavy is imported when a case of the suite is collected: a session of somebody else's tests pays for none of it.
"""

from __future__ import annotations

import dataclasses
import io
import math
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyperf_suite.errors import DamagedJournal, UserError

if TYPE_CHECKING:
    from pyperf_suite.pytests.parent import MeasuredTests
    from pyperf_suite.runner.plan import Plan, PlannedCase
    from pyperf_suite.runner.profiles import Profile
    from pyperf_suite.runner.record import Record

USAGE_ERROR = 2


class SuiteRun:
    """The one run behind a pytest session: cases collected, measured in plan order, reported at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._collected: dict[str, dict[str, PlannedCase]] = {}
        self._session: Any = None
        self._pool: Any = None
        self._tests: MeasuredTests | None = None
        self.planned: list[PlannedCase] = []
        # Probes that cannot do what was asked, and why: an axis may be meant for another one, which -k selects.
        self.refused: dict[str, str] = {}
        self.replayed: dict[str, list[float]] = {}

    def collect(self, probe_name: str) -> dict[str, PlannedCase]:
        """The probe's cases by label; none, and a reason in `refused`, where what was asked cannot be."""
        if probe_name not in self._collected:
            from pyperf_suite.hardware.devices import resolve
            from pyperf_suite.runner.plan import PlannedCase
            from pyperf_suite.runner.profiles import find_profile
            from pyperf_suite.spec.axes import overrides_for
            from pyperf_suite.spec.discovery import find_probe, overrides_of

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

    def collect_tests(self, items: list[pytest.Item]) -> None:
        """Know the tests that are to be measured."""
        from pyperf_suite.pytests.parent import MeasuredTests

        with SpokenErrors():
            self._tests = MeasuredTests(self._config, self._profile(), items)

    @property
    def has_tests(self) -> bool:
        """Whether tests of a project are measured."""
        return self._tests is not None

    @property
    def tests(self) -> MeasuredTests:
        """The tests that are measured; there must be some."""
        assert self._tests is not None
        return self._tests

    def follow_the_first_rank(self) -> bool:
        """Whether this is another rank of a run of ours, whose part is over when this returns."""
        if not self.planned or self._config.getoption("benchmark_disable", False):
            return False
        from pyperf_suite.ranks.launch import rank_environment

        if rank_environment().rank == 0:
            return False
        from pyperf_suite.ranks.group import Group, RanksMissing
        from pyperf_suite.runner.worker import follow

        with SpokenErrors(), Group() as group:
            try:
                follow(group)
            except RanksMissing as missing:
                raise UserError(f"rank {group.rank}: {missing}") from None
        return True

    def heading(self, planned: PlannedCase) -> str:
        """The group of a case in pytest-benchmark's table."""
        from pyperf_suite.spec.discovery import find_probe

        return find_probe(planned.probe).group(planned.case)

    def outlook(self) -> str | None:
        """One line about the run ahead; None where there is none."""
        if not self._has_cases():
            return None
        from pyperf_suite.runner.plan import Outlook

        return f"pyperf_suite: {Outlook(self._plan()).line}"

    def measure_ahead(self, terminal: pytest.TerminalReporter | None) -> None:
        """All visits but those of the last process, one process after the other; the last are the items' own.

        A run that is cut short then has every case once before it has any case twice.
        """
        if not self._has_cases():
            return
        from pyperf_suite.runner.plan import ProgressLines

        with SpokenErrors():
            if self._tests is not None:
                self._session = self._open()
                self._tests.measure(self._session, ProgressLines(terminal.write_line if terminal else lambda _: None))
            processes = self._plan().profile.processes
            if processes == 1 or not self.planned:
                return
            self._session = self._session or self._open()
            ahead = [(planned, process) for planned, process in self._session.visits() if process < processes - 1]
            show = ProgressLines(terminal.write_line if terminal else lambda _: None)
            self._session.visit_all(ahead, show, lambda planned, record: f"{planned.case.label}: {record.outcome}")

    def _has_cases(self) -> bool:
        """Whether there is something to measure; tests are collected only where they are to be."""
        disabled = self._config.getoption("benchmark_disable", False)
        return self._tests is not None or bool(self.planned and not disabled)

    def measure(self, planned: PlannedCase) -> list[Record]:
        """Records of one case, none if the budget left it out; the run is opened by its first case."""
        with SpokenErrors():
            if self._session is None:
                self._session = self._open()
            session = self._session
            visits = session.within_budget((planned, process) for process in session.processes(planned))
            return [session.visit(*visit) for visit in visits]

    def verify(self, planned: PlannedCase) -> tuple[str, str]:
        """Outcome and reason of running the case once, untimed and unrecorded: what --benchmark-disable asks for."""
        from pyperf_suite.runner.workers import WorkerPool

        with SpokenErrors():
            if self._pool is None:
                self._pool = WorkerPool(self._plan().device)
            answer = self._pool.measure(0, planned.case, None)
        return answer["outcome"], answer.get("reason", "")

    @property
    def records_path(self) -> Path:
        """The journal of the run, which was opened."""
        path: Path = self._session.folder.records_path
        return path

    def report(self, terminal: pytest.TerminalReporter) -> None:
        """The summary, and where the results lie."""
        if self._session is None or not self._session.records:
            return
        from rich.console import Console

        from pyperf_suite.render.run_report import report_run

        terminal.section("pyperf_suite")
        text = io.StringIO()
        width = shutil.get_terminal_size((160, 24)).columns
        try:
            if self._complete():
                self._follow_up()
                self._session.finish()
            console = Console(emoji=False, file=text, width=width, force_terminal=terminal.hasmarkup)
            if self._session.cut_short:
                console.print(self._session.cut_short, highlight=False, soft_wrap=True)
            told = {planned.probe for planned in self.planned} | {"sentinel"}
            report_run(console, self._session.folder, list(self._session.records), told)
        except UserError as error:
            text.write(f"{error}\n")
        terminal.write(text.getvalue())

    def _complete(self) -> bool:
        tests = self._tests is None or self._tests.complete
        return tests and all(self._session.is_finished(planned) for planned in self.planned)

    def _follow_up(self) -> None:
        """What probes ask for after the items: known too late to be an item, but part of the run and its summary."""
        from pyperf_suite.spec.following import follow_ups

        for planned in follow_ups(self._session.plan, self._session.records):
            self._session.measure(planned)

    def close(self) -> None:
        """End the run's workers and close its journal; a second call does nothing."""
        if self._session is not None:
            self._session.close()
        if self._pool is not None:
            self._pool.close()
        if self._tests is not None:
            self._tests.close()

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
            warnings.simplefilter("always", DamagedJournal)
            session = Session(
                plan,
                folder,
                workers=self._workers_of_the_launcher(plan),
                budget_s=self._config.getoption("suite_budget") or math.inf,
            )
            session.open()
        return session

    def _workers_of_the_launcher(self, plan: Plan) -> Any:
        """All ranks that torchrun or SLURM started, seen from the first; None where there is no launcher."""
        from pyperf_suite.ranks.launch import rank_environment

        if not rank_environment().launched:
            return None
        from pyperf_suite.ranks.group import Group
        from pyperf_suite.runner.workers import DEADLINE_S, GroupWorkers

        return GroupWorkers(Group(), plan.device, DEADLINE_S)

    def _profile(self) -> Profile:
        """The one asked for, with as many processes as were asked for."""
        from pyperf_suite.runner.profiles import find_profile

        profile = find_profile(self._config.getoption("suite_profile"))
        processes = self._config.getoption("suite_processes")
        if processes is None:
            return profile
        if processes < 1:
            raise UserError(f"--suite-processes {processes} was asked for: at least one process has to measure.")
        return dataclasses.replace(profile, processes=processes)

    def _plan(self) -> Plan:
        from pyperf_suite.hardware.devices import resolve
        from pyperf_suite.runner.plan import Plan

        option = self._config.getoption
        tests = self._tests.planned if self._tests is not None else []
        return Plan(
            (*self.planned, *tests),
            self._profile(),
            resolve(option("suite_device")),
            option("suite_seed"),
            tuple(option("suite_axis")),
        )


class SpokenErrors:
    """A UserError ends the session with its sentence and exit code 2, not with a traceback."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, UserError):
            pytest.exit(str(error), returncode=USAGE_ERROR)
