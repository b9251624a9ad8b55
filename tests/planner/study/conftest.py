"""Records of a made-up study: each configuration takes the seconds that a test says, on a machine that keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyperf_suite.planner.study.grid import OPERATOR
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from tests.records import a_record, metric

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
        usual = {"probe": "study", "identity": {"kind": "cpu", "model": "a CPU"}, "details": memory}
        lost = {"outcome": "failed", "reason": "rank 1 died"}
        return [
            a_record(case, each and metric(each, samples=[each] * 5), process=process, position=process,
                     **usual | (lost if each is None else {}) | otherwise)
            for process, each in enumerate(seconds)
        ]  # fmt: skip

    return made
