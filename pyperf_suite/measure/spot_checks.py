"""Whether launches go on being right while they are timed: checks of a random sample of them, between timed blocks.

A race or a bad operand set shows in some launches only; what was verified before timing says nothing of those.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pyperf_suite.measure.stopwatch import Launch, Stopwatch, wake

CONFIDENCE = 0.95

# So many at least on average, however few the sets: else all launches would follow a stop, and none be as usual.
_FEWEST_BETWEEN_STOPS = 8

TIME_SHARE = 0.08
"""What checks between blocks may take of the time since they began."""

LAST_CHECKS_S = 0.02
"""What checks after the last block may take besides: short measurements would hardly be checked otherwise."""


class CheckVerdict(Protocol):
    """Whether what a launch left is right, and in words."""

    @property
    def passed(self) -> bool: ...

    @property
    def message(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


class WrongLaunch(Exception):
    """What a launch left is wrong: the verdict, and a sentence on where and how."""

    def __init__(self, verdict: CheckVerdict, sentence: str = "") -> None:
        super().__init__(sentence or verdict.message)
        self.verdict = verdict


class Launched(Protocol):
    """`workloads.workload.Prepared`: sets of operands, and what the last launch on each left."""

    sets: int

    def untimed(self, index: int) -> None: ...

    def poison(self, index: int | None = None) -> None: ...

    def verify_last(self, index: int) -> CheckVerdict: ...

    def snapshot(self, index: int) -> Any: ...

    def matches(self, index: int, snapshot: Any) -> bool: ...


def excluded_rate(checked: int) -> float:
    """The share of wrong launches that so many right ones, drawn at random, exclude with `CONFIDENCE`.

    Were it more, all of them would be right with a probability of 5 % at most: (1 − rate)^checked = 0.05, near
    3 / checked.
    """
    return 1.0 if checked == 0 else 1 - (1 - CONFIDENCE) ** (1 / checked)


class SpotChecks:
    """Checks of one case's launches: of every set before timing, of a random sample after each timed block.

    What a launch wrote is compared bit for bit with an output that was verified; where it differs, as it may where a
    kernel sums in no fixed order, `launches.verify_last(index)` decides.
    """

    def __init__(
        self,
        launches: Launched,
        share: float = TIME_SHARE,
        chance: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """By default no kernel can know what is drawn: chance is the system's."""
        self._launches, self._share, self.clock = launches, share, clock
        self._chance = chance or random.SystemRandom()
        self.checked = 0
        self.bitwise = True
        self._launched = self._seen = 0  # of those that are timed, and up to the last check
        self._poisoned: int | None = None
        self._poisoned_at = 0
        self._spent_s = self._check_s = self._launch_s = 0.0
        self._begun_s = clock()

    def before_timing(self) -> CheckVerdict:
        """Launch on every set and check each; the verdict on set 0. Raises WrongLaunch."""
        self._launches.poison()
        for index in range(self._launches.sets):
            begin_s = self.clock()
            self._launches.untimed(index)
            self._launch_s = self.clock() - begin_s
        verdict = self._launches.verify_last(0)
        if not verdict.passed:
            raise WrongLaunch(verdict)
        self._right = self._launches.snapshot(0)
        self.checked = 1
        # Set 0 again: what a comparison takes must be known before one is afforded.
        for index in range(self._launches.sets):
            self._check(index)
        self.checked = self._launches.sets
        self._poison_one()
        self._begun_s, self._spent_s = self.clock(), 0.0
        return verdict

    def checking(self, stopwatch: Stopwatch, can_stop: bool) -> Stopwatch:
        """The stopwatch, whose launches are counted, so that it is known which of them left which output.

        Where it `can_stop` between samples without the next one being different, it stops about once in a rotation for
        checks. Its `time` raises WrongLaunch.
        """
        return _Checking(stopwatch, self, can_stop)

    def after_block(self) -> None:
        """Check outputs that timed launches left, then launches made to be checked, while there is time for them.

        Raises WrongLaunch.
        """
        self._check_for(self._allowed_s)
        self._poison_one()

    def at_stop(self, launched: int) -> None:
        """So many launches were timed by now: check outputs of the last of them, while there is time for that.

        Raises WrongLaunch.
        """
        self._launched = launched
        begin_s = self.clock()
        self._check_left(begin_s + self._allowed_s)
        self._spent_s += self.clock() - begin_s

    def next_stop(self) -> int:
        """How many launches to time before the next stop: about a rotation, no number that a kernel could count to."""
        about = max(_FEWEST_BETWEEN_STOPS, self._launches.sets)
        return self._chance.randrange(about // 2, about + about // 2 + 1)

    def after_timing(self) -> None:
        """The last checks, one at least since timing began. Raises WrongLaunch."""
        self._check_for(LAST_CHECKS_S)
        if self.checked == self._launches.sets:
            self._launch_and_check()

    @property
    def _allowed_s(self) -> float:
        return self._share * (self.clock() - self._begun_s) - self._spent_s

    def _check_for(self, allowed_s: float) -> None:
        begin_s = self.clock()
        self._check_left(begin_s + allowed_s)
        while self.clock() - begin_s + self._launch_s + self._check_s <= allowed_s:
            self._launch_and_check()
        self._spent_s += self.clock() - begin_s

    def report(self) -> dict[str, Any]:
        """What a record says: launches checked, and "errors in more than 1 of N launches excluded at 95 %"."""
        return {
            "sets": self._launches.sets,
            "launches_checked": self.checked,
            "bitwise": self.bitwise,
            "excludes_errors_in_one_of": math.floor(1 / excluded_rate(self.checked)),
            "confidence": CONFIDENCE,
        }

    def _check_left(self, until_s: float) -> None:
        """Check what the last timed launches left, in random order, but first the set that was poisoned."""
        sets = self._launches.sets
        # The later half of a rotation: those sets come round again last, when what was read of them has left the cache.
        first = max(self._seen, self._launched - (sets + 1) // 2)
        recent = [index % sets for index in range(first, self._launched)]
        self._chance.shuffle(recent)
        poisoned = self._poisoned
        if poisoned is not None and self._launched - 1 - (self._launched - 1 - poisoned) % sets >= self._poisoned_at:
            recent = [poisoned, *(index for index in recent if index != poisoned)]
        for index in recent:
            if self.clock() + self._check_s > until_s:
                break
            self._check(index)
            if index == self._poisoned:
                self._poisoned = None
        self._seen = self._launched

    def _poison_one(self) -> None:
        """So that a launch that leaves what it finds is seen: it would be right again and again."""
        if self._poisoned is None:
            self._poisoned, self._poisoned_at = self._chance.randrange(self._launches.sets), self._launched
            self._launches.poison(self._poisoned)

    def _launch_and_check(self) -> None:
        index = self._chance.randrange(self._launches.sets)
        begin_s = self.clock()
        self._launches.poison(index)
        self._launches.untimed(index)
        if index == self._poisoned:
            self._poisoned = None
        self._launch_s = self.clock() - begin_s
        self._check(index)

    def _check(self, index: int) -> None:
        begin_s = self.clock()
        if not self._launches.matches(index, self._right):
            verdict = self._launches.verify_last(index)
            if not verdict.passed:
                raise WrongLaunch(verdict, f"operand set {index}: {verdict.message}")
            self.bitwise = False
        self._check_s = self.clock() - begin_s
        self.checked += 1


class _Checking:
    def __init__(self, stopwatch: Stopwatch, checks: SpotChecks, can_stop: bool) -> None:
        self._stopwatch, self._checks, self._can_stop = stopwatch, checks, can_stop
        self.name, self.resolution_s = stopwatch.name, stopwatch.resolution_s

    def wake(self, launch: Launch, first: int, launches: int) -> int:
        made = wake(self._stopwatch, launch, first, launches)
        if made:
            self._checks.at_stop(first + made)
        return made

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> Sequence[float]:
        seconds: list[float] = []
        while len(seconds) < samples:
            part = samples - len(seconds)
            if self._can_stop:
                part = min(part, max(1, self._checks.next_stop() // max(1, launches_per_sample)))
            seconds += self._stopwatch.time(launch, first, part, launches_per_sample)
            first += part * launches_per_sample
            self._checks.at_stop(first)
        return seconds
