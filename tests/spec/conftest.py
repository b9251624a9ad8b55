"""Records of made-up products, each process with a time of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyperf_suite.laws.matmul.tiling import Schedule
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.workloads.matmul import MatmulParameters


class Product:
    """A product of `n` columns by an implementation, its case and records."""

    def __init__(self, n: int, implementation: str = "torch", k: int = 8) -> None:
        self.case = Case("matmul", MatmulParameters(8, n, k, Schedule("library", 1)), implementation)

    def records(
        self, *seconds: float, processes: Sequence[int] = (), outcome: str = "ok", **seen: float
    ) -> list[Record]:
        """One for each time, of processes 0, 1, ... or those named; `seen` is observed beside time."""
        return [
            Record(
                run_id="made-up",
                kind="timing",
                case=self.case.to_json(),
                case_id=self.case.case_id,
                process=process,
                position=0,
                started_at="",
                outcome=outcome,
                metrics={name: exactly(value) for name, value in {"time": time_s, **seen}.items()},
                work={"flop": 1000, "bytes": 10},
                quality={"converged": True},
            )
            for process, time_s in zip(processes or range(len(seconds)), seconds, strict=True)
        ]


def exactly(value: float) -> Metric:
    """Without spread."""
    return Metric("s", value, value, value, value, value, [value])


@pytest.fixture
def product() -> type[Product]:
    """The class of made-up products."""
    return Product
