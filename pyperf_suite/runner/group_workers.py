"""The ranks that somebody's torchrun or SLURM started, as the workers of a session that runs in rank 0 among them."""

from __future__ import annotations

from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.ranks.group import Group, RanksMissing
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.worker import lead
from pyperf_suite.runner.worker_pool import WorkerPool
from pyperf_suite.workloads import find_workload


class GroupWorkers:
    """One group for all visits: fresh processes are the launcher's to start. What needs no ranks goes to a pool.

    Once a rank is lost the case it was in is failed, and whatever is asked next raises UserError.
    """

    def __init__(self, group: Group, device: Device, deadline_s: float) -> None:
        self._group = group
        self._device = device
        self._deadline_s = deadline_s
        self._pool = WorkerPool(device, deadline_s)
        self._lost = ""

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, Any]:
        """The answer of all ranks together, or of a worker process for a case that takes none."""
        if self._lost:
            raise UserError(f"{self._lost} Go on with --resume.")
        if not find_workload(case.operator).ranks(case.parameters):
            return self._pool.measure(process, case, effort)
        request = {
            "case": case.to_json(),
            "effort": effort.to_json() if effort is not None else None,
            "device": str(self._device),
            "deadline_s": self._deadline_s,
        }
        try:
            answer = lead(self._group, request)
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
