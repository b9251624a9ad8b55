"""Whoever measures cases for a session: processes of its own, or the ranks that torchrun or SLURM started for it.

Each request to a worker has a deadline; a worker that does not answer is ended, and how it ended is reported.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyperf_suite.errors import ExitCode, UserError
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.devices import Device
from pyperf_suite.process.child import FORGED, HUNG, ChildProcess, ProcessLost
from pyperf_suite.process.system import OwnedFolder, sweep
from pyperf_suite.ranks.group import Group, RanksMissing
from pyperf_suite.ranks.launch import LAUNCHER_VARIABLES
from pyperf_suite.record.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.spared import SparedCases
from pyperf_suite.runner.worker import TURN_FILE, lead, let_go
from pyperf_suite.user_kernels.checks import joined
from pyperf_suite.workloads import find_workload, scratch

MODULE = "pyperf_suite.runner.worker"
COMMAND = (sys.executable, "-m", MODULE)

# A worker that is still at a case so long after it should have been ended ends itself: its parent is stopped or gone.
GIVE_UP_S = 10.0

Answers = Generator[tuple[int, dict[str, Any]], None, None]
"""The number of a case among those requested, and the measured part of its record, as each is done."""


def request_for(
    cases: Sequence[Case],
    effort: Effort | None,
    device: Device,
    deadline_s: float,
    earlier: Sequence[Mapping[str, Any]] = (),
    best_loop_s: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """A request to a worker, as one line of JSON; of each case with what `earlier` processes found."""
    return {
        "cases": [case.to_json() for case in cases],
        "earlier": list(earlier),
        "effort": effort.to_json() if effort is not None else None,
        "device": str(device),
        "deadline_s": deadline_s,
        "best_loop_s": dict(best_loop_s or {}),
    }


class WorkerLost(Exception):
    """The worker died or ran past its deadline, in the turn of `case`; for `witnesses` see SparedCases.

    The message is the reason for that case.
    """

    def __init__(self, reason: str, case: int = 0, witnesses: int = 0) -> None:
        super().__init__(reason)
        self.case, self.witnesses = case, witnesses


class WorkerProcess(ChildProcess):
    """One worker; any request may raise WorkerLost, after which this handle is closed."""

    # The option of the command that sets the deadline.
    OPTION = "--deadline"

    def __init__(
        self,
        command: tuple[str, ...] = COMMAND,
        environment: Mapping[str, str] | None = None,
        memory_bytes: float = math.inf,
        preload: Sequence[str] = (),
    ) -> None:
        """Start `command` in this environment and what is added; a template has imported `preload` (child.py)."""
        self._scratch = OwnedFolder("worker")
        self._turn = Path(self._scratch.name) / TURN_FILE
        own = {scratch.VARIABLE: self._scratch.name}
        # A worker that is no rank must not think it is.
        inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        self.WRITES_STACKS = command == COMMAND  # a launcher of ranks would end
        super().__init__(command, inherited | own | dict(environment or {}), memory_bytes, preload)

    def send(self, request: Mapping[str, Any], answers: int = 1) -> None:
        self._turn.unlink(missing_ok=True)
        super().send(request, answers)

    def receive(self, deadline_s: float | None = None) -> dict[str, Any]:
        answer = super().receive(deadline_s)
        self.forget_words()
        return answer

    def progress(self) -> list[int]:
        """The number of the case whose turn it is, and that of the turn."""
        try:
            return [int(word) for word in self._turn.read_text().split()] or [0]
        except (OSError, ValueError):
            return [0]

    def failure(self, lost: ProcessLost) -> WorkerLost:
        """Return the worker's end: how, where and with which last words."""
        if lost.cause == HUNG:
            lost.words = f"did not answer within its deadline of {lost.deadline_s:g} s ({self.OPTION}) and was ended"
        # A killed process may have taken too much memory, which depends on the case.
        witnesses = 0 if lost.how == "signal SIGKILL" else 2
        return WorkerLost(f"The worker process {lost}", self.progress()[0], witnesses)

    def choose(self, lines: Sequence[str]) -> str:
        # Ranks' words about each other tell more than how each of them ended.
        return super().choose([line for line in lines if re.match(r"rank \d+: ", line)] or lines)

    def close(self) -> None:
        """End the worker, and remove the files that it left."""
        super().close()
        self._scratch.cleanup()


# Inputs, reference and sampling of the largest case of any profile together take a small part of this.
DEADLINE_S = 120.0

# Parts of the key of a process that measures alone: its number and whose code it runs. A group's has more.
OF_A_WORKER = 2

# A group keeps the deadline of each of its steps itself; it needs time to start, and to find out which rank is missing.
GROUP_PATIENCE_S = 30.0


class Workers:
    """Measures a session's cases, one by one or by turns: at least one of the two is defined.

    `best_loop_s` is what earlier runs on this machine saw of its cores (runner/core_speed.py).
    """

    best_loop_s: Mapping[str, float] | None = None

    def start(self, case: Case) -> None:
        """Start what is to measure such a case later, where that takes a while."""

    def measure_by_turns(self, process: int, cases: Sequence[Case], effort: Effort | None) -> Answers:
        """Cases that take turns in one process; every way a case can end is an outcome."""
        for number, case in enumerate(cases):
            yield number, self.measure(process, case, effort)

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, Any]:
        """The measured part of the record of a single case."""
        ((_, answer),) = self.measure_by_turns(process, [case], effort)
        return answer

    def close(self) -> None:
        return


class WorkerPool(Workers):
    """Processes that stay alive between cases and share a folder; a context manager.

    Cases of several ranks get a group of their own number of ranks and environment, each time a new one where the
    operator asks for fresh ranks.
    """

    def __init__(self, device: Device, deadline_s: float = DEADLINE_S, alternates: bool = False) -> None:
        """`alternates`: a group and a process that measures alone both stay, for a plan asks now one, now the other."""
        self._device = device
        self._deadline_s = deadline_s
        self._alternates = alternates
        self._workers: dict[tuple[object, ...], WorkerProcess] = {}
        self._spared = SparedCases()
        self._checked: dict[str, Mapping[str, Any]] = {}
        self._latest = 0
        sweep()
        self._shared = OwnedFolder("run")

    def measure_by_turns(self, process: int, cases: Sequence[Case], effort: Effort | None) -> Answers:
        """The answers of worker `process`; one that is lost makes the case failed whose turn it was.

        A fresh one takes the others, each of them alone: what the lost one had taken may be what ended it.
        """
        left, is_first = list(range(len(cases))), True
        while left:
            for number in left[:]:
                if (spared := self._spared.answer(cases[number])) is not None:
                    left.remove(number)
                    yield number, spared
            requested, is_first = left[:] if is_first else left[:1], False
            for number, answer in self._answers(process, [cases[each] for each in requested], effort):
                left.remove(requested[number])
                self._spared.note(cases[requested[number]], answer)
                yield requested[number], answer

    def start(self, case: Case) -> None:
        """Start the first process that measures such cases now: it imports what it needs, and waits."""
        self._worker(0, case)

    def _answers(self, process: int, cases: Sequence[Case], effort: Effort | None) -> Answers:
        """As many as come before the worker is of no further use."""
        if not cases:
            return
        key, worker = self._worker(process, cases[0])
        workload = find_workload(cases[0].operator)
        # Ranks keep the deadline themselves.
        deadline_s = self._deadline_s + (GROUP_PATIENCE_S if workload.ranks(cases[0].parameters) else 0.0)
        earlier = [self._checked.get(case.case_id, {}) for case in cases]
        request = request_for(cases, effort, self._device, self._deadline_s, earlier, self.best_loop_s)
        waiting = set(range(len(cases)))
        try:
            worker.send(request | {"give_up_s": deadline_s + GIVE_UP_S}, answers=len(cases))
            while waiting and not worker.is_closed:
                answer = worker.receive(deadline_s)
                number = answer.pop("case", worker.progress()[0])
                if number not in waiting:
                    words = f"answered for case {number!r}, for which no answer was due, and was ended"
                    raise worker.lost(FORGED, words)
                waiting.remove(number)
                if "inputs_tried" in (found := answer.get("verification", {})):
                    self._checked[cases[number].case_id] = joined(earlier[number], found)
                if answer.pop("fatal", False) or workload.fresh_ranks:
                    self._workers.pop(key).close()
                yield number, answer
        except WorkerLost as lost:
            whose = lost.case if lost.case in waiting else min(waiting)
            yield whose, {"outcome": "failed", "reason": str(lost), "witnesses": lost.witnesses}
        finally:
            # Ctrl-C, a timeout, whatever stopped the one who asked: what this worker answers now is for nobody.
            if worker.is_waited_for:
                worker.close()
                if self._workers.get(key) is worker:
                    del self._workers[key]

    def _worker(self, process: int, case: Case) -> tuple[tuple[object, ...], WorkerProcess]:
        """The worker that measures the case, started unless it waits, and its key."""
        workload = find_workload(case.operator)
        ranks, variables = workload.ranks(case.parameters), workload.environment(case.parameters)
        environment = {scratch.SHARED_VARIABLE: self._shared.name, **variables}
        key: tuple[object, ...] = (process, workload.source)
        if ranks:
            # As torchrun does, for all ranks share these cores.
            environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} | environment
            key = (process, ranks, tuple(sorted(variables.items())))
        if key in self._workers and self._workers[key].is_waited_for:
            self._workers.pop(key).close()  # an exception ended the last request
        if key not in self._workers:
            self._end_those_before(process, bool(ranks))
            command = (sys.executable, "-m", "pyperf_suite.ranks.launch", str(ranks), MODULE) if ranks else COMMAND
            # Somebody else's code may take all memory.
            self._workers[key] = WorkerProcess(
                command, environment, memory.limit_bytes() if workload.source else math.inf
            )
        return key, self._workers[key]

    def _end_those_before(self, process: int, is_group: bool) -> None:
        """End workers that a plan in its order asks no more, or not soon, for they hold memory.

        A group of ranks ends those before it; a process that measures alone and is the first of its number ends those
        with earlier numbers; and unless a plan alternates, each ends those of the other kind.
        """
        is_next, self._latest = process > self._latest, max(process, self._latest)
        for key, worker in list(self._workers.items()):
            is_like = (len(key) > OF_A_WORKER) == is_group
            if is_like and not (is_group or (is_next and key[0] != process)):
                continue
            if is_like or not self._alternates:
                worker.let_go()
                self._workers.pop(key).close()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.let_go()
        while self._workers:
            self._workers.popitem()[1].close()
        self._shared.cleanup()
        # Folders in which ranks met as they started, named after their launcher, which is gone now.
        sweep()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GroupWorkers(Workers):
    """The group in whose rank 0 a session runs, for all trials, and a pool for what needs no ranks.

    Once a rank is lost the case it was in is failed, and the next request raises UserError.
    """

    def __init__(self, group: Group, device: Device, deadline_s: float) -> None:
        self._group, self._device, self._deadline_s = group, device, deadline_s
        self._pool = WorkerPool(device, deadline_s)
        self._lost = ""

    def measure_by_turns(self, process: int, cases: Sequence[Case], effort: Effort | None) -> Answers:
        """The answers of all ranks together, or of a worker process for cases that take none."""
        if self._lost:
            raise UserError(f"{self._lost} Go on with --resume.", ExitCode.FAILED)
        self._pool.best_loop_s = self.best_loop_s
        if not find_workload(cases[0].operator).ranks(cases[0].parameters):
            yield from self._pool.measure_by_turns(process, cases, effort)
            return
        interrupted = True
        request = request_for(cases, effort, self._device, self._deadline_s, best_loop_s=self.best_loop_s)
        try:
            for answer in lead(self._group, request):
                number = answer.pop("case")
                if answer.pop("fatal", False):
                    # Only a fresh process is sure to have a whole context, and these processes are the launcher's.
                    self._lost = f"The last case may have broken the device's context ({answer.get('reason', '')})."
                    self._group.watchdog.announce(self._lost)
                yield number, answer
            interrupted = False
        except RanksMissing as missing:
            self._lost = str(missing)
            yield missing.case, {"outcome": "failed", "reason": self._lost}
        finally:
            if interrupted and not self._lost:
                # The other ranks are at a step of a case that this rank has left.
                self._lost = "Rank 0 was interrupted while the ranks measured a case."
                self._group.watchdog.announce(self._lost)

    def close(self) -> None:
        self._pool.close()
        if not self._lost:
            self._lost = "This run is over."
            let_go(self._group)
        self._group.close()


class EachDevice(Workers):
    """Workers for all devices: process n measures on device n modulo their number; groups of ranks start once."""

    def __init__(self, devices: Sequence[Device], deadline_s: float = DEADLINE_S) -> None:
        self._pools = {str(device): WorkerPool(device, deadline_s, alternates=True) for device in devices}

    def measure_by_turns(self, process: int, cases: Sequence[Case], effort: Effort | None) -> Answers:
        """The answers of that process on its device, which is in the record's state."""
        device, pool = list(self._pools.items())[process % len(self._pools)]
        pool.best_loop_s = self.best_loop_s
        ranks = find_workload(cases[0].operator).ranks(cases[0].parameters)
        with contextlib.closing(pool.measure_by_turns(0 if ranks else process, cases, effort)) as answers:
            for number, answer in answers:
                yield number, answer | {"state": answer.get("state", {}) | {"device": device}}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
