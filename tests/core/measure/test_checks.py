import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pyperf_suite.measure import checks as module
from pyperf_suite.measure.checks import SetChecks, WrongLaunch, excluded_rate
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.measure.verify import Verification
from tests.records import measure

LAUNCH_S, CHECK_S = 25e-6, 8e-6
# The standard profile where nothing converges: some 60,000 launches in a run of three processes.
STANDARD = (StopRule(relative_half_width=1e-9, time_cap_s=0.4, max_samples=10**6), SteadyRule(1e-9, time_cap_s=0.2))


class Simulated:
    """Launches on a clock of their own that write 1, or what `fault(number of the launch, set)` says instead."""

    name, resolution_s, unchecked, sees_more = "simulated", 1e-8, "", False

    def __init__(
        self,
        sets: int = 8,
        fault: Callable[[int, int], float | None] = lambda _launch, _set: 1.0,
        can_stop: bool = True,
    ) -> None:
        self.sets, self.fault, self.can_stop = sets, fault, can_stop
        self.outputs: list[float] = [math.nan] * sets
        self.launched = 0
        self.now_s = 0.0
        self.noise = random.Random(0)

    def clock(self) -> float:
        return self.now_s

    def untimed(self, index: int) -> None:
        self.launch(index)

    def launch(self, index: int) -> None:
        self.now_s += LAUNCH_S * self.noise.uniform(0.9, 1.1)
        self.launched += 1
        written = self.fault(self.launched, index % self.sets)
        if written is not None:
            self.outputs[index % self.sets] = written

    def poison(self, index: int | None = None) -> None:
        for each in range(self.sets) if index is None else (index % self.sets,):
            self.outputs[each] = math.nan

    def snapshot(self, index: int) -> float:
        return self.outputs[index % self.sets]

    def matches(self, index: int, snapshot: float) -> bool:
        self.now_s += CHECK_S
        return self.outputs[index % self.sets] == snapshot

    def verify_last(self, index: int) -> Verification:
        passed = abs(self.outputs[index % self.sets] - 1) < 0.01
        return Verification(passed, "full", 0.0, 0.0, 0.0, (), "right" if passed else "wrong")

    def time(self, launch: Callable[[int], Any], first: int, samples: int, launches_per_sample: int) -> list[float]:
        seconds = []
        for sample in range(samples):
            begin_s = self.now_s
            for launched in range(launches_per_sample):
                launch(first + sample * launches_per_sample + launched)
            seconds.append(self.now_s - begin_s)
        return seconds

    def check(self) -> Verification:
        return self.verify_last(0)

    def measured(self, checks: SetChecks) -> None:
        """One trial of the standard profile. Raises WrongLaunch."""
        measure(self.launch, checks.checking(self, self.can_stop), *STANDARD, clock=self.clock)
        checks.after_timing()


@pytest.fixture(autouse=True)
def chance(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """A seeded one, in the place of the system's."""
    drawn = random.Random(0)
    monkeypatch.setattr(module, "secrets", SimpleNamespace(randbelow=drawn.randrange, SystemRandom=lambda: drawn))
    return drawn


def checks_of(launches: Simulated) -> SetChecks:
    checks = SetChecks(launches)
    checks.clock = launches.clock
    return checks


def visited(launches: Simulated) -> SetChecks:
    """The checks of a trial that was found right."""
    checks = checks_of(launches)
    assert checks.before_timing().passed
    launches.measured(checks)
    return checks


def is_caught(fault: Callable[[int, int], float | None], processes: int = 3, can_stop: bool = True) -> bool:
    """True if a run sees the fault, in any of its processes."""
    for _ in range(processes):
        launches = Simulated(fault=fault, can_stop=can_stop)
        checks = checks_of(launches)
        try:
            checks.before_timing()
            launches.measured(checks)
        except WrongLaunch:
            return True
    return False


def one_in(count: int, seed: int) -> Callable[[int, int], float]:
    chance = random.Random(seed)
    return lambda _launch, _set: 2.0 if chance.random() < 1 / count else 1.0


@pytest.mark.parametrize("can_stop", [True, False], ids=["host", "device"])
@pytest.mark.parametrize(("count", "fewest"), [(10, 40), (100, 40), (1000, 38)])
def test_one_wrong_launch_in_so_many_is_caught_in_so_many_of_forty_runs(count, fewest, can_stop):
    assert sum(is_caught(one_in(count, seed), can_stop=can_stop) for seed in range(40)) >= fewest


def test_a_kernel_that_is_wrong_at_regular_intervals_is_caught():
    caught = sum(is_caught(lambda launch, _set: 2.0 if launch % 100 == 99 else 1.0) for _ in range(20))
    assert caught == 20


@pytest.mark.parametrize("wrong", range(8))
def test_a_set_on_which_launches_are_always_wrong_is_seen_before_timing(wrong):
    launches = Simulated(fault=lambda _launch, at: 2.0 if at == wrong else 1.0)
    with pytest.raises(WrongLaunch) as found:
        SetChecks(launches).before_timing()
    assert str(found.value) == ("wrong" if wrong == 0 else f"operand set {wrong}: wrong")


def test_a_kernel_that_stops_writing_is_caught():
    # A result left in its place is right again and again, unless it is poisoned in between.
    assert all(is_caught(lambda launch, _set: 1.0 if launch < 2000 else None, 1) for _ in range(10))


def test_right_launches_pass_and_cost_less_than_a_tenth():
    unchecked, launches = Simulated(), Simulated()
    measure(unchecked.launch, unchecked, *STANDARD, clock=unchecked.clock)
    checks = visited(launches)
    assert launches.now_s < 1.1 * unchecked.now_s
    assert checks.checked > 1000
    assert checks.bitwise


def test_a_kernel_that_sums_in_no_fixed_order_is_held_to_its_limits():
    noise = random.Random(1)
    checks = visited(Simulated(fault=lambda _launch, _set: 1.0 + noise.uniform(-1e-3, 1e-3)))
    assert not checks.bitwise
    assert is_caught(lambda launch, _set: 1.0 + noise.uniform(-1e-3, 1e-3) + (launch % 50 == 49))


def test_a_launch_longer_than_can_be_afforded_twice_is_still_checked_once_after_timing(monkeypatch):
    monkeypatch.setattr(module, "CHECKING_SHARE", 0.0)
    launches = Simulated(sets=1, fault=lambda launch, _set: 1.0 if launch < 2 else 2.0)
    checks = checks_of(launches)
    assert checks.before_timing().passed
    with pytest.raises(WrongLaunch):
        launches.measured(checks)


def test_checks_after_timing_go_on_for_twenty_milliseconds():
    launches = Simulated()
    launches.now_s, launches.noise = 1000.0, SimpleNamespace(uniform=lambda *_: 1.0)
    checks = checks_of(launches)
    checks.before_timing()
    checks.after_timing()
    # A launch and its check take 33 us, 606 of them 19.998 ms; before timing each of eight sets was checked.
    assert checks.checked == 8 + 606


def test_of_a_part_the_last_launch_is_looked_at_and_the_later_half_of_a_rotation(monkeypatch):
    launches, checked, poisoned = Simulated(7), [], []
    checks = checks_of(launches)
    checks.before_timing()
    monkeypatch.setattr(launches, "matches", lambda index, right: checked.append(index) or True)
    monkeypatch.setattr(launches, "poison", poisoned.append)
    launches.now_s += 1.0
    # Launches 16 to 19 wrote sets 2 to 5.
    checks.looked_at(lambda *_: [], 0, 20, 1)
    assert (checked[0], sorted(checked), poisoned) == (5, [2, 3, 4, 5], [5])
    # A set that comes after two launches would be found in the cache.
    checked.clear()
    checks.looked_at(lambda *_: [], 20, 2, 1)
    assert (checked, poisoned) == ([0, 6], [5])
    assert checks.checked == 7 + 6


@pytest.mark.parametrize(("sets", "shortest", "longest"), [(1, 4, 12), (8, 4, 12), (21, 10, 31)])
def test_stops_are_half_a_rotation_to_one_and_a_half_apart_and_of_few_sets_eight_launches_on_average(
    sets, shortest, longest
):
    checks = SetChecks(Simulated(sets))
    for looks in (True, False):
        assert {checks.samples_of_part(1000, 1, looks) for _ in range(1000)} == set(range(shortest, longest + 1))
    assert {checks.samples_of_part(1000, 100, True) for _ in range(9)} == {1}
    checks.checking(Simulated(sets), can_stop=False)
    assert checks.samples_of_part(1000, 1, True) == 1000


def test_the_bound_says_which_rate_so_many_right_launches_exclude():
    assert excluded_rate(0) == 1
    assert (1 - excluded_rate(2995)) ** 2995 == pytest.approx(0.05)
    assert excluded_rate(2995) == pytest.approx(1 / 1000, rel=1e-3)
    report = visited(Simulated()).report()
    assert report["launches_checked"] / 3.1 < report["excludes_errors_in_one_of"] < report["launches_checked"] / 2.9
    assert report["sets"] == 8
