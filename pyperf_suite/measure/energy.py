"""What launches cost in energy: a device's counter, how finely it counts, and joules of a stretch of launches.

A counter is read at the edges of a stretch that lasts many of its steps, never around a single launch: NVIDIA's counts
every 20 to 100 ms, RAPL about every millisecond. Energy is of the whole board or package, idle parts included.
"""

from __future__ import annotations

import functools
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
# Whose energy programs cause; "psys" and the zones of "intel-rapl-mmio" count the same once more.
ZONES, NAMES = "intel-rapl:*", ("package", "dram")
MICROJOULE = 1e-6
# Steps of a counter that its own are measured over, and that a stretch lasts at least.
STEPS_WATCHED, STEPS_OF_A_STRETCH = 5, 10
LONGEST_WATCH_S = 1.0
SHORTEST_STRETCH_S, BLOCK_S = 0.1, 0.02
SLICE = "a MIG slice's energy is not counted apart from the other slices'"


class EnergyCounter(Protocol):
    """Joules since some start, which never fall."""

    name: str

    def joules(self) -> float: ...


class GpuEnergy:
    """NVML's counter of the whole board, by `hardware.nvml.Nvml` and the GPU's UUID."""

    name = "NVML total energy"

    def __init__(self, manager: Any, uuid: str) -> None:
        """Raises Unavailable where the GPU has no such counter, as before Volta, or it is not the GPU's own."""
        self._manager, self._uuid = manager, uuid
        if uuid.startswith("MIG-"):
            raise Unavailable(SLICE)
        if manager.energy_j(uuid) is None:
            raise Unavailable("this GPU or its driver has no energy counter (NVIDIA has one since Volta)")

    def joules(self) -> float:
        found = self._manager.energy_j(self._uuid)
        if found is None:
            raise Unavailable("the GPU's energy counter no longer answers")
        return float(found)


class PackageEnergy:
    """RAPL's counters of all packages and their memory, through the powercap class of the kernel."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        """Raises Unavailable, with what could be done, where there is none or it may not be read."""
        zones = {zone: _text(zone / "name") for zone in sorted(folder.glob(ZONES))}
        self._zones = [zone for zone, name in zones.items() if name.startswith(NAMES)]
        if not self._zones:
            raise Unavailable(f"this machine shows no energy counter in {folder}, as most virtual machines")
        self.name = f"RAPL {', '.join(zones[zone] for zone in self._zones)}"
        self._ranges = [int(_text(zone / "max_energy_range_uj") or 0) for zone in self._zones]
        self._last, self._total = self._read(), 0

    def joules(self) -> float:
        now = self._read()
        # A counter starts again from 0 at the end of its range, every few minutes.
        for new, old, span in zip(now, self._last, self._ranges, strict=True):
            self._total += new - old + (span if new < old else 0)
        self._last = now
        return self._total * MICROJOULE

    def _read(self) -> list[int]:
        try:
            return [int((zone / "energy_uj").read_text()) for zone in self._zones]
        except PermissionError:
            raise Unavailable(
                f"only root may read {self._zones[0]}/energy_uj: `sudo chmod a+r {POWERCAP}/{ZONES}/energy_uj` allows "
                "it until the next start, to every user of the machine"
            ) from None
        except (OSError, ValueError) as error:
            raise Unavailable(f"{self._zones[0]}/energy_uj cannot be read ({error})") from None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(frozen=True)
class EnergySteps:
    """How a counter counts: seconds between its changes, and joules of the smallest."""

    seconds: float
    joules: float


def steps_of(counter: EnergyCounter, clock: Callable[[], float] = time.perf_counter) -> EnergySteps:
    """Watch some changes. Raises Unavailable for a counter that stands still."""
    begin = last_s = clock()
    seconds: list[float] = []
    joules: list[float] = []
    last = counter.joules()
    while len(seconds) <= STEPS_WATCHED:
        now, at_s = counter.joules(), clock()
        if now != last:
            seconds.append(at_s - last_s)
            joules.append(now - last)
            last, last_s = now, at_s
        elif at_s - begin > LONGEST_WATCH_S:
            break
    if len(seconds) < 2:
        raise Unavailable(f"the counter ({counter.name}) did not change twice within {LONGEST_WATCH_S:g} s")
    # The first is cut by when the watch began.
    return EnergySteps(statistics.median(seconds[1:]), min(joules[1:]))


@dataclass(frozen=True)
class EnergyMeter:
    """A counter and its steps."""

    counter: EnergyCounter
    steps: EnergySteps

    def of_launches(
        self,
        launch: Launch,
        stopwatch: Stopwatch,
        first: int,
        batch: int,
        sample_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> MeteredLaunches:
        """Launch from index `first` on, in samples of `batch` launches that take `sample_s` each.

        Begins and ends when the counter has just changed, so that what it is behind is at most a block of samples.
        """
        samples = max(1, int(min(BLOCK_S, self.steps.seconds / 2) / max(sample_s, 1e-9)))
        wanted_s = max(SHORTEST_STRETCH_S, STEPS_OF_A_STRETCH * self.steps.seconds)
        begin_j, begin_s = self._after_change(clock)
        launches, longest_s, before_j = 0, 0.0, begin_j
        while True:
            block_s = clock()
            stopwatch.time(launch, first + launches, samples, batch)
            launches += samples * batch
            now_j, now_s = self.counter.joules(), clock()
            longest_s = max(longest_s, now_s - block_s)
            late = now_s - begin_s > wanted_s + 2 * self.steps.seconds + longest_s
            if now_s - begin_s >= wanted_s and (now_j != before_j or late):
                break
            before_j = now_j
        spent_s = now_s - begin_s
        behind = min(longest_s, self.steps.seconds) / spent_s
        return MeteredLaunches(now_j - begin_j, spent_s, launches, behind)

    def _after_change(self, clock: Callable[[], float]) -> tuple[float, float]:
        first, begin = self.counter.joules(), clock()
        while True:
            now, at_s = self.counter.joules(), clock()
            if now != first or at_s - begin > 2 * self.steps.seconds:
                return now, at_s


@dataclass(frozen=True)
class MeteredLaunches:
    """Joules and seconds of so many launches; `error` is the share by which the counter may be behind."""

    joules: float
    seconds: float
    launches: int
    error: float

    @property
    def each_j(self) -> float:
        return self.joules / self.launches

    @property
    def power_w(self) -> float:
        return self.joules / self.seconds


def counter_of(device: Device) -> EnergyCounter:
    """The device's own. Raises Unavailable with the reason where there is none to be read."""
    if device.kind == "cpu":
        return PackageEnergy()
    manager = nvml()
    if isinstance(manager, Unavailable):
        raise Unavailable(f"NVIDIA's management library does not answer ({manager})")
    return GpuEnergy(manager, gpus()[device.index].uuid)


@functools.cache
def energy_meter(device: Device) -> EnergyMeter | Unavailable:
    """The device's counter with its steps, or why there is none; watched once in a process."""
    try:
        counter = counter_of(device)
        return EnergyMeter(counter, steps_of(counter))
    except Unavailable as reason:
        return reason
