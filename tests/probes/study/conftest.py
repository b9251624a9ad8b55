"""Records of a made-up study: each configuration takes the seconds that a test says, on a machine that keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyperf_suite.probes.study.grid import OPERATOR
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.workloads.training.parallel.parameters import ParallelStepParameters

SHAPE: dict[str, Any] = {"hidden": 128, "heads": 4, "layers": 4, "seq": 128, "vocab": 512, "tied": False}


@pytest.fixture
def layout() -> Callable[..., Case]:
    """layout(data=2, zero_stage=1): a case of a tiny GPT with a global batch of 8, cut so."""

    def made(implementation: str = "gloo", **cut: Any) -> Case:
        batch, data = cut.get("batch", 2), cut.get("data", 1)
        cut = {"attention": "flash", "batch": batch, "micro_batches": 8 // (batch * data)} | cut
        return Case(OPERATOR, ParallelStepParameters(**SHAPE | cut), implementation)

    return made


@pytest.fixture
def visits() -> Callable[..., list[Record]]:
    """visits(case, [0.1, 0.11]): one experiment for each time, all of whose steps take it; None is one that failed."""

    def made(case: Case, seconds: list[float | None], memory: Any = None, **otherwise: Any) -> list[Record]:
        found = []
        for process, each in enumerate(seconds):
            lost = {"outcome": "failed", "reason": "rank 1 died", "metrics": {}, "quality": {}}
            usual: dict[str, Any] = {
                "run_id": "made-up",
                "kind": "timing",
                "case": case.to_json(),
                "case_id": case.case_id,
                "process": process,
                "position": process,
                "started_at": "",
                "outcome": "ok",
                "probe": "study",
                "work": {"flop": 0, "bytes": 0},
                "kernel": {"name": "parallel_step", "details": memory or {}},
                "quality": {"converged": True},
                "identity": {"kind": "cpu", "model": "a CPU"},
            }
            if each is not None:
                usual["metrics"] = {"time": Metric("s", each, each, each, each, each, [each] * 5)}
            found.append(Record(**(usual | (lost if each is None else {}) | otherwise)))
        return found

    return made
