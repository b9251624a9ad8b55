"""Check what launches leave while they are timed: chance draws the ends of parts, and the last is looked at.

A race or a bad operand set shows in some launches only; what was verified before timing says nothing of those. What
ran last is surely there still, and nothing that runs can know which launch that will be.
"""

from __future__ import annotations

import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from pyperf_suite.measure.stopwatch import Launch, Stopwatch, wake

CONFIDENCE = 0.95
CHECKING_SHARE = 0.05  # share of the time since timing began that checks may take

# Launches between two stops at least, on average: of few sets all would follow a stop otherwise, and none be as usual.
LEAST_BETWEEN_STOPS = 8
LAST_CHECKS_S = 0.02  # seconds for checks after the last block: short launches would hardly be checked otherwise


class CheckVerdict(Protocol):
    """The judgement on what a launch left, with a sentence."""

    @property
    def passed(self) -> bool: ...

    @property
    def message(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


class WrongLaunch(Exception):
    """Raised where what a launch left is wrong: the verdict, and a sentence on where and how."""

    def __init__(self, verdict: CheckVerdict, sentence: str = "") -> None:
        super().__init__(sentence or verdict.message)
        self.verdict = verdict


def require_right(verdict: CheckVerdict) -> CheckVerdict:
    """Return the verdict. Raises WrongLaunch where it is bad."""
    if not verdict.passed:
        raise WrongLaunch(verdict)
    return verdict


def excluded_rate(checked: int) -> float:
    """Return the rate of wrong launches that `checked` right ones exclude: (1 − rate)^checked = 1 − CONFIDENCE."""
    return 1.0 if checked == 0 else 1 - (1 - CONFIDENCE) ** (1 / checked)


Part = Callable[[int, int, int], Sequence[float]]
"""`part(first, samples, launches_per_sample)` times that many from launch `first` on: the seconds of each sample."""


class Checks(ABC):
    """Checks of one case: before timing, of the last launch of parts of each block, and after timing.

    `clock` runs while this case has its turn: what checks may take is a share of that. `unsampled_s` is what they took
    between samples that is no share of the samples' time. Each method that looks raises WrongLaunch.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)
    unsampled_s = 0.0

    def __init__(self) -> None:
        self.checked = 0
        self._begun_s = self._spent_s = self._check_s = 0.0

    @abstractmethod
    def before_timing(self) -> CheckVerdict:
        """Launch, and check what that leaves; the verdict."""

    @abstractmethod
    def arm(self, last: int, launches: int) -> None:
        """Announce that launch `last`, the end of a part of `launches` launches, will be looked at."""

    @abstractmethod
    def look(self, last: int, launches: int) -> None:
        """Check the result of launch `last` and, as time allows, of others in the part of `launches` that it ends."""

    @abstractmethod
    def after_timing(self) -> None:
        """Check once more."""

    def begin(self) -> None:
        """From now on launches are timed."""
        self._begun_s, self._spent_s = self.clock(), 0.0

    def checking(self, stopwatch: Stopwatch, can_stop: bool) -> Stopwatch:
        """The stopwatch, with checks in its blocks; `can_stop` says that a sample after a pause is as any other."""
        return CheckedStopwatch(stopwatch, self)

    def time(self, part: Part, first: int, samples: int, batch: int) -> list[float]:
        """Time a block by parts; what ends one is looked at as long as there is time for checks."""
        seconds: list[float] = []
        while len(seconds) < samples:
            begin, rest, may_look = first + len(seconds) * batch, samples - len(seconds), self.may_look
            count = self.samples_of_part(rest, batch, may_look)
            seconds.extend(self.looked_at(part, begin, count, batch) if may_look else part(begin, count, batch))
        return seconds

    def samples_of_part(self, samples_left: int, batch: int, is_looked_at: bool) -> int:
        """How many of the rest of a block's samples the next part has."""
        return 1 + secrets.randbelow(samples_left) if is_looked_at else samples_left

    @property
    def may_look(self) -> bool:
        return self._spent_s + self._check_s <= self._allowed_s

    @property
    def _allowed_s(self) -> float:
        return CHECKING_SHARE * (self.clock() - self._begun_s)

    def looked_at(self, part: Part, first: int, samples: int, batch: int) -> Sequence[float]:
        """Time a part whose last launch is looked at."""
        launches = samples * batch
        last = first + launches - 1
        begin_s = self.clock()
        self.arm(last, launches)
        armed_s = self.clock()
        seconds = part(first, samples, batch)
        timed_s = self.clock()
        self.look(last, launches)
        self._spent_s += armed_s - begin_s + self.clock() - timed_s
        return seconds

    def report(self) -> dict[str, Any]:
        """Fields of a record: launches checked, and "errors in more than 1 of N launches excluded at 95 %"."""
        return {
            "launches_checked": self.checked,
            "excludes_errors_in_one_of": math.floor(1 / excluded_rate(self.checked)),
            "confidence": CONFIDENCE,
        }


class CheckedStopwatch:
    """A stopwatch whose blocks are timed by parts."""

    def __init__(self, stopwatch: Stopwatch, checks: Checks) -> None:
        self._stopwatch, self._checks = stopwatch, checks
        self.name, self.resolution_s = stopwatch.name, stopwatch.resolution_s

    @property
    def unsampled_s(self) -> float:
        return self._checks.unsampled_s

    def wake(self, launch: Launch, first: int, launches: int) -> int:
        return wake(self._stopwatch, launch, first, launches)

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> Sequence[float]:
        return self._checks.time(partial(self._stopwatch.time, launch), first, samples, launches_per_sample)


class SetChecks(Checks):
    """Checks of launches that rotate through sets of equal operands: of every set before timing, of drawn ones later.

    `launches` are a `workloads.workload.Prepared`. What a launch wrote is compared bit for bit with an output that was
    verified; where it differs, as it may where a kernel sums in no fixed order, `launches.verify_last(index)` decides.
    Launches that are `unchecked`, as they build on each other, are checked as a whole before timing and after, and so
    are those that then `sees_more`.
    """

    def __init__(self, launches: Any) -> None:
        super().__init__()
        self._launches, self._can_stop, self._launch_s, self.bitwise = launches, True, 0.0, True
        self._as_a_whole = launches.sees_more or bool(launches.unchecked)

    def before_timing(self) -> CheckVerdict:
        """Launch on every set and check each; the verdict on set 0, or on the whole."""
        whole: CheckVerdict | None = require_right(self._launches.check()) if self._as_a_whole else None
        if self._launches.unchecked and whole is not None:
            return whole
        self._launches.poison()
        for index in range(self._launches.sets):
            begin_s = self.clock()
            self._launches.untimed(index)
            self._launch_s = self.clock() - begin_s
        verdict = require_right(self._launches.verify_last(0))
        self._right = self._launches.snapshot(0)
        # Set 0 again: what a comparison takes must be known before one is afforded.
        for index in range(self._launches.sets):
            self._check(index)
        self.checked = self._launches.sets
        self.begin()
        return verdict

    def checking(self, stopwatch: Stopwatch, can_stop: bool) -> Stopwatch:
        self._can_stop = can_stop
        return stopwatch if self._launches.unchecked else super().checking(stopwatch, can_stop)

    def samples_of_part(self, samples_left: int, batch: int, is_looked_at: bool) -> int:
        """Samples of about a rotation, no number that a kernel could count to; all where it cannot stop."""
        about = max(LEAST_BETWEEN_STOPS, self._launches.sets)
        launches = about // 2 + secrets.randbelow(about + 1)
        return min(samples_left, max(1, launches // batch)) if self._can_stop else samples_left

    def arm(self, last: int, launches: int) -> None:
        """Poison the set that ends the part, unless it comes so soon that it would be found in the cache."""
        # A launch that leaves what it finds would be right again and again.
        if launches > self._launches.sets // 2:
            self._launches.poison(last % self._launches.sets)

    def look(self, last: int, launches: int) -> None:
        """Check the last, then others of the later half of a rotation, which come again last, in random order."""
        sets, until_s = self._launches.sets, self.clock() + self._allowed_s - self._spent_s
        self._check(last % sets)
        recent = range(last - min(launches, (sets + 1) // 2) + 1, last)
        for index in secrets.SystemRandom().sample(recent, len(recent)):
            if self.clock() + self._check_s > until_s:
                break
            self._check(index % sets)

    def after_timing(self) -> None:
        """Launch and check on drawn sets while there is time, once at least since timing began."""
        if not self._launches.unchecked:
            until_s = self.clock() + LAST_CHECKS_S
            while self.checked == self._launches.sets or self.clock() + self._launch_s + self._check_s <= until_s:
                index, begin_s = secrets.randbelow(self._launches.sets), self.clock()
                self._launches.poison(index)
                self._launches.untimed(index)
                self._launch_s = self.clock() - begin_s
                self._check(index)
        if self._as_a_whole:
            require_right(self._launches.check())

    def report(self) -> dict[str, Any]:
        if self._launches.unchecked:
            return {"unchecked": self._launches.unchecked}
        return {"sets": self._launches.sets, "bitwise": self.bitwise, **super().report()}

    def _check(self, index: int) -> None:
        begin_s = self.clock()
        if not self._launches.matches(index, self._right):
            verdict = self._launches.verify_last(index)
            if not verdict.passed:
                raise WrongLaunch(verdict, f"operand set {index}: {verdict.message}")
            self.bitwise = False
        self._check_s = self.clock() - begin_s
        self.checked += 1
