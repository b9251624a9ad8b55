"""Whether launches go on being right while they are timed: checks of a random sample of them, between timed blocks.

A race or a bad operand set shows in some launches only; what was verified before timing says nothing of those.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .stopwatch import Launch, Stopwatch
from .verify import Verification

CONFIDENCE = 0.95

TIME_SHARE = 0.08
"""What checks between blocks may take of the time since they began."""

LAST_CHECKS_S = 0.01
"""What checks after the last block may take beside that: short measurements would else be hardly checked."""


class WrongLaunch(Exception):
    """A launch came out wrong; the verification says how."""

    def __init__(self, verification: Verification, index: int) -> None:
        super().__init__(f"operand set {index}: {verification.message}")
        self.verification = verification


class Launched(Protocol):
    """`operators.operator.Launches`: sets of operands, and what the last launch on each wrote."""

    sets: int

    def launch(self, index: int) -> None: ...

    def poison(self, index: int | None = None) -> None: ...

    def kept(self, index: int) -> Any: ...

    def equals(self, index: int, kept: Any) -> bool: ...


def excluded_rate(checked: int) -> float:
    """The share of wrong launches that so many right ones, drawn at random, exclude with `CONFIDENCE`.

    Were it more, all of them would be right with a probability of 5 % at most: (1 − rate)^checked = 0.05, near
    3 / checked.
    """
    return 1.0 if checked == 0 else 1 - (1 - CONFIDENCE) ** (1 / checked)


class SpotChecks:
    """Checks of one case's launches: of every set before timing, of a random sample after each timed block.

    What a launch wrote is compared bit for bit with an output that was verified; where it differs, as it may where a
    kernel sums in no fixed order, `verify(index)` decides. `verify` returns the verdict on the last launch on a set.
    """

    def __init__(
        self,
        launches: Launched,
        verify: Callable[[int], Verification],
        share: float = TIME_SHARE,
        chance: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """By default no kernel can know what is drawn: chance is the system's."""
        self._launches, self._verify, self._share, self._clock = launches, verify, share, clock
        self._chance = chance or random.SystemRandom()
        self.checked = 0
        self.bitwise = True
        self._launched = self._seen = 0  # of those that are timed, and up to the last check
        self._poisoned: int | None = None
        self._spent_s = self._check_s = self._launch_s = 0.0
        self._begun_s = clock()

    def before_timing(self) -> Verification:
        """Launch on every set and check each; the verdict on set 0, or on the first that is wrong."""
        self._launches.poison()
        for index in range(self._launches.sets):
            begin_s = self._clock()
            self._launches.launch(index)
            self._launch_s = self._clock() - begin_s
        verification = self._verify(0)
        if not verification.passed:
            return verification
        self._right = self._launches.kept(0)
        self.checked = 1
        try:
            # Set 0 again: what a comparison takes must be known before one is afforded.
            for index in range(self._launches.sets):
                self._check(index)
        except WrongLaunch as wrong:
            return wrong.verification
        self.checked = self._launches.sets
        self._poison_one()
        self._begun_s, self._spent_s = self._clock(), 0.0
        return verification

    def counted(self, stopwatch: Stopwatch) -> Stopwatch:
        """The stopwatch, which now leaves word of which launches it timed."""
        return _Counted(stopwatch, self._count)

    def after_block(self) -> None:
        """Check outputs that timed launches left, then launches made to be checked, while there is time for them.

        Raises WrongLaunch.
        """
        self._check_for(self._share * (self._clock() - self._begun_s) - self._spent_s)
        self._poison_one()

    def after_timing(self) -> None:
        """The last checks, one at least since timing began. Raises WrongLaunch."""
        self._check_for(LAST_CHECKS_S)
        if self.checked == self._launches.sets:
            self._launch_and_check()

    def _check_for(self, allowed_s: float) -> None:
        begin_s = self._clock()
        for index in self._left_by_the_block():
            if self._clock() - begin_s + self._check_s > allowed_s:
                break
            self._check(index)
        self._seen = self._launched
        while self._clock() - begin_s + self._launch_s + self._check_s <= allowed_s:
            self._launch_and_check()
        self._spent_s += self._clock() - begin_s

    def report(self) -> dict[str, Any]:
        """What a record says: launches checked, and "errors in more than 1 of N launches excluded at 95 %"."""
        return {
            "sets": self._launches.sets,
            "launches_checked": self.checked,
            "bitwise": self.bitwise,
            "excludes_errors_in_one_of": math.floor(1 / excluded_rate(self.checked)),
            "confidence": CONFIDENCE,
        }

    def _count(self, launched: int) -> None:
        self._launched = launched

    def _left_by_the_block(self) -> Sequence[int]:
        """Sets launched on since the last check, in random order, but first the one that was poisoned then."""
        sets = self._launches.sets
        recent = [index % sets for index in range(max(self._seen, self._launched - sets), self._launched)]
        self._chance.shuffle(recent)
        if self._poisoned in recent:
            recent.remove(self._poisoned)
            recent.insert(0, self._poisoned)
            self._poisoned = None
        return recent

    def _poison_one(self) -> None:
        """So that a launch that leaves what it finds is seen: it would be right again and again."""
        if self._poisoned is None:
            self._poisoned = self._chance.randrange(self._launches.sets)
            self._launches.poison(self._poisoned)

    def _launch_and_check(self) -> None:
        index = self._chance.randrange(self._launches.sets)
        begin_s = self._clock()
        self._launches.poison(index)
        self._launches.launch(index)
        if index == self._poisoned:
            self._poisoned = None
        self._launch_s = self._clock() - begin_s
        self._check(index)

    def _check(self, index: int) -> None:
        begin_s = self._clock()
        if not self._launches.equals(index, self._right):
            verification = self._verify(index)
            if not verification.passed:
                raise WrongLaunch(verification, index)
            self.bitwise = False
        self._check_s = self._clock() - begin_s
        self.checked += 1


class _Counted:
    """A stopwatch that reports how many launches there have been after each block."""

    def __init__(self, stopwatch: Stopwatch, report: Callable[[int], None]) -> None:
        self._stopwatch, self._report = stopwatch, report
        self.name, self.resolution_s = stopwatch.name, stopwatch.resolution_s

    def time(self, launch: Launch, first: int, samples: int, launches_per_sample: int) -> Sequence[float]:
        seconds = self._stopwatch.time(launch, first, samples, launches_per_sample)
        self._report(first + samples * launches_per_sample)
        return seconds
