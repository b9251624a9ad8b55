"""One run from first to last case: workers, the journal, resume, the sentinel.

Front ends ask for one planned case after the other and get its records; they never touch a device.
"""

from __future__ import annotations

import datetime
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from pyperf_suite.hardware.machine import identity as identify
from pyperf_suite.hardware.machine import state as machine_state
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.runner.plan import Outlook, Plan, PlannedCase, Progress, Visit, in_words
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.runner.results import Journal, KeptRecords, RunFolder, placed_records
from pyperf_suite.runner.workers import DEADLINE_S, WorkerPool, Workers
from pyperf_suite.workloads.matmul import MatmulParameters

# A library's product that no change of ours can slow down: when it moves between the start and the end of a run,
# the machine moved.
SENTINELS = {
    "cpu": Case("matmul", MatmulParameters(512, 512, 512, Schedule("library", 1)), "torch"),
    "cuda": Case(
        "matmul", MatmulParameters(4096, 4096, 4096, Schedule("library", 1), dtype="bfloat16", layout="TN"), "cublas"
    ),
}
SENTINEL_EFFORT = Effort(SteadyRule(time_cap_s=0.2), StopRule(relative_half_width=0.01, time_cap_s=0.3))

# What a run with a budget keeps of it for its end: the last sentinel in a fresh process, the findings and pictures.
CLOSING_S = 10.0


@dataclass
class Session:
    """A run in progress: `open` it, `visit` each case of the plan, `finish` or `close` it."""

    plan: Plan
    folder: RunFolder
    deadline_s: float = DEADLINE_S
    # Who measures, where it is not processes of this run's own: the ranks that somebody else's torchrun started.
    workers: Workers | None = None
    # Seconds from `open` on that the run may take, its end included.
    budget_s: float = math.inf
    # Visits that the budget left out.
    left_out: set[Visit] = field(default_factory=set)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        identity = identify(self.plan.device)
        self._identity = {"kind": identity.kind, "slug": identity.slug} | dict(identity.fields)
        self._state = machine_state(self.plan.device)
        self.outlook = Outlook(self.plan)
        self.records = KeptRecords(self.folder.records_path)
        self._resources = ExitStack()
        self._began_s = self.clock()
        # The last trial of each case that is measured again, for a soak that asks tens of thousands of times.
        self._last_visits: dict[tuple[str, str], int] = {}
        # By trial, the place of its record.
        self._finished: dict[tuple[str, str, int], int] = {}

    def open(self) -> Session:
        """Open the journal, read what it holds, and measure the sentinel.

        Raises UserError where the journal cannot be read or written.
        """
        self._began_s = self.clock()
        self._journal = self._resources.enter_context(Journal(self.folder.records_path))
        # Only now: until the journal was ours another run could add to it.
        kept = list(placed_records(self.folder.records_path))
        self.records = KeptRecords(self.folder.records_path, (start for start, _ in kept))
        self._finished = {_visit(record): n for n, (_, record) in enumerate(kept) if record.outcome != "failed"}
        self._workers = self._resources.enter_context(
            closing(self.workers or WorkerPool(self.plan.device, self.deadline_s))
        )
        # Its first process has done nothing yet, and goes on with the cases.
        self._measure_sentinel(self._workers)
        return self

    def finish(self) -> None:
        try:
            with WorkerPool(self.plan.device, self.deadline_s) as fresh:
                self._measure_sentinel(fresh)
        finally:
            self.close()

    def close(self) -> None:
        self._resources.close()

    def visits(self) -> list[Visit]:
        """Every trial of the plan in its order: all cases in one process before any case in the next.

        A run that is cut short then has every case once before it has any case twice.
        """
        return [
            (planned, process)
            for process in range(self.plan.profile.processes)
            for planned in self.plan.cases
            if process in self.processes(planned)
        ]

    def within_budget(self, visits: Iterable[Visit]) -> Iterator[Visit]:
        """The trials that are expected to end within the budget; the others are kept in `left_out`.

        Trials that a resumed run already holds take no time.
        """
        for visit in visits:
            spent_s = self.clock() - self._began_s
            if self._is_held(*visit) or spent_s + self.outlook.visit_s(*visit) + CLOSING_S <= self.budget_s:
                yield visit
            else:
                self.left_out.add(visit)

    def seconds_left(self, visits: Iterable[Visit]) -> float:
        """How long these trials are expected to take, as far as the run does not hold them yet."""
        return sum(self.outlook.visit_s(*visit) for visit in visits if not self._is_held(*visit))

    def visit_all(
        self, visits: Sequence[Visit], show: Progress, describe: Callable[[PlannedCase, Record], str]
    ) -> None:
        """Make the trials, as many as the budget allows, and show how far they are."""
        for done, visit in enumerate(visits, 1):
            for planned, process in self.within_budget([visit]):
                record = self.visit(planned, process)
                left_s = functools.partial(self.seconds_left, visits[done:])
                show(done, len(visits), describe(planned, record), left_s)

    @property
    def kept(self) -> str:
        """What a resumed run already holds, in a sentence; empty for a new run."""
        visits = self.visits()
        held = sum(self._is_held(*visit) for visit in visits)
        if not held:
            return ""
        left = in_words(self.seconds_left(visits)) if held < len(visits) else "nothing"
        return f"Resuming {self.folder.run_id}: {held} of {len(visits)} trials are kept, {left} is left."

    @property
    def cut_short(self) -> str:
        """What the budget left out and how to go on, in a sentence; empty where it left out nothing."""
        if not self.left_out:
            return ""
        whole = sum(self.is_finished(planned) for planned in self.plan.cases)
        begun = len({planned for planned, _ in self.visits()} - {p for p, process in self.left_out if process == 0})
        return (
            f"The budget of {self.budget_s:g} s left out {len(self.left_out)} trials: of {len(self.plan.cases)} cases, "
            f"{begun} were measured by at least one process and {whole} by all. "
            f"Go on with --resume {self.folder.run_id}."
        )

    def measure(self, planned: PlannedCase) -> list[Record]:
        """The case's record from each process of the profile; what a resumed run already holds is not measured again.

        Raises UserError where a record cannot be written.
        """
        return [self.visit(planned, process) for process in self.processes(planned)]

    def visit(self, planned: PlannedCase, process: int) -> Record:
        """The case's record from one process; what a resumed run already holds is not measured again.

        Raises UserError where a record cannot be written.
        """
        finished = self._finished.get((*planned.key, process))
        if finished is not None:
            return self.records[finished]
        began_s = self.clock()
        answer = self._workers.measure(process, planned.case, self.plan.profile.effort)
        self.outlook.learn(planned, process, self.clock() - began_s)
        return self.record(planned, process, answer, seconds=self.clock() - began_s)

    def visit_again(self, planned: PlannedCase) -> Record:
        """One more trial by the first worker, numbered after those there are: what a soak repeats for minutes."""
        if planned.key not in self._last_visits:
            visits = [visit[-1] for visit in self._finished if visit[:2] == planned.key]
            self._last_visits[planned.key] = max(visits, default=-1)
        answer = self._workers.measure(0, planned.case, self.plan.profile.effort)
        self._last_visits[planned.key] += 1
        return self.record(planned, self._last_visits[planned.key], answer)

    def is_finished(self, planned: PlannedCase) -> bool:
        """Whether a resumed run already holds the case from every process."""
        return all(self._is_held(planned, process) for process in self.processes(planned))

    def _is_held(self, planned: PlannedCase, process: int) -> bool:
        return (*planned.key, process) in self._finished

    def processes(self, planned: PlannedCase) -> range:
        """The numbers of the processes that measure a case: one alone where its figures are read and not timed."""
        return range(1 if planned.is_exact else self.plan.profile.processes)

    def _measure_sentinel(self, fresh: Workers) -> None:
        """In a process that is fresh: one that has worked for a while has other memory.

        A run that times nothing has no use for it.
        """
        if all(planned.is_exact for planned in self.plan.cases):
            return
        sentinel = SENTINELS[self.plan.device.kind]
        answer = fresh.measure(0, sentinel, SENTINEL_EFFORT)
        self.record(PlannedCase("sentinel", sentinel), 0, answer, kind="sentinel")

    def record(
        self, planned: PlannedCase, process: int, answer: dict[str, Any], kind: str = "timing", seconds: float = 0.0
    ) -> Record:
        """Keep an answer as the case's record from a process, in the journal too.

        Raises UserError where it cannot be written.
        """
        metrics = {name: Metric.from_json(metric) for name, metric in answer.pop("metrics", {}).items()}
        answer.setdefault("started_at", datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"))
        record = Record(
            run_id=self.folder.run_id,
            kind=answer.pop("kind", kind),
            case=planned.case.to_json(),
            case_id=planned.case.case_id,
            process=process,
            position=len(self.records),
            probe=planned.probe,
            profile=self.plan.profile.name,
            metrics=metrics,
            identity=self._identity,
            state=self._state | answer.pop("state", {}),
            visit_s=float(f"{seconds:.6g}"),
            **answer,
        )
        self._finished[_visit(record)] = self.records.add(self._journal.append(record))
        return record


def _visit(record: Record) -> tuple[str, str, int]:
    return record.probe, record.case_id, record.process
