"""The worker processes of a run, by number: started when first asked, replaced when lost."""

from __future__ import annotations

from typing import Any

from pyperf_suite.hardware.devices import Device
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.worker_process import WorkerLost, WorkerProcess

# Inputs, reference and sampling of the largest case of any profile together take a small part of this.
DEADLINE_S = 120.0


class WorkerPool:
    """Processes that stay alive between cases. Use as a context manager."""

    def __init__(self, device: Device, deadline_s: float = DEADLINE_S) -> None:
        self._device = device
        self._deadline_s = deadline_s
        self._workers: dict[int, WorkerProcess] = {}

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, Any]:
        """The answer of worker `process`; one that is lost makes the case failed, and a fresh one takes the next."""
        if process not in self._workers:
            self._workers[process] = WorkerProcess(self._device)
        try:
            answer = self._workers[process].measure(case, effort, self._deadline_s)
        except WorkerLost as lost:
            del self._workers[process]
            return {"outcome": "failed", "reason": str(lost)}
        if answer.pop("fatal", False):
            self._workers.pop(process).close()
        return answer

    def close(self) -> None:
        """End every worker; a second call does nothing."""
        while self._workers:
            self._workers.popitem()[1].close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
