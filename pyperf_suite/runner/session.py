"""One run from first to last case: workers, the journal, resume, the sentinel. Front ends never touch a device."""

from __future__ import annotations

import datetime
import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from pyperf_suite.errors import UserError, printable
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.hardware.devices import gpus
from pyperf_suite.hardware.machine import identity as identify
from pyperf_suite.hardware.machine import state as machine_state
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.record.case import Case
from pyperf_suite.record.clock_model import reference_clock_hz
from pyperf_suite.record.interval import UNDISTURBED
from pyperf_suite.record.journal import Journal, KeptRecords, placed_records
from pyperf_suite.record.record import Metric, Record
from pyperf_suite.runner.core_speed import remember, remembered
from pyperf_suite.runner.plan import Outlook, Plan, PlannedCase, Progress, Trial, in_words, is_ready_fast
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.results import RunFolder
from pyperf_suite.runner.timing import as_plain
from pyperf_suite.runner.visits import joined
from pyperf_suite.runner.workers import Workers
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.operator import CACHE_TURNOVER, MEMORY_SHARE
from pyperf_suite.workloads.workload import AUDIT_VARIABLE

# A library's product that no change of ours can slow down: when it moves between the start and the end of a run,
# the machine moved.
SENTINELS = {
    "cpu": Case("matmul", MatmulParameters(256, 256, 256, Schedule("library", 1)), "einsum"),
    "cuda": Case(
        "matmul", MatmulParameters(4096, 4096, 4096, Schedule("library", 1), dtype="bfloat16", layout="TN"), "cublas"
    ),
}
SENTINEL_EFFORT = Effort(
    SteadyRule(time_cap_s=0.1), StopRule(relative_half_width=0.01, time_cap_s=0.15, quantile=UNDISTURBED)
)

MOST_NAMED = 3  # cases that a sentence names
# Time that a run with a budget keeps for its end: the last sentinel in a fresh process, the findings and pictures.
CLOSING_S = 10.0


# Limits of cases that take turns: seconds together, no more than a kill may cost; cases, for each may have processes.
GROUP_S, GROUP_CASES = 15.0, 64

# The L2 of the largest GPUs: to ask a device for its own takes a context, which only workers have.
GPU_CACHE_BYTES = 128 * 2**20
VISIT_SHARE = 0.5  # part of a case's time that is left after the first of two visits
COPIES = 3  # copies of a case's operands, at least: those that are launched on, and a reference in float64


def worker_kind(planned: PlannedCase, effort: Effort) -> tuple[object, ...] | None:
    """Return the key of cases that can take turns in one worker; None for a case that must not be interrupted."""
    case, workload = planned.case, find_workload(planned.case.operator)
    counted = math.isinf(effort.stop.relative_half_width)
    if workload.is_exact or workload.fresh_ranks or not workload.takes_turns or counted or case.mode == "sustained":
        return None
    return planned.probe, workload.ranks(case.parameters), tuple(sorted(workload.environment(case.parameters).items()))


@dataclass
class Session:
    """A run in progress: `open` it, measure its trials, `finish` or `close` it."""

    plan: Plan
    folder: RunFolder
    # The workers that measure; the first process of the last one, which has done nothing yet, measures the last
    # sentinel.
    workers: Sequence[Workers]
    budget_s: float = math.inf  # seconds from `open` on that the run may take, its end included
    # Trials that the budget left out.
    left_out: set[Trial] = field(default_factory=set)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        identity = identify(self.plan.device)
        self._identity = {"kind": identity.kind, "slug": identity.slug} | dict(identity.fields)
        self._state = machine_state(self.plan.device)
        self.outlook = Outlook(self.plan)
        self.records = KeptRecords(self.folder.records_path)
        self._resources = ExitStack()
        for workers in self.workers:
            self._resources.enter_context(closing(workers))
        self._workers = self.workers[0]
        self._began_s = self.clock()
        # The last trial of each case that is measured again, for a soak that asks tens of thousands of times.
        self._last_trials: dict[tuple[str, str], int] = {}
        # Index of the next case in the plan.
        self._places = {planned.key: place for place, planned in enumerate(self.plan.cases, 1)}
        if self.plan.device.kind == "cuda":
            cache_bytes, there_bytes = GPU_CACHE_BYTES, gpus()[self.plan.device.index].memory_bytes
        else:
            cache_bytes, there_bytes = cpu.detect().l2_total_bytes, memory.available_bytes()
        # Bytes of a case's operands at least, so that caches are cold, and what all of a group may take.
        self._cold_bytes, self._room_bytes = CACHE_TURNOVER * cache_bytes, int(MEMORY_SHARE * there_bytes)
        # By trial, the place of its record; and the trials of which that is a first visit.
        self._finished: dict[tuple[str, str, int], int] = {}
        self._due: set[tuple[str, str, int]] = set()

    def open(self) -> Session:
        """Open the journal, read it and measure the sentinel.

        Raises UserError where the journal cannot be read or written, or was kept with another --audit.
        """
        self._began_s = self.clock()
        for workers in self.workers:
            workers.best_loop_s = remembered(str(self._identity["slug"]))
        self._journal = self._resources.enter_context(Journal(self.folder.records_path))
        # Only now: until the journal was ours another run could add to it.
        # Visits by two versions of the code, or of anything else that a run's state names, are no single measurement.
        state = as_plain(self._state)
        placed = placed_records(self.folder.records_path)
        kept = [each for each in placed if not each[1].is_first_visit or each[1].state == state]
        audits = os.environ.get(AUDIT_VARIABLE) == "1"
        if any(record.verification.get("audited", audits) is not audits for _, record in kept):
            before, now = ("without", "with") if audits else ("with", "without")
            raise UserError(
                f"{self.folder.run_id} was measured {before} --audit and is to go on {now} it: resume it {before} it, "
                "or begin a run of its own."
            )
        self.records = KeptRecords(self.folder.records_path, (start for start, _ in kept))
        self._finished = {record.trial: n for n, (_, record) in enumerate(kept) if record.outcome != "failed"}
        self._due = {record.trial for _, record in kept if record.is_first_visit}
        # Its first process has done nothing yet, and goes on with the cases.
        self._measure_sentinel(self._workers)
        return self

    def finish(self) -> None:
        try:
            self._measure_sentinel(self.workers[-1])
            remember(str(self._identity["slug"]), self.folder.run_id, self.records)
        finally:
            self.close()

    def close(self) -> None:
        self._resources.close()

    def trials(self) -> list[Trial]:
        """Every trial of the plan: all cases in one process before any in the next, should the run be cut short."""
        return [
            (planned, process)
            for process in range(self.plan.profile.processes)
            for planned in self.plan.cases
            if process in self.processes(planned)
        ]

    def within_budget(self, trials: Iterable[Trial]) -> Iterator[Trial]:
        """Yield trials expected to end within the budget, and those held; keep the others in `left_out`."""
        for trial in trials:
            spent_s = self.clock() - self._began_s
            if (
                math.isinf(self.budget_s)
                or self._is_held(*trial)
                or spent_s + self.outlook.trial_s(*trial) + CLOSING_S <= self.budget_s
            ):
                yield trial
            else:
                self.left_out.add(trial)

    def seconds_left(self, trials: Iterable[Trial]) -> float:
        """How long these trials, as far as the run does not hold them yet, and its end are expected to take."""
        trials_s = (
            self.outlook.trial_s(*trial) * (VISIT_SHARE if self._is_held(*trial) else 1)
            for trial in trials
            if not self._is_held(*trial) or _key(*trial) in self._due
        )
        return sum(trials_s, self.outlook.closing_s)

    def beyond_budget(self, trials: Sequence[Trial]) -> str:
        """Say before the first trial which cases no process is expected to measure in time; empty where all are."""
        spent_s, measured, begun = CLOSING_S, set[PlannedCase](), set[PlannedCase]()
        for planned, process in trials:
            taken_s = 0.0 if self._is_held(planned, process) else self.outlook.trial_s(planned, process)
            begun.add(planned)
            if spent_s + taken_s <= self.budget_s:
                spent_s += taken_s
                measured.add(planned)
        if not (left := [planned.case.label for planned in self.plan.cases if planned in begun - measured]):
            return ""
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        needed_s = CLOSING_S + self.seconds_left(trials)
        return (
            f"The budget of {self.budget_s:g} s is expected to leave out {len(left)} of {len(begun)} cases: "
            f"{'; '.join(left[:MOST_NAMED])}{more}. All take about {in_words(needed_s)}."
        )

    def measure_trials(self, trials: Sequence[Trial], show: Progress) -> None:
        """Make the trials, as many as the budget allows, and show how far they are."""
        show(0, len(trials), "", functools.partial(self.seconds_left, trials))
        visited = self.visit_first(trials, show)
        for done, trial in enumerate(trials, 1):
            for planned, process in self.within_budget([trial]):
                record = self.measure_trial(planned, process)
                left_s = functools.partial(self.seconds_left, trials[done:])
                show((visited + done) // (2 if visited else 1), len(trials), in_brief(record), left_s)

    def visit_first(self, trials: Sequence[Trial], show: Progress) -> int:
        """Visit cases of a one-process profile for the first of two times, and return how many trials that are.

        Those that have not converged, or whose cores were slow, are due for a second visit when all have had their
        first: a machine's slow stretches seldom last for both.
        """
        if not self.plan.has_two_visits or len(trials) == 1:
            return 0
        for done, trial in enumerate(trials, 1):
            for planned, process in self.within_budget([trial]):
                if not self._is_held(planned, process):
                    self._measure_group(self._group_of(planned, process), process, visit=1)
                if (place := self._finished.get(_key(planned, process))) is not None:
                    left_s = functools.partial(self.seconds_left, trials)
                    show(done // 2, len(trials), in_brief(self.records[place]), left_s)
        return len(trials)

    @property
    def kept(self) -> str:
        """Return a sentence about the trials that a resumed run already has; empty for a new run."""
        trials = self.trials()
        held = sum(self._is_held(*trial) for trial in trials)
        if not held:
            return ""
        left = in_words(self.seconds_left(trials)) if held < len(trials) or self._due else "nothing"
        return f"Resuming {self.folder.run_id}: {held} of {len(trials)} trials are kept, {left} is left."

    @property
    def cut_short(self) -> str:
        """Return a sentence about the trials that the budget left out, and how to go on; empty if it left out none."""
        if not self.left_out and self._due:
            return (
                f"The budget of {self.budget_s:g} s left no time for the second visit of {len(self._due)} of "
                f"{len(self.plan.cases)} cases. Go on with --resume {self.folder.run_id}."
            )
        if not self.left_out:
            return ""
        complete = sum(self.is_finished(planned) for planned in self.plan.cases)
        begun = len({planned for planned, _ in self.trials()} - {p for p, process in self.left_out if process == 0})
        if not begun:
            ends = f"starting and ending a run takes about {CLOSING_S:g} s of it, so ask for more."
            return f"The budget of {self.budget_s:g} s leaves no time for a case: {ends}"
        return (
            f"The budget of {self.budget_s:g} s left out {len(self.left_out)} trials: of {len(self.plan.cases)} cases, "
            f"{begun} were measured by at least one process and {complete} by all. "
            f"Go on with --resume {self.folder.run_id}."
        )

    def measure(self, planned: PlannedCase) -> list[Record]:
        """The case's record from each process that the budget allows; what a resumed run holds is not measured again.

        Raises UserError where a record cannot be written.
        """
        trials = self.within_budget((planned, process) for process in self.processes(planned))
        return [self.measure_trial(*trial) for trial in trials]

    def measure_trial(self, planned: PlannedCase, process: int) -> Record:
        """The case's record from one process; what a resumed run already holds is not measured again.

        It is measured by turns with those that come after it in the plan, whose records are then there as well. Raises
        UserError where a record cannot be written.
        """
        key = _key(planned, process)
        is_due = key in self._due
        if is_due:
            visit_s = VISIT_SHARE * self.outlook.trial_s(planned, process)
            is_due = self.clock() - self._began_s + visit_s + CLOSING_S <= self.budget_s
        if is_due or key not in self._finished:
            self._measure_group(self._group_of(planned, process), process, visit=2 if is_due else 0)
        if key not in self._finished:
            # The workers were lost in another case's turn: who goes on measures this one, or says that none does.
            self._measure_group([planned], process)
        return self.records[self._finished[key]]

    def _group_of(self, planned: PlannedCase, process: int) -> list[PlannedCase]:
        """The case and those after it, of the same visit, that take turns with it as time and memory allow."""
        is_due = _key(planned, process) in self._due
        group, seconds, held_bytes = [planned], self.outlook.trial_s(planned, process), self._held_bytes(planned)
        kind = worker_kind(planned, self.plan.profile.effort)
        left_s = min(GROUP_S, self.budget_s - CLOSING_S - (self.clock() - self._began_s))
        after = self.plan.cases[self._places.get(planned.key, len(self.plan.cases)) :]
        for candidate in after if kind is not None else ():
            if len(group) == GROUP_CASES:
                break
            key = _key(candidate, process)
            if key not in self._due if is_due else key in self._finished:
                continue
            if worker_kind(candidate, self.plan.profile.effort) != kind:
                continue
            seconds += self.outlook.trial_s(candidate, process)
            held_bytes += self._held_bytes(candidate)
            if seconds > left_s or held_bytes > self._room_bytes:
                break
            group.append(candidate)
        return group

    def _held_bytes(self, planned: PlannedCase) -> int:
        """Memory that a case takes from when it is ready until it is done, on all its ranks together."""
        workload, parameters = find_workload(planned.case.operator), planned.case.parameters
        copies_bytes = max(COPIES * workload.footprint_bytes(parameters), self._cold_bytes)
        return copies_bytes * max(1, workload.ranks(parameters))

    def _measure_group(self, group: Sequence[PlannedCase], process: int, visit: int = 0) -> None:
        """Keep the records of answered cases as they are done; `visit` is 1 or 2 of two visits, 0 for the only one."""
        is_first, began_s = visit == 1, self.clock()
        cases = [planned.case for planned in group]
        takes_turns = worker_kind(group[0], self.plan.profile.effort) is not None
        if visit == 1 and not (takes_turns and is_ready_fast(find_workload(group[0].case.operator))):
            visit = 0
        effort = self.plan.profile.effort.per_visit() if visit else self.plan.profile.effort
        # Closed also where recording is interrupted: nobody waits for the answers that are due then.
        with closing(self._workers.measure_by_turns(process, cases, effort)) as answers:
            for number, answer in answers:
                planned = group[number]
                seconds = answer.get("trial_s", self.clock() - began_s)
                self._due.discard(_key(planned, process))
                if is_first and _needs_more(answer, visit):
                    answer["sampling"]["visit_due"] = True
                    self._due.add(_key(planned, process))
                if visit < 2:
                    self.outlook.learn(planned, process, seconds / (VISIT_SHARE if visit else 1))
                self.record(planned, process, answer, seconds=seconds, is_second=visit == 2)
                began_s = self.clock()

    def measure_again(self, planned: PlannedCase) -> Record:
        """One more trial by the first worker, numbered after those there are: what a soak repeats for minutes."""
        if planned.key not in self._last_trials:
            trials = [trial[-1] for trial in self._finished if trial[:2] == planned.key]
            self._last_trials[planned.key] = max(trials, default=-1)
        answer = self._workers.measure(0, planned.case, self.plan.profile.effort)
        self._last_trials[planned.key] += 1
        return self.record(planned, self._last_trials[planned.key], answer)

    def is_finished(self, planned: PlannedCase) -> bool:
        """True if the run has the case from every process, with all its visits."""
        keys = [_key(planned, process) for process in self.processes(planned)]
        return all(key in self._finished and key not in self._due for key in keys)

    def _is_held(self, planned: PlannedCase, process: int) -> bool:
        return _key(planned, process) in self._finished

    def processes(self, planned: PlannedCase) -> range:
        """The numbers of the processes that measure a case: one alone where its figures are read and not timed."""
        return range(1 if planned.is_exact else self.plan.profile.processes)

    def _measure_sentinel(self, workers: Workers) -> None:
        """Measure the fixed kernel by which the machine is known; a run that times nothing has no use for it."""
        if all(planned.is_exact for planned in self.plan.cases):
            return
        sentinel = SENTINELS[self.plan.device.kind]
        if workers is not self.workers[-1]:
            self.workers[-1].start(sentinel)  # next to the first one, to wait for the run's end
        answer = workers.measure(0, sentinel, SENTINEL_EFFORT)
        # The state of all records has the clock to which a GPU's times are converted; a resumed run keeps its own.
        gpu = self._state.get("gpu") or {}
        maximum_mhz, taken_mhz = gpu.get("maximum_sm_clock_mhz"), gpu.get("reference_clock_mhz")
        if maximum_mhz and not taken_mhz:
            seen_hz = answer.get("metrics", {}).get("sm_clock", {}).get("value", 0.0)
            earlier = ((record.state.get("gpu") or {}).get("reference_clock_mhz") for record in self.records)
            taken_mhz = next(filter(None, earlier), reference_clock_hz(1e6 * maximum_mhz, seen_hz) / 1e6)
            self._state = self._state | {"gpu": gpu | {"reference_clock_mhz": taken_mhz}}
        self.record(PlannedCase("sentinel", sentinel), 0, answer, kind="sentinel")

    def record(
        self,
        planned: PlannedCase,
        process: int,
        answer: dict[str, Any],
        kind: str = "timing",
        seconds: float = 0.0,
        is_second: bool = False,
    ) -> Record:
        """Keep an answer as the case's record, in the journal too; a second visit joins the first.

        Raises UserError where it cannot be written.
        """
        metrics = {name: Metric.from_json(metric) for name, metric in answer.pop("metrics", {}).items()}
        answer.pop("witnesses", None)
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
            trial_s=float(f"{answer.pop('trial_s', seconds):.6g}"),
            **answer,
        )
        if is_second:
            place = self._finished[record.trial]
            record = joined(self.records[place], record, self.plan.profile.effort.stop)
            self.records.replace(place, self._journal.append(record))
            return record
        self._finished[record.trial] = self.records.add(self._journal.append(record))
        self.left_out.discard((planned, process))
        return record


def in_brief(record: Record) -> str:
    """A record on a line of progress: its time or why there is none, and its case."""
    said = f"{record.outcome}: {record.reason}"[:60]
    if record.outcome == "ok":
        said = f"{1e6 * record.seconds:.4g} us" if "time" in record.metrics else "read"
    return printable(f"{said}, {record.label}"[:120])


def _key(planned: PlannedCase, process: int) -> tuple[str, str, int]:
    return (*planned.key, process)


def _needs_more(answer: Mapping[str, Any], visit: int) -> bool:
    """True if a case is to be visited again: its cores were slow, or the first of two visits left it uncertain."""
    sampling = answer.get("sampling", {})
    if answer["outcome"] != "ok" or "slices" not in sampling:
        return False
    return sampling["slow_by"] > 1 or (visit == 1 and not answer["quality"]["converged"])
