"""Inject wrong results into the native product and count the runs that see them: python tools/wrong_launches.py 40.

A run tries the case as often as the standard profile has processes, until a trial fails. For each fault: how many of
the runs asked for caught it, and the launches of a run that caught nothing.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import STANDARD, Effort
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.matmul.matmul import NativeCpuMatmul
from pyperf_suite.workloads.operator import Launches

# Whether the launch of that number on that set goes wrong.
Fault = Callable[[int, int], bool]

# Of which the native product makes tens of thousands of launches in a standard run.
CASE = Case("matmul", MatmulParameters(96, 96, 96, Schedule("data_parallel", 1)), "native")


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


def visit(is_wrong: Fault, effort: Effort = STANDARD.effort) -> tuple[dict[str, Any], int]:
    """The answer of one trial, and how many launches it made."""
    with injected(is_wrong) as prepared:
        answer = measure_case(CASE, effort, resolve("cpu"))
    return answer, sum(launches.launched for launches in prepared)


def one_in(count: int, seed: int) -> Fault:
    """One launch in so many is wrong, none can say which."""
    chance = random.Random(seed)
    return lambda _launch, _set: chance.random() * count < 1


def on_one_set(_count: int, seed: int) -> Fault:
    """Every launch on one of the sets but the first is wrong."""
    return lambda _launch, at: at == 1 + seed % 3


FAULTS: dict[str, tuple[Callable[[int, int], Fault], int]] = {
    "none": (lambda _count, _seed: lambda _launch, _set: False, 0),
    "1 in 10": (one_in, 10),
    "1 in 100": (one_in, 100),
    "1 in 1,000": (one_in, 1000),
    "one set": (on_one_set, 0),
}


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=int, nargs="?", default=40)
    parser.add_argument("--fault", action="append", choices=tuple(FAULTS))
    asked = parser.parse_args()
    for name in asked.fault or FAULTS:
        make, count = FAULTS[name]
        caught, most_launches, checked = 0, 0, 0
        for run in range(asked.runs):
            fault, launches, checked_in_run = make(count, run), 0, 0
            for _process in range(STANDARD.processes):
                answer, launched = visit(fault)
                launches += launched
                checked_in_run += answer["verification"].get("launches_checked", 0)
                if answer["outcome"] == "failed":
                    caught += 1
                    break
            else:
                most_launches, checked = max(most_launches, launches), max(checked, checked_in_run)
        print(f"{name}: {caught} of {asked.runs} runs caught it", end="")
        print(f"; of up to {most_launches} launches a run checked up to {checked}" if most_launches else "", flush=True)


if __name__ == "__main__":
    main()
