"""A GPU whose clock follows the energy of the last 200 ms, as one under a power cap has it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

REFERENCE_HZ, HIGHEST_HZ, LOWEST_HZ = 1.5e9, 1.98e9, 1.2e9
CAP_W, IDLE_W, MEMORY_S = 700.0, 120.0, 0.2
# Dynamic power grows with clock times voltage squared, which grows with the clock.
POWER_EXPONENT = 2.5
# Relative standard deviations of a slice and of a sample at a fixed clock, as the committed runs of an H200 have them.
SLICE_NOISE, SAMPLE_NOISE = 0.003, 0.002


@dataclass(frozen=True)
class Kernel:
    """Seconds and watts of a launch at the reference clock, and the elasticity of its time."""

    seconds: float
    watts: float = 800.0
    elasticity: float = 0.95


class FakeGpu:
    """Runs kernels, in its own time; the clock is that at which the mean power of the last 200 ms meets the cap."""

    def __init__(self, seed: int) -> None:
        self.draw, self.mean_w, self.clock_hz = random.Random(seed), IDLE_W, HIGHEST_HZ
        self.now_s = self.used_j = 0.0
        self.watts = IDLE_W
        self.has_counter = True

    def pass_s(self, seconds: float, watts: float) -> None:
        self.now_s += seconds
        self.used_j += seconds * watts
        self.watts = watts
        share = min(1.0, seconds / MEMORY_S)
        self.mean_w += share * (watts - self.mean_w)
        wanted_hz = self.clock_hz * (CAP_W / self.mean_w) ** (1 / POWER_EXPONENT)
        self.clock_hz += share * (min(HIGHEST_HZ, max(LOWEST_HZ, wanted_hz)) - self.clock_hz)

    def launch(self, kernel: Kernel, noise: float = 0.0) -> tuple[float, float]:
        """Seconds of a launch and the clock it had."""
        hz = self.clock_hz
        exact_s = kernel.seconds * (REFERENCE_HZ / hz) ** kernel.elasticity
        self.pass_s(exact_s, kernel.watts * (hz / REFERENCE_HZ) ** POWER_EXPONENT)
        return exact_s * (1 + noise + self.draw.gauss(0, SAMPLE_NOISE)), hz

    def clock(self) -> float:
        return self.now_s

    def rest(self, seconds: float) -> None:
        self.pass_s(seconds, IDLE_W)

    def readings(self, uuid: str) -> dict[str, float]:
        return {"power_w": self.watts, "temperature_celsius": 50}

    def settings(self, uuid: str) -> dict[str, float]:
        return {"power_limit_w": CAP_W, "maximum_sm_clock_mhz": HIGHEST_HZ / 1e6}

    def energy_j(self, uuid: str) -> float | None:
        return self.used_j if self.has_counter else None

    def settled(self, kernel: Kernel, seconds: float = 5.0) -> tuple[float, float]:
        """The same after launches back to back for so long."""
        spent_s = 0.0
        while spent_s < seconds:
            spent_s += self.launch(kernel)[0]
        return self.launch(kernel)

    def slices(self, kernels: Sequence[Kernel], rounds: int, samples: int = 8) -> list[list[list[tuple[float, float]]]]:
        """For each kernel its slices of (seconds, Hz), all kernels in random order in each round, with pauses."""
        samples_of_kernels: list[list[list[tuple[float, float]]]] = [[] for _ in kernels]
        for _ in range(rounds):
            for number in self.draw.sample(range(len(kernels)), len(kernels)):
                self.pass_s(self.draw.uniform(0.0, 0.1), IDLE_W)
                noise = self.draw.gauss(0, SLICE_NOISE)
                for _ in range(20):  # warm-up, which nobody times
                    self.launch(kernels[number])
                samples_of_kernels[number].append([self.launch(kernels[number], noise) for _ in range(samples)])
        return samples_of_kernels


class FakeGpuStopwatch:
    """Times a kernel on a fake GPU; a launch starts nothing, for the stopwatch knows what is launched."""

    name, resolution_s = "fake", 0.0

    def __init__(self, gpu: FakeGpu, kernel: Kernel) -> None:
        self._gpu, self._kernel, self._clocks_hz = gpu, kernel, [0.0]
        self.calls: list[tuple[float, int]] = []

    def time(self, launch: object, first: int, samples: int, launches_per_sample: int) -> list[float]:
        self.calls.append((self._gpu.now_s, first))
        seconds = []
        for _ in range(samples):
            launched = [self._gpu.launch(self._kernel) for _ in range(launches_per_sample)]
            seconds.append(sum(each for each, _ in launched))
            self._clocks_hz.append(launched[-1][1])
        return seconds

    def clocks_hz(self, samples: int) -> list[float]:
        return self._clocks_hz[-samples:]


class FakeDevice:
    """A device for a CudaStopwatch: each launch runs a kernel on a fake GPU; a pair of events takes 1 us."""

    stream, queue_limit, launches_queued = 0, 512, 0

    def __init__(self, gpu: FakeGpu, kernel: Kernel) -> None:
        self.gpu, self.kernel, self.queueing = gpu, kernel, set[str]()

    def time(
        self, launch: Callable[[int], object], first: int, samples: int, launches_per_sample: int, **how: Any
    ) -> list[tuple[float, float]]:
        self.queueing.add(how["queueing"])
        timed = []
        for sample in range(samples):
            seconds, hz = 1e-6 - how["empty_s"], math.nan
            for offset in range(launches_per_sample):
                launch(first + sample * launches_per_sample + offset)
                lasted, hz = self.gpu.launch(self.kernel)
                seconds += lasted
            timed.append((seconds, hz))
        return timed

    def operations_of(self, launch: object, index: int) -> int:
        return 1

    def synchronize(self) -> None:
        pass
