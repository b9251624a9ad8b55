"""How a run is opened: the command line, pytest, `accept` and `study` hand over a request and get plan and session."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from pyperf_suite.errors import ExitCode, Interrupted, UserError
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.summary import exit_code
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.hardware.machine import identity
from pyperf_suite.probes import FindProbe, find_probe, follow_ups, is_users, planned_cases
from pyperf_suite.ranks.group import Group, RanksMissing
from pyperf_suite.ranks.launch import leave_launch, rank_environment
from pyperf_suite.regressions.thresholds import load_setting
from pyperf_suite.render.run_report import findings_of, markdown_of_run, report_run, run_as_json
from pyperf_suite.runner import plan as plans
from pyperf_suite.runner.profiles import Profile, find_profile
from pyperf_suite.runner.results import RunFolder, create_run, find_run
from pyperf_suite.runner.session import SENTINELS, Session, in_brief
from pyperf_suite.runner.worker import follow
from pyperf_suite.runner.workers import DEADLINE_S, GroupWorkers, WorkerPool, Workers
from pyperf_suite.workloads.workload import AUDIT_VARIABLE


@dataclass(frozen=True)
class RunRequest:
    """Request of a run: cases, effort and folder.

    `probes` may be bench files and kernels; none are all that are timed. `cases` are measured in their place where they
    are given, in that order; `axes` then only say what led to them. `processes` is another number than the profile's.
    `resume` names a run, or is `latest`; a run of that name is begun where there is none and it `may_begin`. The
    network is judged for `model`, and `audit` is by pyproject.toml where it is None.
    """

    probes: tuple[str, ...] = ()
    profile: str | Profile = "quick"
    device: str = "auto"
    axes: tuple[str, ...] = ()
    seed: int = 0
    budget_s: float | None = None
    results: Path = Path("bench_results")
    resume: str | None = None
    may_begin: bool = False
    deadline_s: float = DEADLINE_S
    soak_min: float = 0.0
    processes: int | None = None
    model: str | None = None
    audit: bool | None = None
    cases: tuple[plans.PlannedCase, ...] = ()

    @property
    def how(self) -> Profile:
        """The profile. Raises UserError where there is none of that name, or no process would measure."""
        if isinstance(self.profile, Profile):
            return self.profile
        profile, processes = find_profile(self.profile), self.processes
        if processes is not None and processes < 1:
            raise UserError(f"--suite-processes {processes} was requested: at least one process has to measure.")
        if rank_environment().launched:
            processes = 1  # fresh processes are the launcher's to start
        return profile if processes is None else dataclasses.replace(profile, processes=processes)

    def planned(self, probes: Sequence[str]) -> list[plans.PlannedCase]:
        """The cases of these probes. Raises UserError where there are none as requested."""
        return planned_cases(probes, self.how.name, resolve(self.device), self.axes)

    def in_order(self, cases: Sequence[plans.PlannedCase]) -> tuple[plans.PlannedCase, ...]:
        """Shuffled by the seed; with a budget in an order that may be cut anywhere."""
        if self.budget_s is None:
            return plans.in_random_order(cases, self.seed)
        return plans.most_informative_first(cases, self.seed)

    def plan(self) -> plans.Plan:
        """Plan the cases. Raises UserError for what cannot be planned."""
        cases = self.cases or self.in_order(self.planned(self.probes))
        return plans.Plan(cases, self.how, resolve(self.device), self.seed, self.axes)

    def folder(self, plan: plans.Plan) -> RunFolder:
        """A new run's folder, or the one to go on with. Raises UserError where there is none."""
        machine, wanted = identity(plan.device), self.resume
        begins = self.may_begin and wanted not in (None, "latest")
        if wanted is None or (begins and not (self.results / machine.slug / wanted).exists()):
            return create_run(self.results, machine, plan, wanted)
        return find_run(self.results, machine, plan, wanted)


@dataclass(frozen=True)
class Run:
    """A run: its session, the request, and the probes that judge it."""

    session: Session
    request: RunRequest
    find: FindProbe

    @property
    def plan(self) -> plans.Plan:
        return self.session.plan

    @contextmanager
    def begun(self) -> Iterator[Session]:
        """The session, opened, and finished at the end; an interrupt says what is kept and how to go on."""
        session = self.session
        try:
            yield session.open()
            session.finish()
        except KeyboardInterrupt:
            kept = f"{len(session.records)} record{' is' if len(session.records) == 1 else 's are'} kept"
            again = f"Go on with --resume {session.folder.run_id}."
            raise Interrupted(f"Interrupted; {kept} in {session.folder.records_path}. {again}") from None
        finally:
            session.close()

    def measure(
        self, title: str, trials: Sequence[plans.Trial] | None = None, outlook: plans.Outlook | None = None
    ) -> None:
        """Measure these trials, by default all, and what follows; `outlook`, by default the plan's, is told first."""
        console, session = Console(stderr=True, emoji=False), self.session

        def say(line: str) -> None:
            if line:
                console.print(line, highlight=False, markup=False, soft_wrap=True)

        say(f"{title}: {(outlook or session.outlook).line}")
        with self.begun():
            say(session.kept)
            trials = session.trials() if trials is None else trials
            say(session.beyond_budget(trials))
            with progress_on(console, len(trials)) as show:
                session.measure_trials(trials, show)
                self.follow_up(show, len(trials))
        say(session.cut_short)

    def follow_up(self, show: plans.Progress, done: int = 0) -> None:
        """Measure what the probes ask for after the plan, then repeat the plan's cases for as long as is requested."""
        session = self.session
        asked = follow_ups(self.plan, session.records)
        for count, record in enumerate((record for each in asked for record in session.measure(each)), done + 1):
            show(count, count, f"following up: {in_brief(record)}", lambda: 0.0)
        end_s = time.monotonic() + 60 * self.request.soak_min
        for count, planned in enumerate(itertools.cycle(self.plan.cases), done + 1):
            if time.monotonic() >= end_s:
                break
            show(count, count, f"soaking: {in_brief(session.measure_again(planned))}", lambda: 0.0)

    @property
    def exit_code(self) -> ExitCode:
        return exit_code(list(self.session.records))

    def report(self, console: Console, everything: bool = False, **how: Any) -> None:
        """Print what was found, and write it next to the records."""
        report_run(console, self.session.folder, list(self.session.records), everything, find=self.find, **how)

    def as_markdown(self) -> str:
        """The same as Markdown, without pictures."""
        records = list(self.session.records)
        return markdown_of_run(findings_of(records, self.find), records, self.session.folder, [])

    def as_json(self, **extra: Any) -> str:
        """The same as JSON."""
        return run_as_json(self.session.folder, list(self.session.records), self.find, **extra)


def open_run(
    request: RunRequest,
    workers: Sequence[Workers] = (),
    around: Callable[[Workers], Workers] = lambda workers: workers,
    refused: Container[str] = (),
    find: FindProbe = find_probe,
) -> Run | None:
    """The run of a request; None in ranks of a launcher other than the first, once the first needs them no more.

    `workers` measure in place of processes of its own or the launcher's ranks, the last of several the last sentinel;
    `around` makes of the first what the session asks. Cases `refused`, by their ids, are known not to run here. Raises
    UserError for what cannot be measured.
    """
    begin_audit(request.audit)
    device = resolve(request.device)
    join_only_for_ranks(request)
    if not workers and rank_environment().launched:
        group = Group()
        if group.rank:
            try:
                follow(group)
            except RanksMissing as missing:
                raise UserError(f"rank {group.rank}: {missing}", ExitCode.FAILED) from None
            finally:
                group.close()
            return None
        workers = (GroupWorkers(group, device, request.deadline_s),)
    workers = workers or (WorkerPool(device, request.deadline_s, alternates=request.budget_s is not None),)
    if device.kind == "cpu" and len(workers) == 1:  # a process that has worked for a while has other memory
        workers = (*workers, WorkerPool(device, request.deadline_s))
    try:
        find = _judging(request, find, device)
        with _pictures_prepared(any(map(is_users, request.probes))):
            plan = request.plan()
        plan.validate(refused)
        first, budget_s = around(workers[0]), math.inf if request.budget_s is None else request.budget_s
        return Run(Session(plan, request.folder(plan), (first, *workers[1:]), budget_s), request, find)
    except BaseException:
        # Nothing is wrong with the other ranks: they go, and only this one's sentence is heard.
        for each in workers:
            each.close()
        raise


def join_only_for_ranks(request: RunRequest) -> None:
    """Have a pod that only variables make a rank run alone where no case of the request takes ranks."""
    if rank_environment().is_pod and not any(map(plans.ranks_of, request.plan().cases)):
        leave_launch()


def started(device: Device, deadline_s: float = DEADLINE_S) -> tuple[WorkerPool, ...]:
    """Processes that start meanwhile: whose sentinel comes first, and on a CPU another one, whose comes last."""
    pools = tuple(WorkerPool(device, deadline_s) for _ in range(2 if device.kind == "cpu" else 1))
    for pool in pools:
        pool.start(SENTINELS[device.kind])
    return pools


def begin_audit(requested: bool | None) -> None:
    """Have kernels audited if requested, or by the pyproject.toml here. Raises UserError where that is no bool."""
    if load_setting("audit", False) if requested is None else requested:
        os.environ[AUDIT_VARIABLE] = "1"
    elif requested is False:
        os.environ[AUDIT_VARIABLE] = "0"


@contextmanager
def _pictures_prepared(is_waiting: bool) -> Iterator[None]:
    """Import what draws the pictures meanwhile, where this process only waits for others that read a user's file."""

    def load() -> None:
        with contextlib.suppress(Exception):  # who draws says what is broken
            importlib.import_module("matplotlib.pyplot")

    loading = threading.Thread(target=load)
    if is_waiting:
        loading.start()
    yield
    if is_waiting:
        loading.join()


def _judging(request: RunRequest, find: FindProbe, device: Device) -> FindProbe:
    """Probes that judge as requested. Raises UserError for a model that cannot be."""
    if request.model is None:
        return find
    from pyperf_suite.probes.collectives import analyse
    from pyperf_suite.probes.collectives.verdict import network_judge

    own = functools.partial(analyse, judge=network_judge(device.kind, request.model))

    def found(name: str) -> Probe:
        probe = find(name)
        return dataclasses.replace(probe, analyse=own) if name == "collectives" else probe

    return found


BAR_EVERY_S = 1.0


@contextmanager
def progress_on(console: Console, total: int) -> Iterator[plans.Progress]:
    """A bar where there is a terminal; elsewhere a line of text every ten seconds, for a log."""
    if not console.is_terminal:
        yield plans.ProgressLines(lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        say = plans.ProgressLines(lambda line: bar.update(task, description=line), every_s=BAR_EVERY_S)

        def show(done: int, total: int, last: str, left_s: Callable[[], float]) -> None:
            bar.update(task, completed=done, total=total)
            say(done, total, last, left_s)

        yield show
