"""Whoever measures cases for a session: processes of its own, or the ranks that torchrun or SLURM started for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.processes import owned_folder, sweep
from pyperf_suite.ranks.group import Group, RanksMissing
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.worker import lead
from pyperf_suite.runner.worker_process import COMMAND, WorkerLost, WorkerProcess, ranks_command, request_for
from pyperf_suite.workloads import find_workload, scratch

# Inputs, reference and sampling of the largest case of any profile together take a small part of this.
DEADLINE_S = 120.0

# A group keeps the deadline of each of its steps itself; it needs time to start, and to find out which rank is missing.
GROUP_PATIENCE_S = 30.0


class Workers(Protocol):
    """Whoever measures cases for a session."""

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, Any]:
        """The measured part of a record; every way a case can end is an outcome."""
        ...

    def close(self) -> None:
        """End what was started; a second call does nothing."""
        ...


class WorkerPool:
    """Processes that stay alive between cases. Use as a context manager.

    A case that several ranks compute together gets a group of its own number of ranks and its own environment, and
    a group of its own each time where its operator asks for fresh ranks. All of them share a folder, in which they
    find what one of them computed.
    """

    def __init__(self, device: Device, deadline_s: float = DEADLINE_S) -> None:
        self._device = device
        self._deadline_s = deadline_s
        self._workers: dict[tuple[object, ...], WorkerProcess] = {}
        sweep()
        self._shared = owned_folder("run")

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, Any]:
        """The answer of worker `process`; one that is lost makes the case failed, and a fresh one takes the next."""
        workload = find_workload(case.operator)
        ranks, environment = workload.ranks(case.parameters), workload.environment(case.parameters)
        if ranks:
            key: tuple[object, ...] = (process, ranks, tuple(sorted(environment.items())))
            patience_s = GROUP_PATIENCE_S
            # torchrun sets this to 1 where nobody has, with a page of warning.
            environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} | dict(environment)
        else:
            key, patience_s = (process,), 0.0
        if key not in self._workers:
            environment = {scratch.SHARED_VARIABLE: self._shared.name} | environment
            self._workers[key] = WorkerProcess(self._device, ranks_command(ranks) if ranks else COMMAND, environment)
        try:
            answer = self._workers[key].measure(case, effort, self._deadline_s, patience_s)
        except WorkerLost as lost:
            del self._workers[key]
            return {"outcome": "failed", "reason": str(lost)}
        if answer.pop("fatal", False) or workload.fresh_ranks:
            self._workers.pop(key).close()
        return answer

    def close(self) -> None:
        """End every worker; a second call does nothing."""
        while self._workers:
            self._workers.popitem()[1].close()
        self._shared.cleanup()
        # Where ranks met each other as they started: named after their torchrun, which is gone now.
        sweep()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GroupWorkers:
    """The group that a session runs in rank 0 of, for all visits. What needs no ranks goes to a pool.

    Once a rank is lost the case it was in is failed, and whatever is asked next raises UserError.
    """

    def __init__(self, group: Group, device: Device, deadline_s: float) -> None:
        self._group, self._device, self._deadline_s = group, device, deadline_s
        self._pool = WorkerPool(device, deadline_s)
        self._lost = ""

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, Any]:
        """The answer of all ranks together, or of a worker process for a case that takes none."""
        if self._lost:
            raise UserError(f"{self._lost} Go on with --resume.")
        if not find_workload(case.operator).ranks(case.parameters):
            return self._pool.measure(process, case, effort)
        try:
            answer = lead(self._group, request_for(case, effort, self._device, self._deadline_s))
        except RanksMissing as missing:
            self._lost = str(missing)
            return {"outcome": "failed", "reason": self._lost}
        if answer.pop("fatal", False):
            # Only a fresh process is sure to have a whole context, and these processes are the launcher's.
            self._lost = f"The last case may have broken the device's context ({answer.get('reason', '')})."
            self._group.watchdog.announce(self._lost)
        return answer

    def close(self) -> None:
        """Let the other ranks go; a second call does nothing."""
        self._pool.close()
        if not self._lost:
            self._lost = "This run is over."
            lead(self._group, None)
        self._group.close()


class SparingWorkers:
    """Others' workers, spared the cases that are known not to run here; `refused` has the reason by case id."""

    def __init__(self, workers: Workers, refused: Mapping[str, str]) -> None:
        self._workers, self._refused = workers, refused

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, Any]:
        """`unsupported` with its reason for a case that was refused, else the workers' own answer."""
        reason = self._refused.get(case.case_id)
        if reason is not None:
            return {"outcome": "unsupported", "reason": reason}
        return self._workers.measure(process, case, effort)

    def close(self) -> None:
        """End the workers; a second call does nothing."""
        self._workers.close()
