"""What launches cost in energy: a device's counter, how finely it counts, and joules of a stretch of launches.

A counter is read at the ends of a stretch that lasts many of its steps, never around a launch: NVIDIA's counts every 20
to 100 ms, RAPL about every millisecond. Energy is of the whole board or package, what idles in it included.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyperf_suite.hardware.devices import Device, Unavailable, gpus
from pyperf_suite.hardware.nvml import nvml
from pyperf_suite.measure.stopwatch import Launch, Stopwatch

POWERCAP = Path("/sys/class/powercap")
# What programs cause; "psys" and the zones of "intel-rapl-mmio" count the same once more.
ZONES, ZONE_NAMES = "intel-rapl:*", ("package", "dram")
STEPS_WATCHED, LONGEST_WATCH_S = 5, 1.0
STEPS_OF_A_STRETCH, SHORTEST_STRETCH_S, BLOCK_S = 10, 0.1, 0.02


class EnergyCounter(Protocol):
    """Joules since some start, which never fall."""

    name: str

    def joules(self) -> float: ...


class GpuEnergy:
    """NVML's counter of the whole board. Raises Unavailable where there is none, or it is not this slice's alone."""

    name = "NVML total energy"

    def __init__(self, manager: Any, uuid: str) -> None:
        self._manager, self._uuid = manager, uuid
        if uuid.startswith("MIG-"):
            raise Unavailable("a MIG slice's energy is not counted apart from the other slices'")
        self.joules()

    def joules(self) -> float:
        found = self._manager.energy_j(self._uuid)
        if found is None:
            raise Unavailable("this GPU or its driver has no energy counter (NVIDIA has one since Volta)")
        return float(found)


class PackageEnergy:
    """RAPL's counters of all packages and their memory. Raises Unavailable, with what can be done, without any."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        names = {zone: _text(zone / "name") for zone in sorted(folder.glob(ZONES))}
        self._zones = [zone for zone, name in names.items() if name.startswith(ZONE_NAMES)]
        if not self._zones:
            raise Unavailable(f"this machine shows no energy counter in {folder}, as most virtual machines")
        self.name = f"RAPL {', '.join(names[zone] for zone in self._zones)}"
        self._ranges = [int(_text(zone / "max_energy_range_uj") or 0) for zone in self._zones]
        self._last, self._total = self._read(), 0

    def joules(self) -> float:
        now = self._read()
        # A counter starts again from 0 at the end of its range, every few minutes.
        for new, old, span in zip(now, self._last, self._ranges, strict=True):
            self._total += new - old + (span if new < old else 0)
        self._last = now
        return self._total * 1e-6

    def _read(self) -> list[int]:
        try:
            return [int((zone / "energy_uj").read_text()) for zone in self._zones]
        except PermissionError:
            every = POWERCAP / ZONES / "energy_uj"
            why = f"only root may read {self._zones[0]}/energy_uj; `sudo chmod a+r {every}` lets all until a restart"
            raise Unavailable(why) from None
        except (OSError, ValueError) as error:
            raise Unavailable(f"{self._zones[0]}/energy_uj cannot be read ({error})") from None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def step_of(counter: EnergyCounter, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds between changes of a counter. Raises Unavailable for one that stands still."""
    begin = clock()
    last, changes = counter.joules(), list[float]()
    while len(changes) <= STEPS_WATCHED and clock() - begin < LONGEST_WATCH_S:
        now = counter.joules()
        if now != last:
            changes.append(clock())
            last = now
    if len(changes) < 2:
        raise Unavailable(f"the counter ({counter.name}) did not change twice within {LONGEST_WATCH_S:g} s")
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(changes))


@dataclass(frozen=True)
class MeteredLaunches:
    """Joules and seconds of so many launches.

    `busy` is the share of the time that the stopwatch saw, `error` the share by which the counter may be behind.
    """

    joules: float
    seconds: float
    launches: int
    busy: float
    error: float


@dataclass(frozen=True)
class EnergyMeter:
    """A counter and the seconds between its changes."""

    counter: EnergyCounter
    step_s: float

    def of_launches(
        self, launch: Launch, watch: Stopwatch, first: int, batch: int, sample_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> MeteredLaunches:  # fmt: skip
        """Launch from index `first` on, in samples of `batch` launches that take `sample_s` each.

        Begins and ends when the counter has just changed, so that it is behind by a block of samples at most.
        """
        samples = max(1, int(min(BLOCK_S, self.step_s / 2) / max(sample_s, 1e-9)))
        wanted_s = max(SHORTEST_STRETCH_S, STEPS_OF_A_STRETCH * self.step_s)
        waiting_s, idle_j = clock(), self.counter.joules()
        while (begin_j := self.counter.joules()) == idle_j and clock() - waiting_s < 2 * self.step_s:
            pass
        begin_s, launches, timed_s, longest_s, now_j = clock(), 0, 0.0, 0.0, begin_j
        while True:
            before_s, before_j = clock(), now_j
            timed_s += sum(watch.time(launch, first + launches, samples, batch))
            launches += samples * batch
            now_j, spent_s = self.counter.joules(), clock() - begin_s
            longest_s = max(longest_s, clock() - before_s)
            late = spent_s > wanted_s + 2 * self.step_s + longest_s
            if spent_s >= wanted_s and (now_j != before_j or late):
                error = min(longest_s, self.step_s) / spent_s
                return MeteredLaunches(now_j - begin_j, spent_s, launches, timed_s / spent_s, error)


@functools.cache
def energy_meter(device: Device) -> EnergyMeter | Unavailable:
    """The device's counter, watched once in a process, or why there is none."""
    manager = nvml() if device.kind == "cuda" else None
    if isinstance(manager, Unavailable):
        return manager
    try:
        counter = GpuEnergy(manager, gpus()[device.index].uuid) if manager else PackageEnergy()
        return EnergyMeter(counter, step_of(counter))
    except Unavailable as reason:
        return reason
