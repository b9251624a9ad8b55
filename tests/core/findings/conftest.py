"""Records of made-up products, each process with a time of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.matmul import MatmulParameters
from tests.records import a_record


class Product:
    """A product of `n` columns by an implementation, its case and records."""

    def __init__(self, n: int, implementation: str = "torch", k: int = 8) -> None:
        self.case = Case("matmul", MatmulParameters(8, n, k, Schedule("library", 1)), implementation)

    def records(
        self, *seconds: float, processes: Sequence[int] = (), outcome: str = "ok", **observed: float
    ) -> list[Record]:
        """One for each time, of processes 0, 1, ... or those named; `observed` is observed beside time."""
        numbered = zip(processes or range(len(seconds)), seconds, strict=True)
        fields = {"metrics": observed, "outcome": outcome, "work": {"flop": 1000, "bytes": 10}}
        return [a_record(self.case, time_s, process=process, **fields) for process, time_s in numbered]


@pytest.fixture
def product() -> type[Product]:
    """The class of made-up products."""
    return Product
