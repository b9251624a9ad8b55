from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import STANDARD, Effort
from pyperf_suite.workloads import operator
from pyperf_suite.workloads.matmul.matmul import NativeCpuMatmul
from pyperf_suite.workloads.operator import Launches
from tests.records import a_product

SETS = 8

# A trial that does not converge, so that a thousand launches are checked however calm, or busy, the machine is.
LONG = Effort(SteadyRule(min_time_s=0.1, time_cap_s=0.2), StopRule(relative_half_width=1e-9, time_cap_s=1.5))


# True if the launch of that number on that set goes wrong.
Fault = Callable[[int, int], bool]

# A case whose native product makes tens of thousands of launches in a standard run.
CASE = a_product(96)


class FaultyLaunches(Launches):
    """The native product's launches, of which those that `is_wrong` names write one element that is off by a half."""

    def __init__(self, right: Launches, is_wrong: Fault) -> None:
        super().__init__(right._memory, right._bound, right.kernel)
        self._is_wrong, self.launched = is_wrong, 0

    def launch(self, index: int) -> None:
        super().launch(index)
        self.launched += 1
        if self._is_wrong(self.launched, index % self.sets):
            self.results(index)["c"][11, 13] += 0.5


@contextmanager
def injected(is_wrong: Fault) -> Iterator[list[FaultyLaunches]]:
    """The native product with a fault; the list grows by the launches that are prepared."""
    prepare = NativeCpuMatmul.prepare
    prepared: list[FaultyLaunches] = []

    def faulty(*arguments: Any) -> FaultyLaunches:
        prepared.append(FaultyLaunches(prepare(*arguments), is_wrong))
        return prepared[-1]

    NativeCpuMatmul.prepare = faulty  # type: ignore[method-assign]
    try:
        yield prepared
    finally:
        NativeCpuMatmul.prepare = prepare  # type: ignore[method-assign]


def trial(is_wrong: Fault, effort: Effort = STANDARD.effort) -> tuple[dict[str, Any], int]:
    """The answer of one trial, and how many launches it made."""
    with injected(is_wrong) as prepared:
        answer = measure_case(CASE, effort, resolve("cpu"))
    return answer, sum(launches.launched for launches in prepared)


@pytest.fixture(autouse=True)
def rotation_through_eight_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's caches."""
    pytest.importorskip("pyperf_suite._native")
    monkeypatch.setattr(operator, "sets_to_rotate", lambda set_bytes, device: (SETS, "cold_l2"))


@pytest.mark.parametrize("wrong", range(SETS))
def test_a_set_on_which_the_product_is_always_wrong_fails_before_timing(wrong):
    answer, _ = trial(lambda _launch, at: at == wrong)
    assert answer["outcome"] == "failed"
    assert answer["reason"].startswith("Wrong result before timing")
    assert not answer["verification"]["passed"]
    assert answer["verification"]["worst_at"] == [11, 13]


def test_launches_that_go_wrong_after_a_while_fail_while_they_are_timed():
    answer, _ = trial(lambda launch, _set: launch > 500, LONG)
    assert answer["outcome"] == "failed"
    assert answer["reason"].startswith("Wrong result while it was timed: operand set ")
