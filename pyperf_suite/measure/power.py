"""Power of a GPU around launches: slices with pauses that keep a burst below its cap, and loads that settle at it.

A kernel that draws more power runs at a lower clock once the chip is at its power cap, as in training. That is a fact
of its own, measured by a load without pauses until its clock no longer changes. A burst is kept from it by pauses.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import numpy as np

from pyperf_suite.hardware.nvml import Nvml
from pyperf_suite.measure.stopwatch import Launch, Stopwatch
from pyperf_suite.record.clock_model import reference_clock_hz

Joules = Callable[[], "float | None"]


class Meter:
    """Joules that a GPU has used: by its counter, else power readings times the seconds since the one before."""

    def __init__(self, manager: Nvml, uuid: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager, self._uuid, self._clock = manager, uuid, clock
        self._sampled_j, self._at_s = 0.0, clock()
        self.source = ""

    def __call__(self) -> float | None:
        """Joules since some start; None if the GPU reports neither energy nor power."""
        counted_j = self._manager.energy_j(self._uuid)
        power_w = self._manager.readings(self._uuid).get("power_w") if counted_j is None else None
        self.source = "" if counted_j is None and power_w is None else "samples" if counted_j is None else "counter"
        if power_w is not None:
            now_s = self._clock()
            self._sampled_j += power_w * (now_s - self._at_s)
            self._at_s = now_s
            return self._sampled_j
        return counted_j


# A pause ends when the mean power over WINDOW_S is at most this share of the cap. It lasts 0.1 s at most, and all
# pauses of a case no longer than its slices. Energy counters of GPUs move in steps: less than 0.1 s says nothing.
WINDOW_S, SHORTEST_WINDOW_S, SHARE_OF_CAP = 0.5, 0.1, 0.95
LONGEST_PAUSE_S, PAUSE_SHARE, STEP_S = 0.1, 1.0, 5e-3


class GpuSlices:
    """`with slices: ...` around each slice of samples keeps when it began, and power and temperature as it ended.

    `pause` follows a slice. Cases that take turns share the GPU's power, so the mean is over slices of all of them.
    Where power or its limit cannot be read there are no pauses.
    """

    reasons = ("",)  # no slice of a GPU is measured again for what else the machine did
    _shared: ClassVar[dict[str, tuple[Meter, deque[tuple[float, float]]]]] = {}

    def __init__(
        self,
        manager: Nvml,
        uuid: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._manager, self._uuid, self.clock, self._sleep = manager, uuid, clock, sleep
        self.joules, self._readings = self._shared.setdefault(uuid, (Meter(manager, uuid, clock), deque()))
        limits = manager.settings(uuid)
        self._limit_w, highest_mhz = ((limits.get(n) or 0) for n in ("power_limit_w", "maximum_sm_clock_mhz"))
        self._reference_hz = reference_clock_hz(1e6 * highest_mhz) if highest_mhz else math.inf
        self._states: list[tuple[float, float | None, float | None]] = []
        self._worked_s = self.paused_s = 0.0

    def __enter__(self) -> GpuSlices:
        self._began_s = self.clock()
        return self

    def __exit__(self, *_: object) -> None:
        self._worked_s += self.clock() - self._began_s
        now = self._manager.readings(self._uuid)
        self._states.append((self._began_s, now.get("power_w"), now.get("temperature_celsius")))

    def pause(self, clock_hz: float = math.nan) -> None:
        """Wait until the mean power of the last WINDOW_S, this pause included, is below the cap; bounded.

        `clock_hz` is that of the slice. Above the reference clock there is no pause, which would make the time at that
        clock less certain: with pauses after each slice a fake GPU kept its highest clock, and no elasticity was known.
        """
        readings, joules = self._readings, self.joules()
        if not self._limit_w or joules is None:
            return
        begin_s = now_s = self.clock()
        while readings and readings[0][0] < begin_s - WINDOW_S:
            readings.popleft()
        left_s = PAUSE_SHARE * self._worked_s - self.paused_s
        until_s = begin_s + (0.0 if clock_hz >= self._reference_hz else min(LONGEST_PAUSE_S, left_s))
        while readings and now_s < until_s and now_s - readings[0][0] >= SHORTEST_WINDOW_S:
            if joules - readings[0][1] <= SHARE_OF_CAP * self._limit_w * (now_s - readings[0][0]):
                break
            self._sleep(STEP_S)
            now_s, joules = self.clock(), self.joules() or joules
        self.paused_s += now_s - begin_s
        readings.append((now_s, joules))

    def report(self) -> dict[str, Any]:
        """For a record: seconds since the first slice began, W and degrees Celsius of each slice, and all pauses."""
        starts, watts, celsius = map(list, zip(*self._states, strict=True)) if self._states else ([], [], [])
        columns = {"start_s": [round(each - starts[0], 4) for each in starts], "power_w": watts, "celsius": celsius}
        kept: dict[str, Any] = {name: each for name, each in columns.items() if None not in each}
        return kept | {"paused_s": round(self.paused_s, 4)}


@dataclass(frozen=True)
class SettleRule:
    """A load has settled once its clock changes by less than `change` over the last `window_s`.

    It lasts `min_time_s` at least; at `time_cap_s` it counts as not settled. A block between two looks lasts `block_s`.
    """

    change: float = 0.005
    window_s: float = 2.0
    min_time_s: float = 10.0
    time_cap_s: float = 30.0
    block_s: float = 0.1


FEWEST_BLOCKS, MOST_SAMPLES = 4, 1000


@dataclass(frozen=True)
class Settled:
    """A load of `launches` launches in `seconds`, and the relative `change` of its clock over its last window.

    `busy` is the share of that window in which launches ran; `since` the clock's seconds and the joules at its begin.
    """

    is_settled: bool
    launches: int
    seconds: float
    change: float
    busy: float
    since: tuple[float, float | None]

    def watts(self, joules: float | None, now_s: float) -> float | None:
        """Mean power from the begin of the window until now; None where it was not read."""
        begin_s, begin_j = self.since
        return None if joules is None or begin_j is None or now_s <= begin_s else (joules - begin_j) / (now_s - begin_s)

    def report(self) -> dict[str, Any]:
        return {"settled": self.is_settled, "seconds": self.seconds, "change": self.change, "busy": self.busy}


def settle(
    launch: Launch,
    stopwatch: Stopwatch,
    first: int,
    batch: int,
    launch_s: float,
    joules: Joules = lambda: None,
    rule: SettleRule | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Settled:
    """Launch back to back from index `first` on, `batch` launches of `launch_s` a sample, until the clock settles.

    Where no clock can be read, the speed of the launches stands for it. Raises whatever `launch` raises.
    """
    rule = rule or SettleRule()
    if hasattr(stopwatch, "follow_on"):
        stopwatch.follow_on()
    read_hz = getattr(stopwatch, "clocks_hz", lambda _: ())
    begin_s, launches = clock(), 0
    blocks: deque[tuple[float, float, float, float | None]] = deque()  # when it ended, speed, busy seconds, joules
    count = min(MOST_SAMPLES, max(1, int(rule.block_s / max(launch_s * batch, 1e-9))))
    while True:
        seconds = stopwatch.time(launch, first + launches, count, batch)
        launches += count * batch
        clocks = [hz for hz in read_hz(count) if math.isfinite(hz) and hz > 0]
        speed = median(clocks) if clocks else 1 / max(median(seconds), 1e-9)
        blocks.append((now_s := clock(), math.log(speed), math.fsum(seconds), joules()))
        while len(blocks) > FEWEST_BLOCKS and blocks[1][0] <= now_s - rule.window_s:
            blocks.popleft()
        if now_s - begin_s < rule.min_time_s or len(blocks) < FEWEST_BLOCKS:
            continue
        times, speeds = (np.array([block[column] for block in blocks]) for column in (0, 1))
        change = rule.window_s * float(np.polyfit(times - times[0], speeds, 1)[0])
        is_settled = abs(change) < rule.change
        if is_settled or now_s - begin_s >= rule.time_cap_s:
            busy = math.fsum(block[2] for block in list(blocks)[1:]) / float(times[-1] - times[0])
            since = blocks[0][0], blocks[0][3]
            return Settled(is_settled, launches, now_s - begin_s, change, min(1.0, busy), since)
