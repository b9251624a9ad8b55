"""Workers that are spared the cases known beforehand not to run on this machine: their reason is a result as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.worker_pool import Workers


class SparingWorkers:
    """Others' workers behind a list of refused cases; `refused` has the reason by case id."""

    def __init__(self, workers: Workers, refused: Mapping[str, str]) -> None:
        self._workers = workers
        self._refused = refused

    def measure(self, process: int, case: Case, effort: Effort | None) -> dict[str, Any]:
        """`unsupported` with its reason for a case that was refused, else the workers' own answer."""
        reason = self._refused.get(case.case_id)
        if reason is not None:
            return {"outcome": "unsupported", "reason": reason}
        return self._workers.measure(process, case, effort)

    def close(self) -> None:
        """End the workers; a second call does nothing."""
        self._workers.close()
