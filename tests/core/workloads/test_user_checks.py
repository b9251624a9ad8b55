"""Verdicts of the judge on launches that it times: a clock without noise stands in for a kernel process."""

from __future__ import annotations

from typing import Any

from pyperf_suite.user_kernels.checks import AUDIT_BUDGET, UserChecks


class Sets:
    """Launches on eight sets, which hold numbers: one that was not used lately is in no cache, and takes longer."""

    sets, where = 8, "bench.py:1"

    def __init__(self, remembers: bool = False) -> None:
        self._remembers = remembers
        self._known_inputs: set[tuple[int, int]] = set()
        self._holds = dict.fromkeys(range(self.sets), 0)
        self._inputs_made = 0
        self._last_used = dict.fromkeys(range(self.sets), 0)
        self._launched = 0

    def make(self) -> None:
        self._inputs_made += 1

    def fill(self, index: int, slot: int = -1) -> None:
        self._holds[index % self.sets] = self._inputs_made + 1 + slot

    def time(self, first: int, samples: int, batch: int) -> tuple[list[float], float]:
        seconds = [self._launch_s(index % self.sets) for index in range(first, first + samples * batch)]
        return seconds, sum(seconds)

    def _launch_s(self, index: int) -> float:
        self._launched += 1
        is_cached = self._launched - self._last_used[index] <= self.sets // 2
        self._last_used[index] = self._launched
        known = self._remembers and (index, self._holds[index]) in self._known_inputs
        self._known_inputs.add((index, self._holds[index]))
        return (1e-5 if known else 2e-5) * (1 if is_cached else 1.5)


def compare(launches: Any) -> int:
    """How many pairs of launches on fresh and on seen inputs were compared."""
    checks = UserChecks(launches, budget=AUDIT_BUDGET)
    checks._require_that_it_computes()
    return len(checks._fresh_s)


def test_sets_that_were_out_of_cache_are_no_sign_of_a_kernel_that_remembers():
    for _ in range(10):
        assert compare(Sets()) == 12
