"""A stopwatch that replays given samples and keeps its own time: the sampling loop becomes deterministic."""

from collections.abc import Callable

import pytest


class ReplayStopwatch:
    """Launch i takes `seconds_of(i)`, and a sample `resolution_s` more; `now` is the sum of all that."""

    name = "replay"

    def __init__(self, seconds_of: Callable[[int], float], resolution_s: float = 0.0) -> None:
        self.seconds_of = seconds_of
        self.resolution_s = resolution_s
        self.now = 0.0
        self.calls: list[tuple[int, int, int]] = []

    def clock(self) -> float:
        return self.now

    def time(self, launch: Callable[[int], object], first: int, samples: int, launches_per_sample: int) -> list[float]:
        self.calls.append((first, samples, launches_per_sample))
        block = []
        for sample in range(samples):
            begin = first + sample * launches_per_sample
            for index in range(begin, begin + launches_per_sample):
                launch(index)
            seconds = sum(self.seconds_of(index) for index in range(begin, begin + launches_per_sample))
            block.append(seconds + self.resolution_s)
        self.now += sum(block)
        return block


@pytest.fixture
def replay() -> type[ReplayStopwatch]:
    return ReplayStopwatch
